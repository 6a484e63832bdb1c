#!/usr/bin/env bash
# From nothing to a quantized, verified model: installs the packages, builds the program, quantizes
# the bundled model, repacks it as GGUF, compares both with the original, and writes a report.
# usage: scripts/demo.sh [OUT]      default: demo-out; results of an earlier run are replaced
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-demo-out}
model=tests/data/llama-tiny
quantized=$out/llama-tiny-W4A16-G128
step() { printf '\n== %s\n' "$*"; }

step "Packages and build"
scripts/setup.sh build
mkdir -p build
cmake --preset program >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset program
assay=build/program/assay
"$assay" version

step "Quantize the linears to 4 bits"
mkdir -p "$out"
"$assay" quantize "$model" --calibration tests/data/calibration.jsonl --out "$quantized" --force

step "Repack as GGUF, without rounding again"
"$assay" convert "$quantized" --to gguf --out "$quantized.gguf" --force

step "Compare the GGUF with the folder that it was made from"
"$assay" verify-equivalence "$quantized" "$quantized.gguf" --text tests/data/eval.txt --windows 4

step "Compare the quantized model with the original"
"$assay" verify-equivalence "$model" "$quantized" --text tests/data/eval.txt --windows 8 \
  --max-kld 0.05 --json-out "$out/verify.json"

step "Report"
"$assay" report "$quantized" --verify "$out/verify.json" --out "$out/report.html"
ls -l "$quantized/model.safetensors" "$quantized.gguf" "$model/model.safetensors"
echo "report: $PWD/$out/report.html"
