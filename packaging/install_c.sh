#!/usr/bin/env bash
# Installs the C library: libfarrow (shared and static), the headers, the files by which pkg-config
# and CMake find them, and the daemon farrowd, which the library starts where no node serves, with its
# units for systemd.
#
# usage: install_c.sh PREFIX [PROFILE]     PROFILE of cargo: release (default) or dev
# $DESTDIR is put before PREFIX in the file system, and is not part of any path that is written.
# $LIBDIR is the folder of libraries in the prefix (default lib).
# $FARROWD is a daemon that is built already, $FARROW_LIBRARIES a folder with libfarrow_capi.so and libfarrow_capi.a.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${1:?PREFIX}
profile=${2:-release}
libdir=${LIBDIR:-lib}
case $prefix in
/*) ;;
*)
    echo "install_c: PREFIX must be absolute, not $prefix" >&2
    exit 2
    ;;
esac

version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
major=${version%%.*}
minor=$(echo "$version" | cut -d. -f2)
# As crates/capi/build.rs names it.
soname=libfarrow.so.$major.$minor
built=$([ "$profile" = dev ] && echo debug || echo "$profile")
target=${CARGO_TARGET_DIR:-${CARGO_BUILD_TARGET_DIR:-target}}
built=$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}$built

if [ -z "${FARROW_LIBRARIES:-}" ]; then
    cargo build --quiet --target-dir "$target" --profile "$profile" --package farrow-capi
    FARROW_LIBRARIES=$built
fi
if [ -z "${FARROWD:-}" ]; then
    cargo build --quiet --target-dir "$target" --profile "$profile" --package farrow-cluster --bin farrowd
    FARROWD=$built/farrowd
fi

root=${DESTDIR:-}$prefix
lib=$root/$libdir
install -d "$root/bin" "$root/libexec/farrow" "$lib/pkgconfig" "$lib/cmake/Farrow" "$root/include/farrow"
install -m 755 "$FARROWD" "$root/bin/farrowd"
install -m 755 packaging/systemd/reload "$root/libexec/farrow/reload"
install -m 755 "$FARROW_LIBRARIES/libfarrow_capi.so" "$lib/libfarrow.so.$version"
install -m 644 "$FARROW_LIBRARIES/libfarrow_capi.a" "$lib/libfarrow.a"
ln -sf "libfarrow.so.$version" "$lib/$soname"
ln -sf "$soname" "$lib/libfarrow.so"
install -m 644 cpp/include/farrow/farrow.h cpp/include/farrow/memory_pool.hpp "$root/include/farrow"

# systemd looks for units in /usr/lib, /usr/local/lib and /etc.
for kind in system user; do
    unit=packaging/systemd/$([ "$kind" = system ] || echo user/)farrowd.service
    install -d "$root/lib/systemd/$kind"
    sed "s,@BIN@,$prefix/bin,; s,@LIBEXEC@,$prefix/libexec/farrow," "$unit" >"$root/lib/systemd/$kind/farrowd.service"
done

# What a static link needs besides: rustc --print native-static-libs.
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
# From a folder in the library folder back to the prefix.
up=../$(echo "$libdir" | sed 's,[^/][^/]*,..,g')

# A prefix that is moved as a whole stays usable. pkg-config omits flags for /usr only if it is named.
pc_prefix='${pcfiledir}'/$up
[ "$prefix" = /usr ] && pc_prefix=/usr
cat >"$lib/pkgconfig/farrow.pc" <<PC
prefix=$pc_prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: farrow
Description: Arrow tables in far memory: the C interface of Farrow
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lfarrow
Libs.private: $private
PC

sed "s,@VERSION@,$version,; s,@SONAME@,$soname,; s,@PRIVATE@,${private// /;},; s,@UP@,../$up,; s,@LIBDIR@,$libdir," \
    packaging/FarrowConfig.cmake >"$lib/cmake/Farrow/FarrowConfig.cmake"
sed "s,@VERSION@,$version,; s,@MAJOR@,$major,; s,@MINOR@,$minor," \
    packaging/FarrowConfigVersion.cmake >"$lib/cmake/Farrow/FarrowConfigVersion.cmake"
# Debian's su leaves sbin out of the path. In a folder that the loader does not search, nothing changes.
if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ]; then
    PATH=$PATH:/sbin:/usr/sbin ldconfig || true
fi
echo "install_c: libfarrow $version in $root"
