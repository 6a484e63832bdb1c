#!/usr/bin/env python3
"""Writes convert/tokenizer/{character_classes,lower_case,normal_forms,newer_characters}.inc.

The tables follow the versions of Unicode that the reference tokenizer library (0.23.3) was
measured to use, each property over all code points:
  \\p{L} \\p{M} \\p{N} \\s \\w          16.0
  numeric characters (Digits)        17.0 = 16.0 and thirteen more
  lower case                         17.0 = 14.0 and the letters listed below
  NFC, NFD, NFKC, NFKD                9.0

Needs Python 3.11 (its unicodedata is 14.0), unicodedata2==16.0.0 from PyPI, and perl 5.36 or newer
for the version in which a character was assigned.
"""

import os
import subprocess
import unicodedata
import unicodedata2

assert unicodedata.unidata_version == "14.0.0"
assert unicodedata2.unidata_version == "16.0.0"

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "convert", "tokenizer")
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORY = {c: unicodedata2.category(chr(c)) for c in CODE_POINTS}
SPACES = [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000]
# Alphabetic beyond L, M and Nl: letters in circles and squares.
OTHER_ALPHABETIC = [(0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)]
NUMERIC_OF_17 = [*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)]
# First upper case, last upper case, first lower case: letters of Unicode 15 to 17.
LOWER_OF_17 = [(0x1C89, 0x1C89, 0x1C8A), (0xA7CB, 0xA7CB, 0x264), (0xA7CC, 0xA7CC, 0xA7CD),
               (0xA7CE, 0xA7CE, 0xA7CF), (0xA7D2, 0xA7D2, 0xA7D3), (0xA7D4, 0xA7D4, 0xA7D5),
               (0xA7DA, 0xA7DA, 0xA7DB), (0xA7DC, 0xA7DC, 0x19B), (0x10D50, 0x10D65, 0x10D70),
               (0x16EA0, 0x16EB8, 0x16EBB)]


def present_in(version):
    program = ('for (0..0x10ffff) { next if $_ >= 0xd800 && $_ < 0xe000; '
               'print "$_\\n" if chr($_) =~ /\\p{Present_In: %s}/ }' % version)
    run = subprocess.run(["perl", "-e", program], check=True, capture_output=True, text=True)
    return set(map(int, run.stdout.split()))


def write(name, what, items, per_line):
    with open(os.path.join(FOLDER, name), "w") as file:
        file.write("// %s Written by scripts/make_unicode_tables.py.\n" % what)
        for i in range(0, len(items), per_line):
            file.write(",".join(items[i:i + per_line]) + ",\n")


def class_of(c):
    category = CATEGORY.get(c, "Cs")
    letter, mark, number = (category[0] == x for x in "LMN")
    space = c in SPACES
    word = (letter or mark or category in ("Nd", "Nl", "Pc") or c in (0x200C, 0x200D) or
            any(a <= c <= b for a, b in OTHER_ALPHABETIC))
    numeric = number or c in NUMERIC_OF_17
    return letter | mark << 1 | number << 2 | space << 3 | word << 4 | numeric << 5


def write_classes():
    runs, last = [], None
    for c in range(0x110000):
        flags = class_of(c)
        if flags != last:
            runs.append("{0x%x,%d}" % (c, flags))
            last = flags
    write("character_classes.inc", "Runs of {first code point, CharacterClass bits}.", runs, 9)


def write_lower():
    pairs = {}
    for c in CODE_POINTS:
        lower = chr(c).lower()
        if lower != chr(c) and c != 0x130:  # U+0130 becomes two characters; lower_case.cpp knows it
            assert len(lower) == 1
            pairs[c] = ord(lower)
    for first, last, lower in LOWER_OF_17:
        for c in range(first, last + 1):
            assert c not in pairs
            pairs[c] = lower + c - first
    # Runs with one distance and one step (1 or 2) between upper-case letters.
    runs = []
    for c in sorted(pairs):
        distance = pairs[c] - c
        if runs:
            first, last, step, run_distance = runs[-1]
            gap = c - last
            if distance == run_distance and (gap == step or (first == last and gap <= 2)):
                runs[-1] = (first, c, gap, distance)
                continue
        runs.append((c, c, 1, distance))
    write("lower_case.inc", "Runs {first, last, step, distance to lower case}.",
          ["{0x%x,0x%x,%d,%d}" % run for run in runs], 5)


