"""The series to measure: sizes, states, instructions, pages, threads, access patterns."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from farrow import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TYPICAL", "Group", "Series", "Settings", "groups", "memory_needed"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_STRIDES = (64, 256, 4096)
_WIDTHS = (1, 2, 4, 8)
# `clflush` waits for each line: larger sizes give no new information, and take seconds.
_SERIAL_BYTES_MAX = 16 * MIB
_SERIAL = "clflush"
_STATES = ("uncached", "cached", "dirty")
PARTS = ("lines", "threads", "patterns", "huge patterns", "region")
# The state of the lines when Farrow does the work: published lines were stored to, refreshed ones
# were read before, and written ones are rarely cached, because another object used the memory.
TYPICAL = {
    "publish": "dirty",
    "publish again": "dirty",
    "refresh": "cached",
    "write": "uncached",
    "copy": "uncached",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The scope of a run, and its time limits."""

    size_max: int = GIB
    """Bytes of the largest range."""
    pattern_bytes: int = 256 * MIB
    """Bytes that access patterns run over."""
    rounds: int = 5
    """How often the ways of a group take turns."""
    seconds: float = 0.25
    """Of each series, all rounds together; a round takes three samples at least."""
    samples_max: int = 2000
    """Of each series."""
    threads: tuple[int, ...] = ()
    """Numbers of threads; empty: 1, 2, 4, ... up to the cores."""
    parts: tuple[str, ...] = PARTS
    """What is measured: cost by size and by threads, access patterns in private memory and in a
    region, patterns in huge pages, cost in a region."""
    memory_dir: str = "/dev/shm"
    """A tmpfs: where the region that stands for another node's lies."""

    @classmethod
    def quick(cls) -> Settings:
        """Settings for a run of about thirty seconds.

        Returns:
            Ranges up to 16 MiB, and three rounds.

        Examples:
            >>> from farrow import lab
            >>> lab.Settings.quick().rounds
            3
        """
        return cls(
            size_max=16 * MIB, pattern_bytes=8 * MIB, rounds=3, seconds=0.015, samples_max=300
        )

    @property
    def sizes(self) -> list[int]:
        """Bytes of the ranges: from one line up, by factors of four; the largest is ``size_max``.

        Examples:
            >>> from farrow import lab
            >>> lab.Settings(size_max=4096).sizes[-1]
            4096
        """
        line = _native.lab_methods()["line_bytes"]
        sizes = [line] if line not in (64, 256) else []
        size = 64
        while size <= self.size_max:
            if size >= line:
                sizes.append(size)
            size *= 4
        if sizes and sizes[-1] < self.size_max:
            sizes.append(self.size_max)
        return sizes or [line]

    @property
    def thread_counts(self) -> list[int]:
        """Numbers of threads, ascending.

        Examples:
            >>> from farrow import lab
            >>> lab.Settings(threads=(4, 1)).thread_counts
            [1, 4]
        """
        if self.threads:
            return sorted(set(self.threads))
        cores = len(os.sched_getaffinity(0))
        counts = [1 << shift for shift in range(cores.bit_length()) if 1 << shift <= cores]
        return sorted({*counts, cores})


@dataclasses.dataclass(frozen=True)
class Series:
    """One kind of work that is timed repeatedly."""

    part: str
    """``lines``, ``threads``, ``region`` (lines in another node's) or ``patterns``."""
    work: str
    """``publish``, ``publish again`` (and store to each line), ``refresh``, ``write``, ``copy``,
    ``load`` or ``store``."""
    method: str
    """The instruction; empty for loads and stores."""
    state: str
    nbytes: int
    """Of a range, for each thread."""
    memory: str = "private"
    """``private``, or ``region``: another node's."""
    pages: str = "small"
    """``small`` or ``huge``, as asked for."""
    threads: int = 1
    width: int = 8
    stride: int = 8

    def arguments(self) -> dict[str, Any]:
        """Arguments for ``LabArena.run``."""
        return {
            "work": self.work,
            "method": self.method,
            "state": self.state,
            "nbytes": self.nbytes,
            "threads": self.threads,
            "source": min(self.nbytes, _native.lab_methods()["source_bytes"]),
            "width": self.width,
            "stride": self.stride,
        }


