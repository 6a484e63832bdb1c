#!/usr/bin/env bash
# Installs the Debian packages of scripts/packages.txt.
# usage: scripts/setup.sh [build|test|ci]     each includes those before it; default: test
# Asks for no password where nothing is missing. Uses sudo only if it is not run as root.
set -euo pipefail
cd "$(dirname "$0")/.."

want=${1:-test}
case "$want" in
  build) sections="build" ;;
  test) sections="build test" ;;
  ci) sections="build test ci" ;;
  *) echo "usage: scripts/setup.sh [build|test|ci]" >&2; exit 2 ;;
esac

packages=$(awk -v sections=" $sections " '
  /^\[/ { name = substr($0, 2, length($0) - 2); next }
  /^#/ || NF == 0 { next }
  index(sections, " " name " ") { print $1 }' scripts/packages.txt)

missing=()
for package in $packages; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all packages are installed ($want)"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: these packages are missing, and there is no sudo; install them as root:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}"
