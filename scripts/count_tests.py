#!/usr/bin/env python3
"""Counts the tests of ctest's JUnit file and says why tests were skipped.

usage: scripts/count_tests.py results.xml
A case is one test, or a program of GoogleTest that ran many of them and listed them in its output.
The last line is "tests: N passed, N skipped, N failed". Fails if a test failed or none ran.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree


def outcomes_of(case):
    """Yields (name, "passed", "failed" or why it was skipped) for each test of the case."""
    output = case.findtext("system-out") or ""
    status = case.get("status")
    tests = output.split("[ RUN      ] ")[1:]
    if len(tests) > 1:
        for test in tests:
            name = test.split("\n")[0].strip()
            ending = re.search(r"\[ +(OK|FAILED|SKIPPED) +\] " + re.escape(name), test)
            result = ending.group(1) if ending else "FAILED"  # the program ended before the test
            yield name, {"OK": "passed", "FAILED": "failed"}.get(result) or skip_reason(test)
        if status == "run":
            return
    if status == "fail":
        yield case.get("name"), "failed"
    elif status == "run":
        yield case.get("name"), "passed"
    else:
        yield case.get("name"), skip_reason(output)


def skip_reason(output):
    """What GTEST_SKIP() said: the line after "file:line: Skipped"."""
    found = re.search(r": Skipped\n(.+)", output)
    return found.group(1).strip() if found else "no reason given"


def main():
    cases = ElementTree.parse(sys.argv[1]).getroot().iter("testcase")
    outcomes = [outcome for case in cases for outcome in outcomes_of(case)]
    counts = collections.Counter(result for _, result in outcomes)
    passed, failed = counts.pop("passed", 0), counts.pop("failed", 0)
    for reason, n_tests in sorted(counts.items()):
        print(f"skipped {n_tests}: {reason}")
    for name, result in outcomes:
        if result == "failed":
            print(f"failed: {name}")
    print(f"tests: {passed} passed, {sum(counts.values())} skipped, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
