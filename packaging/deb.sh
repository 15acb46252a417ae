#!/usr/bin/env bash
# Makes three Debian packages: libfarrow0.1 (the C library), libfarrow-dev (headers, static library,
# pkg-config, CMake) and farrowd (the daemon, its systemd units and its manual page).
#
# usage: deb.sh FOLDER [PROFILE]     PROFILE of cargo: release (default) or dev
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?FOLDER}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

architecture=$(dpkg --print-architecture)
triplet=$(gcc -print-multiarch)
DESTDIR="$work/all" LIBDIR="lib/$triplet" packaging/install_c.sh /usr "${2:-release}"
all=$work/all/usr
lib=lib/$triplet
upstream=$(sed -n 's/^Version: //p' "$all/$lib/pkgconfig/farrow.pc")
version=$upstream-1
soname=$(basename "$all/$lib"/libfarrow.so.*.*.*)
soname=${soname%.*}
library=libfarrow${soname#libfarrow.so.}
date=$(date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")

strip --strip-unneeded --remove-section=.comment "$all/bin/farrowd" "$all/$lib/$soname".*
strip --strip-debug --enable-deterministic-archives "$all/$lib/libfarrow.a"

# The newest glibc whose symbols a file uses.
glibc() {
    objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -1
}

# $1: the package, $2: its section, $3: what it depends on, $4: the summary. Then the rest of the
# description. The files lie in $work/$1.
package() {
    local name=$1 root=$work/$1 doc=$work/$1/usr/share/doc/$1
    install -D -m 644 packaging/debian/copyright "$doc/copyright"
    [ ! -e "$work/$1.notices" ] || gzip -9n <"$work/$1.notices" >"$doc/NOTICES.gz"
    printf 'farrow (%s) unstable; urgency=medium\n\n  * Built from the sources of this version.\n\n -- %s  %s\n' \
        "$version" "The Farrow authors <farrow@localhost>" "$date" |
        gzip -9n >"$doc/changelog.Debian.gz"
    mkdir -p "$root/DEBIAN"
    {
        printf 'Package: %s\nSource: farrow\nVersion: %s\nArchitecture: %s\n' \
            "$name" "$version" "$architecture"
        printf 'Maintainer: The Farrow authors <farrow@localhost>\n'
        printf 'Section: %s\nPriority: optional\nInstalled-Size: %s\n' \
            "$2" "$(du -sk --exclude=DEBIAN "$root" | cut -f1)"
        case $name in
        libfarrow-dev) printf 'Multi-Arch: same\n' ;;
        libfarrow*) printf 'Multi-Arch: same\nRecommends: farrowd\n' ;;
        esac
        printf 'Depends: %s\nDescription: %s\n' "$3" "$4"
        printf ' %s\n' "${@:5}"
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | sort -z |
        xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zxz --build "$root" \
        "$out/${name}_${version}_$architecture.deb" >/dev/null
}

python3 packaging/notices.py farrow-capi >"$work/$library.notices"
cp "$work/$library.notices" "$work/libfarrow-dev.notices"
python3 packaging/notices.py farrow-cluster >"$work/farrowd.notices"
mkdir -p "$out"
rm -f "$out"/{libfarrow,farrowd}*.deb

root=$work/$library
mkdir -p "$root/usr/$lib" "$root/DEBIAN"
cp -a "$all/$lib/$soname" "$all/$lib/$soname".* "$root/usr/$lib"
chmod 644 "$root/usr/$lib/$soname".*
printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
printf 'libfarrow %s %s (>= %s)\n' "${soname#libfarrow.so.}" "$library" "$upstream" \
    >"$root/DEBIAN/shlibs"
package "$library" libs "libc6 (>= $(glibc "$all/$lib/$soname")), libgcc-s1 (>= 4.2)" \
    "Arrow tables in far memory (C library)" \
    "One process builds an Arrow table in shared memory and seals it under a name." \
    "Every other process finds it and uses it in place, without a copy." \
    "." \
    "This package has the shared library."

root=$work/libfarrow-dev
mkdir -p "$root/usr/$lib"
cp -a "$all/include" "$root/usr"
cp -a "$all/$lib/pkgconfig" "$all/$lib/cmake" "$all/$lib/libfarrow.a" "$all/$lib/libfarrow.so" \
    "$root/usr/$lib"
package libfarrow-dev libdevel "$library (= $version)" \
    "Arrow tables in far memory (development files)" \
    "One process builds an Arrow table in shared memory and seals it under a name." \
    "Every other process finds it and uses it in place, without a copy." \
    "." \
    "This package has the headers, the static library, and the files by which" \
    "pkg-config and CMake find them."

root=$work/farrowd
install -D -m 755 "$all/bin/farrowd" "$root/usr/bin/farrowd"
install -D -m 644 "$all/lib/systemd/system/farrowd.service" \
    "$root/lib/systemd/system/farrowd.service"
install -D -m 644 "$all/lib/systemd/user/farrowd.service" \
    "$root/usr/lib/systemd/user/farrowd.service"
install -D -m 755 "$all/libexec/farrow/reload" "$root/usr/libexec/farrow/reload"
install -D -m 644 packaging/debian/farrowd.default "$root/etc/default/farrowd"
mkdir -p "$root/usr/share/man/man1" "$root/DEBIAN"
gzip -9n <packaging/debian/farrowd.1 >"$root/usr/share/man/man1/farrowd.1.gz"
printf '/etc/default/farrowd\n' >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "packaging/debian/farrowd.$script" "$root/DEBIAN/$script"
done
package farrowd database "adduser, libc6 (>= $(glibc "$all/bin/farrowd")), libgcc-s1 (>= 4.2)" \
    "Arrow tables in far memory (daemon)" \
    "One process builds an Arrow table in shared memory and seals it under a name." \
    "Every other process finds it and uses it in place, without a copy." \
    "." \
    "This package has the daemon that lends the memory of a machine, and its systemd" \
    "units."

ls -l "$out"/*"_${version}_$architecture.deb" | awk '{print "deb: " $9 ": " $5 " bytes"}'
