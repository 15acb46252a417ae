"""Two kernels, one memory: ``python3 tests/vm/run.py`` (or ``make test-vm``).

Boots two virtual machines under QEMU that share nothing but one ivshmem device and a network cable,
runs a Farrow node in each, and has tables made in one used in the other. README.md beside this file
says what that proves and what it cannot. Needs Debian 12 on x86-64; as root it installs what is
missing. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from virtual import (
    ROOT,
    TROUBLE,
    Debian,
    Failure,
    Guest,
    Line,
    build_module,
    install,
    modules,
    pack,
    run,
    say,
)

HERE = Path(__file__).resolve().parent

PACKAGES = (
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "binutils"),
    # For the module that writes back all caches.
    *("make", "gcc-12", "libelf1"),
)
SHMEM = ROOT / "kernel" / "farrow_shmem"
KERNEL = "linux-image-cloud-amd64"
# In the order of their loading modprobe tells; only these two are asked for.
MODULES = ("virtio_pci", "virtio_net")
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
# Holds two regions of 64 MiB with their tables, at 0 and 128 MiB.
BAR_MIB = 256
GUEST_MIB = 512
# Several times what a run takes on an idle machine of two cores.
SECONDS_MAX = 240


def build(is_release: bool) -> dict[str, Path]:
    words = ["cargo", "build", "--package", "farrow-cluster", "--package", "farrow-vm-guest"]
    words += ["--bin", "farrowd", "--bin", "vm_guest"]
    words += ["--message-format", "json-render-diagnostics"]
    messages = run(*words, *(["--release"] if is_release else []))
    built = (json.loads(line) for line in messages.splitlines())
    made = {one["target"]["name"]: one["executable"] for one in built if one.get("executable")}
    return {name: Path(made[name]) for name in ("farrowd", "vm_guest")}


def copy_program(program: Path, target: Path, root: Path) -> None:
    """A program without its symbols, and the libraries that it loads."""
    run("strip", "-o", target, program)
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+) \(0x", told):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)


def make_file_systems(scratch: Path, programs: dict[str, Path], drivers: list[Path]) -> None:
    """One archive for each guest: what both need, then its own key."""
    root = scratch / "root"
    for name in ("bin", "proc", "sys", "dev", "run", "tmp", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    for name, program in {**programs, "busybox": Path("/bin/busybox")}.items():
        copy_program(program, root / "bin" / name, root)
    for number, module in enumerate(drivers):
        shutil.copy(module, root / "modules" / f"{number:02}-{module.name}")
    common = pack(root, scratch / "common.gz").read_bytes()
    made = scratch / "made"
    run(programs["vm_guest"], "certs", made, *HOSTS.values())
    for role in HOSTS:
        certs = scratch / f"root-{role}" / "certs"
        certs.mkdir(parents=True)
        for name in ("ca.pem", f"{role}.pem", f"{role}.key"):
            shutil.copy(made / name, certs / name)
        own = pack(certs.parent, scratch / f"{role}.own.gz").read_bytes()
        (scratch / f"{role}.gz").write_bytes(common + own)


def qemu(role: str, vmlinuz: Path, scratch: Path, memory: Path, seconds_max: int) -> list[str]:
    cable = f"stream,id=cable,addr.type=unix,addr.path={scratch / 'cable'}"
    mac = f"52:54:00:77:00:0{1 if role == 'a' else 2}"
    backing = f"memory-backend-file,id=bar,share=on,mem-path={memory},size={BAR_MIB}M"
    # Said explicitly: KVM may be there and not be able to boot this kernel.
    return [
        *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1"),
        *("-m", str(GUEST_MIB), "-nodefaults", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(vmlinuz), "-initrd", str(scratch / f"{role}.gz")),
        *("-append", f"console=ttyS0 quiet panic=-1 role={role} seconds_max={seconds_max}"),
        # The same slot in both, so that the path of the BAR is the same.
        *("-object", backing, "-device", "ivshmem-plain,memdev=bar,addr=0x5"),
        *("-netdev", f"{cable},server={'on' if role == 'a' else 'off'}"),
        *("-device", f"virtio-net-pci,netdev=cable,mac={mac},addr=0x4,romfile="),
    ]


@contextlib.contextmanager
def guests(
    vmlinuz: Path, scratch: Path, seconds_max: int, is_canary: bool
) -> Iterator[queue.SimpleQueue[Line]]:
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    shm = Path("/dev/shm")
    where = shm if os.access(shm, os.W_OK) else scratch
    cable = scratch / "cable"
    with tempfile.TemporaryDirectory(dir=where, prefix="farrow-vm-") as memory:
        started: list[Guest] = []
        try:
            for role in HOSTS:
                # The canary: each has a memory of its own, which the test must notice.
                name = f"bar-{role}" if is_canary else "bar"
                words = qemu(role, vmlinuz, scratch, Path(memory) / name, seconds_max)
                started.append(Guest(role, words, lines))
                wait_for(cable.exists, "the network cable")
            yield lines
        finally:
            for guest in started:
                guest.end()
            cable.unlink(missing_ok=True)


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 20
    while not is_there():
        if time.monotonic() > until:
            raise Failure(f"{what} is not there")
        time.sleep(0.02)


def watch(lines: queue.SimpleQueue[Line], seconds_max: int, log: list[str]) -> None:
    """Prints the steps; returns when guest a has passed and both are off."""
    begin = time.monotonic()
    end = begin + seconds_max
    on, has_passed = set(HOSTS), False
    failures: list[str] = []
    while on:
        try:
            role, line = lines.get(timeout=max(end - time.monotonic(), 0.001))
        except queue.Empty:
            failures.append(f"not done after {seconds_max} s, on: {sorted(on)}")
            break
        if line is None:
            on.discard(role)
            continue
        at = time.monotonic() - begin
        log.append(f"[{at:6.1f} {role}] {line}")
        found = re.match(r"vm: (ok|PASS|FAIL)(?:: (.*))?$", line)
        if TROUBLE.search(line) or (found and found[1] == "FAIL"):
            failures.append(f"guest {role}: {(found and found[2]) or line}")
            # What the other one has to say about it.
            end = min(end, time.monotonic() + 5)
        elif found and found[1] == "PASS":
            has_passed |= role == "a"
        elif found:
            say(f"{at:6.1f} s  {role}: {found[2]}")
    if not has_passed and not failures:
        failures.append("guest a ended without a verdict")
    if failures:
        raise Failure("; ".join(failures))


def test(vmlinuz: Path, scratch: Path, seconds_max: int) -> None:
    log: list[str] = []
    try:
        with guests(vmlinuz, scratch, seconds_max, is_canary=False) as lines:
            watch(lines, seconds_max, log)
    except Failure:
        print("\n".join(["vm: consoles:", *log]), file=sys.stderr)
        raise


def canary(vmlinuz: Path, scratch: Path, seconds_max: int) -> None:
    say("canary: the same with a memory for each, which has to fail")
    try:
        with guests(vmlinuz, scratch, seconds_max, is_canary=True) as lines:
            watch(lines, seconds_max, [])
    except Failure as failure:
        if "is not mapped" not in str(failure):
            raise Failure(f"the canary failed for another reason: {failure}") from None
        say(f"canary: noticed: {failure}")
        return
    raise Failure("two memories were taken for one")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true", help="test optimised programs")
    parser.add_argument("--seconds", type=int, default=SECONDS_MAX, help="most for one run")
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
        version, place = debian.kernel(KERNEL)
        vmlinuz = place / "boot" / f"vmlinuz-{version}"
        drivers = modules(place, version, MODULES)
        with tempfile.TemporaryDirectory(prefix="farrow-vm-") as scratch:
            built = Path(scratch) / "module"
            built.mkdir()
            drivers.append(build_module(SHMEM, built, debian.headers(version), "ARCH=x86"))
            make_file_systems(Path(scratch), programs, drivers)
            booted = time.monotonic()
            say(f"ready after {booted - begin:.1f} s; two guests boot")
            test(vmlinuz, Path(scratch), options.seconds)
            passed = time.monotonic()
            canary(vmlinuz, Path(scratch), options.seconds)
    except (Failure, OSError) as failure:
        say(f"FAIL: {failure}")
        return 1
    ended = time.monotonic()
    say(f"PASS: test {passed - booted:.1f} s, canary {ended - passed:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
