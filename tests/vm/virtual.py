"""What virtual machines of tests need: Debian packages, kernels, initial file systems, guests.

Kernels and what goes with them are downloaded and unpacked below a cache folder, not installed, so
packages of another architecture leave the machine as it was. Only the standard library is used.
"""

from __future__ import annotations

import gzip
import os
import platform
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# After so long an index of packages is asked for again: Debian replaces kernels every few weeks.
INDEX_SECONDS_MAX = 24 * 3600
# What a kernel says that is in trouble.
TROUBLE = re.compile(r"BUG:|Oops|Kernel panic|segfault|general protection|rcu_sched.*stall")


class Failure(Exception):
    """Why a test did not pass."""


def say(words: str) -> None:
    print(f"vm: {words}", flush=True)


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command to its end; its standard output."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def sbin(name: str) -> str:
    return shutil.which(name) or f"/sbin/{name}"


def install(packages: tuple[str, ...]) -> None:
    """Installs what is missing, as root; else says what to install."""
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise Failure("needs Debian on x86-64")
    status = ("dpkg-query", "-W", "-f=${Status}")
    missing = [
        name
        for name in packages
        if b"ok installed" not in subprocess.run([*status, name], capture_output=True).stdout
    ]
    if not missing:
        return
    if os.geteuid() != 0:
        raise Failure(f"please install: apt-get install {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run("apt-get", "-qq", "update")
    # What dpkg says of each package is of no interest here.
    run("apt-get", "-qq", "install", "--no-install-recommends", "-y", *missing)


@dataclass(frozen=True)
class Debian:
    """Packages of one architecture, unpacked below ``cache``.

    Those of another architecture than the machine's have an index of their own there, so that dpkg
    and apt of the machine hear nothing of it.
    """

    cache: Path
    architecture: str = "amd64"

    @property
    def is_foreign(self) -> bool:
        return self.architecture != "amd64"

    def _options(self) -> list[str]:
        # APT's own user cannot write in the cache; root may, and says so at length.
        options = ["APT::Sandbox::User=root"]
        if self.is_foreign:
            own = self.cache / f"apt-{self.architecture}"
            (own / "lists" / "partial").mkdir(parents=True, exist_ok=True)
            options += [f"Dir::State::lists={own / 'lists'}", f"Dir::Cache={own}"]
            options += [f"APT::Architectures::={name}" for name in ("amd64", self.architecture)]
        return [word for option in options for word in ("-o", option)]

    def update(self) -> None:
        """Asks for a new index, if this user may."""
        if not self.is_foreign and os.geteuid() != 0:
            return
        say(f"asking for the index of packages of {self.architecture}")
        run("apt-get", "-qq", *self._options(), "update")
        if self.is_foreign:
            (self.cache / f"apt-{self.architecture}" / "lists").touch()

    def _update_if_old(self) -> None:
        lists = self.cache / f"apt-{self.architecture}" / "lists"
        is_there = any(lists.glob("*_Packages*"))
        if not is_there or time.time() - lists.stat().st_mtime > INDEX_SECONDS_MAX:
            try:
                self.update()
            except Failure as failure:
                if not is_there:
                    raise
                say(f"using the index of packages as it is: {failure}")

    def depends(self, package: str) -> list[str]:
        """The packages that one names in its Depends, as apt prints them."""
        if self.is_foreign:
            self._options()
            self._update_if_old()
            package = f"{package}:{self.architecture}"
        reported = run("apt-cache", *self._options(), "depends", package)
        return re.findall(r"Depends: <?([^\s:<>]+)", reported)

    def unpack(self, packages: list[str], place: Path) -> None:
        """Downloads packages and unpacks them to ``place``, which appears at the end or not."""
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache, prefix="fetch-") as fetched:
            run("apt-get", "-qq", *self._options(), "download", *packages, cwd=Path(fetched))
            unpacked = Path(fetched) / "unpacked"
            unpacked.mkdir()
            for package in sorted(Path(fetched).glob("*.deb")):
                run("dpkg-deb", "-x", package, unpacked)
            unpacked.rename(place)

    def kernel(self, package: str) -> tuple[str, Path]:
        """The version of the newest kernel of a kind, and where it is unpacked."""

        def newest() -> str | None:
            names = (name.removeprefix("linux-image-") for name in self.depends(package))
            return next((name for name in names if name[0].isdigit()), None)

        version = newest()
        if version is None or not (self.cache / version).is_dir():
            # An old index names packages that are gone.
            self.update()
            version = newest()
        if version is None:
            raise Failure(f"apt knows no {package}: apt-get update")
        place = self.cache / version
        if not place.is_dir():
            say(f"fetching kernel {version}")
            name = f"linux-image-{version}"
            self.unpack([f"{name}:{self.architecture}"], place)
        if not (place / "lib" / "modules" / version / "modules.dep").exists():
            run(sbin("depmod"), "-b", place, version)
        return version, place

    def headers(self, version: str) -> Path:
        """What a module for a kernel is built with. Its programs are for the machine's own CPU."""
        package = f"linux-headers-{version}"
        place = self.cache / package
        if not place.is_dir():
            say(f"fetching {package}")
            with_it = [
                f"{name}:amd64" if name.startswith("linux-kbuild") else name
                for name in self.depends(package)
                if re.fullmatch(r"linux-kbuild-[\d.]+|linux-headers-.*-common", name)
            ]
            # apt names some twice, once for each architecture.
            self.unpack([f"{package}:{self.architecture}", *dict.fromkeys(with_it)], place)
        sources = place / "usr" / "src"
        (common,) = sources.glob("linux-headers-*-common")
        # Debian's has the path that the package would be installed at.
        (sources / package / "Makefile").write_text(f"include {common.resolve()}/Makefile\n")
        return sources / package


def build_module(sources: Path, place: Path, headers: Path, *words: str) -> Path:
    """A module built in this folder, by these further words for make."""
    for source in sources.iterdir():
        shutil.copy(source, place)
    # For type information for BPF there would have to be a vmlinux.
    words = (*words, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
    run("make", "-s", "-C", headers, f"M={place}", *words)
    return place / f"{sources.name}.ko"


def modules(place: Path, version: str, wanted: tuple[str, ...]) -> list[Path]:
    """Files of modules and of those that they need, in the order of loading."""
    found: dict[Path, None] = {}
    for module in wanted:
        reported = run(sbin("modprobe"), "-d", place, "-S", version, "--show-depends", module)
        found |= {Path(line.split()[1]): None for line in reported.splitlines() if "insmod" in line}
    return list(found)


def pack(tree: Path, archive: Path) -> Path:
    """A file system for the kernel to start with. Several of these may follow each other."""
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    words = ["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"]
    packed = subprocess.run(words, cwd=tree, input=names.encode(), stdout=subprocess.PIPE)
    if packed.returncode != 0:
        raise Failure(f"cpio: exit code {packed.returncode}")
    archive.write_bytes(gzip.compress(packed.stdout, compresslevel=1))
    return archive


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
