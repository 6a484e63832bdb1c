#!/usr/bin/env bash
# From nothing to a quantized, verified model: installs the packages, builds the program, quantizes
# the bundled model, repacks it as GGUF, compares both with the original, and writes a report.
# usage: scripts/demo.sh [OUT]      default: demo-out, which is replaced
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-demo-out}
model=tests/data/llama-tiny
step() { printf '\n== %s\n' "$*"; }

step "Packages and build"
scripts/setup.sh build
mkdir -p build
cmake --preset program >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset program
assay=$PWD/build/program/assay
"$assay" version
