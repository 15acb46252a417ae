"""Builds the module and the programs, boots a guest with them, brings back what it measured."""

from __future__ import annotations

import os
import queue
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from virtual import (
    ROOT,
    TROUBLE,
    Debian,
    Failure,
    Guest,
    Line,
    build_module,
    modules,
    pack,
    run,
    say,
)

HERE = Path(__file__).resolve().parent.parent
MODULE = "farrow_shmem"
PROGRAMS = ("check", "read_all", "stress", "write_all")
PACKAGES = (
    *("qemu-system-x86", "qemu-system-arm", "busybox-static", "cpio", "kmod", "make"),
    *("gcc-12", "libc6-dev", "gcc-12-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    *("libelf1", "python3-matplotlib"),
)
# 1 GiB of pages, twice over, and what a kernel needs.
MEMORY_MIB = 2048
# All samples of a grid are 40 MB.
DISK_BYTES = 256 << 20
# Page tables of their own for the kernel would cost several TLB flushes of the emulator a fault. A
# host that takes CPUs away for seconds looks like a stall; what really hangs meets the deadline.
APPEND = (
    "loglevel=5 panic=-1 mitigations=off nokaslr "
    "rcupdate.rcu_cpu_stall_suppress=1 nowatchdog no_timer_check"
)
# Said at any level: a warning has a stack, and those begin so.
WARNING = re.compile(rf"{TROUBLE.pattern}|WARNING:|\bWARN\b|Call Trace:|Call trace:|INFO: task")


@dataclass(frozen=True)
class Architecture:
    """How one is built and booted. Names are Debian's."""

    name: str
    kernel: str
    make: tuple[str, ...]
    compiler: str
    qemu: tuple[str, ...]
    console: str
    append: str = ""


ARCHITECTURES = {
    "arm64": Architecture(
        name="arm64",
        kernel="linux-image-arm64",
        make=("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"),
        compiler="aarch64-linux-gnu-gcc-12",
        # Not -cpu max: pointer authentication makes it four times slower.
        qemu=("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a76"),
        console="ttyAMA0",
    ),
    "amd64": Architecture(
        name="amd64",
        kernel="linux-image-cloud-amd64",
        make=("ARCH=x86",),
        compiler="gcc-12",
        qemu=("qemu-system-x86_64", "-cpu", "max"),
        console="ttyS0",
        # Under emulation the kernel doubts this clock and would take one that costs far more. Its
        # frequency is added when it is known.
        append="tsc=reliable clocksource=tsc tsc_early_khz={tsc_khz}",
    ),
}

# What a guest's time is: the host's, or its own instructions, a ns each, of which no host knows.
CLOCKS = {
    "host": ("-accel", "tcg,thread=multi"),
    "instructions": ("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"),
}


@dataclass
class Outcome:
    """What a guest left: the lines of its console, and its files by name."""

    console: list[str]
    files: dict[str, bytes]
    failures: list[str]
    seconds: float
    reported: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        if self.failures:
            raise Failure("; ".join(self.failures))


class Laboratory:
    """One architecture: its kernel, its builds, its guests."""

    def __init__(self, architecture: Architecture, cache: Path, scratch: Path) -> None:
        self.architecture = architecture
        self.scratch = scratch
        debian = Debian(cache, architecture.name)
        self.version, self._place = debian.kernel(architecture.kernel)
        self._headers = debian.headers(self.version)
        self._busybox = Path("/bin/busybox")
        if debian.is_foreign:
            unpacked = cache / f"busybox-{architecture.name}"
            if not unpacked.is_dir():
                debian.unpack([f"busybox-static:{architecture.name}"], unpacked)
            self._busybox = unpacked / "bin" / "busybox"
        self._programs = {name: self._build_program(name) for name in PROGRAMS}
        self._append = dict.fromkeys(CLOCKS, architecture.append)
        if "{tsc_khz}" in architecture.append:
            for clock, khz in ("instructions", 1_000_000), ("host", self._host_khz()):
                self._append[clock] = architecture.append.format(tsc_khz=khz)

    def emulator(self, clock: str) -> list[str]:
        """The words that say what is emulated, and with which of ``CLOCKS``."""
        return [*self.architecture.qemu, *CLOCKS[clock]]

    def _host_khz(self) -> int:
        return int(run(self._build_program("tsc")))

    def build_module(self, *flags: str) -> Path:
        """The module, with further compiler flags if a canary needs them."""
        place = Path(tempfile.mkdtemp(dir=self.scratch, prefix=f"{self.architecture.name}-module-"))
        words = [*self.architecture.make, "W=1", f"KCFLAGS={' '.join(['-Werror', *flags])}"]
        return build_module(HERE / MODULE, place, self._headers, *words)

    def _build_program(self, name: str) -> Path:
        program = self.scratch / f"{self.architecture.name}-{name}"
        words = [self.architecture.compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-static"]
        words += ["-Wall", "-Wextra", "-Werror", f"-I{HERE / MODULE}", "-o", str(program)]
        run(*words, HERE / "programs" / f"{name}.c")
        return program

    def _file_system(self, module: Path, plan: str, place: Path) -> Path:
        root = place / "root"
        for name in ("bin", "proc", "sys", "dev", "tmp", "modules"):
            (root / name).mkdir(parents=True)
        shutil.copy(HERE / "guest" / "init", root / "init")
        (root / "init").chmod(0o755)
        (root / "plan").write_text(plan)
        shutil.copy(module, root / f"{MODULE}.ko")
        for name, program in {**self._programs, "busybox": self._busybox}.items():
            shutil.copy(program, root / "bin" / name)
        drivers = modules(self._place, self.version, ("virtio_pci", "virtio_blk"))
        for number, driver in enumerate(drivers):
            shutil.copy(driver, root / "modules" / f"{number:02}-{driver.name}")
        return pack(root, place / "initial.gz")

    def boot(
        self,
        module: Path,
        plan: str,
        seconds_max: int,
        cpus: int = 1,
        append: str = "",
        clock: str = "host",
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Runs a plan in a guest. What went wrong is in the outcome, not raised."""
        architecture = self.architecture
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="boot-") as folder:
            place = Path(folder)
            initial = self._file_system(module, plan, place)
            disk = place / "disk"
            with disk.open("wb") as file:
                file.truncate(DISK_BYTES)
            words = [
                # Said explicitly: KVM may be there and not be able to boot this kernel.
                *(*self.emulator(clock), "-smp", str(cpus)),
                *("-m", str(MEMORY_MIB), "-nodefaults", "-display", "none", "-no-reboot"),
                *("-serial", "stdio", "-initrd", str(initial)),
                *("-kernel", str(self._place / "boot" / f"vmlinuz-{self.version}")),
                *("-drive", f"file={disk},format=raw,if=none,id=results"),
                *("-device", "virtio-blk-pci,drive=results"),
                "-append",
                f"console={architecture.console} {APPEND} {self._append[clock]} "
                f"{append} seconds_max={seconds_max}",
            ]
            begin = time.monotonic()
            console, failures = self._watch(words, seconds_max, on_line)
            outcome = Outcome(console, _files(disk), failures, time.monotonic() - begin)
        self._judge(outcome)
        return outcome

    def _watch(
        self, words: list[str], seconds_max: int, on_line: Callable[[str], None]
    ) -> tuple[list[str], list[str]]:
        lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        console: list[str] = []
        end = time.monotonic() + seconds_max
        guest = Guest(self.architecture.name, words, lines)
        try:
            while True:
                try:
                    _, line = lines.get(timeout=max(end - time.monotonic(), 0.001))
                except queue.Empty:
                    return console, [f"not done after {seconds_max} s"]
                if line is None:
                    return console, []
                console.append(line)
                on_line(line)
        finally:
            guest.end()

    def _judge(self, outcome: Outcome) -> None:
        log = outcome.files.get("dmesg", b"").decode(errors="replace").splitlines()
        for line in dict.fromkeys([*outcome.console, *log]):
            if WARNING.search(line) or line.startswith("lab: FAIL"):
                outcome.failures.append(line)
            found = re.match(r"lab: (?:counter )?(\w+) (\d+)$", line)
            if found:
                outcome.reported[found[1]] = int(found[2])
        if "dmesg" not in outcome.files and not outcome.failures:
            outcome.failures.append("the guest brought no results back")


def _files(disk: Path) -> dict[str, bytes]:
    """The archive that a guest wrote onto its disk; nothing if it came to no end."""
    try:
        with tarfile.open(disk) as archive:
            found = ((Path(entry.name).name, archive.extractfile(entry)) for entry in archive)
            return {name: file.read() for name, file in found if file is not None}
    except tarfile.TarError:
        return {}


def cache_folder() -> Path:
    cache = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "vm"
    cache.mkdir(parents=True, exist_ok=True)
    return cache.resolve()


__all__ = [
    "ARCHITECTURES",
    "PACKAGES",
    "Architecture",
    "Failure",
    "Laboratory",
    "Outcome",
    "cache_folder",
    "say",
]
