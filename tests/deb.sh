#!/usr/bin/env bash
# The Debian packages of a folder: checked by lintian, then installed, used, removed and purged in a
# fresh Debian. A C program is built with them as the documentation says, and starts their daemon.
#
# usage: deb.sh FOLDER     as root; installs lintian and mmdebstrap
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/chroot.sh
source tests/chroot.sh
need_root_and lintian mmdebstrap
folder=$(realpath "${1:?FOLDER}")
packages=("$folder"/*farrow*_"$(dpkg --print-architecture)".deb)
[ "${#packages[@]}" = 3 ] || { echo "deb: ${packages[*]} are not three" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'echo "deb: line $LINENO failed" >&2' ERR
chmod 755 "$work"

# A package outside of Debian closes no bug of Debian, and nobody receives mail for it.
lintian --fail-on error,warning --suppress-tags \
    initial-upload-closes-no-bugs,bogus-mail-host,bogus-mail-host-in-debian-changelog,maintainer-address-malformed \
    "${packages[@]}"

root=$work/root
make_root "$root" adduser,libgcc-s1
files() {
    (cd "$root" && find . -path ./proc -prune -o -path ./run -prune -o -path ./var/lib/dpkg -prune -o -path ./var/log -prune \
        -o -path ./var/cache -prune -o -print | grep -v -e '^./etc/\(passwd\|group\|shadow\|gshadow\|subuid\|subgid\)-$' \
        -e '^./etc/.pwd.lock$' | sort)
}
files >"$work/before"

mkdir "$root/packages"
cp "${packages[@]}" "$root/packages"
in_root "$root" sh -c 'dpkg --install /packages/*.deb' >/dev/null
in_root "$root" farrowd --version
in_root "$root" getent passwd farrow | grep -q ':/nonexistent:/usr/sbin/nologin$'

# pkg-config omits the flags of /usr itself; here they lead to another root.
lib=/usr/lib/$(gcc -print-multiarch)
read -ra flags < <(PKG_CONFIG_PATH="$root$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root" \
    PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pkg-config --cflags --libs farrow)
cc -std=c11 cpp/examples/bytes.c "${flags[@]}" -o "$root/usr/local/bin/bytes"
# As the user of the package, who owns nothing. The program starts a private node.
said=$(in_root "$root" sh -c 'install -d -m 700 -o farrow -g farrow /tmp/run
    exec setpriv --reuid farrow --regid farrow --clear-groups env XDG_RUNTIME_DIR=/tmp/run \
        FARROW_MEMORY=16MiB FARROW_LINGER=0 bytes')
grep -q "in place: no copy!" <<<"$said" || { echo "deb: bytes said: $said" >&2; exit 1; }
rm -rf "$root/usr/local/bin/bytes" "$root/tmp/run"

# Options of the administrator and spill files stay with `remove` and go with `purge`.
echo 'FARROWD_OPTIONS="--memory 1GiB"' >"$root/etc/default/farrowd"
install -D /dev/null "$root/var/lib/farrow/spilled"
names=$(for package in "${packages[@]}"; do dpkg-deb --field "$package" Package; done)
# shellcheck disable=SC2086
in_root "$root" dpkg --remove $names >/dev/null
[ ! -e "$root/usr/bin/farrowd" ]
[ ! -e "$root/lib/systemd/system/farrowd.service" ]
grep -q 1GiB "$root/etc/default/farrowd"
[ -e "$root/var/lib/farrow/spilled" ]
in_root "$root" sh -c 'dpkg --install /packages/*.deb' >/dev/null
grep -q 1GiB "$root/etc/default/farrowd"
# shellcheck disable=SC2086
in_root "$root" dpkg --purge $names >/dev/null
rm -r "$root/packages"
files >"$work/after"
diff "$work/before" "$work/after" || { echo "deb: files are left (>) or missing (<)" >&2; exit 1; }
echo "deb: passed"
