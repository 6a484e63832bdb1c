#!/usr/bin/env python3
"""Refuses PTX whose floating-point results could differ from the CPU's or from run to run.

usage: check_ptx.py FILE|FOLDER...
Reads the files, and every *.ptx below the folders (nvcc --keep writes them). Allowed on floating-point types are
IEEE operations with their rounding in the name, so that ptxas cannot contract a product and a sum
(fma only where the source says fma), comparisons, moves and conversions. Refused is all else:
approximations, flushing of subnormals, atomics, matrix operations, and what this list does not know.
"""
import collections
import pathlib
import re
import sys

FLOAT = re.compile(r"\.(?:e\dm\d(?:x2)?|tf32|b?f16(?:x2)?|f32(?:x2)?|f64)\b")
ALLOWED = re.compile(
    r"(?:fma|add|sub|mul|div|rcp|sqrt)\.r[nzmp]\.(?:f32|f64)"
    r"|(?:min|max|neg|abs|copysign|testp|setp|set|selp|slct|mov|ld|st|cvt)(?:\.[\w:]+)*")
REFUSED_PART = re.compile(r"\.(?:approx|full|ftz|relu|satfinite|sat)\b")
INSTRUCTION = re.compile(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)")
ENTRY = re.compile(r"\s*(?:\.visible |\.weak )?\.(?:entry|func)\b.*?(\w+)\s*\(?$")


def findings_in(path):
    """Yields (line number, function, instruction) of what is refused; counts the rest."""
    function = "?"
    with open(path, encoding="utf-8") as ptx:
        for number, line in enumerate(ptx, 1):
            entry = ENTRY.match(line)
            if entry:
                function = entry.group(1)
            instruction = INSTRUCTION.match(line)
            if not instruction or not FLOAT.search(instruction.group(1)):
                continue
            name = instruction.group(1)
            if REFUSED_PART.search(name) or not ALLOWED.fullmatch(name):
                yield number, function, name
            else:
                looked_at[name.split(".")[0]] += 1


looked_at = collections.Counter()
paths = [pathlib.Path(path) for path in sys.argv[1:]]
files = sorted(file for path in paths
               for file in (path.rglob("*.ptx") if path.is_dir() else [path]))
if not files:
    sys.exit(f"check_ptx: no *.ptx below {' '.join(sys.argv[1:]) or '(no folder given)'}")
failed = False
for file in files:
    for line_number, where, what in findings_in(file):
        print(f"{file}:{line_number}: {what} in {where}")
        failed = True
if failed:
    sys.exit("check_ptx: instructions that are not exact, see above")
if not looked_at["fma"]:
    sys.exit(f"check_ptx: no floating-point instruction in {len(files)} files: is this the right folder?")
print(f"check_ptx: {len(files)} files, {sum(looked_at.values())} floating-point instructions, all exact")
