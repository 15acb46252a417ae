#!/usr/bin/env bash
# One wheel with many Pythons and pyarrows: for each pair a clean environment, and tests/matrix_smoke.py
# in it.  A Python that is not here is that of Debian's testing release, in a chroot, which takes root.  A
# pyarrow without a wheel for a Python, and a Python that is nowhere, are said and skipped.
#
# usage: matrix.sh small | full     small: two pairs, with a wheel as `make install` builds it
#                                   full: all pairs, and a wheel with a memory pool for each pyarrow
#                                   from 22 on. With each of these, pyarrow's own tests too:
#                                   tests/pyarrow_own.py
# $MATRIX_PYTHONS and $MATRIX_PYARROWS select pairs of the full matrix: "3.10 3.13" and "15 26".
# $WHEEL is tested instead of a new wheel, if it is set: then it must have a pool for each of those.
# Python is $PYTHON (default python3) for the build and the small matrix, which needs maturin there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
# shellcheck source=tests/chroot.sh
source tests/chroot.sh
mode=${1:?small or full}
python=${PYTHON:-python3}

read -ra pythons <<<"${MATRIX_PYTHONS:-3.10 3.11 3.12 3.13 3.14}"
read -ra pyarrows <<<"${MATRIX_PYARROWS:-15 18 21 22 23 24 25 26}"
pool_from=22
# For each environment; the whole of a matrix has as many times that.
limit_seconds=600

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A node of somebody else must not be found, and pools come from the environments made here.
unset FARROW_SOCKET FARROW_BRIDGE PYTHONPATH
export FARROW_MEMORY=64MiB FARROW_LINGER=0 XDG_RUNTIME_DIR="$work/run" FARROW_MEMORY_DIR=/dev/shm
mkdir -m 700 "$XDG_RUNTIME_DIR"

# The interpreter of a version: on the path, or installed by pyenv.
interpreter() {
    local found
    for found in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
        if [ -x "$found" ] && "$found" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" \
            2>/dev/null; then
            echo "$found"
            return
        fi
    done
}

# An environment with one pyarrow in $3. $1: the interpreter, $2: the major.
environment() {
    "$1" -m venv --without-pip "$3"
    PIP_PYTHON="$3/bin/python" install_packages "$2" "$3/pip.log"
}

# What the tests need beside the wheel. $1: the major of pyarrow, $2: a file for what pip says, then where.
install_packages() {
    local major=$1 log=$2 numpy="numpy"
    shift 2
    # The wheels of pyarrow 15 are built for NumPy 1.
    [ "$major" -ge 16 ] || numpy="numpy<2"
    timeout "$limit_seconds" "$python" -m pip install --quiet --disable-pip-version-check \
        --only-binary :all: "$@" "pyarrow==$major.*" "$numpy" 'rich>=13' &>"$log"
}

# A fresh Debian with the Python $1, below $2.
make_root_of_python() {
    [ "$(id -u)" = 0 ] || return 1
    need_root_and mmdebstrap
    make_root "$2" "python$1" testing 2>"$work/mmdebstrap.log" && return
    grep '^E: ' "$work/mmdebstrap.log"
    return 1
}

