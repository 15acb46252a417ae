#!/bin/sh
# A linker for cargo: zig's, for a glibc as old as that of manylinux_2_28. $ZIG_ARCH: x86_64 or aarch64.
exec cargo-zigbuild zig cc -- -target "${ZIG_ARCH:?}-linux-gnu.2.28" "$@"
