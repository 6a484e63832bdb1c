#!/usr/bin/env bash
# Runs clang-tidy with .clang-tidy on the sources, and on the headers they include.
# usage: scripts/tidy.sh [--deep] [--since COMMIT] [FILE...]
# Without files: all but the tests. --deep: the tests too, and the analyzer in its slow mode.
# --since COMMIT: only files that differ from that commit (and all, if .clang-tidy differs).
set -euo pipefail
cd "$(dirname "$0")/.."

clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
files=() options=() patterns=('*.cpp' ':!tests')
if [ "${1:-}" = --deep ]; then
  options=(--extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang
           --extra-arg=mode=deep)
  patterns=('*.cpp')
  shift
fi
if [ "${1:-}" = --since ]; then
  if git diff --quiet "$2" -- .clang-tidy scripts/tidy.sh; then
    mapfile -t files < <(git diff --name-only --diff-filter=d "$2" -- "${patterns[@]}")
    [ ${#files[@]} -gt 0 ] || { echo "tidy: no source differs from $2"; exit 0; }
  fi
elif [ $# -gt 0 ]; then
  files=("$@")
fi
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard "${patterns[@]}")
fi

cmake --preset tidy >/dev/null
cmake --build build/tidy --target assay_git_id >/dev/null  # a header that is made
# Files that no target compiles (fuzz targets, the other device backend) have no command.
known=$(python3 -c '
import json, os
for entry in json.load(open("build/tidy/compile_commands.json")):
    print(os.path.relpath(entry["file"]))')
mapfile -t files < <(comm -12 <(printf '%s\n' "${files[@]}" | sort -u) <(sort -u <<<"$known"))
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "$clang_tidy" -p build/tidy --quiet "${options[@]}" \
    2> >(grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -' >&2 || true)
echo "tidy: ${#files[@]} files without a finding"
