#!/usr/bin/env bash
# A source distribution is built by pip where no network and no downloaded crate is, in the environment
# of the caller, which has maturin and pyarrow. Its wheel is used in an empty environment.
#
# usage: sdist.sh FILE     $PROFILE is one of cargo: release (default) or dev
set -euo pipefail
file=$(realpath "${1:?FILE}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without the right to make a network namespace, cargo alone is kept from the network.
apart=()
for way in "unshare -n" "unshare -rn"; do
    if $way true 2>/dev/null; then
        read -ra apart <<<"$way"
        break
    fi
done
[ "${#apart[@]}" -gt 0 ] || echo "sdist: no network namespace here: only cargo is offline"
echo "sdist: pip builds $(basename "$file") offline"
began=$(date +%s)
# A target folder of its own: crates that an ordinary build has compiled prove nothing.
CARGO_HOME="$work/home" CARGO_NET_OFFLINE=true CARGO_TARGET_DIR="$work/target" \
    MATURIN_PEP517_ARGS="--profile ${PROFILE:-release} --locked" "${apart[@]}" \
    python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index \
    --wheel-dir "$work/wheel" "$file"
echo "sdist: built in $(($(date +%s) - began)) s"
rm -rf "$work/target"

python -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$work"/wheel/*.whl numpy
mkdir -m 700 "$work/run"
cd "$work"
unset FARROW_SOCKET FARROW_BRIDGE PYTHONPATH VIRTUAL_ENV PYO3_PYTHON
export FARROW_MEMORY=64MiB FARROW_LINGER=0 XDG_RUNTIME_DIR=$work/run
timeout 120 venv/bin/python "$root/tests/wheel_smoke.py" first
timeout 300 venv/bin/python "$root/tests/matrix_smoke.py" pool
echo "sdist: passed"
