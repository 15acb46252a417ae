"""What an experiment is: labelled samples, the tables and charts that show them, and what of it
stands beside a figure of the thesis or the papers."""

from __future__ import annotations

import abc
import dataclasses
import math
import re
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from harness.tasks import Sample

__all__ = ["BATCH", "CYCLES", "SCATTER", "TITLES", "Cells", "Experiment", "Room", "View", "factor",
           "middle", "number", "p99_ms", "rate"]  # fmt: skip

# Rows of a call, as the thesis has it.
BATCH = 2048
SCATTER, CYCLES = "scatter-gather", "temp-cycle"
# Of patterns, for readers.
TITLES = {SCATTER: "scatter-gather", CYCLES: "temporal cycles"}
_PREFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def middle(sample: Sample) -> float:
    """The median."""
    return statistics.median(sample.samples)


def rate(sample: Sample) -> float:
    """Rows a second, of seconds of whole batches."""
    return BATCH / middle(sample)


def p99_ms(sample: Sample) -> float:
    """Milliseconds of the 99th percentile, of seconds."""
    return float(np.percentile(sample.samples, 99)) * 1e3


def number(case: str) -> float:
    """What a case begins with, as its place on an axis: ``72 h``, ``2 x``, ``64 KiB``."""
    match = re.match(r"([\d.]+) ?([KMG]i)?", case)
    if match is None:
        raise ValueError(f"{case!r} begins with no number")
    return float(match[1]) * _PREFIXES.get(match[2] or "", 1)


def factor(one: float | None, other: float | None, digits: int = 2) -> str | None:
    """How often one has the other in it; None where either was not measured."""
    if one is None or not other or not math.isfinite(one / other):
        return None
    return f"{one / other:.{digits}f} times"


@dataclasses.dataclass(frozen=True)
class View:
    """A table of samples of one ``variant``, a row each case and a column each peer, and a chart.

    Attributes:
        variant: of the samples.
        title: of the chart.
        unit: of what ``value`` gives, for the reader.
        value: the figure of a sample.
        chart: ``curves`` (cases begin with numbers), ``bars``, or empty for a table alone.
        across: what the numbers of the cases are.
        digits: behind the point in the table.
    """

    variant: str
    title: str
    unit: str
    value: Callable[[Sample], float] = middle
    chart: str = "bars"
    across: str = ""
    digits: int = 0


class Cells:
    """Figures of samples by variant, case and peer."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._found = {(one.variant, one.case, one.peer): one for one in samples if one.samples}

    def of(self, view: View) -> dict[str, dict[str, float]]:
        """What a view shows: peer and figure, by case."""
        shown: dict[str, dict[str, float]] = {}
        for (variant, case, peer), sample in self._found.items():
            if variant == view.variant:
                shown.setdefault(case, {})[peer] = view.value(sample)
        return shown

    def cases(self, variant: str) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(case for one, case, _ in self._found if one == variant))

    def get(
        self, variant: str, case: str, peer: str, value: Callable[[Sample], float] = middle
    ) -> float | None:
        """One figure; None where it was not measured."""
        sample = self._found.get((variant, case, peer))
        return None if sample is None else value(sample)


@dataclasses.dataclass(frozen=True)
class Room:
    """How much an experiment may do, and where.

    Attributes:
        is_quick: for trying, not for citing.
        folder: for files that experiments of one run share.
        note: says what a reader of the page must know.
    """

    is_quick: bool
    folder: Path
    note: Callable[[str], None]

    def pick(self, quick: float, full: float) -> float:
        """Of two amounts the one for this run."""
        return quick if self.is_quick else full

    def stream(self, rows: int, days: int, copies: int = 1) -> npt.NDArray[np.float64]:
        """A generated stream of (edge, source, target, time), mapped from a file that is made
        once."""
        path = self.folder / f"stream-{rows}-{days}-{copies}.npy"
        if not path.exists():
            from graph_cluster import rows_of

            # Where a process is ended meanwhile, no half of a file has the name.
            unnamed = path.with_suffix(".part.npy")
            np.save(unnamed, rows_of(days, rows, copies))
            unnamed.rename(path)
        mapped: npt.NDArray[np.float64] = np.load(path, mmap_mode="r")
        return mapped


class Experiment(abc.ABC):
    """One table or figure of theirs, measured here."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    """What they did, and what is done here."""
    seconds_max: ClassVar[tuple[float, float]]
    """Of a quick run and of a full one; what is not done by then is left out."""
    views: ClassVar[tuple[View, ...]]

    @abc.abstractmethod
    def run(self, room: Room) -> Iterator[Sample]:
        """Measure; each sample counts from when it is given."""

    @abc.abstractmethod
    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """What stands beside each of ``theirs``, by its key; None where it was not measured."""
