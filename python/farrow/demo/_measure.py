"""Numbers the demo prints: the memory of a process, a pass over every byte of a table."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Memory", "full_pass_seconds", "machine_line", "memory_of", "table_bytes"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Proportional set size of one process, in bytes.

    A page that n processes map counts 1/n in each, so the sizes of all processes add up to the
    memory in use.  ``shared`` is the part on tmpfs and in memfds (the region); ``page_tables`` is
    the kernel's memory for the mappings, which no set size includes.
    """

    total: int
    shared: int
    page_tables: int

    @property
    def private(self) -> int:
        """Memory outside the region: interpreter, libraries, heap."""
        return self.total - self.shared


def memory_of(pid: int) -> Memory:
    """Read a process's memory from ``/proc/PID/smaps_rollup`` and ``/proc/PID/status``.

    Raises:
        OSError: the process ended, is another user's, or the system has no such file.
    """
    kilobytes: dict[str, int] = {}
    for name in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                kilobytes[words[0].rstrip(":")] = int(words[1])
    return Memory(
        total=kilobytes["Pss"] * 1024,
        shared=kilobytes.get("Pss_Shmem", 0) * 1024,
        page_tables=kilobytes.get("VmPTE", 0) * 1024,
    )


def table_bytes(table: pa.Table) -> int:
    """Bytes of all distinct buffers of a table; a sliced buffer counts as a whole."""
    sizes: dict[int, int] = {}
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None:
                    sizes[buffer.address] = max(buffer.size, sizes.get(buffer.address, 0))
    return sum(sizes.values())


def full_pass_seconds(table: pa.Table) -> float:
    """Read every byte of every buffer once; returns the seconds taken."""
    began = time.perf_counter()
    total = 0
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is None or buffer.size == 0:
                    continue
                view = memoryview(buffer)
                whole = buffer.size & ~7
                words = np.frombuffer(view[:whole], dtype=np.uint64)
                total ^= int(np.bitwise_xor.reduce(words)) if whole else 0
                total ^= sum(view[whole:])
    return time.perf_counter() - began


def machine_line() -> str:
    """Processor, cores, memory and kernel, for the head of a report."""
    model = "processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "cpu\t")):
            model = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {pages / 2**30:.0f} GiB, Linux {os.uname().release}"
