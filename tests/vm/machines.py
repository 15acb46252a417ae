"""Two virtual machines of one test: programs, file systems, consoles and the verdict."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from virtual import TROUBLE, Failure, Guest, Line, pack, run, say

HERE = Path(__file__).resolve().parent
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}


def build(is_release: bool) -> dict[str, Path]:
    words = ["cargo", "build", "--package", "farrow-cluster", "--package", "farrow-vm-guest"]
    words += ["--bin", "farrowd", "--bin", "vm_guest"]
    words += ["--features", "farrow-vm-guest/rdma,farrow-cluster/rdma"]
    words += ["--message-format", "json-render-diagnostics"]
    messages = run(*words, *(["--release"] if is_release else []))
    built = (json.loads(line) for line in messages.splitlines())
    made = {one["target"]["name"]: one["executable"] for one in built if one.get("executable")}
    return {name: Path(made[name]) for name in ("farrowd", "vm_guest")}


def copy_program(program: Path, target: Path, root: Path) -> None:
    """A program without its symbols, and the libraries that it loads."""
    run("strip", "-o", target, program)
    reported = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"(/\S+) \(0x", reported):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)


def make_file_systems(scratch: Path, programs: dict[str, Path], drivers: list[Path]) -> None:
    """One archive for each guest: what both need, then its own key."""
    root = scratch / "root"
    for name in ("bin", "proc", "sys", "dev", "run", "tmp", "modules"):
        (root / name).mkdir(parents=True, exist_ok=True)
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


@dataclass(frozen=True)
class Boot:
    """What both guests of a test start with."""

    vmlinuz: Path
    scratch: Path
    scenario: str
    mib: int
    seconds_max: int

    def qemu(self, role: str) -> list[str]:
        # A timer that is late, as on a busy host, is no reason to panic.
        append = f"console=ttyS0 quiet panic=-1 no_timer_check scenario={self.scenario}"
        # Said explicitly: KVM may be there and not be able to boot this kernel.
        return [
            *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1"),
            *("-m", str(self.mib), "-nodefaults", "-display", "none", "-no-reboot"),
            *("-serial", "stdio", "-kernel", str(self.vmlinuz)),
            *("-initrd", str(self.scratch / f"{role}.gz")),
            *("-append", f"{append} role={role} seconds_max={self.seconds_max}"),
        ]


def network_card(role: str, slot: int, netdev: str) -> list[str]:
    """A network card in a slot, the same in both guests, and where its cable leads."""
    mac = f"52:54:00:77:0{slot}:0{1 if role == 'a' else 2}"
    return [
        *("-netdev", f"stream,id=cable{slot},addr.type=unix,{netdev}"),
        *("-device", f"virtio-net-pci,netdev=cable{slot},mac={mac},addr=0x{slot},romfile="),
    ]


def direct_cable(role: str, slot: int, place: Path) -> list[str]:
    """A cable from guest to guest. Guest a has to be there before b."""
    server = "on" if role == "a" else "off"
    return network_card(role, slot, f"addr.path={place},server={server}")


@contextlib.contextmanager
def guests(
    words: Callable[[str], list[str]], cables: list[Path]
) -> Iterator[queue.SimpleQueue[Line]]:
    """Both guests, the second one when the cables that the first one makes are there."""
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    started: list[Guest] = []
    try:
        for role in HOSTS:
            started.append(Guest(role, words(role), lines))
            wait_for(lambda: all(cable.exists() for cable in cables), "a network cable")
        yield lines
    finally:
        for guest in started:
            guest.end()
        for cable in cables:
            cable.unlink(missing_ok=True)


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 20
    while not is_there():
        if time.monotonic() > until:
            raise Failure(f"{what} is not there")
        time.sleep(0.02)


class Watch:
    """Reads the consoles until both guests are off."""

    def __init__(self, seconds_max: int, on_request: Callable[[str], None] | None = None) -> None:
        self.seconds_max = seconds_max
        self.on_request = on_request
        self.log: list[str] = []
        self.failures: list[str] = []
        self.has_passed = False

    def run(self, lines: queue.SimpleQueue[Line]) -> None:
        """Prints the steps; fails unless guest a has passed."""
        begin = time.monotonic()
        end = begin + self.seconds_max
        on = set(HOSTS)
        while on:
            try:
                role, line = lines.get(timeout=max(end - time.monotonic(), 0.001))
            except queue.Empty:
                self.failures.append(f"not done after {self.seconds_max} s, on: {sorted(on)}")
                break
            if line is None:
                on.discard(role)
            elif self._is_failure(role, line, time.monotonic() - begin):
                # What the other one has to say about it.
                end = min(end, time.monotonic() + 5)
        if not self.has_passed and not self.failures:
            self.failures.append("guest a ended without a verdict")
        if self.failures:
            raise Failure("; ".join(self.failures))

    def _is_failure(self, role: str, line: str, at: float) -> bool:
        self.log.append(f"[{at:6.1f} {role}] {line}")
        found = re.match(r"vm: (ok|PASS|FAIL|cable)(?:: (.*))?$", line)
        if TROUBLE.search(line) or (found and found[1] == "FAIL"):
            self.failures.append(f"guest {role}: {(found and found[2]) or line}")
            return True
        if found and found[1] == "PASS":
            self.has_passed |= role == "a"
        elif found and found[1] == "cable" and self.on_request:
            self.on_request(found[2])
        elif found:
            say(f"{at:6.1f} s  {role}: {found[2]}")
        return False

    def print_log(self) -> None:
        print("\n".join(["vm: consoles:", *self.log]), file=sys.stderr)
