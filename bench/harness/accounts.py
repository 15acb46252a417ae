"""The cost of a server, measured from outside: memory of its processes and files, CPU time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["cpu_seconds", "held_bytes"]

_TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES = 512  # of st_blocks, on any file system


def cpu_seconds(pids: list[int]) -> float:
    """Processor time that these processes have used.

    By ``/proc/PID/task/*/schedstat``, in nanoseconds, if the kernel has it; else by
    ``/proc/PID/stat``, in ticks of 10 ms.
    """
    return sum(_cpu_of(pid) for pid in pids)


def _cpu_of(pid: int) -> float:
    total = 0.0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int((task / "schedstat").read_text().split()[0]) * 1e-9
    except OSError:
        return 0.0
    if total > 0.0:
        return total
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) * _TICK_SECONDS
    return 0.0


def held_bytes(pids: list[int]) -> int:
    """Private memory of the processes, and blocks of the shared-memory files they have open."""
    files: dict[tuple[int, int], int] = {}
    private = 0
    for pid in pids:
        private += _private_of(pid)
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if _is_shared_memory(os.readlink(entry.path)):
                        stat = os.stat(entry.path)
                        files[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK_BYTES
    return private + sum(files.values())


def _is_shared_memory(target: str) -> bool:
    return target.startswith(("/dev/shm/", "/memfd:", "memfd:"))


def _private_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
