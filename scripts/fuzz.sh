#!/usr/bin/env bash
# Builds the fuzz targets (preset asan) and runs each for the given time, as many at once as there
# are cores. Fails if any has a finding, whose input then lies in build/fuzz/findings. New inputs
# are kept in build/fuzz/corpus/<target>.
# usage: scripts/fuzz.sh SECONDS [TARGET...]      e.g. scripts/fuzz.sh 60 gguf
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 1 || ! $1 =~ ^[0-9]+$ ]]; then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
seconds=$1
shift
build=build/asan
out=build/fuzz
cmake --preset asan >/dev/null
cmake --build "$build" --target fuzzers
mkdir -p "$out/findings"

# One allocation may take 64 MiB and a little, for inputs have some KB. The other limits are
# unhurried, for machines that do other work beside this.
fuzz() {
  local name=$1 log=$out/$1.log seeds=tests/data/fuzz/$1
  local options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=65
                 -print_final_stats=1 -verbosity=0 -artifact_prefix="$out/findings/$name-")
  if [[ -f $seeds.dict ]]; then options+=(-dict="$seeds.dict"); fi
  mkdir -p "$out/corpus/$name"
  if ! "$build/tests/fuzz/${name}_fuzz" "${options[@]}" "$out/corpus/$name" "$seeds" \
       >"$log" 2>&1; then
    tail -60 "$log" >&2
    echo "fuzz: $name: a finding, see $out/findings and $log" >&2
    return 1
  fi
  echo "fuzz: $name: $(find "$seeds" -type f | wc -l) seeds," \
       "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s," \
       "$(sed -n 's/^stat::peak_rss_mb: *//p' "$log") MiB"
}
export -f fuzz
export seconds build out

names=("$@")
if [[ $# -eq 0 ]]; then
  for program in "$build"/tests/fuzz/*_fuzz; do names+=("$(basename "$program" _fuzz)"); done
fi
printf '%s\n' "${names[@]}" |
  xargs -n 1 -P "$(nproc)" bash -c 'set -euo pipefail; fuzz "$0"'
echo "fuzz: ${#names[@]} targets without a finding"
