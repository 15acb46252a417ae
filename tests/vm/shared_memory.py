"""The test of two machines that share the memory of a device, and its canary."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machines import Boot, Watch, direct_cable, guests, make_file_systems
from virtual import ROOT, Debian, Failure, build_module, modules, say

SHMEM = ROOT / "kernel" / "farrow_shmem"
KERNEL = "linux-image-cloud-amd64"
# In the order of their loading modprobe tells; only these two are asked for.
MODULES = ("virtio_pci", "virtio_net")
# Holds two regions of 64 MiB with their tables, at 0 and 128 MiB.
BAR_MIB = 256
GUEST_MIB = 512


def prepare(scratch: Path, programs: dict[str, Path], debian: Debian, seconds_max: int) -> Boot:
    version, place = debian.kernel(KERNEL)
    drivers = modules(place, version, MODULES)
    built = scratch / "module"
    built.mkdir()
    drivers.append(build_module(SHMEM, built, debian.headers(version), "ARCH=x86"))
    make_file_systems(scratch, programs, drivers)
    vmlinuz = place / "boot" / f"vmlinuz-{version}"
    return Boot(vmlinuz, scratch, "memory", GUEST_MIB, seconds_max)


@contextmanager
def memory_folder(boot: Boot) -> Iterator[Path]:
    shm = Path("/dev/shm")
    where = shm if os.access(shm, os.W_OK) else boot.scratch
    with tempfile.TemporaryDirectory(dir=where, prefix="farrow-vm-") as memory:
        yield Path(memory)


def run_guests(boot: Boot, watch: Watch, is_canary: bool) -> None:
    cable = boot.scratch / "cable"
    with memory_folder(boot) as memory:

        def words(role: str) -> list[str]:
            # The canary: each has a memory of its own, which the test must notice.
            path = memory / (f"bar-{role}" if is_canary else "bar")
            backing = f"memory-backend-file,id=bar,share=on,mem-path={path},size={BAR_MIB}M"
            # The same slot in both, so that the path of the BAR is the same.
            device = ["-object", backing, "-device", "ivshmem-plain,memdev=bar,addr=0x5"]
            return [*boot.qemu(role), *device, *direct_cable(role, 4, cable)]

        with guests(words, [cable]) as lines:
            watch.run(lines)


def test(boot: Boot) -> None:
    watch = Watch(boot.seconds_max)
    try:
        run_guests(boot, watch, is_canary=False)
    except Failure:
        watch.print_log()
        raise


def canary(boot: Boot) -> None:
    say("canary: the same with a memory for each, which has to fail")
    try:
        run_guests(boot, Watch(boot.seconds_max), is_canary=True)
    except Failure as failure:
        if "is not mapped" not in str(failure):
            raise Failure(f"the canary failed for another reason: {failure}") from None
        say(f"canary: noticed: {failure}")
        return
    raise Failure("two memories were taken for one")
