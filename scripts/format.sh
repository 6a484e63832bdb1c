#!/usr/bin/env bash
# Formats all C++ and CUDA sources. usage: scripts/format.sh [--check]
# --check changes nothing and fails where a file would change.
set -euo pipefail
cd "$(dirname "$0")/.."

clang_format=$(command -v clang-format-14 || command -v clang-format)
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' '*.def' |
  xargs -0 -r -n 16 -P "$(nproc)" "$clang_format" "${mode[@]}" --style=file
