"""Graph features while a long window fills, as the thesis measured its longest ones."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from typing import TYPE_CHECKING, Any, ClassVar

from cluster import running
from graph_cluster import Run, same
from harness.tasks import Sample

from reproduction.experiment import BATCH, SCATTER, SIMPLE, TITLES, Experiment, View, throughput
from reproduction.windows import ALONE, MONTH_ROWS, OTHER, cut_short, month, near_and_far, share_cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from reproduction.experiment import Cells, Room

__all__ = ["Filling"]

# Pattern, hours, and the rows that theirs had at the end: their rate by 20 minutes (Table 5.5: of
# cycles 12.2 and 25.5 M within 72 hours, 11.0 and 11.8 M within 240, of scatter-gather 15.9 and
# 17.7 M, in ThymesisFlow's memory and in local memory), the greater one rounded up.
_FILLED = ((SIMPLE, 72, 26_000_000), (SIMPLE, 240, 12_000_000), (SCATTER, 720, 18_000_000))
# The places of the measured rows, in equal parts of a run.
_PARTS = 4
_WORK_MAX = 1_000_000


@dataclasses.dataclass(frozen=True)
class _Quarter:
    """Rows measured in the middle of a quarter of a run.

    Attributes:
        filled: rows in the graph before them.
        found: their features, batch by batch.
        calls: seconds of each batch.
        cut: searches that ended at the limit.
    """

    filled: int
    found: list[npt.NDArray[Any]]
    calls: list[float]
    cut: int


def _measured(
    run: Run, rows: npt.NDArray[Any], ends: list[int], seconds: float
) -> Iterator[_Quarter]:
    """The rows that follow each of ``ends``, in whole batches.

    Raises:
        ValueError: a quarter has less than two batches.
    """
    if ends[0] < BATCH:
        raise ValueError(f"quarters of {2 * ends[0]:,} rows: less than two batches of {BATCH:,}")
    begin = cut = 0
    for end in ends:
        run.fill(rows[begin:end])
        before = len(run.calls)
        found = run.measure(rows[end : end + ends[0] // BATCH * BATCH], seconds)
        begin = end + sum(map(len, found))
        all_cut = cut_short(run.features.stats())
        yield _Quarter(end, found, run.calls[before:], all_cut - cut)
        cut = all_cut


def _check(quarter: _Quarter, want: dict[int, list[npt.NDArray[Any]]], what: str) -> None:
    """Compare with what an earlier run found in which no search ended at the limit either.

    Raises:
        ValueError: these are other features.
    """
    if not same(quarter.found, want.setdefault(quarter.filled, quarter.found)):
        raise ValueError(f"{what}: not the features of one process on the same rows")


def _samples(quarter: _Quarter, variant: str, way: str) -> Iterator[Sample]:
    case, rows = f"{quarter.filled / 1e6:g} M rows", len(quarter.calls) * BATCH
    total = sum(float(features.sum()) for features in quarter.found)
    yield Sample(case, way, variant, "s", quarter.calls)
    yield Sample(case, way, f"{variant}, found", "a row", [total / rows])
    yield Sample(case, way, f"{variant}, cut short", "in 1000 rows", [1000 * quarter.cut / rows])


class Filling(Experiment):
    """The longest windows, from an empty graph on."""

    name = "filling"
    title = "Long windows while they fill"
    about = (
        "The thesis ran its large data for 20 minutes from an empty graph: its rates of 240"
        " and 720 hours are means over a window that was never full (at the end some 6 of 10"
        " days of cycles, and 9 of 30 days of scatter-gather). Here a graph is filled with as"
        " many rows as the longer of their two runs had at the end, and rows are measured in"
        " the middle of each quarter; the rate of all is the mean that a run through all rows"
        " would have, by those quarters. The rates of full windows are at windows. Batches of"
        f" {BATCH}, one thread, causal mode, in one process and with all but the newest edges in"
        " another node's memory; both must find the same unless a search ended at the limit,"
        f" {_WORK_MAX:,} edges."
    )
    seconds_max = (120.0, 900.0)
    views = (
        View(f"{SIMPLE} 72 h", "Simple cycles, 72 h", "rows a second of all", throughput,
             "curves", "rows in the graph, millions"),
        View(f"{SIMPLE} 240 h", "Simple cycles, 240 h", "rows a second of all", throughput,
             "curves", "rows in the graph, millions"),
        View(f"{SCATTER} 720 h", "Scatter-gather, 720 h", "rows a second of all", throughput,
             "curves", "rows in the graph, millions"),
        View(f"{SIMPLE} 72 h, found", "Simple cycles within 72 h that were found", "a row",
             chart="", digits=1),
        View(f"{SIMPLE} 240 h, found", "Simple cycles within 240 h that were found", "a row",
             chart="", digits=1),
        View(f"{SIMPLE} 240 h, cut short",
             "Simple cycles within 240 h, searches that ended at the limit",
             "of 1000 rows", chart="", digits=1),
    )  # fmt: skip

    # Pattern, hours and rows of each run; rows of the stream of a quick one.
    filled: ClassVar = _FILLED
    rows_quick = 1_500_000

    def run(self, room: Room) -> Iterator[Sample]:
        """Each window, in both places."""
        stream = month(room, self.rows_quick)
        if not room.is_quick and len(stream) < MONTH_ROWS:
            room.note("not run: with fewer copies a window has fewer edges than theirs")
            return
        with running(2, 1 << 30 if room.is_quick else 3 << 30) as nodes:
            for pattern, hours, theirs in self.filled:
                last = min(theirs, int(0.9 * len(stream)))
                ends = [last * (2 * part + 1) // (2 * _PARTS) for part in range(_PARTS)]
                want: dict[int, list[npt.NDArray[Any]]] = {}
                places = near_and_far(f"filling-{pattern}-{hours}", nodes, hours)
                for way, place in places.items():
                    one = Run(way, pattern, hours, place, work_max=_WORK_MAX)
                    with contextlib.closing(one) as run:
                        for quarter in _measured(run, stream, ends, room.pick(1.0, 15.0)):
                            what = f"{TITLES[pattern]} {hours} h, {way}, {quarter.filled:,} rows"
                            if not quarter.cut:
                                _check(quarter, want, what)
                            room.note(f"{what}: {len(quarter.calls):,} batches")
                            yield from _samples(quarter, f"{pattern} {hours} h", way)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The rate of all rows, by the quarters, and the share of searches at the limit."""
        found: dict[str, str | None] = {}
        for pattern, hours, _ in self.filled:
            variant = f"{pattern} {hours} h"
            for word, way in (("local", ALONE), ("remote", OTHER)):
                cases = cells.cases(variant)
                rates = [cells.get(variant, case, way, throughput) for case in cases]
                cuts = [cells.get(f"{variant}, cut short", case, way) or 0.0 for case in cases]
                sizes = [cells.get(f"{variant}, found", case, way) or 0.0 for case in cases]
                text = None
                if len(rates) == _PARTS and all(rates):
                    text = f"{statistics.harmonic_mean([one or 0 for one in rates]):,.0f} rows/s"
                    if pattern == SIMPLE:
                        text += f"; {statistics.fmean(sizes):,.0f} cycles found a row"
                    text += share_cut(statistics.fmean(cuts))
                found[f"{variant}, {word}"] = text
        return found
