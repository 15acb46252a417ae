"""Graph features as a scikit-learn transformer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from farrow.graph._check import matrix_of, whole_of
from farrow.graph._clock import Clock
from farrow.graph._form import Form
from farrow.graph._rows import Accounts, Layout, like, table_of
from farrow.graph._settings import PATTERNS, STATISTICS, VERTEX, Plan, ticks_of
from farrow.graph._state import read_state, restored, state_of, write_state

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy.typing as npt

    from farrow.graph.cluster import ClusterGraph
    from farrow.graph.cluster._engine import ClusterEngine

__all__ = ["PATTERNS", "STATISTICS", "GraphFeatures"]

_DEFAULT_PATTERNS = ("fan", "degree", "scatter-gather", "temp-cycle", VERTEX)
_DEFAULT_STATISTICS = tuple(one for one in STATISTICS if one not in ("min", "max", "median"))


class GraphFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of the graph that a stream of transactions makes.

    Each row is an edge: who paid whom, and when.  ``transform`` adds the rows to the graph of
    those before them and returns them with their features: how many patterns of which size
    each one completes within a window, and statistics of the accounts at its ends.  Definitions:
    ``docs/graph.md``.

    Rows are an array of float64, ``[edge id, source, target, timestamp, ...]``, or a table with
    named columns (pyarrow, polars, pandas), whose accounts may be strings; what comes back is of
    the same kind.

    Args:
        patterns: which of "fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle",
            "gather-scatter" and "vertex-stats" are computed.
        window: how long an edge counts: a text like "24h", "90m" or "7d", or an integer in the
            unit of the timestamps (a text needs timestamps in seconds, or a table's timestamp
            type); one for all patterns, or a mapping from pattern to window.
        bins: upper ends of the bins by size; one list for all patterns, a mapping, or None:
            2 to 30 (2 to 10 for lc-cycle).
        cycle_length: edges of an lc-cycle, at most.
        statistics: which of :data:`STATISTICS` "vertex-stats" consists of.
        statistics_columns: of which columns: numbers for arrays, names for tables; None: the
            amounts of a table, every further column of an array.
        columns: names of a table's columns, by "id", "source", "target", "timestamp" and
            "amounts" (a list; else all of floating type).  A table without the id column has
            its rows numbered.
        mode: "causal" (a row gets what it completes; the cut of the stream into calls changes
            nothing) or "batch" (a call's rows see each other, and a pattern counts for all of
            them that are part of it).
        edges_max: how many edges stay, beside the window.
        threads: threads that search; they never change results.
        evidence: keep the edge ids, so that :meth:`patterns_of` works: 8 bytes an edge.
        evidence_max: patterns that one call of :meth:`patterns_of` returns, at most.
        cluster: a :class:`farrow.graph.cluster.ClusterGraph`: older edges lie in the memory of
            its nodes, where others read them, and the graph outlives this process; None: all
            edges stay in this process.
        work_max: edges that the search of one pattern may look at for one row; ``stats()`` says
            how often that was not enough.

    Raises:
        TypeError, ValueError: by ``fit``, ``partial_fit`` or ``transform``, for a parameter or
            a row that makes no sense; the message names it, and the graph is as before.
    """

    def __init__(
        self,
        *,
        patterns: Sequence[str] = _DEFAULT_PATTERNS,
        window: Any = "24h",
        bins: Any = None,
        cycle_length: int = 10,
        statistics: Sequence[str] = _DEFAULT_STATISTICS,
        statistics_columns: Sequence[Any] | None = None,
        columns: Mapping[str, Any] | None = None,
        mode: str = "causal",
        edges_max: int | None = None,
        threads: int = 1,
        evidence: bool = False,
        evidence_max: int = 1000,
        work_max: int | None = 10_000_000,
        cluster: ClusterGraph | None = None,
    ) -> None:
        self.patterns = patterns
        self.window = window
        self.bins = bins
        self.cycle_length = cycle_length
        self.statistics = statistics
        self.statistics_columns = statistics_columns
        self.columns = columns
        self.mode = mode
        self.edges_max = edges_max
        self.threads = threads
        self.evidence = evidence
        self.evidence_max = evidence_max
        self.work_max = work_max
        self.cluster = cluster

    # What scikit-learn knows about an estimator lies in its attributes; this is not among them.
    _stream: _Stream | None = None

    def set_params(self, **params: Any) -> GraphFeatures:
        """Change parameters and empty the graph."""
        super().set_params(**params)
        self.close()
        return self

    def close(self) -> None:
        """Let go of the graph: one in the cluster stays there, and can be taken up again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def fit(self, X: Any, y: Any = None) -> GraphFeatures:
        """Empty the graph and add rows."""
        stream = self._empty(X)
        stream.learn(X)
        return self._keep(stream)

    def _empty(self, X: Any) -> _Stream:
        """A stream without rows. One in the cluster is emptied only now, when X makes sense."""
        if self.cluster is not None:
            self.close()
        stream = _Stream(self, X)
        stream.clear(X)
        return stream

    def partial_fit(self, X: Any, y: Any = None) -> GraphFeatures:
        """Add rows."""
        stream = self._stream or _Stream(self, X)
        stream.learn(X)
        return self._keep(stream)

    def transform(self, X: Any) -> Any:
        """Add rows and return them with their features."""
        stream = self._stream or _Stream(self, X)
        result = stream.transform(X)
        self._keep(stream)
        return result

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Empty the graph, add rows once, and return them with their features."""
        stream = self._empty(X)
        result = stream.transform(X)
        self._keep(stream)
        return result

    def offline(self, X: Any, batch: int = 2048) -> Iterator[Any]:
        """Add all rows first, then compute their features, batch by batch.

        The batches are what ``transform`` would return for these rows, one batch after the other,
        to the last bit: a row sees what came before it, though later ones are there.  Until the
        last batch is taken nothing leaves the graph; whoever closes the iteration earlier leaves
        the other rows without features.  Meanwhile no other rows can be added or looked at.  With
        ``cluster`` the older rows come out of segments wherever these lie; workers do nothing.

        Args:
            X: rows, as ``transform`` takes them.
            batch: rows that are computed at once.

        Raises:
            ValueError: with mode "batch", where a row's features depend on its call; and as
                ``transform``.  Nothing has been added then.
        """
        size = whole_of("batch", batch, least=1)
        stream = self._stream or _Stream(self, X)
        parts = stream.offline(X, size)
        self._keep(stream)
        return parts

    def patterns_of(self, X: Any) -> tuple[Any, pa.Table]:
        """As ``transform``, with the patterns that the rows complete.

        Returns:
            What ``transform`` returns, and a table with a row for each pattern: ``pattern``
            (its number in this call), ``kind``, ``size``, ``trigger`` (the id of the edge that
            completed it), ``edges`` (all its edges' ids, in order of time) and ``accounts`` (the
            centre of a star; who scatters, who gathers and then those between; a cycle's from
            the trigger's target round to its source).  The schema's metadata says under
            ``dropped`` how many were left out beyond ``evidence_max``.

        Raises:
            ValueError: without ``evidence=True``, and as ``transform``.
        """
        most = whole_of("evidence_max", self.evidence_max, least=0)
        stream = self._stream or _Stream(self, X)
        result = stream.patterns(X, most)
        self._keep(stream)
        return result

    def preview(self, X: Any) -> Any:
        """Rows with the features that they would get if they came now; the graph stays as it is.

        What is not decided yet can be looked at: a payment before it is made.
        """
        return self._fitted().preview(X)

    def preview_patterns(self, X: Any) -> tuple[Any, pa.Table]:
        """As ``preview``, with the patterns that the rows would complete, as ``patterns_of``
        names them.

        Raises:
            ValueError: without ``evidence=True``.
        """
        most = whole_of("evidence_max", self.evidence_max, least=0)
        return self._fitted().preview_patterns(X, most)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the columns that ``transform`` returns, once rows have come."""
        stream = self._fitted()
        given = stream.inputs if input_features is None else [str(one) for one in input_features]
        return np.array([*given, *stream.names], dtype=object)

    def stats(self) -> dict[str, Any]:
        """What the graph holds: ``edges``, ``accounts``, ``bytes`` (in this process), ``now`` (the
        latest time), ``rows`` (that came), ``cut_short`` (searches that ended at ``work_max``, by
        pattern) and ``rates``: ``calls`` that added rows, but :meth:`offline`, since the
        transformer was made, loaded or emptied, their ``rows``, ``seconds`` and
        ``rows_per_second``, and the same of the last one (``last_rows`` and so on). In a cluster
        also ``segments``, ``sealed`` (their edges), ``sealed_bytes``, ``draining`` (edges that are
        in a segment and still here), ``log`` (calls that no segment has), ``sealing`` (whether one
        is being made) and ``trouble`` (why the last could not)."""
        stream = self._fitted()
        return {**stream.engine.stats(), "rates": stream.clock.rates()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and graph to a file with a checksum; :meth:`load` reads it.

        The file takes the place of an older one in one step, once it is on the disk.

        Raises:
            OSError: the file cannot be written; an older one is as before.
        """
        write_state(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GraphFeatures:
        """A transformer that goes on where the saved one stopped.

        Raises:
            OSError: the file cannot be read.
            farrow.exceptions.DamagedFile: it is no such file, or not as it was saved: every
                changed, missing or added byte is noticed.  A ``ValueError``.  Files of version 1
                have no checksum; they are read with a warning.
            farrow.InvalidArgument: it is of a later version.  A ``ValueError``, too.
        """
        return read_state(cls, path)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in super().__getstate__().items() if name != "_stream"}
        return {**own, "_state": state_of(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state.pop("_state")
        super().__setstate__(state)
        restored(self, kept)

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None

    def _fitted(self) -> _Stream:
        if self._stream is None:
            raise NotFittedError("no rows have come: call fit, partial_fit or transform first")
        return self._stream

    def _keep(self, stream: _Stream) -> GraphFeatures:
        if stream is not self._stream:
            self._stream = stream
            self.n_features_in_ = len(stream.inputs)
        return self


_in_container: Any = GraphFeatures.transform


@functools.wraps(_in_container)
def _transform(self: GraphFeatures, X: Any) -> Any:
    # scikit-learn looks for the container that was asked for, and takes as long as the search for
    # a single row: the default, an array, is what there is.
    if (
        type(X) is np.ndarray
        and "_sklearn_output_config" not in self.__dict__
        and get_config()["transform_output"] == "default"
    ):
        return _in_container.__wrapped__(self, X)
    return _in_container(self, X)


GraphFeatures.transform = _transform  # type: ignore[method-assign]


class _Stream(Form):
    """The graph of one transformer, and how the rows look that make it."""

    def __init__(self, owner: GraphFeatures, rows: Any) -> None:
        found = table_of(rows)
        parameters = owner.get_params(deep=False)
        given = owner.statistics_columns
        self.accounts = Accounts()
        self.rows = 0
        self.layout = None
        self.cluster = owner.cluster
        if found is None:
            matrix = matrix_of(rows)
            count = matrix.shape[1]
            plan = Plan(parameters, ticks=1)
            wanted = range(4, count) if given is None else given
            numbers = sorted(
                {whole_of("statistics_columns", one, least=0, most=count - 1) for one in wanted}
            )
            self.inputs = ["edge_id", "source", "target", "timestamp"]
            self.inputs += [f"x{number}" for number in range(4, count)]
            self.measured = [self.inputs[number] for number in numbers]
        else:
            self.layout = Layout(found[0], owner.columns)
            plan = Plan(parameters, self.layout.ticks)
            self.inputs = self.layout.columns
            self.measured = self.layout.amounts if given is None else [str(one) for one in given]
            # As far as the engine knows, the measured columns stand behind the four.
            numbers = list(range(4, 4 + len(self.measured)))
        self._start(plan, numbers)

    def _start(self, plan: Plan, numbers: list[int]) -> None:
        self.numbers = numbers
        self.native = plan.engine(numbers)
        self.engine = self.native
        self.clock = Clock()
        if self.cluster is not None:
            self.engine = self._in_cluster(self.cluster, plan, numbers)
            # Rows without ids of their own are numbered on.
            self.rows = self.engine.rows
        self.names = plan.names(self.measured)
        self.has_statistics = plan.statistics_window is not None

    def _in_cluster(self, cluster: ClusterGraph, plan: Plan, numbers: list[int]) -> ClusterEngine:
        from farrow.graph.cluster._engine import ClusterEngine
        from farrow.graph.cluster._objects import Manifest

        ticks = 1 if self.layout is None else self.layout.ticks
        length = ticks_of("segment", cluster.segment, ticks)
        stream = {name: one for name, one in self.state().items() if name not in ("names", "rows")}
        manifest = Manifest(stream=stream, parameters=plan.parameters(numbers), segment=length)
        return ClusterEngine(cluster, manifest)

    def clear(self, rows: Any) -> None:
        """Empty a graph that outlived the process before, unless ``rows`` are refused; others are
        empty."""
        if self.cluster is not None:
            table = self._table(rows)
            if table is None:
                self.native.split(self._matrix(rows))
            else:
                self._columns(table[0])
            self.engine.clear()  # type: ignore[union-attr]
            self.rows = 0

    def close(self) -> None:
        """Let go of what outlives the process."""
        if self.cluster is not None:
            self.engine.close()  # type: ignore[union-attr]

    @classmethod
    def restored(cls, owner: GraphFeatures, state: Mapping[str, Any]) -> _Stream:
        """The stream of ``state``, with an empty graph."""
        stream = cls.__new__(cls)
        stream.take(state)
        stream.cluster = None
        ticks = 1 if stream.layout is None else stream.layout.ticks
        stream._start(Plan(owner.get_params(deep=False), ticks), stream.numbers)
        return stream

    def learn(self, rows: Any) -> None:
        began = perf_counter()
        self.clock.add(self._learn(rows), began)

    def transform(self, rows: Any) -> Any:
        began = perf_counter()
        result = self._transform(rows)
        self.clock.add(len(result), began)
        return result

    def patterns(self, rows: Any, most: int) -> tuple[Any, pa.Table]:
        began = perf_counter()
        result = self._patterns(rows, most)
        self.clock.add(len(result[0]), began)
        return result

    def _learn(self, rows: Any) -> int:
        table = self._table(rows)
        if table is None:
            matrix = self._matrix(rows)
            self.engine.learn(matrix)
            return len(matrix)
        columns = self._columns(table[0])
        self.engine.learn_columns(columns.ends, columns.measured)
        self._count(table[0])
        return len(table[0])

    def _transform(self, rows: Any) -> Any:
        table = self._table(rows)
        if table is None:
            return self.engine.transform(self._matrix(rows))
        columns = self._columns(table[0])
        features = self.engine.transform_columns(columns.ends, columns.measured)
        self._count(table[0])
        return like(self._joined(table[0], features), table[1])

    def offline(self, rows: Any, size: int) -> Iterator[Any]:
        table = self._table(rows)
        if table is None:
            whole = self._matrix(rows)
            ends, measured = self.native.split(whole)
            self.engine.learn_ahead(ends, measured)

            def joined(start: int, features: npt.NDArray[np.float64]) -> Any:
                return np.hstack([whole[start : start + len(features)], features])

        else:
            columns = self._columns(table[0])
            self.engine.learn_ahead(columns.ends, columns.measured)
            self._count(table[0])

            def joined(start: int, features: npt.NDArray[np.float64]) -> Any:
                part = table[0].slice(start, len(features))
                return like(self._joined(part, features), table[1])

        parts = self._computed(size, joined)
        # From here on its end is that of offline mode, whether a batch was taken or none.
        next(parts)
        return parts

    def _computed(self, size: int, joined: Callable[[int, Any], Any]) -> Iterator[Any]:
        start = 0
        try:
            yield None
            while len(features := self.engine.transform_ahead(size)):
                yield joined(start, features)
                start += len(features)
        finally:
            self.engine.drop_ahead()

    def _patterns(self, rows: Any, most: int) -> tuple[Any, pa.Table]:
        table = self._table(rows)
        if table is None:
            result, found = self.engine.patterns(self._matrix(rows), most)
        else:
            columns = self._columns(table[0])
            features, found = self.engine.patterns_columns(columns.ends, columns.measured, most)
            self._count(table[0])
            result = like(self._joined(table[0], features), table[1])
        return result, self._evidence(found)

    def _count(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        if self.accounts.names:
            self.accounts.forget(self.engine, self.engine.stats()["accounts"])
