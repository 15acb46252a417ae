#!/usr/bin/env bash
# Builds the wheel for manylinux_2_28, with a memory pool for each of the newest pyarrows, has
# auditwheel check it, and puts it in dist.
#
# usage: wheels.sh
# $PROFILE is one of cargo: release (default), or dev, whose wheel may be larger.
# The packages of the dependency group `packaging` are on the path.
#
# The extension is linked by zig against an old glibc. A bridge is compiled by g++ instead, since
# zig's C++ library is not the one of pyarrow: bridge.cc avoids all newer symbols of glibc and libstdc++.
set -euo pipefail
cd "$(dirname "$0")/.."
export ZIG_ARCH=x86_64
profile=${PROFILE:-release}
pyarrows=(22 23 24 25 26)
bytes_max=$((15 * 1024 * 1024))
platform=manylinux_2_28_$ZIG_ARCH

fail() {
    echo "wheels: $*" >&2
    exit 1
}

[ "$(uname -m)" = x86_64 ] || fail "built on x86-64 only, not on $(uname -m)"
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null || fail "needs $compiler"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

packages=
for major in "${pyarrows[@]}"; do
    # The headers and the libarrow are the same for all Pythons.
    python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --platform "$platform" --implementation cp --python-version 3.12 \
        --target "$work/pyarrow-$major" "pyarrow==$major.*"
    packages="$packages:$work/pyarrow-$major/pyarrow"
done

export FARROW_BRIDGE_PYARROW="$packages"
export FARROW_BRIDGE_CXX=$compiler
# Only the extension is linked so, and without --target: the crates of an ordinary build are used again.
linker=(-C "linker=$PWD/packaging/zig_linker.sh")
maturin build --profile "$profile" --compatibility linux \
    --out "$work/linux" -- "${linker[@]}"

mkdir -p dist
auditwheel repair --plat "$platform" --only-plat --exclude 'libarrow.so.*' \
    --wheel-dir "$work/checked" "$work"/linux/*.whl
wheel=$(echo "$work"/checked/*.whl)
auditwheel show "$wheel"
bytes=$(stat -c %s "$wheel")
echo "wheels: $(basename "$wheel"): $bytes bytes"
if [ "$profile" = release ] && [ "$bytes" -gt "$bytes_max" ]; then
    fail "more than $bytes_max bytes"
fi
# The bridges are there, and nothing was grafted into the wheel.
listed=$(python -m zipfile --list "$wheel")
for major in "${pyarrows[@]}"; do
    grep -q "farrow/_bridge/arrow_${major}[0-9][0-9].so" <<<"$listed" ||
        fail "no memory pool for pyarrow $major"
done
! grep -q "farrow.libs/" <<<"$listed" || fail "auditwheel copied a library into the wheel"
rm -f dist/farrow-*_"$ZIG_ARCH".whl
mv "$wheel" dist/
