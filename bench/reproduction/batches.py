"""Batches of all rows, and many disjoint copies of the data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cluster import running
from graph_cluster import CHUNK, DAY, Run, ways
from harness.tasks import Sample

from farrow.graph import GraphFeatures
from reproduction.experiment import (
    BATCH,
    CYCLES,
    SCATTER,
    SIMPLE,
    TITLES,
    Cells,
    Experiment,
    Room,
    View,
    short_of_memory,
    throughput,
)
from reproduction.windows import ALONE, OTHER, agreed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

__all__ = ["Copies", "Infinite", "copied"]

_WINDOWS = ((SCATTER, 6), (CYCLES, 24))
# The thesis' algorithms.
_INFINITE = ((SCATTER, 6), (SIMPLE, 24))
_DAYS = 10
# Start of the measured rows as a share of all: a Friday, so that no window has a Sunday.
_FROM = 0.85
_WORK_MAX = 1_000_000
_CALLS_SECONDS_MAX = 15.0
_CALLS = {f"batches of {BATCH}": BATCH, "one call": 0}


def _oldest(times: npt.NDArray[np.float64], first: int, hours: int, way: str) -> int:
    """The first row of a full graph; with segments, a day more: each spans a day."""
    span = hours * 3600 + (0 if way == ALONE else DAY)
    return int(np.searchsorted(times, times[first] - span))


class Infinite(Experiment):
    """All rows as one batch."""

    name = "infinite"
    title = "Infinite batches: all rows in one call"
    about = (
        "The thesis names batches of infinite size as a measurement for later: more rows at once"
        " leave more work to do in parallel. Here offline mode adds all rows first; then one call"
        f" computes the features of all measured rows, beside calls of {BATCH}. A row sees earlier"
        " rows alone, so both must find the same, unless a search ended at its limit of edges. One"
        " search thread and two, in one process and from segments in another node's memory; adding"
        " the rows is not in the times."
    )
    seconds_max = (60.0, 120.0)
    views = tuple(
        View(
            f"{pattern}, {way}", f"{TITLES[pattern].capitalize()}, {hours} h, {way}",
            "rows a second", digits=0,
        )
        for pattern, hours in _INFINITE
        for way in (ALONE, OTHER)
    )  # fmt: skip

    rows_quick, rows_full = 1_000_000, 5_000_000
    batches_quick, batches_full = 20, 80

    def run(self, room: Room) -> Iterator[Sample]:
        """Both sizes of calls, on the same rows of a graph that is filled again for each."""
        stream = room.stream(self.rows_quick if room.is_quick else self.rows_full, _DAYS)
        count = int(room.pick(self.batches_quick, self.batches_full)) * BATCH
        room.note(f"{len(stream):,} rows of {_DAYS} days; features of {count:,} rows")
        with running(2, 1 << 30) as nodes:
            for pattern, hours in _INFINITE:
                chosen = ways(f"infinite-{pattern}", nodes.sockets[0], nodes.names[1])
                for way in (ALONE, OTHER):
                    rounds = 1 if room.is_quick else 3 if way == ALONE else 2
                    found: dict[tuple[int, str], list[float]] = {}
                    want: list[npt.NDArray[Any]] = []
                    for _ in range(rounds):
                        for threads in (1, 2):
                            for title, batch in _CALLS.items():
                                run = Run(
                                    title, pattern, hours, chosen[way],
                                    work_max=_WORK_MAX, threads=threads,
                                )  # fmt: skip
                                with contextlib.closing(run):
                                    seconds, got = _offline(run, stream, way, hours, count, batch)
                                    what = f"{TITLES[pattern]} {hours} h, {way}, {title}"
                                    what += f", {threads} thread" + ("s" if threads > 1 else "")
                                    want = agreed(room, what, run, _WORK_MAX, [got], want)
                                found.setdefault((threads, title), []).append(count / seconds)
                    for (threads, title), rates in found.items():
                        case = f"{threads} thread" + ("s" if threads > 1 else "")
                        yield Sample(case, title, f"{pattern}, {way}", "rows/s", rates)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """One call over calls of batches, and two threads over one."""
        found: dict[str, str | None] = {}
        for pattern, hours in _INFINITE:
            texts = []
            for way in (ALONE, OTHER):
                rates = {
                    (case, title): cells.get(f"{pattern}, {way}", case, title)
                    for case in ("1 thread", "2 threads")
                    for title in _CALLS
                }
                small, large = _CALLS
                one, both = (rates[case, large] for case in ("1 thread", "2 threads"))
                batches = rates["2 threads", small]
                if one and both and batches:
                    texts.append(
                        f"{both:,.0f} rows/s in one call with 2 threads, {way}:"
                        f" {both / batches:.2f} of batches, {both / one:.2f} of 1 thread"
                    )
            found[f"{pattern} {hours} h"] = "; ".join(texts) or None
        return found


def _offline(
    run: Run, stream: npt.NDArray[np.float64], way: str, hours: int, count: int, batch: int
) -> tuple[float, npt.NDArray[Any]]:
    """Seconds for the features of ``count`` rows, in batches or in one call, and the features.

    Raises:
        ValueError: the stream ends before the rows.
    """
    times, first = stream[:, 3], int(len(stream) * _FROM)
    if first + count > len(stream):
        raise ValueError(f"{len(stream):,} rows: fewer than {count:,} from row {first:,} on")
    # With rows of one more day, all edges of the measured rows lie in segments.
    last = len(stream) if way == OTHER else first + count
    run.fill(stream[_oldest(times, first, hours, way) : first])
    assert isinstance(run.features, GraphFeatures)
    parts = run.features.offline(stream[first:last], batch=batch or count)
    assert isinstance(parts, Generator)
    run.settle()
    found: list[npt.NDArray[Any]] = []
    began = time.perf_counter()
    while sum(len(part) for part in found) < count:
        found.append(next(parts))
    seconds = time.perf_counter() - began
    parts.close()
    return seconds, np.concatenate([part[:, 4:] for part in found])


def copied(
    rows: npt.NDArray[np.float64], copies: int, accounts: int, first: int = 0
) -> npt.NDArray[np.float64]:
    """Disjoint copies of rows: the copies of a row are adjacent, and have accounts of their own.

    Args:
        rows: rows of (edge, source, target, time).
        copies: 1 or more.
        accounts: number of accounts of one copy.
        first: number of the first edge.
    """
    found = np.repeat(rows[:, :4], copies, axis=0)
    shift = np.tile(np.arange(copies, dtype=np.float64) * accounts, len(rows))
    found[:, 0] = np.arange(first, first + len(found))
    found[:, 1] += shift
    found[:, 2] += shift
    return found


class Copies(Experiment):
    """The data laid beside themselves up to 60 times."""

    name = "copies"
    title = "Enlarged data: up to 60 copies"
    about = (
        "The thesis describes data that are enlarged up to 60 times by disjoint copies with new"
        " accounts, and runs two. Here the rows of a window, and as many days as segments need, are"
        " copied while they are added, since the whole stream would be larger than memory. The"
        " measured rows are copies of the same rows for each number of copies, so searches are"
        f" the same, and only the graph grows. Batches of {BATCH}, one thread. Memory and a limit"
        " on the time decide how far it gets: a note names each step that was left out,"
        " and each that had no time for all of the measured rows."
    )
    seconds_max = (75.0, 290.0)
    views = (
        View(SCATTER, "Scatter-gather, 6 h", "rows a second", throughput, "curves", "copies"),
        View(CYCLES, "Temporal cycles, 24 h", "rows a second", throughput, "curves", "copies"),
        View(f"{CYCLES}, edges", "Live edges within 24 h", "edges"),
        View(f"{CYCLES}, memory", "Memory within 24 h", "bytes a live edge", digits=1),
        View(f"{CYCLES}, added", "Adding rows alone", "rows a second"),
    )
    rows_quick, rows_full = 500_000, 5_000_000
    numbers_quick = (1, 4, 16)
    numbers_full = (1, 16, 60)
    # Base rows of the measured part: few enough that all of their copies fit in the time.
    _MEASURED = 8 * BATCH
    # The rest of the limit is for an estimate that was too low, and the end of the nodes.
    _SHARE = 0.85
    # Vectors that double hold twice as much while they are copied.
    _PEAK = 2.0

    def run(self, room: Room) -> Iterator[Sample]:
        """From one copy up; a step that would exceed the time or the memory is left out."""
        rows = self.rows_quick if room.is_quick else self.rows_full
        stream = room.stream(rows, _DAYS)
        until = time.monotonic() + self._SHARE * room.pick(*self.seconds_max)
        room.note(f"{rows:,} rows of {_DAYS} days, copied while they are added")
        before: dict[tuple[str, str], _Step] = {}
        with running(2, (1 if room.is_quick else 5) << 30) as nodes:
            for copies in self.numbers_quick if room.is_quick else self.numbers_full:
                for way in (ALONE, OTHER):
                    for pattern, hours in _WINDOWS:
                        step = f"{copies} x, {TITLES[pattern]}, {way}"
                        if why := _why_not(before.get((pattern, way)), copies, until):
                            room.note(f"{step}: not run, {why}")
                            continue
                        began = time.monotonic()
                        cluster = ways(
                            f"{pattern}-{copies}", nodes.sockets[0], nodes.names[1]
                        )[way]  # fmt: skip
                        run = Run(way, pattern, hours, cluster, work_max=_WORK_MAX)
                        with contextlib.closing(run):
                            added = _filled(run, stream, copies, hours)
                            first = int(len(stream) * _FROM)
                            part = stream[first : first + self._MEASURED]
                            first_edge = first * copies
                            part = copied(part, copies, _accounts(stream), first_edge)
                            run.measure(part, _CALLS_SECONDS_MAX)
                            if len(run.calls) * BATCH < len(part) - BATCH:
                                done = len(run.calls) * BATCH
                                room.note(
                                    f"{step}: {done:,} of {len(part):,} rows in its time; the rate"
                                    " is of these alone"
                                )
                            stats = run.features.stats()
                        held = stats["bytes"] + (stats["sealed_bytes"] if stats["segments"] else 0)
                        calls = sum(run.calls)
                        rest = time.monotonic() - began - calls
                        before[pattern, way] = _Step(copies, rest, calls, held * self._PEAK)
                        yield from _samples(run, f"{copies} x", added, stats["edges"], held)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The largest number of copies over one, and the bytes of its graph."""
        texts, sizes = [], []
        for pattern, hours in _WINDOWS:
            for way in (ALONE, OTHER):
                cases = [case for case in cells.cases(pattern) if cells.get(pattern, case, way)]
                if len(cases) < 2:
                    continue
                small, large = (cells.get(pattern, cases[end], way, throughput) for end in (0, -1))
                edges = cells.get(f"{pattern}, edges", cases[-1], way)
                if small and large and edges:
                    texts.append(
                        f"{TITLES[pattern]} {large / small:.2f} of 1 x at {cases[-1]}, {way}"
                    )
                    held = cells.get(f"{pattern}, memory", cases[-1], way) or 0.0
                    sizes.append(
                        f"{held:.0f} B an edge of {edges:,.0f} ({hours} h, {cases[-1]}, {way})"
                    )
        return {"copies": "; ".join(texts) or None, "bytes": "; ".join(sizes) or None}


