#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for the given time. Fails on the first finding,
# whose input then lies in build/fuzz/findings. New inputs are kept in build/fuzz/corpus/<target>.
# usage: scripts/fuzz.sh SECONDS [TARGET…]      e.g. scripts/fuzz.sh 60 gguf
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 1 || ! $1 =~ ^[0-9]+$ ]]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
seconds=$1
shift
build=build/fuzz
cmake --preset fuzz >/dev/null
ninja -C "$build" fuzzers

mkdir -p "$build/findings"
for program in "$build"/tests/fuzz/*_fuzz; do
  name=$(basename "$program" _fuzz)
  if [[ $# -gt 0 && ! " $* " == *" $name "* ]]; then continue; fi
  corpus=$build/corpus/$name
  seeds=tests/data/fuzz/$name
  mkdir -p "$corpus"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
           -verbosity=0 -artifact_prefix="$build/findings/$name-")
  if [[ -f $seeds.dict ]]; then options+=(-dict="$seeds.dict"); fi
  echo "== $name, $seconds s, $(find "$seeds" -type f | wc -l) seeds"
  log=$build/$name.log
  if ! "$program" "${options[@]}" "$corpus" "$seeds" >"$log" 2>&1; then
    tail -60 "$log" >&2
    echo "$name: a finding, see $build/findings and $log" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|peak_rss_mb' "$log"
done
