"""The description of a machine in a result, without anything that identifies its owner."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["available_bytes", "commit", "describe", "host_hash"]

_SALT = b"farrow bench"
_PACKAGES = ("farrow", "pyarrow", "numpy")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, kernel, page settings and versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": os.uname().release,
        "isa": os.uname().machine,
        "huge_pages": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge_pages_shmem": _first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        # Of the buffers of the best copy; a result without it had the smallest pages.
        "copy_pages": "huge",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def host_hash() -> str:
    """Eight digits that distinguish the results of different machines."""
    identity = Path("/etc/machine-id")
    secret = identity.read_bytes() if identity.exists() else os.uname().nodename.encode()
    return hashlib.sha256(_SALT + secret + _processor().encode()).hexdigest()[:8]


def commit(repository: Path) -> dict[str, Any]:
    """The commit that was measured, and whether files differed from it."""
    try:
        head = _git(repository, "rev-parse", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return {"id": None, "changed": None}
    return {"id": head, "changed": bool(changed)}


def available_bytes() -> int:
    """Memory that can be used without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "cpu\t", "Model")):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
