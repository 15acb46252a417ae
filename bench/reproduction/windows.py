"""Graph features over long windows: extended windows, placement of older days, enlarged data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from cluster import running
from graph_cluster import DAY, Run, same, ways
from harness.machine import available_bytes
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
    number,
    p99_ms,
    rate,
    throughput,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

__all__ = [
    "MONTH_ROWS",
    "ROW_BYTES",
    "Enlarged",
    "Modes",
    "Placement",
    "Windows",
    "agreed",
    "cut_short",
    "month",
    "near_and_far",
    "share_cut",
]

ALONE, OWN, OTHER = "one process", "own node", "other node"
# Limit on the edges of one search; for cycles over more than three days in a quick and in a full
# run: within a month most of the graph is reachable from any account.
_WORK_MAX = 1_000_000
_LONG_CYCLES_MAX = (10_000, 100_000)
_LONG_HOURS = 72
# Start of the measured rows as a share of all, by the days of the stream: on a Friday and on a
# Wednesday, because a window of hours with a Sunday has half as many rows; in the longer stream
# after more than a month.
_FROM = {10: 0.85, 38: 0.92}
_MEASURED = 0.05
# Copies of a full run, if there is memory: some 72 M rows.
_GENERATED, _COPIES = 12_000_000, 6
MONTH_ROWS = _GENERATED * _COPIES
# Memory for each row: the stream while it is generated; then a graph, segments, and the file.
ROW_BYTES = 220
# The tasks for days outside of the process.
_PLACED = (
    (SCATTER, "6 h"), (SCATTER, "72 h"), (SIMPLE, "24 h"), (CYCLES, "24 h"), (CYCLES, "72 h"),
)  # fmt: skip
# Windows of the thesis' base line, and of temporal cycles.
_BASE = ((SCATTER, 6), (SIMPLE, 24), (CYCLES, 24))
# What another node's memory is compared with.
_NEAR = ((OWN, "of own node's memory"), (ALONE, "of one process"))


def _measured(
    rows: npt.NDArray[np.float64],
    pattern: str,
    hours: int,
    chosen: Mapping[str, Any],
    room: Room,
    days: int,
    seconds: float,
) -> Iterator[tuple[Run, float, dict[str, Any]]]:
    """Each way alternately on the same rows: the run, rows added a second, and the graph's stats.

    Raises:
        ValueError: two ways found different features.
    """
    times = rows[:, 3]
    first_measured = int(len(rows) * _FROM[days])
    # Figures are of whole batches.
    last = first_measured + int(len(rows) * _MEASURED) // BATCH * BATCH
    oldest = int(np.searchsorted(times, times[first_measured] - hours * 3600 - DAY))
    is_long = pattern != SCATTER and hours > _LONG_HOURS
    most = int(room.pick(*_LONG_CYCLES_MAX)) if is_long else _WORK_MAX
    want: list[npt.NDArray[Any]] = []
    for name, cluster in chosen.items():
        with contextlib.closing(Run(name, pattern, hours, cluster, work_max=most)) as run:
            added = run.fill(rows[oldest:first_measured])
            found = run.measure(rows[first_measured:last], seconds)
            what = f"{TITLES[pattern]} {hours} h, {name}"
            want = agreed(room, what, run, most, found, want)
            yield run, added, run.features.stats()


def month(room: Room, rows_quick: int = 1_500_000) -> npt.NDArray[np.float64]:
    """A stream of more than a month; in a full run, in as many copies as memory is for."""
    rows, copies = (rows_quick, 1) if room.is_quick else (_GENERATED, _COPIES)
    fit = int(available_bytes() * 0.9 / (rows * ROW_BYTES))
    if fit < copies:
        room.note(f"memory for {max(fit, 1)} copies instead of {copies}")
        copies = max(fit, 1)
    days = max(_FROM)
    stream = room.stream(rows, days, copies)
    times = f", {copies} copies of {rows:,}" if copies > 1 else ""
    room.note(f"{len(stream):,} rows of {days} days{times}")
    return stream


def near_and_far(graph: str, nodes: Any, hours: int) -> dict[str, Any]:
    """A graph in one process, and one in another node's memory, whose segments span a day or a
    tenth of the window."""
    made = ways(graph, nodes.sockets[0], nodes.names[1], max(DAY, hours * 3600 // 10))
    return {way: made[way] for way in (ALONE, OTHER)}


def cut_short(stats: dict[str, Any]) -> int:
    """Searches of a graph that ended at the limit so far."""
    return sum(stats["cut_short"].values())


def share_cut(cut: float | None) -> str:
    """How many of 1000 searches ended at the limit, as the end of a text; empty for none."""
    return f"; {cut:,.0f} of 1000 rows cut short" if cut else ""


def agreed(
    room: Room,
    what: str,
    run: Run,
    work_max: int,
    found: list[npt.NDArray[Any]],
    want: list[npt.NDArray[Any]],
) -> list[npt.NDArray[Any]]:
    """The features that later runs on the same rows must find: those of the first run in which no
    search ended at the limit.

    Raises:
        ValueError: this run found different features.
    """
    cut = cut_short(run.features.stats())
    if cut:
        # The placement of edges determines their order, and so the results of a search that is cut
        # short.
        rows = sum(map(len, found))
        room.note(f"{what}: in {rows:,} rows {cut:,} searches ended after {work_max:,} edges")
        return want
    if want and not same(found, want):
        raise ValueError(f"{what}: not the features of an earlier run on the same rows")
    return want or found


def _samples(run: Run, case: str, added: float, stats: dict[str, Any]) -> Iterator[Sample]:
    pattern = run.pattern
    # Searches of a batch that ended at the limit, by the number of its rows: a search each.
    cut = 1000 * cut_short(stats) / max(1, len(run.calls) * BATCH)
    yield Sample(case, run.name, f"{pattern}, cut short", "in 1000 rows", [cut])
    yield Sample(case, run.name, pattern, "s", run.calls)
    yield Sample(case, run.name, f"{pattern}, added", "rows/s", [added])
    edges = max(1, stats["edges"])
    held = stats["bytes"] + (stats["sealed_bytes"] if stats["segments"] else 0)
    yield Sample(case, run.name, f"{pattern}, memory", "B", [held / edges])
    yield Sample(case, run.name, f"{pattern}, edges", "edges", [float(stats["edges"])])


def _rows_a_second(cells: Cells, pattern: str, case: str, peer: str) -> str | None:
    """The rate, and how many searches ended at the limit, where some did."""
    found = cells.get(pattern, case, peer, throughput)
    if found is None:
        return None
    cut = cells.get(f"{pattern}, cut short", case, peer)
    return f"{found:,.0f} rows/s{share_cut(cut)}"


class Windows(Experiment):
    """Scatter-gather, simple and temporal cycles, from hours to a month."""

    name = "windows"
    title = "Extended windows: 6 hours to a month"
    about = (
        "The thesis extends windows from 6 hours (scatter-gather) and 24 hours (simple cycles) to"
        " 72, 240 and, for scatter-gather, 720. Here one stream of more than a month runs through a"
        " graph that is all in one process, and through one that lies in segments in another node's"
        " memory but for its newest edges. A segment spans a day, or a tenth of the window where"
        f" that is longer. Batches of {BATCH}, one thread, causal mode; both must find the same. A"
        " search that has looked at a given number of edges ends there; below the tables stands how"
        " many did: where that is many, a rate is that of a bounded search."
    )
    seconds_max = (180.0, 1500.0)
    views = (
        View(SCATTER, "Scatter-gather", "rows a second of all", throughput,
             "curves", "window, hours"),
        View(SIMPLE, "Simple cycles", "rows a second of all", throughput,
             "curves", "window, hours"),
        View(CYCLES, "Temporal cycles", "rows a second of all", throughput,
             "curves", "window, hours"),
        View(SCATTER, "Scatter-gather, a batch, p99", "ms", p99_ms, "curves", "window, hours", 1),
        View(SIMPLE, "Simple cycles, a batch, p99", "ms", p99_ms, "curves", "window, hours", 1),
        View(CYCLES, "Temporal cycles, a batch, p99", "ms", p99_ms, "curves", "window, hours", 1),
        View(f"{SCATTER}, memory", "Memory", "bytes a live edge", digits=1),
        View(f"{SCATTER}, edges", "Live edges", "edges"),
        View(f"{SCATTER}, added", "Adding rows alone", "rows a second"),
        View(f"{SCATTER}, cut short", "Scatter-gather searches that ended at the limit",
             "of 1000 rows", chart="", digits=1),
        View(f"{SIMPLE}, cut short", "Simple cycles: searches that ended at the limit",
             "of 1000 rows", chart="", digits=1),
        View(f"{CYCLES}, cut short", "Temporal cycles: searches that ended at the limit",
             "of 1000 rows", chart="", digits=1),
    )  # fmt: skip

    def run(self, room: Room) -> Iterator[Sample]:
        """Every window over the same stream."""
        stream, days = month(room), max(_FROM)
        seconds = room.pick(1.5, 10.0)
        with running(2, 1 << 30 if room.is_quick else 3 << 30) as nodes:
            for hours, pattern in (
                (6, SCATTER), (24, SCATTER), (24, SIMPLE), (24, CYCLES), (72, SCATTER),
                (72, SIMPLE), (72, CYCLES), (240, SCATTER), (240, SIMPLE), (720, SCATTER),
                (240, CYCLES), (720, CYCLES),
            ):  # fmt: skip
                name = f"{pattern}-{hours}"
                both = near_and_far(name, nodes, hours)
                for found in _measured(stream, pattern, hours, both, room, days, seconds):
                    yield from _samples(found[0], f"{hours} h", *found[1:])

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Rates of both graphs; for the largest window, its bytes."""
        size = cells.get(f"{SCATTER}, memory", "720 h", ALONE)
        edges = cells.get(f"{SCATTER}, edges", "720 h", ALONE)
        rates = {
            f"{pattern} {hours} h, {word}": _rows_a_second(cells, pattern, f"{hours} h", way)
            for pattern in (SCATTER, SIMPLE, CYCLES)
            for hours in (6, 24, 72, 240, 720)
            for word, way in (("local", ALONE), ("remote", OTHER))
        }
        shown = size is not None and edges is not None
        return {
            "bytes": f"{size:.0f} B an edge of {edges:,.0f} (720 h)" if shown else None,
            **rates,
        }


