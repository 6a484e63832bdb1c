#!/usr/bin/env python3
"""Joins sources into few units for clang-tidy: nearly all of its time goes into standard headers,
which then are read once for a dozen files.

usage: tidy_units.py COMPILE_COMMANDS OUT_DIR FILE...
Writes OUT_DIR/unit-NN.cpp, which include sources with equal flags and no common file-local name,
and OUT_DIR/compile_commands.json for them. Prints one line a unit: the file to check, then its
sources. Sources that no target compiles (the other device backend) are left out.
"""
import json
import os
import re
import shlex
import sys

MOST_SOURCES = 12


def local_names(path):
    """Names that the source has for itself: in anonymous namespaces, static, macros. Read from the
    layout that clang-format gives; a name too many only makes another unit."""
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
            elif (anonymous or line.startswith("static ")) and line[0] not in " }/#\n":
                code = line.split("//")[0]
                names.update(re.findall(r"\b(\w+)\s*[({=;\[:]", code))
                names.update(re.findall(r"\b(?:struct|class|enum|using) (\w+)", code))
    return names - {"const", "constexpr", "static", "std", "assay"}


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


def main():
    database, out_dir, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    flags = {}
    with open(database, encoding="utf-8") as file:
        for entry in json.load(file):
            flags.setdefault(os.path.relpath(entry["file"]), flags_of(entry))

    units = []  # [flags, names, sources]
    for path in sorted(set(wanted)):
        if path not in flags:
            continue
        names = local_names(path)
        for unit in units:
            if (unit[0] == flags[path] and len(unit[2]) < MOST_SOURCES
                    and not unit[1] & names):
                unit[1].update(names)
                unit[2].append(path)
                break
        else:
            units.append([flags[path], names, [path]])

    os.makedirs(out_dir, exist_ok=True)
    commands = []
    for number, (unit_flags, _, sources) in enumerate(units):
        path = os.path.join(out_dir, f"unit-{number:02}.cpp")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{os.path.abspath(source)}"\n' for source in sources)
        absolute = os.path.abspath(path)
        commands.append({"directory": os.path.abspath(out_dir), "file": absolute,
                         "arguments": [*unit_flags, "-c", absolute]})
        print(path, *sources)
    with open(os.path.join(out_dir, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(commands, file, indent=1)


if __name__ == "__main__":
    main()
