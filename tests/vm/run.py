"""Two kernels, one memory: ``python3 tests/vm/run.py`` (or ``make test-vm``).

Boots two virtual machines under QEMU that share nothing but one ivshmem device and a network cable,
runs a Farrow node in each, and has tables made in one used in the other. README.md beside this file
says what that proves and what it cannot. Needs Debian 12 on x86-64; as root it installs what is
missing. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

PACKAGES = ("qemu-system-x86", "busybox-static", "cpio", "kmod", "binutils")
KERNEL = "linux-image-cloud-amd64"
# In the order of their loading modprobe tells; only these two are asked for.
MODULES = ("virtio_pci", "virtio_net")
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
# Holds two regions of 64 MiB with their tables, at 0 and 128 MiB.
BAR_MIB = 256
GUEST_MIB = 512
# Several times what a run takes on an idle machine of two cores.
SECONDS_MAX = 240
# What a kernel says that is in trouble.
TROUBLE = re.compile(r"BUG:|Oops|Kernel panic|segfault|general protection|rcu_sched.*stall")


class Failure(Exception):
    """Why the test did not pass."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command to its end; its standard output."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def apt(*words: str) -> None:
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run("apt-get", "-qq", *words)


def install() -> None:
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise Failure("needs Debian on x86-64")
    status = ("dpkg-query", "-W", "-f=${Status}")
    missing = [
        name
        for name in PACKAGES
        if b"ok installed" not in subprocess.run([*status, name], capture_output=True).stdout
    ]
    if not missing:
        return
    if os.geteuid() != 0:
        raise Failure(f"please install: apt-get install {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    apt("update")
    apt("install", "--no-install-recommends", "-y", *missing)


def kernel(cache: Path) -> tuple[Path, list[Path]]:
    """Debian's newest cloud kernel, unpacked and not installed, and its modules in order."""
    depends = re.compile(r"Depends: linux-image-(\S+)")

    def newest() -> str | None:
        found = depends.search(run("apt-cache", "depends", KERNEL))
        return found and found[1]

    version = newest()
    if (version is None or not (cache / version).is_dir()) and os.geteuid() == 0:
        # An old index names packages that are gone.
        apt("update")
        version = newest()
    if version is None:
        raise Failure(f"apt knows no {KERNEL}: apt-get update")
    place = cache / version
    if not place.is_dir():
        say(f"fetching kernel {version}")
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as fetched:
            # APT's own user cannot write here; root may, and says so at length.
            run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download",
                f"linux-image-{version}", cwd=Path(fetched))  # fmt: skip
            (package,) = Path(fetched).glob("*.deb")
            unpacked = Path(fetched) / "unpacked"
            run("dpkg-deb", "-x", package, unpacked)
            run(sbin("depmod"), "-b", unpacked, version)
            unpacked.rename(place)
    modules: dict[Path, None] = {}
    for module in MODULES:
        told = run(sbin("modprobe"), "-d", place, "-S", version, "--show-depends", module)
        modules |= {Path(line.split()[1]): None for line in told.splitlines() if "insmod" in line}
    return place / "boot" / f"vmlinuz-{version}", list(modules)


def sbin(name: str) -> str:
    return shutil.which(name) or f"/sbin/{name}"


def build(is_release: bool) -> dict[str, Path]:
    words = ["cargo", "build", "--package", "farrow-cluster", "--bin", "farrowd"]
    words += ["--example", "vm_guest", "--message-format", "json-render-diagnostics"]
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


def pack(tree: Path, archive: Path) -> Path:
    """A file system for the kernel to start with. Several of these may follow each other."""
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    words = ["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"]
    packed = subprocess.run(words, cwd=tree, input=names.encode(), stdout=subprocess.PIPE)
    if packed.returncode != 0:
        raise Failure(f"cpio: exit code {packed.returncode}")
    archive.write_bytes(gzip.compress(packed.stdout, compresslevel=1))
    return archive


def make_file_systems(scratch: Path, programs: dict[str, Path], modules: list[Path]) -> None:
    """One archive for each guest: what both need, then its own key."""
    root = scratch / "root"
    for name in ("bin", "proc", "sys", "dev", "run", "tmp", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    for name, program in {**programs, "busybox": Path("/bin/busybox")}.items():
        copy_program(program, root / "bin" / name, root)
    for number, module in enumerate(modules):
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


Line = tuple[str, str | None]


class Guest:
    """A virtual machine whose console goes to a queue; ``None`` when it is off."""

    def __init__(self, role: str, words: list[str], lines: queue.SimpleQueue[Line]) -> None:
        self.role = role
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.SimpleQueue[Line]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self.role, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip()))
        lines.put((self.role, None))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


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


def say(words: str) -> None:
    print(f"vm: {words}", flush=True)


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
        install()
        programs = build(options.release)
        cache = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "vm"
        cache.mkdir(parents=True, exist_ok=True)
        vmlinuz, modules = kernel(cache.resolve())
        with tempfile.TemporaryDirectory(prefix="farrow-vm-") as scratch:
            make_file_systems(Path(scratch), programs, modules)
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
