#!/usr/bin/env bash
# Makes the source distribution of the Python package: the sources, and the crates that they are built
# with, so that a build needs no crates.io. maturin is on the path.
#
# usage: sdist.sh [FOLDER]     FOLDER: default dist
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-dist}"
out=$(realpath "${1:-dist}")
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

maturin sdist --out "$work" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
file=$(basename "$work"/*.tar.gz)
name=${file%.tar.gz}
tar -C "$work" -xzf "$work/$file"
cd "$work/$name"
# Removes the members that are left out from the lock too.
cargo vendor --quiet --versioned-dirs vendor >/dev/null
mkdir .cargo
cat >.cargo/config.toml <<CONFIG
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
CONFIG
python "$root/packaging/prune_vendor.py" .
# The same sources make the same bytes.
time=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
rm -f "$out"/farrow-*.tar.gz
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --mtime="@${SOURCE_DATE_EPOCH:-$time}" -cf - "$name" | gzip -9n >"$out/$file"
echo "sdist: $out/$file: $(stat -c %s "$out/$file") bytes"
