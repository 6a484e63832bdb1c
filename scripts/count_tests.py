#!/usr/bin/env python3
"""Counts the tests of ctest's JUnit file and says why tests were skipped.

usage: scripts/count_tests.py results.xml
The last line is "tests: N passed, N skipped, N failed". Fails if a test failed or none ran.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree


def skip_reason(case):
    """What GTEST_SKIP() said: the line after "file:line: Skipped"."""
    output = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.+)", output)
    return found.group(1).strip() if found else "no reason given"


def main():
    cases = list(ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
    status = collections.Counter(case.get("status") for case in cases)
    passed, failed = status["run"], status["fail"]
    skipped = len(cases) - passed - failed
    reasons = collections.Counter(
        skip_reason(case) for case in cases if case.get("status") not in ("run", "fail"))
    for reason, n_tests in sorted(reasons.items()):
        print(f"skipped {n_tests}: {reason}")
    for case in cases:
        if case.get("status") == "fail":
            print(f"failed: {case.get('name')}")
    print(f"tests: {passed} passed, {skipped} skipped, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
