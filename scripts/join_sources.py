#!/usr/bin/env python3
"""Finds sources that can be compiled in one unit, so that the standard headers, on which tools
spend most of their time, are read once for all of them: no two have a file-local name in common.

usage: join_sources.py groups MOST FILE...
Prints one line a group of at most MOST files (ASSAY_JOIN_SOURCES in cmake/AssayTargets.cmake).

usage: join_sources.py units MOST COMPILE_COMMANDS OUT_DIR FILE...
Writes OUT_DIR/unit-NN.cpp, which include files of equal flags, and OUT_DIR/compile_commands.json
for them. Prints one line a unit: the file to check, then its sources (scripts/tidy.sh). Sources
that no target compiles (the other device backend) are left out.
"""
import json
import os
import re
import shlex
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("convert", "runtime", "calibrate", "quantizer", "verify")
KEYWORDS = {"assay", "const", "constexpr", "final", "std", "static"}


def names_in(code):
    """Names that a line at namespace scope declares, in the layout that clang-format gives. A name
    too many only makes another group."""
    if code[0] in " }/#\n" or (code.startswith("using ") and "=" not in code):
        return set()
    code = code.split("//")[0]
    names = set(re.findall(r"\b([A-Za-z_]\w*)\s*(?:[({=;\[]|:(?!:))", code))
    names.update(re.findall(r"\b(?:struct|class|enum|using) (\w+)", code))
    return {name for name in names if name not in KEYWORDS and not name.startswith("TEST")}


def local_names(path):
    """Names that the source has for itself: in anonymous namespaces, static, macros."""
    names = set()
    anonymous = False
    with open(path, encoding="utf-8") as source:
        for line in source:
            if line.startswith("#define "):
                names.add(re.match(r"#define (\w+)", line).group(1))
            elif line.startswith("namespace {"):
                anonymous = True
            elif line.startswith("}  // namespace"):
                anonymous = False
            elif anonymous or line.startswith("static "):
                names.update(names_in(line))
    return names


def header_constants():
    """Constants that any header declares: a source with one of its own of that name must not stand
    beside a source that includes the header. (Functions of one name overload each other.)"""
    names = set()
    for folder in FOLDERS:
        for directory, _, files in os.walk(os.path.join(ROOT, folder)):
            for file in files:
                if file.endswith(".h"):
                    with open(os.path.join(directory, file), encoding="utf-8") as header:
                        for line in header:
                            names.update(names_in(line))
    return {name for name in names if re.match("k[A-Z]", name)}


def flags_of(entry):
    """The compiler call without its output and input."""
    words = shlex.split(entry["command"])
    flags = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-c"):
            skip = True
        else:
            flags.append(word)
    return tuple(flags)


def join(paths, flags, most):
    """Groups of paths with equal flags, first fit."""
    groups = []  # [flags, names, paths]
    public = header_constants()
    alone = []
    for path in paths:
        names = local_names(path)
        if names & public:
            alone.append([flags[path], names, [path]])
            continue
        for group in groups:
            if group[0] == flags[path] and len(group[2]) < most and not group[1] & names:
                group[1].update(names)
                group[2].append(path)
                break
        else:
            groups.append([flags[path], names, [path]])
    return groups + alone


def write_units(groups, out_dir):
    os.makedirs(out_dir, exist_ok=True)
    commands = []
    for number, (flags, _, sources) in enumerate(groups):
        path = os.path.join(out_dir, f"unit-{number:02}.cpp")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{os.path.abspath(source)}"\n' for source in sources)
        absolute = os.path.abspath(path)
        commands.append({"directory": os.path.abspath(out_dir), "file": absolute,
                         "arguments": [*flags, "-c", absolute]})
        print(path, *sources)
    with open(os.path.join(out_dir, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(commands, file, indent=1)


def main():
    mode, most = sys.argv[1], int(sys.argv[2])
    if mode == "groups":
        for group in join(sys.argv[3:], dict.fromkeys(sys.argv[3:]), most):
            print(*group[2])
        return
    database, out_dir, wanted = sys.argv[3], sys.argv[4], sys.argv[5:]
    flags = {}
    with open(database, encoding="utf-8") as file:
        for entry in json.load(file):
            flags.setdefault(os.path.relpath(entry["file"]), flags_of(entry))
    write_units(join([p for p in sorted(set(wanted)) if p in flags], flags, most), out_dir)


if __name__ == "__main__":
    main()
