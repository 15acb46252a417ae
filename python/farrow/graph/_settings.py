"""Conversion of the parameters of :class:`farrow.graph.GraphFeatures` to the engine's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farrow._native import GraphEngine
from farrow.graph._check import bins_of, flag_of, whole_of

PATTERNS = ("fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle", "gather-scatter")
VERTEX = "vertex-stats"
STATISTICS = (
    "fan",
    "degree",
    "ratio",
    "mean",
    "sum",
    "min",
    "max",
    "median",
    "variance",
    "skewness",
    "kurtosis",
)
_OF_COLUMNS = STATISTICS[3:]
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def names_of(name: str, value: Any, known: Sequence[str]) -> list[str]:
    """Distinct names out of ``known``, in its order."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a list of names, not {value!r}")
    given = list(value)
    for one in given:
        if one not in known:
            raise ValueError(f"{name} has {one!r}, which is none of {', '.join(known)}")
    return [one for one in known if one in given]


def ticks_of(name: str, value: Any, ticks: int) -> int:
    """A window in the unit of the timestamps; a second has ``ticks`` of them."""
    if not isinstance(value, str):
        return whole_of(name, value, least=1)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)\s*", value)
    if match is None:
        raise ValueError(f"{name} must be a number with s, m, h, d or w behind it, not {value!r}")
    window = float(match[1]) * _UNITS[match[2]] * ticks
    if window < 1 or window != int(window):
        raise ValueError(
            f"{name} is {value}, {window:g} units of the timestamps; it must be a whole number of"
            " them, 1 or more"
        )
    return int(window)


def _each(name: str, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
    """One value for each of ``known``, from a mapping or one common value."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(known, value)
    for key in value:
        if key not in (*PATTERNS, VERTEX):
            raise ValueError(f"{name} has {key!r}, which is no pattern")
    for one in known:
        if one not in value:
            raise ValueError(f"{name} has nothing for {one}")
    return value


class FeaturePlan:
    """The features to compute, in the order of the columns."""

    def __init__(self, parameters: Mapping[str, Any], ticks: int) -> None:
        wanted = names_of("patterns", parameters["patterns"], (*PATTERNS, VERTEX))
        if not wanted:
            raise ValueError("patterns is empty: nothing would be computed")
        windows = _each("window", parameters["window"], wanted)
        bins = parameters["bins"]
        if isinstance(bins, Mapping):
            for key in bins:
                if key not in PATTERNS:
                    raise ValueError(f"bins has {key!r}, which is no pattern with bins")
        self.patterns: list[tuple[str, int, list[int]]] = []
        for name in PATTERNS:
            given = bins.get(name) if isinstance(bins, Mapping) else bins
            if given is None:
                given = range(2, 11 if name == "lc-cycle" else 31)
            ends = bins_of(f"bins of {name}", given)
            if name in wanted:
                window = ticks_of(f"window of {name}", windows[name], ticks)
                self.patterns.append((name, window, ends))
        self.statistics: list[str] = []
        self.statistics_window: int | None = None
        measures = names_of("statistics", parameters["statistics"], STATISTICS)
        if VERTEX in wanted:
            self.statistics = measures
            self.statistics_window = ticks_of(f"window of {VERTEX}", windows[VERTEX], ticks)
        mode = parameters["mode"]
        if mode not in ("causal", "batch"):
            raise ValueError(f"mode must be 'causal' or 'batch', not {mode!r}")
        self.is_causal = mode == "causal"
        self.cycle_length = whole_of("cycle_length", parameters["cycle_length"], least=2)
        self.threads = whole_of("threads", parameters["threads"], least=1, most=1024)
        edges_max, work_max = parameters["edges_max"], parameters["work_max"]
        self.edges_max = None if edges_max is None else whole_of("edges_max", edges_max, least=1)
        self.work_max = None if work_max is None else whole_of("work_max", work_max, least=1)
        self.keeps_ids = flag_of("evidence", parameters["evidence"])

    def engine(self, measured: Sequence[int]) -> GraphEngine:
        """An empty engine with statistics of these columns of a matrix."""
        return GraphEngine(**self.parameters(measured))

    def parameters(self, measured: Sequence[int]) -> dict[str, Any]:
        """The arguments of an engine."""
        statistics = None
        if self.statistics_window is not None:
            codes = [STATISTICS.index(name) for name in self.statistics]
            statistics = (self.statistics_window, list(measured), codes)
        windows = [window for _, window, _ in self.patterns]
        if self.statistics_window is not None:
            windows.append(self.statistics_window)
        return {
            "is_causal": self.is_causal,
            "time_window": max(windows),
            "edges_max": self.edges_max,
            "patterns": self.patterns,
            "cycle_length": self.cycle_length,
            "statistics": statistics,
            "threads": self.threads,
            "work_max": self.work_max,
            "keeps_ids": self.keeps_ids,
        }

    def names(self, measured: Sequence[str]) -> list[str]:
        """Names of the features, with statistics of these columns."""
        statistics = None if self.statistics_window is None else self.statistics
        return feature_names(self.patterns, statistics, measured)


def feature_names(
    patterns: Iterable[tuple[str, int, Sequence[int]]],
    statistics: Sequence[str] | None,
    measured: Sequence[str],
) -> list[str]:
    """Names of the features of patterns (name, window, bins), then of statistics of columns."""
    names = []
    for name, _, ends in patterns:
        sides = ("_in", "_out") if name in ("fan", "degree") else ("",)
        names += [f"{name}{side}[{end}]" for side in sides for end in ends]
    if statistics is None:
        return names
    for end in ("source", "target"):
        for side in ("out", "in"):
            one = f"{end}_{side}"
            names += [f"{one}_{name}" for name in statistics if name not in _OF_COLUMNS]
            for column in measured:
                of = [name for name in statistics if name in _OF_COLUMNS]
                names += [f"{one}_{name}({column})" for name in of]
    return names
