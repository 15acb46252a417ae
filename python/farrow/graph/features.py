"""Graph features as a scikit-learn transformer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils._set_output import _get_output_config, _wrap_data_with_container

from farrow.graph._ahead import each
from farrow.graph._check import whole_of
from farrow.graph._settings import PATTERNS, STATISTICS, VERTEX
from farrow.graph._state import read_state, restored, state_of, write_state
from farrow.graph._transformer_stream import TransformerStream

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy.typing as npt

    from farrow.graph.cluster import ClusterGraph

_Result = TypeVar("_Result")

__all__ = ["PATTERNS", "STATISTICS", "GraphFeatures"]

_DEFAULT_PATTERNS = ("fan", "degree", "scatter-gather", "temp-cycle", VERTEX)
_DEFAULT_STATISTICS = tuple(one for one in STATISTICS if one not in ("min", "max", "median"))


class GraphFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of the graph of a transaction stream.

    Each row is an edge: a payment from one account to another at a time.  ``transform`` adds the
    rows to the graph of earlier rows and returns them with their features: the numbers of patterns
    by size that each row completes within a window, and statistics of the accounts at its ends.
    Definitions: ``docs/reference/graph-definitions.md``.

    Rows are an array of float64, ``[edge id, source, target, timestamp, ...]``, or a table with
    named columns (pyarrow, polars, pandas), whose accounts may be strings, or the result of
    ``farrow.graph.data.read``.  The result is of the same kind; for the last one a pyarrow table.

    Args:
        patterns: the patterns to compute, of "fan", "degree", "scatter-gather", "temp-cycle",
            "lc-cycle", "gather-scatter" and "vertex-stats".
        window: time during which an edge counts: a text like "24h", "90m" or "7d", or an integer
            in the unit of the timestamps (a text needs timestamps in seconds, or a table's
            timestamp type); one for all patterns, or a mapping from pattern to window.
        bins: upper ends of the bins by size; one list for all patterns, a mapping, or None:
            2 to 30 (2 to 10 for lc-cycle).
        cycle_length: the largest number of edges of an lc-cycle, at least 2.  A number that is not
            less than that of the accounts, such as ``sys.maxsize``, excludes no cycle; ``work_max``
            then ends the searches of dense graphs.
        statistics: the elements of :data:`STATISTICS` that "vertex-stats" computes.
        statistics_columns: the columns of these: numbers for arrays, names for tables; None: the
            amounts of a table, every further column of an array.
        columns: names of a table's columns, by "id", "source", "target", "timestamp" and
            "amounts" (a list; default: all of floating type).  By default the columns of these
            names, else those that known files use, as ``farrow graph`` finds them.  Rows without
            an id column are numbered.
        mode: "causal" (a pattern counts for the row that completes it; the division into calls
            does not matter) or "batch" (a call's rows see each other, and a pattern counts for
            each of its rows).
        edges_max: limit on the number of edges, in addition to the window.
        threads: number of search threads; results do not depend on it.
        evidence: store the edge ids for :meth:`patterns_of`: 8 bytes an edge.
        evidence_max: the largest number of patterns that one :meth:`patterns_of` returns.
        work_max: limit on the edges that a search visits for one pattern and row; ``stats()``
            counts the searches that reached it.
        cluster: a :class:`farrow.graph.cluster.ClusterGraph`: older edges are in the memory of
            its nodes, readable by other processes, and the graph outlives this process; None: all
            edges stay in this process.

    Raises:
        TypeError, ValueError: by ``fit``, ``partial_fit`` or ``transform``, for an invalid
            parameter or row; the message names it, and the graph is unchanged.
        KeyboardInterrupt: by Ctrl-C, also during a search.  The graph is unchanged, except that of
            a longer call whole parts of 4,096 rows (65,536 without features) stay.

    Examples:
        >>> from farrow.graph import GraphFeatures
        >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
        >>> features = GraphFeatures(patterns=["fan", "temp-cycle"], window=60, bins=[2, 3])
        >>> features.transform(rows).shape
        (3, 10)
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

    # scikit-learn reads an estimator's instance attributes; this one is not a parameter.
    _stream: TransformerStream | None = None

    def set_params(self, **params: Any) -> GraphFeatures:
        """Change parameters and empty the graph.

        Args:
            params: new values by name, as in the constructor.

        Returns:
            This transformer.

        Raises:
            ValueError: there is no parameter of that name. Values are checked by the next rows.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> GraphFeatures(window="24h").set_params(window="7d").window
            '7d'
        """
        super().set_params(**params)
        self.close()
        return self

    def close(self) -> None:
        """Close the graph.  A graph in the cluster persists and can be resumed.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60).fit(rows)
            >>> features.close()
        """
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def fit(self, X: Any, y: Any = None) -> GraphFeatures:
        """Empty the graph and add rows.

        Args:
            X: rows of shape (rows, 4 or more), or a table.
            y: ignored; scikit-learn passes it.

        Returns:
            This transformer.

        Raises:
            TypeError, ValueError: a parameter or a row is invalid. The message names it, and the
                graph is unchanged.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60).fit(rows)
            >>> features.stats()["edges"]
            3
        """
        self._emptied(X, TransformerStream.learn)
        return self

    def _emptied(self, X: Any, call: Callable[[TransformerStream, Any], _Result]) -> _Result:
        """The result of a call on a stream without rows."""
        if self.cluster is not None:
            self.close()
        stream = TransformerStream(self, X)

        def cleared(stream: TransformerStream) -> _Result:
            stream.clear()
            return call(stream, X)

        return self._first(stream, cleared)

    def _on_stream(self, X: Any, call: Callable[[TransformerStream], _Result]) -> _Result:
        """The result of a call on the stream, which the first rows make."""
        if self._stream is not None:
            return call(self._stream)
        return self._first(TransformerStream(self, X), call)

    def _first(
        self, stream: TransformerStream, call: Callable[[TransformerStream], _Result]
    ) -> _Result:
        """The result of the first call on a stream, which is closed if the call fails."""
        try:
            result = call(stream)
        except BaseException:
            stream.close()
            raise
        self._keep(stream)
        return result

    def _keep(self, stream: TransformerStream) -> GraphFeatures:
        self._stream = stream
        self.n_features_in_ = len(stream.inputs)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> GraphFeatures:
        """Add rows.

        Args:
            X: rows of shape (rows, 4 or more), or a table; a row may be earlier than the last ones.
            y: ignored; scikit-learn passes it.

        Returns:
            This transformer.

        Raises:
            TypeError, ValueError: a parameter or a row is invalid. The message names it, and the
                graph is unchanged.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60)
            >>> features.partial_fit(rows[:2]).partial_fit(rows[2:]).stats()["rows"]
            3
        """
        self._on_stream(X, lambda stream: stream.learn(X))
        return self

    def transform(self, X: Any) -> Any:
        """Add rows and return them with their features.

        Args:
            X: rows of shape (rows, 4 or more), or a table; a row may be earlier than the last ones.

        Returns:
            The rows with their features: float64 of shape (rows, columns + features), or a table of
            the kind of ``X`` with a column for each feature.  Their names:
            ``get_feature_names_out``.

        Raises:
            TypeError, ValueError: a parameter or a row is invalid. The message names it, and the
                graph is unchanged.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["temp-cycle"], window=60, bins=[2, 3])
            >>> features.transform(rows)[:, 4:].tolist()
            [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
        """
        return self._on_stream(X, lambda stream: stream.transform(X))

    def transform_each(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Add batches one after the other, and return each with its features, in order.

        The results are those of ``transform`` for each batch.  With ``cluster`` and workers, whole
        batches are computed by the workers and by this process at once, instead of each batch by
        all of them; two batches for each process are taken ahead of the one that is returned, and
        their rows are in the graph then.  If the iteration is closed earlier, these batches have no
        features.  If a batch is refused, the results of those before it are returned before the
        error is raised.  A batch must not change before it is returned.

        Args:
            batches: rows, each as for ``transform``.

        Returns:
            An iterator of the results of ``transform``, in the order of the batches.

        Raises:
            RuntimeError: ``transform`` in a graph with workers, before all batches are returned.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60, bins=[2])
            >>> [batch.shape for batch in features.transform_each([rows[:2], rows[2:]])]
            [(2, 6), (1, 6)]
        """

        def begin(X: Any) -> tuple[TransformerStream, Callable[[], Any]]:
            return self._on_stream(X, lambda stream: (stream, stream.begin(X)))

        return each(batches, begin)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Empty the graph, add rows once, and return them with their features.

        Args:
            X: rows, as for ``transform``.
            y: ignored; scikit-learn passes it.
            fit_params: ignored; scikit-learn passes them.

        Returns:
            As ``transform``.

        Raises:
            TypeError, ValueError: a parameter or a row is invalid. The message names it, and the
                graph is unchanged.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60, bins=[2])
            >>> features.fit_transform(rows).shape
            (3, 6)
        """
        return self._emptied(X, TransformerStream.transform)

    def offline(self, X: Any, batch: int = 2048) -> Iterator[Any]:
        """Add all rows first, then compute their features, batch by batch.

        Each batch equals the result of ``transform`` for these rows: a row sees only earlier rows.
        Counts are the same; statistics may differ in their last digit by rounding.  No edge
        leaves the graph before the last batch.  If the iteration is closed earlier, the other
        rows have no features.  Until then no other rows can be added or previewed.  With
        ``cluster``, older rows are read from their segments; workers do nothing.

        Args:
            X: rows, as for ``transform``.
            batch: number of rows that are computed together.

        Returns:
            An iterator of the rows with their features, ``batch`` rows at a time.

        Raises:
            ValueError: the mode is "batch", in which a row's features depend on its call; an
                earlier iteration has not ended; or as ``transform``.  No row was added then, or,
                in a cluster, as below.
            OutOfMemory: with ``cluster``, the log has no room.  Rows are added in parts of 65,536:
                those of earlier parts stay in the graph, without features.
                ``stats()["rows"]`` counts them, so a repetition begins with the next row.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60, bins=[2])
            >>> [part.shape for part in features.offline(rows, batch=2)]
            [(2, 6), (1, 6)]
        """
        size = whole_of("batch", batch, least=1)
        return self._on_stream(X, lambda stream: stream.offline(X, size))

    def patterns_of(self, X: Any) -> tuple[Any, pa.Table]:
        """As ``transform``, with the patterns that the rows complete.

        Args:
            X: rows, as for ``transform``.

        Returns:
            The result of ``transform``, and a table with a row for each pattern: ``pattern``
            (its number in this call), ``kind``, ``size``, ``trigger`` (the id of the edge that
            completed it), ``edges`` (all its edges' ids, in order of time) and ``accounts`` (of a
            star its centre; of a scatter-gather the scatterer, the gatherer, then those between;
            of a cycle all, from the trigger's target to its source).  If accounts are strings and
            the graph is in a cluster, those that this process has not seen in its rows are their
            numbers as text.  ``dropped`` in the schema's metadata is the number of patterns
            omitted beyond ``evidence_max``.

        Raises:
            ValueError: ``evidence`` is not set; or as ``transform``.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["temp-cycle"], window=60, evidence=True)
            >>> result, found = features.patterns_of(rows)
            >>> found["kind"].to_pylist(), found["edges"].to_pylist()
            (['temp-cycle'], [[0, 1, 2]])
        """
        most = whole_of("evidence_max", self.evidence_max, least=0)
        return self._on_stream(X, lambda stream: stream.patterns(X, most))

    def preview(self, X: Any) -> Any:
        """Rows with the features that they would get now; the graph does not change.

        Use it for undecided rows: a payment before it is made.

        Args:
            X: rows, as for ``transform``.

        Returns:
            As ``transform``.

        Raises:
            sklearn.exceptions.NotFittedError: no rows were added before.
            TypeError, ValueError: a row is invalid. The message names it.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["temp-cycle"], window=60, bins=[2, 3])
            >>> features.fit(rows[:2]).preview(rows[2:])[:, 4:].tolist()
            [[0.0, 1.0]]
            >>> features.stats()["edges"]
            2
        """
        return self._fitted().preview(X)

    def preview_patterns(self, X: Any) -> tuple[Any, pa.Table]:
        """As ``preview``, with the patterns that the rows would complete.

        Args:
            X: rows, as for ``transform``.

        Returns:
            The result of ``preview``, and a table of patterns as from ``patterns_of``.

        Raises:
            ValueError: ``evidence`` is not set; or as ``preview``.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["temp-cycle"], window=60, evidence=True)
            >>> result, found = features.fit(rows[:2]).preview_patterns(rows[2:])
            >>> found["size"].to_pylist()
            [3]
        """
        most = whole_of("evidence_max", self.evidence_max, least=0)
        return self._fitted().preview_patterns(X, most)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the columns that ``transform`` returns; requires earlier rows.

        Args:
            input_features: names for the columns of the rows; None: those of the table, or
                "edge_id", "source", "target", "timestamp", "x4" and so on.

        Returns:
            The names, of shape (columns + features,).

        Raises:
            sklearn.exceptions.NotFittedError: no rows were added before.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> features = GraphFeatures(patterns=["fan"], window=60, bins=[2]).fit(rows)
            >>> features.get_feature_names_out()[4:].tolist()
            ['fan_in[2]', 'fan_out[2]']
        """
        stream = self._fitted()
        given = stream.inputs if input_features is None else [str(one) for one in input_features]
        return np.array([*given, *stream.names], dtype=object)

    def stats(self) -> dict[str, Any]:
        """Describe the contents of the graph and the speed of calls.

        Returns:
            ``edges``, ``accounts``, ``bytes`` (in this process), ``now`` (the latest time),
            ``rows`` (added so far), ``cut_short`` (searches that ended at ``work_max``, by
            pattern) and ``rates``.

            ``rates`` has ``calls`` that added rows, except :meth:`offline`, since the transformer
            was created, loaded or emptied, their ``rows``, ``seconds`` and ``rows_per_second``,
            and the same for the last call (``last_rows`` and so on). In a cluster also
            ``segments``, ``sealed`` (their edges), ``sealed_bytes``, ``draining`` (edges in a
            segment and still in this process), ``log`` (calls in no segment), ``sealing`` (whether
            a segment is being built) and ``trouble`` (why the last one failed).

        Raises:
            sklearn.exceptions.NotFittedError: no rows were added before.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> stats = GraphFeatures(patterns=["fan"], window=60).fit(rows).stats()
            >>> stats["edges"], stats["accounts"], stats["now"]
            (3, 3, 30)
        """
        stream = self._fitted()
        return {**stream.engine.stats(), "rates": stream.clock.rates()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and graph to a file with a checksum; :meth:`load` reads it.

        The file replaces an older one atomically, once it is on the disk.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be written; an older one is unchanged.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> GraphFeatures(patterns=["fan"], window=60).fit(rows).save("fans")
            >>> GraphFeatures.load("fans").stats()["edges"]
            3
        """
        write_state(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GraphFeatures:
        """Load a transformer that continues after the rows of the saved one.

        Args:
            path: a file that :meth:`save` wrote.

        Returns:
            The transformer, with its parameters and its graph.

        Raises:
            OSError: the file cannot be read.
            farrow.exceptions.DamagedFile: the file is of another kind or was changed: every
                changed, missing or added byte is detected.  A ``ValueError``.  Files of version 1
                have no checksum; they are read with a warning.
            farrow.InvalidArgument: the file is of a later version.  Also a ``ValueError``.

        Examples:
            >>> from farrow.graph import GraphFeatures
            >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
            >>> GraphFeatures(patterns=["fan"], window=60, bins=[2]).fit(rows[:2]).save("fans")
            >>> GraphFeatures.load("fans").transform(rows[2:]).shape
            (1, 6)
        """
        return read_state(cls, path)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in super().__getstate__().items() if name != "_stream"}
        return {**own, "_state": state_of(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_state")
        super().__setstate__(state)
        restored(self, saved)

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None

    def _fitted(self) -> TransformerStream:
        if self._stream is not None:
            return self._stream
        if self.cluster is None:
            raise NotFittedError("no rows have come: call fit, partial_fit or transform first")
        raise NotFittedError(
            "the first rows open the graph: call partial_fit, with an empty batch if need be, or "
            "read it by farrow.graph.cluster.attach"
        )


def _contained(method: Any) -> Any:
    """A method whose result scikit-learn puts into the container of ``set_output``."""

    @functools.wraps(method)
    def call(self: GraphFeatures, X: Any, *more: Any, **options: Any) -> Any:
        # scikit-learn's lookup of the output container takes as long as a single row's search: skip
        # it for the default, an array.
        is_default = (
            "_sklearn_output_config" not in self.__dict__
            and get_config()["transform_output"] == "default"
        )
        if is_default and type(X) is np.ndarray:
            return method.__wrapped__(self, X, *more, **options)
        if is_default or _get_output_config("transform", self)["dense"] != "pandas":
            return method(self, X, *more, **options)
        result = method.__wrapped__(self, X, *more, **options)
        # It does not know tables of Arrow, and would fail when the rows are in the graph.
        if isinstance(result, pa.Table):
            return result.to_pandas()
        return _wrap_data_with_container("transform", result, X, self)

    return call


GraphFeatures.transform = _contained(GraphFeatures.transform)  # type: ignore[method-assign]
GraphFeatures.fit_transform = _contained(GraphFeatures.fit_transform)  # type: ignore[method-assign]
