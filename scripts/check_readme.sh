#!/usr/bin/env bash
# Runs the commands of README.md: every block fenced as ```sh, in order, in one shell, from the top
# of the checkout. A block is left out where the line before it is <!-- not run: why -->.
# usage: scripts/check_readme.sh [--print]
set -euo pipefail
cd "$(dirname "$0")/.."

script=$(awk '
  /^<!-- not run: / { skip = 1; next }
  /^```sh$/ { if (!skip) inside = 1; next }
  /^```/ { inside = 0; skip = 0; next }
  inside { print }' README.md)
[ -n "$script" ] || { echo "README.md: no commands found" >&2; exit 1; }
if [ "${1:-}" = --print ]; then
  echo "$script"
else
  bash -euxo pipefail -c "$script"
fi
