"""The test of two machines that share a network alone, which delays, drops and reorders."""

from __future__ import annotations

import shutil
from pathlib import Path

from cable import Cable
from machines import Boot, Watch, direct_cable, guests, make_file_systems, network_card
from virtual import Debian, Failure, modules, say, sbin

KERNEL = "linux-image-amd64"
# The emulated network card asks for its checksums by a name that only modprobe resolves.
MODULES = ("virtio_pci", "virtio_net", "sch_netem", "crc32_generic", "rdma_rxe", "ib_uverbs")
# Its part of libibverbs, which is loaded by name.
PROVIDER = (
    "/etc/libibverbs.d/rxe.driver",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
)
GUEST_MIB = 512
# Where the nodes send objects: DATA_PORT of guest/src/network/mod.rs.
DATA_PORT = 7422
SPOIL = "spoil "


def prepare(scratch: Path, programs: dict[str, Path], debian: Debian, seconds_max: int) -> Boot:
    version, place = debian.kernel(KERNEL)
    # busybox has neither netem nor gso_max_segs.
    tools = {name: Path(sbin(name)).resolve() for name in ("tc", "ip", "rdma")}
    for file in PROVIDER:
        copy = scratch / "root" / file.lstrip("/")
        copy.parent.mkdir(parents=True)
        shutil.copy(file, copy)
    make_file_systems(scratch, {**programs, **tools}, modules(place, version, MODULES))
    vmlinuz = place / "boot" / f"vmlinuz-{version}"
    return Boot(vmlinuz, scratch, "network", GUEST_MIB, seconds_max)


def test(boot: Boot) -> None:
    # One for the script, and one for the cards that read by themselves.
    steer, cards = boot.scratch / "steer", boot.scratch / "cards"
    cable = Cable(boot.scratch, DATA_PORT)

    def words(role: str) -> list[str]:
        place = f"addr.path={cable.places[role]},server=off"
        good = [*direct_cable(role, 6, steer), *direct_cable(role, 7, cards)]
        return [*boot.qemu(role), *network_card(role, 4, place), *good]

    wanted = 0

    def on_request(request: str) -> None:
        nonlocal wanted
        if not request.startswith(SPOIL):
            raise Failure(f"unknown request of a guest: {request}")
        count = int(request.removeprefix(SPOIL))
        wanted += count
        cable.spoil_next(count)

    watch = Watch(boot.seconds_max, on_request)
    try:
        with guests(words, [steer, cards]) as lines:
            watch.run(lines)
        if wanted == 0 or cable.spoiled != wanted:
            raise Failure(f"of {wanted} segments {cable.spoiled} were changed on the cable")
        say(f"a byte was changed in {cable.spoiled} segments on the cable")
    except Failure:
        watch.print_log()
        raise
    finally:
        cable.close()
