#!/usr/bin/env bash
# Runs clang-tidy with .clang-tidy on the sources, and on the headers they include.
# usage: scripts/tidy.sh [--deep] [--since COMMIT] [FILE...]
# Without files: all but the tests. --deep: the tests too, and the analyzer in its slow mode.
# --since COMMIT: only files that differ from that commit (and all, if .clang-tidy differs).
# Sources are checked a dozen at a time (scripts/join_sources.py); where two of them cannot stand in
# one unit, each is checked alone.
set -euo pipefail
cd "$(dirname "$0")/.."

clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
files=() options=(--quiet) patterns=('*.cpp' ':!tests')
if [ "${1:-}" = --deep ]; then
  options+=(--extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang
            --extra-arg=mode=deep)
  patterns=('*.cpp')
  shift
fi
if [ "${1:-}" = --since ]; then
  if git diff --quiet "$2" -- .clang-tidy scripts/tidy.sh scripts/join_sources.py; then
    mapfile -t files < <(git diff --name-only --diff-filter=d "$2" -- "${patterns[@]}")
    [ ${#files[@]} -gt 0 ] || { echo "tidy: no source differs from $2"; exit 0; }
  fi
elif [ $# -gt 0 ]; then
  files=("$@")
fi
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard "${patterns[@]}")
fi

build=build/tidy
cmake --preset tidy >/dev/null
cmake --build "$build" --target assay_git_id >/dev/null  # a header that is made
rm -rf "$build/units"
python3 scripts/join_sources.py units 12 "$build/compile_commands.json" "$build/units" "${files[@]}" \
  >"$build/units.txt"

# check UNIT SOURCE...
check() {
  local unit=$1 log=$1.log source status=0
  shift
  "$clang_tidy" -p "$build/units" "${options[@]}" "$unit" >"$log" 2>&1 || status=$?
  if [ $# -gt 1 ] && grep -q '\[clang-diagnostic-error\]' "$log"; then
    status=0
    for source in "$@"; do
      "$clang_tidy" -p "$build" "${options[@]}" "$source" >"$log" 2>&1 || status=$?
      grep -v -E '^[0-9]+ warnings?|^Suppressed|^Use -' "$log"
    done
  else
    grep -v -E '^[0-9]+ warnings?|^Suppressed|^Use -' "$log"
  fi
  return $((status != 0))
}

# All units are checked before the verdict. Each worker takes every n-th.
jobs=$(nproc)
worker() {
  local number=0 failed=0 line
  while read -r -a line; do
    if [ $((number++ % jobs)) -eq "$1" ]; then check "${line[@]}" || failed=1; fi
  done <"$build/units.txt"
  return $failed
}
workers=() failed=0
for ((i = 0; i < jobs; ++i)); do worker "$i" & workers+=($!); done
for worker in "${workers[@]}"; do wait "$worker" || failed=1; done
[ $failed -eq 0 ] || { echo "tidy: findings, see above" >&2; exit 1; }
echo "tidy: $(($(wc -w <"$build/units.txt") - $(wc -l <"$build/units.txt"))) files without a finding"
