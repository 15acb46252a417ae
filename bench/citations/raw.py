"""A committed run: its samples, medians, spreads and ratios.  Standard library only: ``make lint``
runs it before anything is installed."""

from __future__ import annotations

import functools
import json
import os.path
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "REPOSITORY",
    "RESULTS",
    "Run",
    "digits",
    "of_medians",
    "quartiles",
    "run_of",
    "runs_of",
    "shown",
    "spread",
    "table",
]

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
REPOSITORY = HERE.parent.parent
# Units, the largest first.
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Below, two digits of it would be written 1.0e+02.
_THREE_DIGITS_FROM = 99.5
_LARGER_FROM = 1000


class Run:
    """One file of ``bench/results``.

    Attributes:
        name: its name without an ending.
        document: its contents.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
        self._found: dict[tuple[str, str, str], list[float]] = {}
        for one in self.document.get("samples", ()):
            key = one["case"], one["peer"], one["variant"]
            # A case may have been measured on several servers.
            self._found.setdefault(key, []).extend(one["samples"])

    @property
    def is_citable(self) -> bool:
        """Whether it is a full run of a committed state."""
        commit = self.document.get("commit", {})
        return self.document.get("quick") is False and commit.get("changed") is False

    @property
    def copy_pages(self) -> str:
        """The pages of the private buffers of the best copy."""
        pages: str = self.document["machine"].get("copy_pages", "the smallest")
        return pages

    def link(self, page: str, ending: str = ".md") -> str:
        """A Markdown link to its table from a page, with what the reader must know of it."""
        words = "quick run" if self.document["quick"] else "run"
        changed = ", of files that were not committed" if self.document["commit"]["changed"] else ""
        start = (REPOSITORY / page).parent
        target = os.path.relpath(RESULTS / f"{self.name}{ending}", start)
        about = self.document["machine"]
        machine = re.sub(r"\(R\)|\(TM\)| Processor", "", about["processor"])
        return f"[{words} of {self.document['date']}]({target}), {machine}{changed}"

    def samples(self, case: str, peer: str, variant: str | None = None) -> list[float]:
        """The samples of a case; an empty list if it was not measured."""
        if variant is not None:
            return self._found.get((case, peer, variant), [])
        found = [found for key, found in self._found.items() if key[:2] == (case, peer)]
        return found[0] if len(found) == 1 else []

    def need(self, case: str, peer: str, variant: str | None = None) -> list[float]:
        """The samples of a case that must be there.

        Raises:
            ValueError: it was not measured.
        """
        found = self.samples(case, peer, variant)
        if not found:
            raise ValueError(f"{self.name} has no samples of {case!r} by {peer!r}")
        return found

    def median(self, case: str, peer: str, variant: str | None = None) -> float:
        """The median of a case that must be there."""
        return statistics.median(self.need(case, peer, variant))

    def ratios(
        self, case: str, peer: str, other: str, other_peer: str, variant: str | None = None
    ) -> list[float]:
        """Each sample of the second case over the one of the first taken in the same turn."""
        one, two = self.need(case, peer, variant), self.need(other, other_peer, variant)
        return [after / before for before, after in zip(one, two, strict=False)]

    def variants(self, case: str) -> list[str]:
        """The variants of a case, in the order in which they were measured."""
        return list(dict.fromkeys(key[2] for key in self._found if key[0] == case))


@functools.lru_cache
def run_of(kind: str) -> Run:
    """The run that ``runs.json`` names.

    Raises:
        ValueError: it names none.
    """
    name = json.loads((HERE / "runs.json").read_text())[kind]
    if name is None:
        raise ValueError(f"no run of {kind!r} is committed")
    return Run(name)


def runs_of(*kinds: str) -> list[Run]:
    """The runs of some kinds, without those that ``runs.json`` has as null: not committed yet."""
    names = json.loads((HERE / "runs.json").read_text())
    return [run_of(kind) for kind in kinds if names[kind] is not None]


def quartiles(values: list[float]) -> tuple[float, float]:
    """The ends of the middle half."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def digits(value: float) -> str:
    """Two digits below a hundred, three from there."""
    if value >= _THREE_DIGITS_FROM:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.2g}".rstrip(".") if value else "0"


def of_medians(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """How many times faster ours is: the ratio of the medians, and the least and the greatest ratio
    of two samples of one round."""
    pairs = [after / before for before, after in zip(ours, theirs, strict=False)]
    return statistics.median(theirs) / statistics.median(ours), min(pairs), max(pairs)


def shown(seconds: float, unit: str) -> str:
    """A time in its row's unit; in a larger one from a thousand on."""
    unit = _unit(seconds, unit)
    return f"{digits(seconds / _SECONDS[unit])} {unit}"


def _unit(seconds: float, unit: str) -> str:
    names = list(_SECONDS)
    while seconds / _SECONDS[unit] >= _LARGER_FROM and unit != names[0]:
        unit = names[names.index(unit) - 1]
    return unit


def spread(values: list[float], unit: str) -> str:
    """The middle half of the samples, in the unit that ``shown`` takes for the median."""
    scale = _SECONDS[_unit(statistics.median(values), unit)]
    low, high = (digits(value / scale) for value in quartiles(values))
    return low if low == high else f"{low} to {high}"