class Placement(Experiment):
    """Placement of all days except the newest."""

    name = "placement"
    title = "Local against remote memory"
    about = (
        "The thesis compares a graph in local memory with one in ThymesisFlow's. Here the days but"
        " the newest lie in this process, there as segments, in its own node's memory, in another"
        " node's, and there with a second process that takes half of each batch. Nodes of one"
        " machine: what is measured is what segments in shared memory cost, not a slower link (that"
        " is below)."
    )
    seconds_max = (140.0, 420.0)
    views = (
        View(SCATTER, "Scatter-gather", "rows a second", rate),
        View(SIMPLE, "Simple cycles", "rows a second", rate),
        View(CYCLES, "Temporal cycles", "rows a second", rate),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Three windows, all ways."""
        stream = room.stream(1_000_000 if room.is_quick else 5_000_000, 10)
        room.note(f"{len(stream):,} rows of 10 days")
        with running(2, 1 << 30) as nodes:
            for pattern, case in _PLACED:
                hours = int(number(case))
                chosen = ways(f"{pattern}-{hours}", nodes.sockets[0], nodes.names[1])
                seconds = room.pick(1.5, 10.0)
                for run, *_ in _measured(stream, pattern, hours, chosen, room, 10, seconds):
                    yield Sample(case, run.name, pattern, "s", run.calls)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Least and greatest share of the throughput lost by the thesis' algorithms; negative
        values are gains."""
        by_place: dict[str, list[float]] = {}
        for pattern, case in _PLACED:
            found = _lost(cells, pattern, case) if pattern != CYCLES else {}
            for words, lost in found.items():
                by_place.setdefault(words, []).append(lost)
        ends = [
            f"{min(losses):.0f} to {max(losses):.0f} % {words}"
            for words, losses in by_place.items()
        ]
        return {"lost": "; ".join(ends) or None}


def _lost(cells: Cells, pattern: str, case: str, mode: str = "") -> dict[str, float]:
    """Percent of the throughput lost in another node's memory; by the place it is compared with."""
    found = {}
    for place, words in _NEAR:
        near = cells.get(pattern, case, f"{mode}{place}", rate)
        far = cells.get(pattern, case, f"{mode}{OTHER}", rate)
        if near and far:
            found[words] = 100 * (1 - far / near)
    return found


def _offline(
    run: Run, rows: npt.NDArray[np.float64], batches_max: int, seconds: float
) -> list[npt.NDArray[np.float64]]:
    """Features of the first batches of rows that are all added before, within a time limit; times
    in ``run.calls``."""
    features = run.features
    assert isinstance(features, GraphFeatures)
    parts = features.offline(rows, batch=BATCH)
    assert isinstance(parts, Generator)
    # All finished days are in segments before the first computation.
    run.settle()
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until and len(found) < batches_max:
        began = time.perf_counter()
        part = next(parts, None)
        if part is None or len(part) < BATCH:
            # Figures are of whole batches.
            break
        run.calls.append(time.perf_counter() - began)
        found.append(part[:, 4:])
    parts.close()
    return found


class Modes(Experiment):
    """Rows in real time, and rows that are all available."""

    name = "modes"
    title = "Real-time against offline mode"
    about = (
        "In the thesis' real-time mode a batch is added and its features are computed, then comes"
        " the next; in its offline mode everything is added first. Here offline mode gives each row"
        " what it gets in real time, though all rows of the last day and a half are there: both"
        f" must find the same. Windows are those of the base line; batches of {BATCH}; in real time"
        " alone adding the rows is part of a batch. The measured rows end a day before the last"
        " one: in offline mode all their edges lie in segments, in real time the newest day does"
        " not. The losses in remote memory are those of offline mode, as in the thesis."
    )
    seconds_max = (150.0, 480.0)
    views = (
        View(SCATTER, "Scatter-gather, 6 h", "rows a second", rate),
        View(SIMPLE, "Simple cycles, 24 h", "rows a second", rate),
        View(CYCLES, "Temporal cycles, 24 h", "rows a second", rate),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Both modes, in one process, and from own and another node's memory."""
        days = min(_FROM)
        stream = room.stream(1_000_000 if room.is_quick else 5_000_000, days)
        room.note(f"{len(stream):,} rows of {days} days")
        times, middle = stream[:, 3], int(len(stream) * _FROM[days])
        # Days before the last one are in segments in offline mode.
        batches = (int(np.searchsorted(times, times[-1] - DAY)) - middle) // BATCH
        if batches < 1:
            raise ValueError(f"{len(stream):,} rows: less than a batch before the last day")
        seconds = room.pick(1.5, 10.0)
        with running(2, 1 << 30) as nodes:
            for pattern, hours in _BASE:
                first = int(np.searchsorted(times, times[middle] - hours * 3600 - DAY))
                chosen = ways(f"modes-{pattern}", nodes.sockets[0], nodes.names[1])
                for way in (ALONE, OWN, OTHER):
                    want: list[npt.NDArray[Any]] = []
                    for mode in ("real time", "offline"):
                        peer = f"{mode}, {way}"
                        one = Run(peer, pattern, hours, chosen[way], work_max=_WORK_MAX)
                        with contextlib.closing(one) as run:
                            run.fill(stream[first:middle])
                            if mode == "offline":
                                found = _offline(run, stream[middle:], batches, seconds)
                            else:
                                last = middle + batches * BATCH
                                found = run.measure(stream[middle:last], seconds)
                            what = f"{TITLES[pattern]} {hours} h, {peer}"
                            want = agreed(room, what, run, _WORK_MAX, found, want)
                            yield Sample(f"{hours} h", peer, pattern, "s", run.calls)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Offline compared with real time, and the share that offline mode loses in remote
        memory, with the rates that it is of."""
        found: dict[str, str | None] = {}
        for pattern, hours in _BASE:
            case = f"{hours} h"
            lost = _lost(cells, pattern, case, "offline, ")
            texts = [f"{value:.0f} % {words}" for words, value in lost.items()]
            found[f"lost {pattern} {case}"] = "; ".join(texts) or None
            texts = []
            for way in (ALONE, OTHER):
                offline, real_time = (
                    cells.get(pattern, case, f"{mode}, {way}", rate)
                    for mode in ("offline", "real time")
                )
                if offline and real_time:
                    texts.append(f"offline {offline / real_time:.2f} of real time, {way}")
            found[pattern] = "; ".join(texts) or None
            rates = (
                (way, cells.get(pattern, case, f"offline, {way}", throughput))
                for way in (OTHER, ALONE)
            )
            texts = [f"{speed:,.0f} ({way})" for way, speed in rates if speed]
            found[f"rates {pattern} {case}"] = f"{', '.join(texts)} rows/s" if texts else None
        return found


class Enlarged(Experiment):
    """The same windows over more of the same data."""

    name = "enlarged"
    title = "Enlarged data: 1, 2 and more copies"
    about = (
        "The thesis lays disjoint copies of its data beside each other, each with new accounts:"
        " statistics of an account stay what they are while the graph grows. Windows are those of"
        f" its base line, 6 hours for scatter-gather and 24 for cycles; batches of {BATCH}."
    )
    seconds_max = (80.0, 420.0)
    views = (
        View(SCATTER, "Scatter-gather, 6 h", "rows a second", rate, "curves", "copies"),
        View(CYCLES, "Temporal cycles, 24 h", "rows a second", rate, "curves", "copies"),
        View(f"{CYCLES}, edges", "Live edges within 24 h", "edges"),
        View(f"{CYCLES}, memory", "Memory within 24 h", "bytes a live edge", digits=1),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """From one copy up."""
        rows = 500_000 if room.is_quick else 5_000_000
        room.note(f"{rows:,} rows of 10 days, copied")
        with running(2, 1 << 30 if room.is_quick else 3 << 30) as nodes:
            for copies in (1, 2, 4) if room.is_quick else (1, 2, 4, 8):
                stream = room.stream(rows, 10, copies)
                for pattern, hours in ((SCATTER, 6), (CYCLES, 24)):
                    both = near_and_far(f"{pattern}-{copies}", nodes, hours)
                    seconds = room.pick(1.0, 8.0)
                    for found in _measured(stream, pattern, hours, both, room, 10, seconds):
                        yield from _samples(found[0], f"{copies} x", *found[1:])

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The largest compared with the smallest."""
        texts = []
        for pattern in (SCATTER, CYCLES):
            cases = cells.cases(pattern)
            pair = [cells.get(pattern, case, ALONE, rate) for case in cases[:: len(cases) - 1 or 1]]
            if len(pair) == 2 and pair[0] and pair[1]:
                texts.append(f"{TITLES[pattern]} {pair[1] / pair[0]:.2f} of 1 x at {cases[-1]}")
        return {"enlarged": "; ".join(texts) or None}
