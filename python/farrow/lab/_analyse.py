"""Figures from samples: percentiles, bandwidth, cost models, and the quality of the choices."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from farrow import _native
from farrow.lab._plan import TYPICAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from farrow.lab._measure import Run
    from farrow.lab._plan import Series

__all__ = ["Choice", "Figures", "Model", "RangeCost", "analyse", "histogram", "picked_way"]

GIB = 1 << 30
# The kinds of work for which a profile selects a method.
DECIDED = ("publish again", "publish", "refresh", "write")
_BINS_PER_DECADE = 20


@dataclasses.dataclass(frozen=True)
class RangeCost:
    """The figures of a series; nanoseconds for each range."""

    series: Series
    count: int
    p25: float
    p50: float
    p75: float
    p99: float

    def line_ns(self, line_bytes: int) -> float:
        """Median nanoseconds for each line."""
        return self.p50 / max(1, math.ceil(self.series.nbytes / line_bytes))

    @property
    def gib_per_s(self) -> float:
        """Median throughput of all threads; of a pattern, only accessed bytes count."""
        series = self.series
        nbytes: float = series.nbytes
        if series.work in ("load", "store"):
            nbytes = series.nbytes // series.stride * series.width
        return nbytes * series.threads / self.p50 * 1e9 / GIB


@dataclasses.dataclass(frozen=True)
class Model:
    """``fixed_ns + line_ns * lines`` for one instruction, state and kind of page."""

    work: str
    method: str
    state: str
    pages: str
    fixed_ns: float
    line_ns: float
    error: float
    """Root mean square of the relative errors."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best method for a size, and Farrow's choice."""

    work: str
    pages: str
    nbytes: int
    best: str
    best_ns: float
    picked: str
    picked_ns: float
    threads: int = 1

    @property
    def is_decided(self) -> bool:
        """Whether this case decides the choice.  Small ranges are decided by ``publish again``."""
        again_max: int = _native.lab_methods()["publish_again_bytes_max"]
        return self.threads == 1 and (self.work != "publish" or self.nbytes > again_max)

    @property
    def ratio(self) -> float:
        """Time of the chosen method over that of the best one: 1 if they are the same."""
        return self.picked_ns / self.best_ns


@dataclasses.dataclass
class Figures:
    """All figures of a run.  Choices include cases that the profile does not consider: several
    threads, and publishing small ranges without the next store."""

    costs: list[RangeCost]
    models: list[Model]
    choices: list[Choice]

    @property
    def decided(self) -> list[Choice]:
        """The choices that the profile considers.

        Examples:
            >>> from farrow import lab
            >>> settings = lab.Settings(size_max=4096, rounds=1, seconds=0.001, parts=("lines",))
            >>> figures = lab.analyse(lab.measure(settings))
            >>> all(choice.is_decided for choice in figures.decided)
            True
        """
        return [choice for choice in self.choices if choice.is_decided]

    @property
    def worst(self) -> Choice | None:
        """The considered choice with the largest ratio; None without one.

        Examples:
            >>> from farrow import lab
            >>> settings = lab.Settings(size_max=4096, rounds=1, seconds=0.001, parts=("lines",))
            >>> figures = lab.analyse(lab.measure(settings))
            >>> figures.worst.ratio >= 1.0
            True
        """
        return max(self.decided, key=lambda choice: choice.ratio, default=None)


def analyse(run: Run) -> Figures:
    """Compute the figures of a run.

    Args:
        run: the samples of ``measure``.

    Returns:
        Percentiles of each series, cost models of each instruction, and for each size the best
        instruction beside the one that Farrow picks.

    Raises:
        IndexError: a series has no sample.

    Examples:
        >>> from farrow import lab
        >>> settings = lab.Settings(size_max=4096, rounds=1, seconds=0.001, parts=("lines",))
        >>> run = lab.measure(settings)
        >>> len(lab.analyse(run).costs) == len(run.samples)
        True
    """
    costs = [_cost(series, rounds) for series, rounds in run.samples]
    lines = [cost for cost in costs if cost.series.part == "lines"]
    return Figures(costs, _models(lines, run.machine["line_bytes"]), _choices(run, costs))


def picked_way(profile: dict[str, Any], work: str, nbytes: int) -> str:
    """Farrow's method for a range of this size."""
    if work == "copy":
        limit = profile["copy_from_bytes"]
        return profile["copy"] if limit is not None and nbytes >= limit else "memcpy"
    steps = profile["steps"]
    # The nearest size, by ratio, as in crates/memory/src/profile.
    work = "publish" if work == "publish again" else work
    step = max((one for one in steps if one["bytes"] <= 2 * nbytes), key=lambda one: one["bytes"],
               default=steps[0])  # fmt: skip
    return str(step[work])


def histogram(values: Sequence[float]) -> list[tuple[float, float, int]]:
    """Bins of equal ratio, as (from, to, count), in order; values above p99.9 are one bin."""
    if not values:
        return []
    counts: dict[int, int] = {}
    limit = _percentile(sorted(values), 99.9)
    for value in values:
        place = math.floor(math.log10(max(min(value, limit), 1e-3)) * _BINS_PER_DECADE)
        counts[place] = counts.get(place, 0) + 1
    edges = [10 ** (place / _BINS_PER_DECADE) for place in range(min(counts), max(counts) + 2)]
    return [
        (low, high, counts.get(place, 0))
        for place, low, high in zip(
            range(min(counts), max(counts) + 1), edges[:-1], edges[1:], strict=True
        )
    ]


def _percentile(ordered: Sequence[float], percent: float) -> float:
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _cost(series: Series, rounds: Sequence[Sequence[float]]) -> RangeCost:
    ordered = sorted(value for taken in rounds for value in taken)
    percents = (_percentile(ordered, percent) for percent in (25, 50, 75, 99))
    return RangeCost(series, len(ordered), *percents)


def _models(costs: Iterable[RangeCost], line_bytes: int) -> list[Model]:
    points: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for cost in costs:
        one = cost.series
        lines = float(math.ceil(one.nbytes / line_bytes))
        key = (one.work, one.method, one.state, one.pages)
        points.setdefault(key, []).append((lines, cost.p50))
    fitted = ((key, _native.lab_fit(found)) for key, found in points.items())
    return [Model(*key, *model) for key, model in fitted if model is not None]


def _choices(run: Run, costs: Iterable[RangeCost]) -> list[Choice]:
    """Compare the lower quartiles over all rounds, in each of which the methods alternate: load of
    other programs affects the upper half, and must not decide."""
    tables: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for cost in costs:
        one = cost.series
        # With one thread, part "threads" repeats part "lines".
        is_compared = one.part == "lines" or (one.part == "threads" and one.threads > 1)
        if is_compared and one.work in DECIDED and one.state == TYPICAL[one.work]:
            ways = tables.setdefault((one.work, one.pages, one.nbytes, one.threads), {})
            ways[one.method] = cost.p25
    choices = []
    for (work, pages, nbytes, threads), ways in tables.items():
        picked = picked_way(run.profile, work, nbytes)
        best = min(ways, key=lambda way: ways[way])
        if picked in ways:
            numbers = (best, ways[best], picked, ways[picked])
            choices.append(Choice(work, pages, nbytes, *numbers, threads))
    return choices
