#!/usr/bin/env bash
# Builds the wheel for manylinux_2_28, with a memory pool for each of the newest pyarrows, has
# auditwheel check it, and puts it in dist. Runs on x86-64.
#
# usage: wheels.sh [x86_64 | aarch64]
# $PROFILE is one of cargo: release (default), or dev, whose wheel may be larger.
# The packages of the dependency group `packaging` are on the path. For aarch64, as root it installs
# Debian's cross compilers.
#
# The extension is linked by zig against an old glibc. A bridge is compiled by g++ instead, since
# zig's C++ library is not the one of pyarrow: bridge.cc avoids all newer symbols of glibc and libstdc++.
set -euo pipefail
cd "$(dirname "$0")/.."
export ZIG_ARCH=${1:-x86_64}
profile=${PROFILE:-release}
pyarrows=(22 23 24 25 26)
bytes_max=$((15 * 1024 * 1024))
platform=manylinux_2_28_$ZIG_ARCH
bridges=python/farrow/_bridge

fail() {
    echo "wheels: $*" >&2
    exit 1
}

# What the build for another machine needs besides.
install_cross_compilers() {
    rustup target add "$1-unknown-linux-gnu" 2>/dev/null ||
        [ -d "$(rustc --print target-libdir --target "$1-unknown-linux-gnu")" ] ||
        fail "needs Rust's target $1-unknown-linux-gnu"
    command -v "$1-linux-gnu-gcc" "$1-linux-gnu-g++" >/dev/null && return
    [ "$(id -u)" = 0 ] || fail "needs gcc-$1-linux-gnu and g++-$1-linux-gnu"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y \
        "gcc-$1-linux-gnu" "g++-$1-linux-gnu" >/dev/null
}

# auditwheel offers the platforms of the machine that Python says it runs on.
audit() {
    python -c 'import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())' "$ZIG_ARCH" "$@"
}

# The bridges of this machine, with a new time of change: the next build for this machine makes them
# again, since cargo would take those of the other machine for them.
restore_bridges() {
    rm -f "$bridges"/*.so
    [ ! -d "$work/bridges" ] || cp "$work"/bridges/*.so "$bridges"
}

[ "$(uname -m)" = x86_64 ] || fail "built on x86-64 only, not on $(uname -m)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $ZIG_ARCH in
x86_64)
    compiler=${CXX:-g++}
    machine="Advanced Micro Devices X86-64"
    # Only the extension is linked so, and without --target: the crates of an ordinary build are used again.
    target=()
    linker=(-- -C "linker=$PWD/packaging/zig_linker.sh")
    ;;
aarch64)
    install_cross_compilers aarch64
    compiler=aarch64-linux-gnu-g++
    machine=AArch64
    target=(--target aarch64-unknown-linux-gnu)
    linker=()
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$PWD/packaging/zig_linker.sh"
    if compgen -G "$bridges/*.so" >/dev/null; then
        mkdir "$work/bridges"
        cp "$bridges"/*.so "$work/bridges"
    fi
    trap 'restore_bridges; rm -rf "$work"' EXIT
    ;;
*) fail "no wheel for '$ZIG_ARCH', only for x86_64 and aarch64" ;;
esac
command -v "$compiler" >/dev/null || fail "needs $compiler"

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
maturin build --profile "$profile" --compatibility linux "${target[@]}" \
    --out "$work/linux" "${linker[@]}"

mkdir -p dist
audit repair --plat "$platform" --only-plat --exclude 'libarrow.so.*' \
    --wheel-dir "$work/checked" "$work"/linux/*.whl
wheel=$(echo "$work"/checked/*.whl)
audit show "$wheel"
bytes=$(stat -c %s "$wheel")
echo "wheels: $(basename "$wheel"): $bytes bytes"
if [ "$profile" = release ] && [ "$bytes" -gt "$bytes_max" ]; then
    fail "more than $bytes_max bytes"
fi
# The bridges are there, all libraries are for the machine, and nothing was grafted into the wheel.
listed=$(python -m zipfile --list "$wheel")
for major in "${pyarrows[@]}"; do
    grep -q "farrow/_bridge/arrow_${major}[0-9][0-9].so" <<<"$listed" ||
        fail "no memory pool for pyarrow $major"
done
! grep -q "farrow.libs/" <<<"$listed" || fail "auditwheel copied a library into the wheel"
python -m zipfile --extract "$wheel" "$work/files"
while read -r library; do
    readelf --file-header "$library" | grep -q "Machine: *$machine" ||
        fail "${library#"$work/files/"} is not for $ZIG_ARCH"
done < <(find "$work/files" -name '*.so')
rm -f dist/farrow-*_"$ZIG_ARCH".whl
mv "$wheel" dist/
