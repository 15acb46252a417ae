#!/bin/sh
# Builds the unit tests of farrow-memory for the other instruction sets it knows and runs them under
# user-mode QEMU. That shows that mapping, words and the cache instructions work there; it cannot
# show a missing flush or fence, since the emulated CPU shares the coherent memory of this one.
#
# What is missing is said and skipped; FARROW_CROSS=require makes it a failure. To install on
# Debian: apt-get install qemu-user-static gcc-aarch64-linux-gnu gcc-powerpc64le-linux-gnu
#         rustup target add aarch64-unknown-linux-gnu powerpc64le-unknown-linux-gnu
set -eu
cd "$(dirname "$0")/.."

failed=0

# $1 target, $2 gcc, $3 QEMU, $4 Debian packages
run() {
    target=$1 linker=$2 emulator=$3 packages=$4
    missing=
    command -v "$linker" >/dev/null || missing="$packages"
    command -v "$emulator" >/dev/null || missing="$packages"
    libdir=$(rustc --print target-libdir --target "$target" 2>/dev/null) || libdir=
    if [ -z "$libdir" ] || [ ! -d "$libdir" ]; then
        missing="${missing:+$missing and }'rustup target add $target'"
    fi
    if [ -n "$missing" ]; then
        echo "cross $target: skipped: needs packages $missing"
        [ "${FARROW_CROSS:-}" = require ] && failed=1
        return 0
    fi
    variable=$(echo "$target" | tr 'a-z-' 'A-Z_')
    echo "cross $target: tests of farrow-memory under $emulator"
    # Static, so that no libraries of the other system are needed. User-mode QEMU accepts
    # MADV_DONTFORK and MADV_POPULATE_WRITE without doing anything: two tests see that.
    if env "CARGO_TARGET_${variable}_LINKER=$linker" \
        "CARGO_TARGET_${variable}_RUNNER=$emulator" \
        "CARGO_TARGET_${variable}_RUSTFLAGS=-C target-feature=+crt-static" \
        cargo test --quiet --package farrow-memory --lib \
        --target "$target" --target-dir "${CARGO_TARGET_DIR:-target}/cross" \
        -- --skip fork::tests::a_child_reads_the_window_and_faults_where_it_stores \
        --skip file_map::tests::commit_allocates_and_keeps
    then
        echo "cross $target: passed"
    else
        echo "cross $target: FAILED"
        failed=1
    fi
}

run aarch64-unknown-linux-gnu aarch64-linux-gnu-gcc qemu-aarch64-static \
    "qemu-user-static gcc-aarch64-linux-gnu"
run powerpc64le-unknown-linux-gnu powerpc64le-linux-gnu-gcc qemu-ppc64le-static \
    "qemu-user-static gcc-powerpc64le-linux-gnu"
exit "$failed"