@dataclasses.dataclass(frozen=True)
class Group:
    """Series that are compared with each other, and therefore alternate on the same memory."""

    memory: str
    pages: str
    series: tuple[Series, ...]


def groups(settings: Settings) -> Iterator[Group]:
    """All groups of a run, arena by arena."""
    for pages in ("small", "huge"):
        if "lines" in settings.parts:
            yield from _lines(settings, pages)
        if "threads" in settings.parts:
            yield from _threads(settings, pages)
        if ("patterns" if pages == "small" else "huge patterns") in settings.parts:
            yield from _patterns(settings, "private", pages)
    if "region" in settings.parts:
        yield from _region(settings)
    if "patterns" in settings.parts:
        yield from _patterns(settings, "region", "small")


def arena_bytes(settings: Settings, memory: str) -> int:
    """Bytes that the series over one kind of memory need."""
    threads = max(settings.thread_counts)
    patterns = settings.pattern_bytes * threads
    if memory == "region" or settings.parts == ("patterns",):
        return patterns
    return max(settings.size_max, *(size * threads for size in _thread_sizes(settings)), patterns)


def memory_needed(settings: Settings) -> int:
    """Peak bytes in use: one arena, the source of writes, and the samples."""
    arena = max(arena_bytes(settings, "private"), arena_bytes(settings, "region"))
    source: int = _native.lab_methods()["source_bytes"]
    return arena + source + 64 * MIB


def _ways(work: str, nbytes: int) -> list[str]:
    """Methods of this CPU for the work, without those that are too slow for this size."""
    methods = _native.lab_methods()
    names: list[str] = methods["publish" if work == "publish again" else work]
    return [name for name in names if name != _SERIAL or nbytes <= _SERIAL_BYTES_MAX]


def _lines(settings: Settings, pages: str) -> Iterator[Group]:
    again_max = _native.lab_methods()["publish_again_bytes_max"]
    for nbytes in settings.sizes:
        for work, states in (
            ("publish", _STATES),
            ("publish again", ("dirty",) if nbytes <= again_max else ()),
            ("refresh", _STATES),
            ("write", ("uncached",)),
            ("copy", ("uncached",)),
        ):
            for state in states:
                series = (
                    Series("lines", work, name, state, nbytes, pages=pages)
                    for name in _ways(work, nbytes)
                )
                yield Group("private", pages, tuple(series))


def _thread_sizes(settings: Settings) -> list[int]:
    return [size for size in (64 * KIB, MIB, 16 * MIB) if size <= settings.size_max]


def _threads(settings: Settings, pages: str) -> Iterator[Group]:
    """Each thread on its own ranges.  Methods and numbers alternate: both are compared."""
    for nbytes in _thread_sizes(settings):
        for work in ("publish", "refresh", "write"):
            series = (
                Series("threads", work, way, TYPICAL[work], nbytes, pages=pages, threads=threads)
                for way in _ways(work, nbytes)
                if way != _SERIAL
                for threads in settings.thread_counts
            )
            yield Group("private", pages, tuple(series))


def _region(settings: Settings) -> Iterator[Group]:
    """Publish, refresh and write in another node's memory, by one thread."""
    for nbytes in settings.sizes:
        if nbytes > settings.pattern_bytes:
            break
        for work in ("publish", "refresh", "write"):
            series = (
                Series("region", work, way, TYPICAL[work], nbytes, memory="region")
                for way in _ways(work, nbytes)
                if way != _SERIAL
            )
            yield Group("region", "small", tuple(series))


def _patterns(settings: Settings, memory: str, pages: str) -> Iterator[Group]:
    """Loads and stores after a refresh: no line of the range is cached."""
    shapes = [(width, width) for width in _WIDTHS]
    # From a stride of one line on, the width of an access should not matter.
    shapes += [(width, _STRIDES[0]) for width in _WIDTHS] + [(8, more) for more in _STRIDES[1:]]
    for work in ("load", "store"):
        for width, stride in shapes:
            series = (
                Series(
                    "patterns", work, "", "uncached", settings.pattern_bytes,
                    memory=memory, pages=pages, threads=threads, width=width, stride=stride,
                )
                for threads in settings.thread_counts
            )  # fmt: skip
            yield Group(memory, pages, tuple(series))
