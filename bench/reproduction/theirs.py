"""The five works behind Farrow: their tables and figures, and what each of them states.

``theirs.json`` was made from the texts of the works, and each figure was checked against its text.
A figure that a work shows as a plot alone has no value: none is read off a plot.  The texts are not
part of the repository.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

__all__ = ["DIFFERENCES", "FIGURES", "LEFT_OUT", "PLACES", "WORKS", "Figure", "Place", "Work"]

_DATA = Path(__file__).with_suffix(".json")
_PLOT = "a plot only"
_NO_VALUE = "not there"


@dataclasses.dataclass(frozen=True)
class Work:
    """A thesis or a paper; ``pages`` says how its pages are known."""

    author: str
    title: str
    kind: str
    year: int
    hardware: str
    pages: str

    @property
    def short(self) -> str:
        """First author and year."""
        return f"{self.author.partition(',')[0].split()[-1]} {self.year}"


@dataclasses.dataclass(frozen=True)
class Place:
    """A table or figure of a work: the experiment that runs it again, or the reason why none does.

    Attributes:
        work: key of the work.
        place: its name there, such as ``Table 5.5``.
        page: page or pages.
        shows: what it shows.
        kind: ``table``, ``plot`` or ``drawing``.
        run: name of the experiment.
        why_not: reason, if there is none.
    """

    work: str
    place: str
    page: str
    shows: str
    kind: str
    run: str | None = None
    why_not: str | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        work: key of the work.
        place: table, figure or section.
        page: page or pages.
        what: what was measured.
        value: a number, several, or None.
        unit: unit of the value.
        conditions: what the work says about it.
        plot: whether the work shows it as a plot only.
        is_range: whether two values are the ends of a range.
        experiment: name of the experiment with our result.
        key: our result's key within it; several figures may have one counterpart.
        differs: keys of ``DIFFERENCES`` between theirs and ours.
        why_not: reason, if there is no experiment.
    """

    work: str
    place: str
    page: str
    what: str
    value: float | tuple[float, ...] | None
    unit: str
    conditions: str
    plot: bool = False
    is_range: bool = False
    experiment: str | None = None
    key: str | None = None
    differs: tuple[str, ...] = ()
    why_not: str | None = None

    @property
    def text(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return _PLOT if self.plot else _NO_VALUE
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        between = " to " if self.is_range else ", "
        return f"{between.join(_plain(value) for value in values)} {self.unit}"

    @property
    def source(self) -> str:
        """Work, place and page."""
        return f"{WORKS[self.work].short}, {self.place}, p. {self.page}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


def _figure(found: dict[str, Any]) -> Figure:
    value = found["value"]
    found["value"] = tuple(value) if isinstance(value, list) else value
    found["differs"] = tuple(found.get("differs", ()))
    return Figure(**found)


_ALL = json.loads(_DATA.read_text())
WORKS: dict[str, Work] = {key: Work(**found) for key, found in _ALL["works"].items()}
DIFFERENCES: dict[str, str] = _ALL["differences"]
PLACES: tuple[Place, ...] = tuple(Place(**found) for found in _ALL["places"])
FIGURES: tuple[Figure, ...] = tuple(_figure(found) for found in _ALL["figures"])

# What no experiment can show here, with the reason.
LEFT_OUT: tuple[tuple[str, str], ...] = (
    (
        "ThymesisFlow, and any remote memory that is really slower",
        "not on this machine: nodes are processes that map each other's memory, which is as fast as"
        " their own. Slower links are predicted, and the sum is checked by delays; a slower network"
        " is run by holding back its packets.",
    ),
    (
        "IBM's AML data",
        "not shipped with the project: streams are generated with the statistics of HI-Small.",
    ),
    (
        "Plasma, Flight and other stores; snapml in the same run",
        "make bench, make bench-store and make bench-graph do that.",
    ),
)