def write_normal_forms():
    known = present_in("9.0")
    rows, pool = [], []
    for c in sorted(known):
        mapping = unicodedata2.decomposition(chr(c))
        if not mapping:
            continue
        parts = mapping.split()
        compatibility = parts[0].startswith("<")
        codes = [int(x, 16) for x in parts[compatibility:]]
        # Canonical pairs that NFC puts together again; singletons and exclusions are not.
        composes = (not compatibility and len(codes) == 2 and
                    unicodedata2.normalize("NFC", chr(c)) == chr(c))
        rows.append("{0x%x,%d,%d,%d}" % (c, len(pool), len(codes), compatibility | composes << 1))
        pool += codes
    classes, last = [], None
    for c in range(0x110000):
        value = unicodedata2.combining(chr(c)) if c in known else 0
        if value != last:
            classes.append("{0x%x,%d}" % (c, value))
            last = value
    with open(os.path.join(FOLDER, "normal_forms.inc"), "w") as file:
        file.write("// Written by scripts/make_unicode_tables.py: normalization of Unicode 9.0.\n")
        for comment, declaration, items, per_line in (
                ("Code points that the rows below refer to.", "constexpr uint32_t kPool[]",
                 ["0x%x" % c for c in pool], 14),
                ("{code point, start in kPool, length, 1 compatibility | 2 composes}, one step.",
                 "constexpr DecompositionRow kDecompositions[]", rows, 5),
                ("Runs of {first code point, canonical combining class}.",
                 "constexpr CombiningRun kCombiningRuns[]", classes, 9)):
            file.write("// %s\n%s = {\n" % (comment, declaration))
            for i in range(0, len(items), per_line):
                file.write(",".join(items[i:i + per_line]) + ",\n")
            file.write("};\n")


def stand_ins():
    """A character of Unicode 14 with the category (and script, for Han and kana) of a newer one and
    as many bytes in UTF-8."""
    found = {}
    for c in CODE_POINTS:
        if c < 0x800 or unicodedata.category(chr(c)) != CATEGORY[c]:
            continue
        # No case partners, so that caseless patterns cannot tell a stand-in from its original.
        if chr(c).lower() != chr(c) or chr(c).upper() != chr(c):
            continue
        found.setdefault((CATEGORY[c], len(chr(c).encode())), c)
    return found


def write_newer():
    old = present_in("14.0")
    found = stand_ins()
    runs = []
    for c in CODE_POINTS:
        if unicodedata.category(chr(c)) == CATEGORY[c]:
            continue
        name = unicodedata2.name(chr(c), "")
        if name.startswith("CJK UNIFIED IDEOGRAPH"):
            stand_in = 0x20000
        elif name.startswith("HIRAGANA"):
            stand_in = 0x1B150
        elif name.startswith("KATAKANA"):
            stand_in = 0x1B164
        else:
            key = (CATEGORY[c], len(chr(c).encode()))
            if key not in found:
                # Only cased letters lack a partner-free letter of their length; any will do.
                candidates = [x for x in CODE_POINTS if x in old and x != c and
                              CATEGORY[x] == key[0] and len(chr(x).encode()) == key[1] and
                              unicodedata.category(chr(x)) == key[0]]
                found[key] = candidates[0]
            stand_in = found[key]
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == stand_in:
            runs[-1][1] = c
        else:
            runs.append([c, c, stand_in])
    write("newer_characters.inc", "{first, last, stand-in} of characters that Unicode 14 lacks.",
          ["{0x%x,0x%x,0x%x}" % tuple(run) for run in runs], 5)


write_classes()
write_lower()
write_normal_forms()
write_newer()
