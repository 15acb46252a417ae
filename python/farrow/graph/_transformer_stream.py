"""The graph of one transformer: rows of any form in, features in the same form out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farrow.graph._check import matrix_of, whole_of
from farrow.graph._clock import Clock
from farrow.graph._form import Form
from farrow.graph._rows import AccountNumbers, Layout, like, table_of
from farrow.graph._settings import FeaturePlan, ticks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from farrow._native import GraphEngine
    from farrow.graph.cluster import ClusterGraph
    from farrow.graph.cluster._engine import ClusterEngine
    from farrow.graph.features import GraphFeatures

__all__ = ["TransformerStream"]


class TransformerStream(Form):
    """The graph of one transformer, and the form of its rows."""

    engine: GraphEngine | ClusterEngine
    # Rows of ``offline`` without features.
    ahead = 0

    def __init__(self, owner: GraphFeatures, rows: Any) -> None:
        found = table_of(rows)
        parameters = owner.get_params(deep=False)
        given = owner.statistics_columns
        self.accounts = AccountNumbers()
        self.rows = 0
        self.layout = None
        self.cluster = owner.cluster
        if found is None:
            matrix = matrix_of(rows)
            count = matrix.shape[1]
            plan = FeaturePlan(parameters, ticks=1)
            wanted = range(4, count) if given is None else given
            numbers = sorted(
                {whole_of("statistics_columns", one, least=0, most=count - 1) for one in wanted}
            )
            self.inputs = ["edge_id", "source", "target", "timestamp"]
            self.inputs += [f"x{number}" for number in range(4, count)]
            self.measured = [self.inputs[number] for number in numbers]
        else:
            self.layout = Layout(found[0], owner.columns)
            plan = FeaturePlan(parameters, self.layout.ticks)
            self.inputs = self.layout.columns
            self.measured = self.layout.amounts if given is None else [str(one) for one in given]
            self.layout.measure(found[0].schema, self.measured)
            # The engine receives the measured columns after the four fixed ones.
            numbers = list(range(4, 4 + len(self.measured)))
        self._start(plan, numbers)
        if self.cluster is not None:
            # Before this process takes the graph over.
            self._check(rows)
            self.engine = self._in_cluster(self.cluster, plan, numbers)
            # Rows without ids continue the numbering of a resumed graph.
            self.rows = self.engine.rows

    def _start(self, plan: FeaturePlan, numbers: list[int]) -> None:
        self.numbers = numbers
        self.native = plan.engine(numbers)
        self.engine = self.native
        self.clock = Clock()
        self.names = plan.names(self.measured)
        self.has_statistics = plan.statistics_window is not None

    def _check(self, rows: Any) -> None:
        """Check rows without adding them."""
        table = self._table(rows)
        if table is None:
            self.native.split(self._matrix(rows))
        else:
            self._columns(table[0])

    def _in_cluster(
        self, cluster: ClusterGraph, plan: FeaturePlan, numbers: list[int]
    ) -> ClusterEngine:
        from farrow.graph.cluster._engine import ClusterEngine
        from farrow.graph.cluster._objects import GraphManifest

        ticks = 1 if self.layout is None else self.layout.ticks
        length = ticks_of("segment", cluster.segment, ticks)
        stream = {name: one for name, one in self.state().items() if name not in ("names", "rows")}
        manifest = GraphManifest(stream=stream, parameters=plan.parameters(numbers), segment=length)
        return ClusterEngine(cluster, manifest)

    def clear(self) -> None:
        """Empty a graph that persists in the cluster; other graphs are empty already."""
        if self.cluster is not None:
            self.engine.clear()  # type: ignore[union-attr]
            self.rows = 0

    def close(self) -> None:
        """Close a graph that persists in the cluster."""
        if self.cluster is not None:
            self.engine.close()  # type: ignore[union-attr]

    @classmethod
    def restored(cls, owner: GraphFeatures, state: Mapping[str, Any]) -> TransformerStream:
        """The stream of ``state``, with an empty graph."""
        stream = cls.__new__(cls)
        stream.take(state)
        stream.cluster = None
        ticks = 1 if stream.layout is None else stream.layout.ticks
        stream._start(FeaturePlan(owner.get_params(deep=False), ticks), stream.numbers)
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
        with self._numbered():
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
        return like(self._joined(table[0], features), table[1], rows)

    @property
    def in_flight(self) -> int:
        """How many batches should be begun before the first is awaited."""
        return self.engine.in_flight if self.cluster is not None else 1  # type: ignore[union-attr]

    def begin(self, rows: Any) -> Callable[[], Any]:
        """Add rows; returns a function that waits for them with their features."""
        if self.in_flight == 1:
            result = self._transform(rows)
            return lambda: result
        table = self._table(rows)
        if table is None:
            matrix = self._matrix(rows)
            found = self.engine.begin_batch(*self.native.split(matrix))  # type: ignore[union-attr]
            return lambda: np.hstack([matrix, found()])
        columns = self._columns(table[0])
        found = self.engine.begin_batch(columns.ends, columns.measured)  # type: ignore[union-attr]
        self._count(table[0])
        return lambda: like(self._joined(table[0], found()), table[1], rows)

    def offline(self, rows: Any, size: int) -> Iterator[Any]:
        if self.ahead:
            raise ValueError(f"{self.ahead} rows that were learned ahead have no features yet")
        table = self._table(rows)
        if table is None:
            whole = self._matrix(rows)
            ends, measured = self.native.split(whole)
            self.engine.learn_ahead(ends, measured)
            self.ahead = len(whole)

            def joined(start: int, features: npt.NDArray[np.float64]) -> Any:
                return np.hstack([whole[start : start + len(features)], features])

        else:
            columns = self._columns(table[0])
            with self._numbered():
                self.engine.learn_ahead(columns.ends, columns.measured)
            self.ahead = len(table[0])
            self._count(table[0])

            def joined(start: int, features: npt.NDArray[np.float64]) -> Any:
                part = table[0].slice(start, len(features))
                return like(self._joined(part, features), table[1], rows, start)

        self.iteration = iteration = object()
        parts = self._computed(size, joined, iteration)
        # Enter the generator, so that closing it ends offline mode even before the first batch.
        next(parts)
        return parts

    def _computed(
        self, size: int, joined: Callable[[int, Any], Any], iteration: object
    ) -> Iterator[Any]:
        start = 0
        try:
            yield None
            # Once all its rows have features, another iteration may begin before this one ends.
            while self.iteration is iteration:
                features = self.engine.transform_ahead(size)
                if not len(features):
                    break
                self.ahead -= len(features)
                yield joined(start, features)
                start += len(features)
        finally:
            if self.iteration is iteration:
                self.ahead = 0
                self.engine.drop_ahead()

    def _patterns(self, rows: Any, most: int) -> tuple[Any, pa.Table]:
        table = self._table(rows)
        if table is None:
            result, found = self.engine.patterns(self._matrix(rows), most)
        else:
            columns = self._columns(table[0])
            features, found = self.engine.patterns_columns(columns.ends, columns.measured, most)
            result = like(self._joined(table[0], features), table[1], rows)
        evidence = self._evidence(found)
        if table is not None:
            # Names of accounts that have left may be forgotten from here on.
            self._count(table[0])
        return result, evidence

    @contextlib.contextmanager
    def _numbered(self) -> Iterator[None]:
        """Count the rows of a call that fails after the graph of a cluster has some of them: later
        rows without ids are numbered from there on."""
        try:
            yield
        except BaseException:
            if self.cluster is not None:
                self.rows = max(self.rows, self.engine.rows)  # type: ignore[union-attr]
            raise

    def _count(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        self.accounts.forget(self.engine)
