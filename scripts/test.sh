#!/usr/bin/env bash
# Installs what is missing, configures, builds and runs the tests; then prints how many passed and
# were skipped. The last line is the summary.
# usage: scripts/test.sh [--preset cpu|clang|asan] [--no-setup] [--slow] [--label LABEL] [-- CTEST-OPTION...]
#   --preset   preset of CMakePresets.json; asan runs the unit tests only. Default: cpu
#   --slow     the exhaustive tests too (every float; a nightly matter)
#   --label    only tests with this label: unit, slow, gpu
#   --no-setup do not look for missing packages
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cpu setup=yes slow=no ctest_options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset=$2; shift 2 ;;
    --label) slow=yes; ctest_options+=(-L "$2"); shift 2 ;;
    --no-setup) setup=no; shift ;;
    --slow) slow=yes; shift ;;
    --) shift; ctest_options+=("$@"); break ;;
    *) sed -n '2,/^set/p' "$0" | grep '^#' | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
  esac
done

[ "$slow" = yes ] || ctest_options+=(-LE slow)

if [ "$setup" = yes ]; then
  case "$preset" in cpu) scripts/setup.sh test ;; *) scripts/setup.sh ci ;; esac
fi
mkdir -p build
cmake --preset "$preset" >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset "$preset"

results=$PWD/build/$preset/results.xml
rm -f "$results"
status=0
ctest --preset "$preset" -j "$(nproc)" --output-junit "$results" --test-output-size-passed 4000000 \
  "${ctest_options[@]}" || status=$?
python3 scripts/count_tests.py "$results" || status=1
exit $status
