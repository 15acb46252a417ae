"""Two kernels: ``python3 tests/vm/run.py`` (or ``make test-vm``).

Boots two virtual machines under QEMU, runs a Farrow node in each, and has tables made in one used
in the other: first by one ivshmem device, the only thing that they share beside a network cable;
then by that cable alone, with delay, loss and reordering. README.md beside this file says what that
proves and what it cannot. Needs Debian 12 on x86-64; as root it installs what is missing. Only the
standard library is used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import network
import shared_memory
from machines import build
from virtual import ROOT, Debian, Failure, install, say

PACKAGES = (
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "binutils", "iproute2"),
    # For the module that writes back all caches.
    *("make", "gcc-12", "libelf1"),
    # For reads by RDMA.
    *("libibverbs-dev", "ibverbs-providers"),
)
# Several times what a run takes on an idle machine of two cores.
SECONDS_MAX = 480
TESTS = ("memory", "network")


def test_memory(programs: dict[str, Path], debian: Debian, seconds_max: int) -> str:
    with tempfile.TemporaryDirectory(prefix="farrow-vm-") as scratch:
        boot = shared_memory.prepare(Path(scratch), programs, debian, seconds_max)
        booted = time.monotonic()
        say("memory: two guests boot")
        shared_memory.test(boot)
        passed = time.monotonic()
        shared_memory.canary(boot)
        return f"memory {passed - booted:.1f} s, canary {time.monotonic() - passed:.1f} s"


def test_network(programs: dict[str, Path], debian: Debian, seconds_max: int) -> str:
    with tempfile.TemporaryDirectory(prefix="farrow-vm-") as scratch:
        boot = network.prepare(Path(scratch), programs, debian, seconds_max)
        booted = time.monotonic()
        say("network: two guests boot")
        network.test(boot)
        return f"network {time.monotonic() - booted:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true", help="test optimised programs")
    parser.add_argument("--seconds", type=int, default=SECONDS_MAX, help="most for one run")
    parser.add_argument("--only", choices=TESTS, help="one of the two tests")
    options = parser.parse_args()
    # The finally clauses run on these too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    begin = time.monotonic()
    try:
        install(PACKAGES)
        programs = build(options.release)
        cache = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "vm"
        cache.mkdir(parents=True, exist_ok=True)
        debian = Debian(cache.resolve())
        say(f"ready after {time.monotonic() - begin:.1f} s")
        took = []
        if options.only != "network":
            took.append(test_memory(programs, debian, options.seconds))
        if options.only != "memory":
            took.append(test_network(programs, debian, options.seconds))
    except (Failure, OSError) as failure:
        say(f"FAIL: {failure}")
        return 1
    say(f"PASS: {', '.join(took)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
