# A fresh Debian in a folder, for the tests of packages; sourced by them. As root.

# Says why this machine cannot run the test, and ends with 1.
need_root_and() {
    [ "$(id -u)" = 0 ] || { echo "$0: needs root" >&2; exit 1; }
    local missing=()
    for command in "$@"; do
        command -v "$command" >/dev/null || missing+=("$command")
    done
    [ "${#missing[@]}" = 0 ] && return
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y "${missing[@]}" >/dev/null
}

# $1: the folder, $2: packages besides the essential ones, with commas between, $3: the release, if not that
# of the packages that are built here. A mirror may hold a release as it was some weeks ago.
make_root() {
    mmdebstrap --quiet --variant=minbase --include="$2" --aptopt='APT::Install-Recommends "false"' \
        --aptopt='Acquire::Check-Valid-Until "false"' "${3:-bookworm}" "$1"
}

# Runs a command in the folder $1, with processes, mounts and shared memory of its own. All end with it.
in_root() {
    local root=$1
    shift
    unshare --mount --pid --ipc --fork --kill-child bash -euc '
        mount -t proc proc "$0/proc"
        mount -t tmpfs -o size=256m tmpfs "$0/dev/shm"
        exec chroot "$0" "$@"' "$root" "$@"
}