# The packages for the Python $1, which is in a fresh Debian without pip, from the Python of the build.
# $2: the major of pyarrow, $3: a file for what pip says
packages_of_root() {
    local where=$work/root-$1
    local foreign=(--target "$where/packages" --python-version "$1" --platform linux_x86_64)
    rm -rf "$where/packages"
    install_packages "$2" "$3" "${foreign[@]}" --platform manylinux2014_x86_64 \
        --platform manylinux_2_28_x86_64 &&
        timeout "$limit_seconds" "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
            "${foreign[@]}" "$work"/wheel/*.whl &>>"$3"
}

wheel() {
    if [ -n "${WHEEL:-}" ]; then
        mkdir -p "$work/wheel"
        cp "$WHEEL" "$work/wheel"
        return
    fi
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
        --wheel-dir "$work/wheel" "$root"
}

# $1: the environment, $2: pool or no-pool
smoke() {
    timeout "$limit_seconds" "$python" -m pip --python "$1/bin/python" install --quiet \
        --disable-pip-version-check --no-deps "$work"/wheel/*.whl
    (cd "$work" && timeout "$limit_seconds" "$1/bin/python" "$root/tests/matrix_smoke.py" "$2")
}

# pyarrow's own tests with the pool, by the Python of the build alone. $1: the version of Python, $2: the
# environment, $3: pool or no-pool
own_tests() {
    [ "$mode" = full ] && [ "$1" = "$here" ] && [ "$3" = pool ] || return 0
    timeout "$limit_seconds" "$python" -m pip --python "$2/bin/python" install --quiet \
        --disable-pip-version-check --only-binary :all: 'pytest>=8' hypothesis 'pandas>=2.2,<3'
    (cd "$work" && timeout 3900 "$2/bin/python" "$root/tests/pyarrow_own.py" >"$2/own.log" 2>&1) || {
        tail -n 60 "$2/own.log"
        return 1
    }
    tail -n 1 "$2/own.log"
}

passed=0
failed=0

# $1: the version of Python, $2: the major of pyarrow, $3: what pip said
not_installed() {
    if grep -q "No matching distribution" "$3"; then
        echo "matrix: Python $1, pyarrow $2: skipped: there is no wheel"
        return
    fi
    cat "$3"
    echo "matrix: Python $1, pyarrow $2: FAILED to install"
    failed=$((failed + 1))
}

# Counts a pair by the status of the command before. $1: the version of Python, $2: the major of pyarrow,
# $3: pool or no-pool
count() {
    if [ "$?" = 0 ]; then
        passed=$((passed + 1))
    else
        echo "matrix: Python $1, pyarrow $2, $3: FAILED"
        failed=$((failed + 1))
    fi
}

# $1: the version of Python, $2: the major of pyarrow, $3: pool or no-pool
pair() {
    local found where="$work/env-$1-$2"
    if [ ! -d "$where" ]; then
        found=$(interpreter "$1")
        if [ -z "$found" ]; then
            pair_in_root "$@"
            return
        fi
        if ! environment "$found" "$2" "$where"; then
            not_installed "$1" "$2" "$where/pip.log"
            rm -rf "$where"
            return
        fi
    fi
    smoke "$where" "$3" && own_tests "$1" "$where" "$3" && true
    count "$@"
    rm -rf "$where"
}

# The same for a Python that is not here.
pair_in_root() {
    local where=$work/root-$1
    if [ ! -d "$where" ] && ! make_root_of_python "$1" "$where"; then
        rm -rf "$where"
        echo "matrix: Python $1: skipped: it is neither installed nor made by Debian's testing release as root"
        return
    fi
    if ! packages_of_root "$1" "$2" "$work/pip.log"; then
        not_installed "$1" "$2" "$work/pip.log"
        return
    fi
    cp "$root/tests/matrix_smoke.py" "$where"
    # timeout refuses to be the first process of a namespace.
    in_root "$where" env PYTHONPATH=/packages PATH=/packages/bin:/usr/bin:/bin XDG_RUNTIME_DIR=/run \
        sh -c 'timeout "$@"; exit $?' sh "$limit_seconds" "python$1" /matrix_smoke.py "$3" && true
    count "$@"
}

here=$("$python" -c "import sys; print('%d.%d' % sys.version_info[:2])")
case $mode in
small)
    wheel
    # One without a bridge, and the one for which the wheel was built.
    built=$("$python" -c "import pyarrow; print(pyarrow.__version__.split('.')[0])")
    pair "$here" 15 no-pool
    pair "$here" "$built" pool
    ;;
full)
    # The bridges are built against the packages of the first Python that has a wheel of them.
    packages=
    for major in "${pyarrows[@]}"; do
        [ "$major" -ge "$pool_from" ] && [ -z "${WHEEL:-}" ] || continue
        where="$work/env-$here-$major"
        if environment "$(interpreter "$here")" "$major" "$where"; then
            packages="$packages:$(echo "$where"/lib/python*/site-packages/pyarrow)"
        else
            cat "$where/pip.log"
            exit 1
        fi
    done
    FARROW_BRIDGE_PYARROW="$packages" wheel
    for version in "${pythons[@]}"; do
        for major in "${pyarrows[@]}"; do
            pair "$version" "$major" "$([ "$major" -ge "$pool_from" ] && echo pool || echo no-pool)"
        done
    done
    ;;
*)
    echo "usage: matrix.sh small | full" >&2
    exit 2
    ;;
esac
echo "matrix: $passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
