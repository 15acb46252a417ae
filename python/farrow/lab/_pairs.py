"""Pairs of figures: with and without huge pages, in private memory and on another node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from farrow.cli._output import human_bytes, human_ns
from farrow.lab._plan import TYPICAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow.lab._analyse import Figures
    from farrow.lab._plan import Series

__all__ = ["Pair", "compared_by", "in_region", "pattern_speeds", "place", "with_huge_pages"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two measurements of the same work."""

    words: tuple[str, str, str]
    """What it is, for a table."""
    one: str
    other: str
    """Both as text, with units."""
    ratio: float
    """Time of the other over that of the one."""

    @property
    def cells(self) -> tuple[str, ...]:
        """A table row."""
        return (*self.words, self.one, self.other, f"{self.ratio:.2f}")


def place(series: Series) -> str:
    """``private``, ``private, huge pages`` or ``region``."""
    if series.memory == "region":
        return "region"
    return "private, huge pages" if series.pages == "huge" else "private"


def with_huge_pages(figures: Figures) -> list[Pair]:
    """Publish, refresh and write in small and huge pages, by the method best in small ones."""
    costs = {
        (one.series.work, one.series.method, one.series.nbytes, one.series.pages): one
        for one in figures.costs
        if one.series.part == "lines" and one.series.state == _typical(one.series)
    }
    best = {
        (choice.work, choice.nbytes): choice.best
        for choice in figures.choices
        if choice.pages == "small" and choice.threads == 1
    }
    return [
        _pair(work, method, nbytes, small.p50, huge.p50)
        for (work, nbytes), method in sorted(best.items())
        if (small := costs.get((work, method, nbytes, "small")))
        and (huge := costs.get((work, method, nbytes, "huge")))
    ]


def in_region(figures: Figures) -> list[Pair]:
    """Publish, refresh and write in private memory and in another node's memory."""
    private = {
        (one.series.work, one.series.method, one.series.nbytes): one.p50
        for one in figures.costs
        if one.series.part == "lines"
        and one.series.pages == "small"
        and one.series.state == _typical(one.series)
    }
    return [
        _pair(one.work, one.method, one.nbytes, private[key], cost.p50)
        for cost in figures.costs
        if (one := cost.series).part == "region"
        and (key := (one.work, one.method, one.nbytes)) in private
    ]


def pattern_speeds(figures: Figures) -> dict[tuple[str, int, int, int], dict[str, float]]:
    """GiB/s by place, for each (work, width, stride, threads)."""
    speeds: dict[tuple[str, int, int, int], dict[str, float]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "patterns":
            key = (one.work, one.width, one.stride, one.threads)
            speeds.setdefault(key, {})[place(one)] = cost.gib_per_s
    return speeds


def compared_by(figures: Figures, one: str, other: str) -> Iterator[Pair]:
    """Access patterns of one thread at two places."""
    for (work, width, stride, threads), found in pattern_speeds(figures).items():
        if threads == 1 and {one, other} <= found.keys():
            order = "sequential" if stride == width else f"every {stride} B"
            words, ratio = (work, f"{8 * width} bit", order), found[one] / found[other]
            yield Pair(words, f"{found[one]:.3g} GiB/s", f"{found[other]:.3g} GiB/s", ratio)


def _typical(series: Series) -> str | None:
    return TYPICAL.get(series.work)


def _pair(work: str, method: str, nbytes: int, one: float, other: float) -> Pair:
    return Pair((work, method, human_bytes(nbytes)), human_ns(one), human_ns(other), other / one)
