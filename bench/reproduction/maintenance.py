"""The cost of writing back caches: a flushed GiB, calls in the kernel, and loads afterwards."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import running
from harness.tasks import Sample

from farrow import _native
from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    in_ms,
    number,
    of_size,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Flush", "Maintenance"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OWN, OTHER = "private memory", "another node's"
_RESULTS = Path(__file__).resolve().parent.parent / "results"
# `clflush` waits for each line, and takes seconds for a GiB.
_SERIAL = "clflush"
_STATES = {"uncached": "untouched", "dirty": "touched"}
_PERCENTILES = ("p25_ns", "p50_ns", "p75_ns", "p99_ns")
_WORD = 8


def _methods() -> list[str]:
    names: list[str] = _native.lab_methods()["publish"]
    return [name for name in names if name != _SERIAL]


class Flush(Experiment):
    """Writing back a range that was written, or not."""

    name = "flush"
    title = "Flushing a GiB, touched and untouched"
    about = (
        "Groet flushes 1 GiB, of which nothing or every byte was written before, in local and in"
        " remote memory. Here each instruction that writes a line back, over private memory and"
        " another node's, one thread. On memory that is coherent Farrow flushes nothing."
    )
    seconds_max = (60.0, 150.0)
    views = (
        View("untouched", "Untouched", "ms", in_ms, digits=2),
        View("touched", "Touched", "ms", in_ms, digits=2),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Both states of both kinds of memory."""
        size = int(room.pick(64 * MIB, GIB))
        room.note(f"{size // MIB} MiB, lines of {_native.lab_methods()['line_bytes']} bytes")
        yield from _flushed(_native.LabArena.private(size, huge=False), size, OWN, room)
        with running(2, size + (128 << 20)) as nodes:
            writer = nodes.clients[0].at(nodes.names[1]).create(size)
            try:
                yield from _flushed(_native.LabArena.over(writer.buffer), size, OTHER, room)
            finally:
                writer.abort()

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The best instruction of each."""
        found: dict[str, str | None] = {}
        for state in _STATES.values():
            for word, place in (("own", OWN), ("other", OTHER)):
                best = min(
                    (taken, case)
                    for case in [*cells.cases(state), ""]
                    if (taken := cells.get(state, case, place, in_ms) or float("inf"))
                )
                known = best[0] != float("inf")
                size = of_size(cells.get(state, best[1], place, lambda one: one.bytes), GIB)
                text = f"{significant(best[0])} ms ({best[1]}){size}"
                found[f"{state}, {word}"] = text if known else None
        return found


def _flushed(arena: Any, size: int, place: str, room: Room) -> Iterator[Sample]:
    for method in _methods():
        for state, word in _STATES.items():
            taken = arena.run(
                "publish", method, state=state, nbytes=size, samples=int(room.pick(2, 7))
            )
            yield Sample(method, place, word, "s", [one * 1e-9 for one in taken], size)


class Maintenance(Experiment):
    """Maintenance in a kernel module, and loads after it."""

    name = "maintenance"
    title = "Cache maintenance in a kernel, and access after it"
    about = (
        "Chen times maintenance of blocks of 1 to 1024 pages in an emulated arm64 kernel and leaves"
        " access after it for later. Maintenance is not run here but by make lab: the table has its"
        " last committed run, in emulated machines that model no cache. Access is run here, in a"
        " process on this machine: each load of a word a line, where all lines are cached and where"
        " all were written back and invalidated just before."
    )
    seconds_max = (40.0, 90.0)
    views = (
        View("calls", "A call, by order of the block", "us", digits=2, chart=""),
        View("access", "A load of a word of each line", "ns a line", digits=2),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """The committed grid, then loads by size."""
        yield from _calls(room)
        line = int(_native.lab_methods()["line_bytes"])
        sizes = ("64 KiB", "1 MiB", "16 MiB") if room.is_quick else (
            "4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB",
        )  # fmt: skip
        arena = _native.LabArena.private(int(number(sizes[-1])), huge=False)
        for size in sizes:
            nbytes = int(number(size))
            for state, word in (("cached", "cached"), ("uncached", "after maintenance")):
                taken = arena.run(
                    "load", state=state, nbytes=nbytes, width=_WORD, stride=line,
                    samples=int(room.pick(5, 30)),
                )  # fmt: skip
                each = [one / (nbytes / line) for one in taken]
                yield Sample(size, word, "access", "ns", each, nbytes)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Percentiles by order; loads at the ends of the sizes."""
        found: dict[str, str | None] = {}
        orders = cells.cases("calls")
        for order in (0, 2, 4, 6, 8, 10):
            values = [cells.get("calls", f"{order}", name) for name in _PERCENTILES]
            shown = [significant(value) for value in values if value is not None]
            found[f"order {order}"] = f"{', '.join(shown)} us" if shown else None
        ends = [cells.get("calls", order, "p50_ns") for order in orders[:: len(orders) - 1 or 1]]
        known = len(ends) == 2 and ends[0] and ends[1]
        found["orders"] = (
            f"{ends[1] / ends[0]:.0f} times from 1 to 1024 pages" if known else None  # type: ignore[operator]
        )
        texts = [
            f"{size}: {significant(after, 2)} ns a line, {significant(cached, 2)} ns cached"
            for size in cells.cases("access")
            if (after := cells.get("access", size, "after maintenance")) is not None
            and (cached := cells.get("access", size, "cached")) is not None
        ]
        found["access"] = "; ".join(texts) or None
        return found


def _calls(room: Room) -> Iterator[Sample]:
    """Percentiles of the last committed run of ``make lab``, arm64, by order, in us."""
    paths = sorted(_RESULTS.glob("*-lab.csv"))
    if not paths:
        room.note("no run of make lab is committed")
        return
    room.note(f"calls: {paths[-1].name}, arm64, write_all, clean; instructions of 1 ns each")
    with paths[-1].open(newline="") as lines:
        for row in csv.DictReader(lines):
            is_wanted = (row["architecture"], row["kind"], row["program"], row["op"]) == (
                "arm64", "order", "write_all", "clean",
            )  # fmt: skip
            if is_wanted:
                for name in _PERCENTILES:
                    yield Sample(row["order"], name, "calls", "us", [float(row[name]) / 1e3])
