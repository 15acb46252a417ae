"""The engine of the writing process: a :class:`farrow._native.GraphEngine` whose older edges are
in the cluster's memory, and whose rows are in a log until a segment has them.

``_writer`` has the state of the writer, ``_call_log`` adds the rows of a call to graph and log, and
``_sealing`` replaces edges by segments.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farrow.graph.cluster._call_log import CallLog, parts
from farrow.graph.cluster._objects import Batch, GraphManifest, LogEntry
from farrow.graph.cluster._sealing import Sealing
from farrow.graph.cluster._writer import GraphWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from farrow._native import GraphEngine
    from farrow.graph.cluster._config import ClusterGraph
    from farrow.graph.cluster._ray import RayWorkers
    from farrow.graph.cluster._workers import Workers


@dataclass(frozen=True)
class _One:
    """Workers of which one computes all features of an entry."""

    workers: Workers | RayWorkers
    owner: int

    def ask(self, entry: LogEntry) -> None:
        self.workers.ask_one(self.owner, entry)


class ClusterEngine:
    """The single writer of a graph."""

    def __init__(self, config: ClusterGraph, manifest: GraphManifest) -> None:
        self._writer = GraphWriter(config, manifest)
        self._sealing = Sealing(self._writer)
        self._calls = CallLog(self._writer, self._sealing)
        # Batches begun with ``begin_batch``, and those of them that a worker has and no call took.
        # The first is a worker's, so that this process computes the next one beside it.
        self._turn, self._flying = 1, 0

    @property
    def _engine(self) -> GraphEngine:
        return self._writer.engine

    @property
    def rows(self) -> int:
        """The number of rows added in the lifetime of the graph."""
        return self._engine.next_number()

    def knows(self, accounts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the graph knows each account."""
        return self._engine.knows(accounts)

    def stats(self) -> dict[str, Any]:
        """The engine's, with pending work: ``log`` (calls), ``sealing`` (whether a segment is being
        built), and ``trouble`` (why the last one failed)."""
        waiting = {
            "log": len(self._writer.entries),
            "sealing": self._sealing.is_pending,
            "trouble": self._sealing.trouble,
        }
        return {**self._engine.stats(), "rows": self.rows, **waiting}

    def clear(self) -> None:
        """Empty the graph and delete its objects."""
        self._writer.check()
        self._sealing.forget()
        self._writer.clear()
        self._refresh_workers()

    def learn(self, matrix: npt.NDArray[np.float64]) -> None:
        """Add rows."""
        self.learn_columns(*self._engine.split(matrix))

    def learn_columns(self, ends: Any, measured: Any) -> None:
        """Add rows."""
        if not self._writer.manifest.parameters["is_causal"]:
            order = np.argsort(ends[3], kind="stable")
            ends, measured = ([one[order] for one in all] for all in (ends, measured))
        for part in parts(len(ends[0])):
            self._learn([one[part] for one in ends], [one[part] for one in measured])

    def _learn(self, ends: Any, measured: Any) -> None:
        self._calls.add(Batch(ends, measured), lambda: self._engine.learn_columns(ends, measured))

    def learn_ahead(self, ends: Any, measured: Any) -> None:
        """Add rows whose features ``transform_ahead`` computes later."""
        for part in parts(len(ends[0])):
            batch = Batch([one[part] for one in ends], [one[part] for one in measured])
            try:
                self._learn_ahead(batch)
            except BaseException:
                # Segments may have rows of earlier parts already: these stay, without features, so
                # that other calls go on.
                self._engine.drop_ahead()
                raise

    def _learn_ahead(self, batch: Batch) -> None:
        self._calls.add_logged(batch, lambda: self._engine.learn_ahead(batch.ends, batch.measured))

    def transform_ahead(self, rows: int) -> npt.NDArray[np.float64]:
        """Features of the next rows that were learned ahead."""
        self._writer.check()
        self._sealing.advance()
        # After a signal the rows still wait for their features.
        return self._writer.run(lambda: self._engine.transform_ahead(rows), (KeyboardInterrupt,))

    def drop_ahead(self) -> None:
        """Skip the features of all rows that were learned ahead."""
        self._engine.drop_ahead()

    def transform(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add rows; returns the rows with their features appended."""
        if self._writer.workers is not None:
            return np.hstack([matrix, self.transform_columns(*self._engine.split(matrix))])
        return self._calls.add(self._calls.split(matrix), lambda: self._engine.transform(matrix))

    def transform_columns(self, ends: Any, measured: Any) -> npt.NDArray[np.float64]:
        """Add rows; returns their features only."""
        batch, workers = self._calls.batch(ends, measured), self._writer.workers
        if workers is None or not batch.count:
            return self._calls.add(batch, lambda: self._engine.transform_columns(ends, measured))
        self._refuse_while_flying()
        share = (0, workers.count + 1)
        call = functools.partial(self._engine.transform_share, ends, measured, share)
        own = self._calls.add(batch, call, workers)
        features = self._writer.run(lambda: workers.gather(self._writer.client, own))
        self._writer.progress.all_have_read()
        return features

    @property
    def in_flight(self) -> int:
        """How many batches ``begin_batch`` should have begun before the first is awaited."""
        return 1 if self._writer.workers is None else 2 * (self._writer.workers.count + 1)

    def begin_batch(self, ends: Any, measured: Any) -> Callable[[], npt.NDArray[np.float64]]:
        """Add rows; returns a function that waits for their features.  The workers and this process
        compute whole batches in turn.  The functions must be called in order."""
        batch, workers = self._calls.batch(ends, measured), self._writer.workers
        owner = -1 if workers is None else self._turn % (workers.count + 1) - 1
        self._writer.check()
        if self._writer.progress.lacks(self._engine.next_number()):
            self._refresh_workers()
        if workers is None or not batch.count or owner < 0:
            requested = None if workers is None else _One(workers, -1)
            call = functools.partial(self._engine.transform_columns, ends, measured)
            features = self._calls.add(batch, call, requested)
            self._turn += 1
            return lambda: features
        learn = functools.partial(self._engine.learn_columns, *batch.arrivals())
        self._calls.add(batch, learn, _One(workers, owner))
        end = self._engine.next_number()
        self._turn += 1
        self._flying += 1

        def awaited() -> npt.NDArray[np.float64]:
            found = np.zeros((len(batch.ends[0]), self._width))
            self._flying -= 1
            self._writer.run(lambda: workers.take(self._writer.client, owner, found))
            self._writer.progress.has_read(owner, end)
            return found

        return awaited

    def _refresh_workers(self) -> None:
        """Wait until the workers have all rows of the graph."""
        if self._writer.workers is not None:
            self._writer.run(self._writer.workers.refresh)
            self._writer.progress.refreshed(self._engine.next_number())

    @functools.cached_property
    def _width(self) -> int:
        """The number of features."""
        none = np.zeros(0, np.int64)
        columns = [none.astype(float)] * self._writer.columns
        features, _ = self._engine.preview_columns([none] * 4, columns, None)
        return int(features.shape[1])

    def _refuse_while_flying(self) -> None:
        if self._flying:
            raise RuntimeError(
                f"{self._flying} batches of transform_each have no features yet: take them first"
            )

    def patterns(self, matrix: npt.NDArray[np.float64], most: int) -> tuple[Any, Any]:
        """As ``transform``, with the completed patterns."""
        batch = self._calls.split(matrix)
        return self._calls.add(batch, lambda: self._engine.patterns(matrix, most))

    def patterns_columns(self, ends: Any, measured: Any, most: int) -> tuple[Any, Any]:
        """As ``transform_columns``, with the completed patterns."""
        batch = self._calls.batch(ends, measured)
        return self._calls.add(batch, lambda: self._engine.patterns_columns(ends, measured, most))

    def preview(self, matrix: npt.NDArray[np.float64], most: int | None) -> tuple[Any, Any]:
        """The rows with the features that they would get now; nothing is stored or logged."""
        self._writer.check()
        return self._engine.preview(matrix, most)

    def preview_columns(self, ends: Any, measured: Any, most: int | None) -> tuple[Any, Any]:
        """As ``preview``; the features only."""
        self._writer.check()
        return self._engine.preview_columns(ends, measured, most)

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until all full spans have their segments.

        Raises:
            TimeoutError: after ``timeout`` seconds.
        """
        self._sealing.settle(timeout)

    def close(self) -> None:
        """End the workers; the graph persists.  In a forked child nothing ends."""
        if self._writer.is_forked:
            return
        self._writer.close()
        self._calls.close()
        self._sealing.close()
