#!/usr/bin/env bash
# Quantizes a model, verifies the result against the original and makes the report of both.
# usage: nightly_report.sh MODEL CALIBRATION EVAL_TEXT OUT_DIR [extra options of assay quantize …]
# Leaves OUT_DIR/model, OUT_DIR/verify.json, OUT_DIR/verify.xml (JUnit) and OUT_DIR/report.{html,md,json}.
# Exit code: that of the verification (0 within the limits, 1 not), or of the step that failed.
# ASSAY names the program (default: assay on the PATH), MAX_KLD and MAX_DELTA_NLL the limits.
set -euo pipefail

if [ $# -lt 4 ]; then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 2
fi
assay=${ASSAY:-assay}
model=$1 calibration=$2 text=$3 out=$4
shift 4
limits=()
[ -n "${MAX_KLD:-}" ] && limits+=(--max-kld "$MAX_KLD")
[ -n "${MAX_DELTA_NLL:-}" ] && limits+=(--max-delta-nll "$MAX_DELTA_NLL")

mkdir -p "$out"
rm -f "$out"/verify.{json,xml} "$out"/report.{html,md,json}  # a step that fails leaves no old verdict
"$assay" quantize "$model" --calibration "$calibration" --out "$out/model" "$@"

verdict=0
"$assay" verify-equivalence "$model" "$out/model" --text "$text" "${limits[@]}" \
  --json-out "$out/verify.json" --junit "$out/verify.xml" || verdict=$?
if [ "$verdict" -gt 1 ]; then
  exit "$verdict"
fi
"$assay" report "$out/model" --verify "$out/verify.json" --out "$out/report.html"
exit "$verdict"
