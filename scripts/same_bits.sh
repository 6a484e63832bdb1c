#!/usr/bin/env bash
# One hash of a quantized folder and one of the logits, over everything that must not change them:
# instruction set, threads, tokens that run together, memory, an interruption, prefill chunks, and
# with --builds also compiler and optimisation level. Fails if any configuration differs. The
# bundled Llama goes through all of it, the tiny models of every other family through a short form.
# usage: scripts/same_bits.sh [--builds] [PROGRAM...]
#   PROGRAM    an assay executable; the first (default build/cpu/assay) runs every configuration,
#              each further one those that another build could change
#   --builds   builds the program with GCC -O1 and Clang -O1 and -O3, too (a nightly matter)
set -euo pipefail
cd "$(dirname "$0")/.."

builds=no
if [ "${1:-}" = --builds ]; then builds=yes; shift; fi
programs=("$@")
[ $# -gt 0 ] || programs=(build/cpu/assay)

build() {  # NAME COMPILER LEVEL
  local dir=build/same-bits/$1
  cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$2" \
    -DCMAKE_CXX_FLAGS_RELEASE="-DNDEBUG $3" -DASSAY_BUILD_TESTS=OFF -DASSAY_JOIN_SOURCES=ON >/dev/null
  cmake --build "$dir" --target assay
  programs+=("$dir/assay")
}
if [ "$builds" = yes ]; then
  build gcc-O1 g++ -O1
  build clang-O1 clang++-14 -O1
  build clang-O3 clang++-14 -O3
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '[[0, 17, 4, 290, 33, 5, 5, 612, 48], [0, 1024, 77]]' >"$work/prompts.json"
# What quantize, resume, logits and chunks work on; `suffix` goes into the names of the hashes.
model=tests/data/llama-tiny
suffix=
kill_at=30  # the write of a run that an interruption ends it at
calibration=(--calibration tests/data/calibration.jsonl --windows 4 --window-length 64
             --sensitivity-windows 1 --target-windows 3)
isas=(scalar)
for isa in avx2 avx512; do
  if "${programs[0]}" bench prefill "$model" --isa $isa --tokens 1 -r 1 -q >/dev/null 2>&1; then
    isas+=($isa)
  else
    echo "same_bits: $isa skipped, this machine does not have it"
  fi
done
best=${isas[-1]}

declare -A first count
differs=no
# record KIND HASH WORDS...
record() {
  local kind=$1 hash=$2 verdict=same
  shift 2
  : "${first[$kind]:=$hash}"
  if [ "$hash" != "${first[$kind]}" ]; then verdict=DIFFERS; differs=yes; fi
  count[$kind]=$((${count[$kind]:-0} + 1))
  printf '%-27s %.16s %-7s %s\n' "$kind" "$hash" "$verdict" "$*"
}
hash_of() { (cd "$1" && find . -type f | sort | xargs sha256sum) | sha256sum | cut -d' ' -f1; }

# quantize PROGRAM OPTION...
quantize() {
  local program=$1
  shift
  rm -rf "$work/folder"*
  "$program" quantize "$model" "${calibration[@]}" --out "$work/folder" -q "$@" >/dev/null
  record "quantize$suffix" "$(hash_of "$work/folder")" "$program" "$@"
}
# A process killed at one of its writes, gone on by another one.
resume() {
  local program=$1 status=0
  rm -rf "$work/folder"*
  # In a shell of its own, which keeps the word "Killed" to itself.
  (ASSAY_FAULT=kill:$kill_at "$program" quantize "$model" "${calibration[@]}" --out "$work/folder" -q \
    --threads 2; exit $?) >/dev/null 2>&1 || status=$?
  if [ $status -ne 137 ] || [ ! -e "$work/folder.state/state.json" ] || [ -e "$work/folder" ]; then
    echo "same_bits: the run was to be interrupted, but ended with $status" >&2
    exit 1
  fi
  "$program" quantize "$model" "${calibration[@]}" --out "$work/folder" -q --resume --threads 1 >/dev/null
  record "quantize$suffix" "$(hash_of "$work/folder")" "$program" interrupted and resumed
}
# Logits and hidden states of every position, greedy tokens. logits PROGRAM MODEL OPTION...
logits() {
  local program=$1 of=$2
  shift 2
  rm -rf "$work/reference"
  "$program" verify-equivalence "$of" --write-reference "$work/reference" \
    --prompts "$work/prompts.json" --new-tokens 8 -q "$@" >/dev/null
  record "logits$suffix:${of##*/}" "$(hash_of "$work/reference")" "$program" "$@"
}
# Logits after a prompt of 200 tokens, fed in chunks.
chunks() {
  local hash
  hash=$("$1" bench prefill "$model" --tokens 200 --batch "$2" -r 1 --json |
           python3 -c 'import json, sys; print(json.load(sys.stdin)["logits_sha256"])')
  record chunks "$hash" "$1" --batch "$2"
}

for program in "${programs[@]}"; do
  quantize "$program" --isa "$best" --threads 1
  [ "$program" = "${programs[0]}" ] && cp -r "$work/folder" "$work/W4A16"
  logits "$program" "$model" --isa "$best" --threads 1
  logits "$program" "$work/W4A16" --isa "$best" --threads 2
  [ "$program" = "${programs[0]}" ] || quantize "$program" --isa scalar --threads 2
done
program=${programs[0]}
for isa in "${isas[@]}"; do
  [ "$isa" = "$best" ] || quantize "$program" --isa "$isa" --threads 2
  logits "$program" "$work/W4A16" --isa "$isa" --threads 4
done
quantize "$program" --threads 4
quantize "$program" --batch-tokens 64     # one window at a time
quantize "$program" --batch-tokens 256    # four
quantize "$program" --activation-memory 1KiB
resume "$program"
for chunk in 1 7 64 200; do chunks "$program" "$chunk"; done

# The other families. Their models have no tokenizer, so that they are given ids.
python3 - "$work/ids.npy" <<'IDS'
import struct
import sys
ids = [3 + (line * 97 + i * (31 + line)) % 253 for line in range(6) for i in range(32)]
header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (6, 32), }".ljust(117) + b"\n"
with open(sys.argv[1], "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    file.write(struct.pack(f"<{len(ids)}i", *ids))
IDS
calibration=(--calibration "$work/ids.npy" --window-length 32 --group-size 32
  --min-expert-tokens 8 --target-windows 4)
echo '[[17, 4, 190, 33, 5, 5, 112, 48, 99, 201], [24, 77]]' >"$work/prompts.json"
kill_at=12
for folder in tests/data/families/*/; do
  model=${folder%/}
  suffix=":${model##*/}"
  for program in "${programs[@]}"; do
    quantize "$program" --isa "$best" --threads 1
    rm -rf "$work/W4A16"
    cp -r "$work/folder" "$work/W4A16"
    logits "$program" "$model" --isa "$best" --threads 1
    logits "$program" "$work/W4A16" --isa "$best" --threads 2
  done
  program=${programs[0]}
  quantize "$program" --isa scalar --threads 2 --batch-tokens 32
  quantize "$program" --threads 4 --activation-memory 1KiB
  resume "$program"
  logits "$program" "$work/W4A16" --isa scalar --threads 4
done

for kind in "${!first[@]}"; do
  echo "same_bits: $kind ${first[$kind]} in ${count[$kind]} configurations"
done
if [ $differs = yes ]; then echo "same_bits: results differ, see above" >&2; exit 1; fi
