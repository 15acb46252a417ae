#!/usr/bin/env bash
# Makes the archives of the public crates, as `cargo publish` does, in target/package, and checks what
# crates.io asks of each.
#
# usage: crates.sh [--verify]     --verify: each archive is built too, which takes long
set -euo pipefail
cd "$(dirname "$0")/.."
flags=(--no-verify)
[ "${1:-}" != --verify ] || flags=()
names=$(cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
for crate in json.load(sys.stdin)["packages"]:
    if crate["publish"] == []:
        continue
    missing = [key for key in ("description", "license", "readme", "rust_version") if not crate[key]]
    if missing:
        sys.exit("crates: {}: no {}".format(crate["name"], ", ".join(missing)))
    print(crate["name"])
')
read -ra crates <<<"${names//$'\n'/ }"
[ "${#crates[@]}" -gt 0 ] || { echo "crates: none is public" >&2; exit 1; }
# All at once, so that one finds the others.
cargo package --quiet --allow-dirty "${flags[@]}" "${crates[@]/#/--package=}"
echo "crates: ${crates[*]}"
