#!/usr/bin/env bash
# A wheel as a user gets it: installed by pip into an empty environment of each Python that is here,
# and used there (tests/wheel_smoke.py). Says how long it takes from nothing to the first get in another
# process, download of pyarrow included.
#
# usage: wheel.sh WHEEL     $PYTHONS: "3.10 3.13"
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath "${1:?WHEEL}")
root=$PWD
read -ra pythons <<<"${PYTHONS:-3.10 3.11 3.12 3.13 3.14}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset FARROW_SOCKET FARROW_BRIDGE PYTHONPATH VIRTUAL_ENV PYO3_PYTHON
export FARROW_MEMORY=64MiB FARROW_LINGER=0 XDG_RUNTIME_DIR="$work/run"
mkdir -m 700 "$XDG_RUNTIME_DIR"
tested=0
for version in "${pythons[@]}"; do
    python=
    for one in "$(command -v "python$version" || true)" "$HOME/.pyenv/versions/$version".*/bin/python; do
        # A shim of pyenv may be on the path for a version that it does not run.
        [ -x "$one" ] && "$one" --version >/dev/null 2>&1 && python=$one && break
    done
    if [ -z "$python" ]; then
        echo "wheel: Python $version: skipped: it is not installed"
        continue
    fi
    began=$(date +%s%N)
    "$python" -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
    installed=$(date +%s%N)
    (cd "$work" && timeout 120 venv/bin/python "$root/tests/wheel_smoke.py" first)
    ended=$(date +%s%N)
    echo "wheel: Python $version: installed in $(((installed - began) / 1000000)) ms, first get" \
        "in another process after $(((ended - began) / 1000000)) ms"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
        "$wheel[graph]"
    (cd "$work" && timeout 300 venv/bin/python "$root/tests/matrix_smoke.py" pool)
    (cd "$work" && timeout 300 venv/bin/python "$root/tests/wheel_smoke.py" all)
    rm -rf "$work/venv"
    tested=$((tested + 1))
done
[ "$tested" -gt 0 ] || { echo "wheel: no Python of ${pythons[*]} is here" >&2; exit 1; }
echo "wheel: passed with $tested versions of Python"