def _accounts(stream: npt.NDArray[np.float64]) -> int:
    return int(stream[:, 1:3].max()) + 1


class _Step(NamedTuple):
    """What a step took: seconds of the measured calls and of all else, and bytes."""

    copies: int
    rest_seconds: float
    calls_seconds: float
    nbytes: float


def _why_not(before: _Step | None, copies: int, until: float) -> str | None:
    """The reason to leave a step out, by the last one: its time or its memory, grown with the
    copies; the measured calls end at their limit."""
    if before is None:
        return None
    growth = copies / before.copies
    calls = min(before.calls_seconds * growth, _CALLS_SECONDS_MAX)
    seconds, left = before.rest_seconds * growth + calls, until - time.monotonic()
    if seconds > left:
        return f"it would take some {seconds:.0f} s, and {max(left, 0.0):.0f} s are left"
    return short_of_memory(before.nbytes * growth)


def _filled(run: Run, stream: npt.NDArray[np.float64], copies: int, hours: int) -> float:
    """Fill a graph with copies of the rows before the measured ones; returns rows a second."""
    first, accounts = int(len(stream) * _FROM), _accounts(stream)
    oldest = _oldest(stream[:, 3], first, hours, run.name)
    step = max(1, CHUNK // copies)
    began, number_of_edge = time.perf_counter(), 0
    for start in range(oldest, first, step):
        part = copied(stream[start : min(start + step, first)], copies, accounts, number_of_edge)
        number_of_edge += len(part)
        run.features.partial_fit(part)
    speed = number_of_edge / (time.perf_counter() - began)
    # Building segments has a time by their edges.
    run.settle(120.0 + number_of_edge / 100_000)
    return speed


def _samples(run: Run, case: str, added: float, edges: int, held: int) -> Iterator[Sample]:
    pattern = run.pattern
    yield Sample(case, run.name, pattern, "s", run.calls)
    yield Sample(case, run.name, f"{pattern}, added", "rows/s", [added])
    yield Sample(case, run.name, f"{pattern}, edges", "edges", [float(edges)])
    yield Sample(case, run.name, f"{pattern}, memory", "B", [held / max(1, edges)])
