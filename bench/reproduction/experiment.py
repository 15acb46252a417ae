"""The interface of an experiment: labelled samples, their tables and charts, and the results that
are compared with figures of the thesis or the papers."""

from __future__ import annotations

import abc
import dataclasses
import math
import re
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from harness.machine import available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from harness.tasks import Sample

__all__ = ["BATCH", "CYCLES", "SCATTER", "SIMPLE", "TITLES", "Cells", "Experiment", "Room", "View",
           "factor", "gib_per_s", "in_ms", "middle", "number", "of_size", "p99_ms", "rate",
           "short_of_memory", "significant", "throughput"]  # fmt: skip

# Rows of a call, as in the thesis.
BATCH = 2048
# The thesis' algorithms are scatter-gather and simple cycles of at most ten accounts, which are the
# default of `cycle_length`. Temporal cycles run beside them.
SCATTER, SIMPLE, CYCLES = "scatter-gather", "lc-cycle", "temp-cycle"
# Titles of patterns.
TITLES = {SCATTER: "scatter-gather", SIMPLE: "simple cycles", CYCLES: "temporal cycles"}
_PREFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def middle(sample: Sample) -> float:
    """The median."""
    return statistics.median(sample.samples)


def in_ms(sample: Sample) -> float:
    """The median of seconds, in milliseconds."""
    return middle(sample) * 1e3


def gib_per_s(sample: Sample) -> float:
    """The bytes of a sample in its median time."""
    return sample.bytes / middle(sample) / (1 << 30)


def rate(sample: Sample) -> float:
    """Rows a second of the median batch, of seconds of whole batches."""
    return BATCH / middle(sample)


def throughput(sample: Sample) -> float:
    """Rows a second of all batches, of their seconds: a few batches have most of the work."""
    return BATCH / statistics.fmean(sample.samples)


def p99_ms(sample: Sample) -> float:
    """Milliseconds of the 99th percentile, of seconds."""
    return float(np.percentile(sample.samples, 99)) * 1e3


def number(case: str) -> float:
    """The leading number of a case, as its position on an axis: ``72 h``, ``2 x``, ``64 KiB``."""
    match = re.match(r"([\d.]+) ?([KMG]i)?", case)
    if match is None:
        raise ValueError(f"{case!r} begins with no number")
    return float(match[1]) * _PREFIXES.get(match[2] or "", 1)


def factor(one: float | None, other: float | None, digits: int = 2) -> str | None:
    """The ratio of two figures; None if either was not measured."""
    if one is None or not other or not math.isfinite(one / other):
        return None
    return f"{one / other:.{digits}f} times"


def significant(value: float, digits: int = 3) -> str:
    """A figure of this many digits without an exponent; all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # A rounded figure may have one more digit before the point.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short_of_memory(need: float) -> str | None:
    """The reason to leave a step out that needs so much memory; None if it is free."""
    free = available_bytes()
    if need <= free:
        return None
    return f"it would take some {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"


def of_size(nbytes: float | None, published: int) -> str:
    """The size of a measurement, if it is not the published one; else empty."""
    return f" ({nbytes / (1 << 20):g} MiB)" if nbytes and nbytes != published else ""


@dataclasses.dataclass(frozen=True)
class View:
    """A table of samples of one ``variant``, a row each case and a column each peer, and a chart.

    Attributes:
        variant: variant of the samples.
        title: title of the chart.
        unit: unit of the figures.
        value: a function that returns the figure of a sample.
        chart: ``curves`` (cases begin with numbers), ``bars``, or empty for a table only.
        across: label of the cases' numbers.
        digits: decimal digits in the table.
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
        """The contents of a view: peer and figure, by case."""
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
        """One figure; None if it was not measured."""
        sample = self._found.get((variant, case, peer))
        return None if sample is None else value(sample)


@dataclasses.dataclass(frozen=True)
class Room:
    """The scope and folder of an experiment.

    Attributes:
        is_quick: whether the run is a trial, not for citing.
        folder: folder for files that experiments of one run share.
        note: a function that adds a note for readers of the page.
    """

    is_quick: bool
    folder: Path
    note: Callable[[str], None]

    def pick(self, quick: float, full: float) -> float:
        """The one of two amounts for this run."""
        return quick if self.is_quick else full

    def stream(self, rows: int, days: int, copies: int = 1) -> npt.NDArray[np.float64]:
        """A generated stream of (edge, source, target, time), mapped from a file that is made
        once."""
        path = self.folder / f"stream-{rows}-{days}-{copies}.npy"
        if not path.exists():
            from graph_cluster import rows_of

            # If the process is ended meanwhile, no incomplete file has the final name.
            unnamed = path.with_suffix(".part.npy")
            np.save(unnamed, rows_of(days, rows, copies))
            unnamed.rename(path)
        mapped: npt.NDArray[np.float64] = np.load(path, mmap_mode="r")
        return mapped


class Experiment(abc.ABC):
    """One published table or figure, measured on this machine."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    """What they did, and what is done here."""
    seconds_max: ClassVar[tuple[float, float]]
    """Of a quick run and of a full one; what is not done by then is left out."""
    views: ClassVar[tuple[View, ...]]

    @abc.abstractmethod
    def run(self, room: Room) -> Iterator[Sample]:
        """Measure; each yielded sample counts even if the run fails later."""

    @abc.abstractmethod
    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Our result for each of ``theirs``, by its key; None if it was not measured."""
