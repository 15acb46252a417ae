"""Batch mode, with the columns of section C of ``docs/reference/graph-definitions.md``.

The rows of a call see each other, including later ones.  A pattern counts for every row of the call
that is part of it, so results depend on the division of a stream into calls.  For new programs use
:class:`farrow.graph.GraphFeatures`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from farrow._native import GraphEngine
from farrow.graph._check import bins_of, flag_of, matrix_of, whole_of
from farrow.graph._settings import STATISTICS

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["GraphFeaturePreprocessor"]

_PATTERNS = ("fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle", "gather-scatter")
_HOUR = 3600


def _defaults() -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "num_threads": 12,
        "time_window": -1,
        "max_no_edges": -1,
        "vertex_stats": True,
        "vertex_stats_tw": 480 * _HOUR,
        "vertex_stats_cols": [3],
        "vertex_stats_feats": [0, 1, 2, 3, 4, 8, 9, 10],
    }
    hours = (12, 12, 120, 480, 240, 120)
    for name, window in zip(_PATTERNS, hours, strict=True):
        parameters[name] = name == "fan"
        parameters[f"{name}_tw"] = window * _HOUR
        parameters[f"{name}_bins"] = list(range(2, 11 if name == "lc-cycle" else 31))
    parameters["lc-cycle_len"] = 10
    return parameters


class GraphFeaturePreprocessor:
    """Features of a transaction stream in batch mode.

    Rows are ``[edge id, source, target, timestamp, ...]``, float64.  ``transform`` returns the
    rows with the enabled blocks appended: fan in, fan out, degree in, degree out,
    scatter-gather, temp-cycle, lc-cycle, gather-scatter, then the vertex statistics.

    A pickled object has its graph with it.  scikit-learn's ``clone`` has the parameters alone.

    Args:
        params: parameters by name, as for ``set_params``.

    Raises:
        KeyError: an unknown parameter.
        TypeError, ValueError: a parameter or a row is invalid; the message names it, and the
            graph is unchanged.

    Examples:
        >>> from farrow.graph.compat import GraphFeaturePreprocessor
        >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
        >>> features = GraphFeaturePreprocessor().set_params(vertex_stats=False, fan_bins=[2])
        >>> features.fit_transform(rows).shape
        (3, 6)
    """

    def __init__(self, **params: Any) -> None:
        # No copies: clone checks that these are the values it passed.
        self._parameters = _changed(_defaults(), params)
        self._columns: int | None = None
        self._engine = _engine(self._parameters)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": self._engine.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        graph = state["_engine"]
        self.__dict__.update(state, _engine=_engine(state["_parameters"]))
        self._engine.restore(graph)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters.

        Args:
            deep: whether the values are copies.

        Returns:
            The values by name.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> GraphFeaturePreprocessor().get_params()["lc-cycle_len"]
            10
        """
        return copy.deepcopy(self._parameters) if deep else dict(self._parameters)

    def set_params(
        self, params: Mapping[str, Any] | None = None, **more: Any
    ) -> GraphFeaturePreprocessor:
        """Change parameters, from a mapping or by keyword, and empty the graph.

        Args:
            params: new values by name; None: only those of ``more``.
            more: new values by keyword, which replace those of ``params``.

        Returns:
            This object.

        Raises:
            KeyError: there is no such parameter.
            TypeError, ValueError: a value is invalid. Nothing is changed.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> features = GraphFeaturePreprocessor().set_params({"lc-cycle": True}, num_threads=1)
            >>> features.get_params()["num_threads"]
            1
        """
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"params must be a mapping, not {type(params).__name__}")
        given = copy.deepcopy({**(params or {}), **more})
        parameters = _changed(self._parameters, given)
        self._engine = _engine(parameters)
        self._parameters = parameters
        self._columns = None
        return self

    def fit(self, X: Any, y: Any = None) -> GraphFeaturePreprocessor:
        """Empty the graph and add rows, in order.

        Args:
            X: rows, float64 of shape (rows, 4 or more).
            y: ignored.

        Returns:
            This object.

        Raises:
            TypeError, ValueError: a row is invalid. The graph is unchanged.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20]], dtype=float)
            >>> features = GraphFeaturePreprocessor().fit(rows)
        """
        rows = matrix_of(X)
        self._engine.start(rows)
        self._columns = rows.shape[1]
        return self

    def partial_fit(self, X: Any, y: Any = None) -> GraphFeaturePreprocessor:
        """Add rows, in order of time.

        Args:
            X: rows, float64 of the shape of the rows before.
            y: ignored.

        Returns:
            This object.

        Raises:
            TypeError, ValueError: a row is invalid. The graph is unchanged.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20]], dtype=float)
            >>> features = GraphFeaturePreprocessor().partial_fit(rows[:1]).partial_fit(rows[1:])
        """
        rows = self._rows(X)
        self._engine.learn(rows)
        self._columns = rows.shape[1]
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Add rows and return them with their features.

        Args:
            X: rows, float64 of the shape of the rows before.

        Returns:
            The rows with their features, float64 of shape (rows, columns + features).

        Raises:
            TypeError, ValueError: a row is invalid. The graph is unchanged.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> rows = np.array([[0, 1, 2, 10], [1, 3, 2, 20]], dtype=float)
            >>> features = GraphFeaturePreprocessor().set_params(vertex_stats=False, fan_bins=[2])
            >>> features.transform(rows)[:, 4:].tolist()
            [[1.0, 0.0], [1.0, 0.0]]
        """
        rows = self._rows(X)
        result = self._engine.transform(rows)
        self._columns = rows.shape[1]
        return result

    def fit_transform(self, X: Any, y: Any = None) -> npt.NDArray[np.float64]:
        """``fit``, then ``transform``: every row is in the graph twice.

        Args:
            X: rows, float64 of shape (rows, 4 or more).
            y: ignored.

        Returns:
            As ``transform``.

        Raises:
            TypeError, ValueError: a row is invalid. The graph is unchanged.

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> rows = np.array([[0, 1, 2, 10], [1, 3, 2, 20]], dtype=float)
            >>> features = GraphFeaturePreprocessor().set_params(vertex_stats=False, fan_bins=[2])
            >>> features.fit_transform(rows).shape
            (2, 6)
        """
        return self.fit(X).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the columns that ``transform`` returns.

        Args:
            input_features: names for the columns of the rows; None: "edge_id", "source", "target",
                "timestamp", "x4" and so on.

        Returns:
            The names, of shape (columns + features,).

        Examples:
            >>> from farrow.graph.compat import GraphFeaturePreprocessor
            >>> features = GraphFeaturePreprocessor().set_params(vertex_stats=False, fan_bins=[2])
            >>> features.get_feature_names_out()[4:].tolist()
            ['fan_in[2]', 'fan_out[2]']
        """
        count = self._columns or 4
        names = ["edge_id", "source", "target", "timestamp"] + [f"x{c}" for c in range(4, count)]
        if input_features is not None:
            names = [str(name) for name in input_features]
        return np.array([*names, *_names(self._parameters)], dtype=object)

    def _rows(self, X: Any) -> npt.NDArray[np.float64]:
        rows = matrix_of(X)
        if self._columns is not None and rows.shape[1] != self._columns:
            raise ValueError(f"X has {rows.shape[1]} columns, but {self._columns} came before")
        return rows


