"""The description of a machine in a result, without anything that identifies its owner."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["available_bytes", "changed_since", "commit", "describe", "host_hash"]

_SALT = b"farrow bench"
_PACKAGES = ("farrow", "pyarrow", "numpy")
# Peers and what they run on; those that are not installed are left out.
_PEERS = (
    "dask", "datafusion", "distributed", "duckdb", "iceoryx2", "lmdb",
    "mooncake-transfer-engine-non-cuda", "pandas", "polars", "pyspark", "raphtory", "ray", "redis",
    "snapml", "vineyard",
)  # fmt: skip
# Environments of peers that cannot share one with Farrow: bench/peers/make_env.
_ENVS = Path(__file__).resolve().parent.parent / "peers" / ".envs"
_RESULTS = "bench/results"
# Folders in which a new file, not yet added, changes what is measured.
_SOURCES = ("crates", "python", "sql", "cpp", "bench")


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
        "packages": {**{name: _version(name) for name in _PACKAGES}, **_peers()},
    }


def host_hash() -> str:
    """Eight digits that distinguish the results of different machines."""
    identity = Path("/etc/machine-id")
    secret = identity.read_bytes() if identity.exists() else os.uname().nodename.encode()
    return hashlib.sha256(_SALT + secret + _processor().encode()).hexdigest()[:8]


def commit(repository: Path) -> dict[str, Any]:
    """The commit that was measured, and whether files differed from it; results do not count."""
    try:
        head = _git(repository, "rev-parse", "HEAD")
        without = f":(exclude){_RESULTS}"
        status = ("status", "--porcelain")
        changed = _git(repository, *status, "--untracked-files=no", "--", ".", without)
        changed += _git(repository, *status, "--untracked-files=all", "--", *_SOURCES, without)
    except (OSError, subprocess.CalledProcessError):
        return {"id": None, "changed": None}
    return {"id": head, "changed": bool(changed)}


def changed_since(repository: Path, commit_id: str, seconds: float) -> bool:
    """Whether the programs of the benchmarks differ from a commit, or a file of the installed
    package is newer than a time."""
    where = ("--", "bench", f":(exclude){_RESULTS}")
    try:
        differs = bool(_git(repository, "diff", "--name-only", commit_id, *where))
    except (OSError, subprocess.CalledProcessError):
        differs = True
    package = find_spec("farrow")
    files = Path(package.origin).parent.rglob("*") if package and package.origin else ()
    return differs or any(
        one.stat().st_mtime > seconds for one in files if one.suffix in (".py", ".so")
    )


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


def _peers() -> dict[str, str]:
    """Versions of installed peers; with the environment, where that is a peer's own."""
    found = {name: known for name in _PEERS if (known := _version(name)) is not None}
    for folder in sorted(_ENVS.glob("*/lib/python*/site-packages")):
        peer = folder.parents[2].name
        for one in distributions(path=[str(folder)]):
            name = (one.metadata["Name"] or "").lower()
            if name in (*_PEERS, peer, "pyarrow"):
                found[f"{name} ({peer})"] = one.version
    return found


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
