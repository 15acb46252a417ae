"""Tables in another node's memory: cost of creation, access patterns, descriptor or copy."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from cluster import measure_memory, running
from harness.process import REPOSITORY, PeerError, built
from harness.tasks import Sample, measure_micro

from farrow.lab import Settings, measure
from farrow.lab._plan import Series, arena_bytes
from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    factor,
    gib_per_s,
    in_ms,
    number,
    of_size,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Descriptor", "Initialisation", "Strided"]

MIB, GIB = 1 << 20, 1 << 30
OWN, OTHER = "own node", "another node"
# measure_memory's names of the parts measured in the papers, and their names here.
_PARTS = {
    "copied allocate": "allocate",
    "copied write": "write (the copy)",
    "copied publish": "publish",
    "put": "put a table, all parts",
    "first value of a table": "find it, first value",
    "allocate 64 KiB": "allocate 64 KiB",
    "get 1000 x 1 kB": "get 1000 x 1 kB",
}


def _shown_ms(value: float | None) -> str | None:
    return None if value is None else f"{significant(value)} ms"


class Initialisation(Experiment):
    """The cost of creating a table beyond its bytes."""

    name = "initialisation"
    title = "Initialisation of a table, part by part"
    about = (
        "The papers take the making of a table of 1 GiB apart: allocate, write, publish (flush),"
        " describe, send the descriptor; in own memory and in another node's. Here the same parts,"
        " on memory that is coherent and, where nodes are told that it is coherent only inside each"
        " of them (node-local), with lines published and refreshed."
    )
    seconds_max = (90.0, 240.0)
    views = (
        View("coherent", "Coherent memory", "ms", in_ms, digits=4),
        View("node-local", "Declared node-local", "ms", in_ms, digits=4),
        View("micro", "Descriptors", "us", digits=1),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Own and another node's memory, of both classes."""
        size = int(room.pick(64 * MIB, GIB))
        room.note(f"large objects of {size >> 20} MiB; medians")
        repeats = int(room.pick(3, 5))
        for kind in ("coherent", "node-local"):
            is_local = kind == "node-local"
            with running(2, 2 * size + (128 << 20), is_node_local=is_local) as nodes:
                for sample in measure_memory(nodes, size, repeats):
                    if sample.case in _PARTS:
                        place = OWN if sample.variant == "own" else OTHER
                        yield dataclasses.replace(
                            sample, case=_PARTS[sample.case], peer=place, variant=kind
                        )
        try:
            program = built("microbench", "-p farrow-bench-micro")
            for sample in measure_micro(REPOSITORY, "micro", program):
                name = sample.case.removeprefix("micro ")
                if name.startswith(("describe", "rebuild")) and sample.unit == "us":
                    yield dataclasses.replace(sample, case=name)
        except PeerError as error:
            room.note(str(error))

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Parts in coherent memory; before a write nothing is flushed there."""

        def part(name: str, place: str) -> float | None:
            return cells.get("coherent", name, place, in_ms)

        def rest(place: str) -> str | None:
            parts = [part(name, place) for name in ("allocate", "publish", "write (the copy)")]
            if None in parts:
                return None
            allocate, publish, write = (value or 0.0 for value in parts)
            some, total = allocate + publish, allocate + publish + write
            return f"{significant(some)} of {significant(total)} ms{_large(cells, place)}"

        def of_large(name: str, place: str) -> str | None:
            shown = _shown_ms(part(name, place))
            return None if shown is None else shown + _large(cells, place)

        found: dict[str, str | None] = {}
        for word, place in (("own", OWN), ("other", OTHER)):
            found[f"allocate {word}"] = _shown_ms(part("allocate 64 KiB", place))
            found[f"write {word}"] = of_large("write (the copy)", place)
            found[f"publish {word}"] = _published(cells, place)
            found[f"all {word}"] = of_large("put a table, all parts", place)
            found[f"rest {word}"] = rest(place)
        for work in ("describe", "rebuild"):
            taken = cells.get("micro", f"{work} 3 columns", "farrow")
            found[work] = None if taken is None else f"{significant(taken, 2)} us"
        first = part("find it, first value", OTHER)
        found["before"] = found["send"] = None
        if first is not None:
            found["before"] = "none: the memory is clean before it is granted again"
            found["send"] = f"none is sent; found and used in {significant(first)} ms"
        return found


def _published(cells: Cells, place: str) -> str | None:
    """Publishing in node-local memory, where lines are written back; none are in coherent one."""
    found = cells.get("node-local", "publish", place, in_ms)
    if found is None:
        return None
    return f"{significant(found)} ms (memory declared node-local){_large(cells, place)}"


def _large(cells: Cells, place: str) -> str:
    """The size of the large object, where it is not the published one."""
    found = cells.get("coherent", "put a table, all parts", place, lambda one: one.bytes)
    return of_size(found, GIB)


class Strided(Experiment):
    """Sequential and strided access."""

    name = "strided"
    title = "Sequential and strided access"
    about = (
        "Loads and stores of elements of 8 to 64 bits one after another and every 64 bytes, and of"
        " 64 bits every 256 and 4096 bytes, by 1 and more threads; private memory against another"
        " node's. Nothing of the range is in a cache at first. Bandwidth of the elements that are"
        " touched."
    )
    seconds_max = (45.0, 150.0)
    views = (
        View("load", "Loads", "GiB/s", gib_per_s, digits=2),
        View("store", "Stores", "GiB/s", gib_per_s, digits=2),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """The patterns of ``farrow lab coherence``, with the region another node's."""
        settings = Settings.quick() if room.is_quick else Settings()
        settings = dataclasses.replace(
            settings, pattern_bytes=int(room.pick(16 * MIB, 256 * MIB)), parts=("patterns",)
        )
        nbytes = arena_bytes(settings, "region")
        with running(2, nbytes + (128 << 20)) as nodes:
            writer = nodes.clients[0].at(nodes.names[1]).create(nbytes)
            try:
                run = measure(settings, region=writer.buffer, region_name="another node's memory")
            finally:
                writer.abort()
        room.note(f"{settings.pattern_bytes >> 20} MiB for each thread")
        for series, rounds in run.samples:
            yield _pattern(series, [value * 1e-9 for taken in rounds for value in taken])

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Remote over own bandwidth, and the greatest of another node's."""

        def ratio(work: str, case: str) -> float | None:
            own, other = (cells.get(work, case, place, gib_per_s) for place in _PLACES)
            return other / own if own and other else None

        cases = [(work, case) for work in ("load", "store") for case in cells.cases(work)]

        def span(strided: bool) -> str | None:
            ratios = [
                found
                for work, case in cases
                if (" every " in case) == strided and (found := ratio(work, case)) is not None
            ]
            return f"{min(ratios):.2f} to {max(ratios):.2f} of own" if ratios else None

        speeds = [
            found
            for work, case in cases
            if (found := cells.get(work, case, _PLACES[1], gib_per_s)) is not None
        ]
        return {
            "widths": span(False),
            "strides": span(True),
            "most": f"{max(speeds) * GIB / 1e9:.1f} GB/s" if speeds else None,
        }