def _changed(parameters: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with new values."""
    for name in given:
        if name not in parameters:
            raise KeyError(f"{name} is not a parameter")
    return {**parameters, **given}


def _engine(parameters: Mapping[str, Any]) -> GraphEngine:
    """Check parameters and create an engine for them."""
    given = dict(parameters)
    time_window = whole_of("time_window", given["time_window"])
    if time_window != -1 and time_window < 1:
        raise ValueError(f"time_window must be -1 or at least 1, not {time_window}")
    edges_max = whole_of("max_no_edges", given["max_no_edges"])
    if edges_max == 0 or edges_max < -1:
        raise ValueError(f"max_no_edges must be -1 or at least 1, not {edges_max}")
    patterns = []
    for name in _PATTERNS:
        bins = bins_of(f"{name}_bins", given[f"{name}_bins"])
        window = whole_of(f"{name}_tw", given[f"{name}_tw"], least=1)
        if flag_of(name, given[name]):
            patterns.append((name, window, bins))
    statistics = None
    window = whole_of("vertex_stats_tw", given["vertex_stats_tw"], least=1)
    columns = _numbers("vertex_stats_cols", given["vertex_stats_cols"])
    codes = _numbers("vertex_stats_feats", given["vertex_stats_feats"], most=10)
    if flag_of("vertex_stats", given["vertex_stats"]):
        statistics = (window, columns, codes)
    if time_window == -1 and not patterns:
        raise ValueError("time_window must be given where no pattern is enabled")
    return GraphEngine(
        is_causal=False,
        time_window=None if time_window == -1 else time_window,
        edges_max=None if edges_max == -1 else edges_max,
        patterns=patterns,
        cycle_length=whole_of("lc-cycle_len", given["lc-cycle_len"], least=2),
        statistics=statistics,
        threads=whole_of("num_threads", given["num_threads"], least=1),
        work_max=None,
        keeps_ids=False,
    )


def _names(parameters: Mapping[str, Any]) -> list[str]:
    """Names of the features."""
    names = []
    for name in _PATTERNS:
        if parameters[name]:
            sides = ("_in", "_out") if name in ("fan", "degree") else ("",)
            bins = parameters[f"{name}_bins"]
            names += [f"{name}{side}[{end}]" for side in sides for end in bins]
    if not parameters["vertex_stats"]:
        return names
    wanted = [STATISTICS[code] for code in sorted(set(parameters["vertex_stats_feats"]))]
    for end in ("source_out", "source_in", "target_out", "target_in"):
        names += [f"{end}_{one}" for one in wanted if one in STATISTICS[:3]]
        for column in sorted(set(parameters["vertex_stats_cols"])):
            names += [f"{end}_{one}(x{column})" for one in wanted if one in STATISTICS[3:]]
    return names


def _numbers(name: str, value: Any, most: int | None = None) -> list[int]:
    """Distinct non-negative integers, in order."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a list of integers, not {type(value).__name__}")
    return sorted({whole_of(name, one, least=0, most=most) for one in value})
