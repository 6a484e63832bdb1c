#!/usr/bin/env bash
# Installs a build into a folder of its own, builds tests/install against it and runs both.
# usage: scripts/check_install.sh [BUILD]      default: build/cpu, built before
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/cpu}
stage=$PWD/build/install
rm -rf "$stage" build/install-consumer
cmake --install "$build" --prefix "$stage" >/dev/null
cmake -S tests/install -B build/install-consumer -G Ninja -DCMAKE_PREFIX_PATH="$stage" >/dev/null
cmake --build build/install-consumer
build/install-consumer/consumer
"$stage/bin/assay" version
for file in bash-completion/completions/assay zsh/site-functions/_assay \
            fish/vendor_completions.d/assay.fish; do
  test -s "$stage/share/$file"
done
bash -n "$stage/share/bash-completion/completions/assay"