_PLACES = ("private memory", "another node's")


def _pattern(series: Series, seconds: list[float]) -> Sample:
    order = "" if series.stride == series.width else f" every {series.stride} B"
    threads = f"{series.threads} thread" + ("s" if series.threads > 1 else "")
    touched = series.nbytes // series.stride * series.width * series.threads
    place = _PLACES[series.memory == "region"]
    case = f"{8 * series.width} bit{order}, {threads}"
    return Sample(case, place, series.work, "s", seconds, touched)


class Descriptor(Experiment):
    """A descriptor against the bytes."""

    name = "descriptor"
    title = "Descriptor against full copy"
    about = (
        "A table in another node's memory, until its first value is there: by its descriptor"
        " (found and rebuilt in place, nothing sent), by a copy of all bytes out of that node's"
        " memory, and as an Arrow stream by Flight over loopback."
    )
    seconds_max = (45.0, 150.0)
    views = (
        View("time", "Until the first value", "ms", in_ms, "curves", "bytes of the table", 3),
        View(
            "all", "Until every value was read once", "ms", in_ms, "curves", "bytes of the table", 2
        ),
    )
    sizes_quick: ClassVar[tuple[str, ...]] = ("1 MiB", "16 MiB", "64 MiB")
    sizes_full: ClassVar[tuple[str, ...]] = (
        "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1024 MiB",
    )  # fmt: skip
    _WAYS = ("descriptor", "copy of all bytes", "Flight")

    def run(self, room: Room) -> Iterator[Sample]:
        """By size."""
        sizes = self.sizes_quick if room.is_quick else self.sizes_full
        repeats = int(room.pick(4, 8))
        with running(2, int(number(sizes[-1])) * 2 + (128 << 20)) as nodes:
            for size in sizes:
                rows = int(number(size)) // 8
                table = pa.table({"n": np.arange(rows, dtype=np.int64)})
                nodes.clients[1].put(table, "table")
                for way, take in self._takers(nodes.clients[0], table):
                    found = [_timed(take, rows) for _ in range(1 + repeats)][1:]
                    for variant, times in zip(
                        ("time", "all"), zip(*found, strict=True), strict=True
                    ):
                        yield Sample(size, way, variant, "s", list(times), rows * 8)
                nodes.clients[1].delete("table")

    def _takers(self, client: Any, table: pa.Table) -> Iterator[tuple[str, Any]]:
        """Ways to obtain the table, one by one."""
        yield self._WAYS[0], lambda: client.get("table")["n"].chunk(0).to_numpy()
        yield self._WAYS[1], lambda: client.get("table")["n"].chunk(0).to_numpy().copy()
        with _flight(table) as connection:
            import pyarrow.flight as flight

            ticket = flight.Ticket(b"table")
            yield self._WAYS[2], lambda: connection.do_get(ticket).read_all()["n"]

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """At the largest size."""
        sizes = cells.cases("time")
        if not sizes:
            return {"copy": None}
        times = [cells.get("time", sizes[-1], way, in_ms) for way in self._WAYS]
        ratios = [
            f"{way} takes {found}"
            for way, value in zip(self._WAYS[1:], times[1:], strict=True)
            if (found := factor(value, times[0], 0)) is not None
        ]
        text = f"at {sizes[-1]}, of the descriptor's time: {', '.join(ratios)}"
        return {"copy": text if ratios else None}


def _timed(take: Any, rows: int) -> tuple[float, float]:
    """Seconds until the first value, and until all were read."""
    began = time.perf_counter()
    values = take()
    first = int(values[0].as_py() if hasattr(values[0], "as_py") else values[0])
    usable = time.perf_counter() - began
    total = sum(int(piece.sum()) for piece in _pieces(values))
    seconds = time.perf_counter() - began
    if first != 0 or total != rows * (rows - 1) // 2:
        raise ValueError(f"{rows} rows came with the sum {total}")
    return usable, seconds


def _pieces(values: Any) -> list[Any]:
    return [chunk.to_numpy() for chunk in values.chunks] if hasattr(values, "chunks") else [values]


def _flight(table: pa.Table) -> Any:
    """A client of a Flight server in this process: its C++ threads send without the GIL."""
    import contextlib

    import pyarrow.flight as flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: Any) -> Any:
            return flight.RecordBatchStream(table)

    @contextlib.contextmanager
    def connected() -> Iterator[Any]:
        with Server("grpc://127.0.0.1:0") as server:
            client = flight.connect(f"grpc://127.0.0.1:{server.port}")
            try:
                yield client
            finally:
                client.close()

    os.environ.setdefault("GRPC_VERBOSITY", "error")
    return connected()
