"""The engine of the writing process: a :class:`farrow._native.GraphEngine` whose older edges are
in the cluster's memory, and whose rows are in a log until a segment has them.

A separate thread writes a call's rows to the log while the graph adds them and computes; the call
returns when both are done.  If one fails, the other removes its rows.  Another thread builds
segments, which are attached between two calls.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

import farrow
from farrow.graph.cluster import ClusterGraph
from farrow.graph.cluster._objects import (
    NOT_PUT,
    Batch,
    Entry,
    Manifest,
    begin_epoch,
    drop,
    elsewhere,
    engine_of,
    failed_parts,
    fence,
    joined,
    keep,
    log,
    longest_run,
    names_of,
    newest,
    root,
    tidy,
)
from farrow.graph.cluster._placement import check, nodes
from farrow.graph.cluster._progress import Progress
from farrow.graph.cluster._ray import RayWorkers
from farrow.graph.cluster._reader import adopt, counted, missing, replay
from farrow.graph.cluster._segments import opened, sealed
from farrow.graph.cluster._workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from farrow._native import GraphFrozen, GraphPlan, GraphSegment

    _Helpers = Workers | RayWorkers

_Result = TypeVar("_Result")
# Time to the next attempt after a segment found no room.
_RETRY_SECONDS = 10.0
# Entries of the log before half of them are joined.
_ENTRIES_MAX = 256
# A replaced writer commits at most the segment that it has already built.
_TAKEOVERS_MAX = 5
# Most rows of a provisional call, and of an entry of a split call. Larger calls are logged before
# the graph adds them, because provisional rows evict nothing.
_ROWS_MAX = 1 << 16


class _NotLogged(Exception):
    """The log has no part of an entry, so the writer may continue.  All other errors end it: two
    entries of one epoch with the same first row and different rows must not exist."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class _One:
    """Workers of which one computes all features of an entry."""

    workers: _Helpers
    owner: int

    def ask(self, entry: Entry) -> None:
        self.workers.ask_one(self.owner, entry)


class ClusterEngine:
    """The single writer of a graph."""

    def __init__(self, config: ClusterGraph, manifest: Manifest) -> None:
        # In the form read back from the store: lists, no tuples.
        for name in ("stream", "parameters"):
            setattr(manifest, name, json.loads(json.dumps(getattr(manifest, name))))
        self._threads = manifest.parameters["threads"]
        self._engine = engine_of(manifest, self._threads)
        self._config = config
        self._pid = os.getpid()
        self._client = farrow.connect(config.address)
        check(self._client, config.placement, config.keeper)
        self._pending: Future[tuple[str, str | None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farrow-graph-seal")
        self._scribe = ThreadPoolExecutor(1, thread_name_prefix="farrow-graph-log")
        self._log: list[Entry] = []
        self._expired: set[int] = set()
        self._trouble: tuple[float, str] | None = None
        self._failed: str | None = None
        # Another process has taken the graph over.
        self._is_replaced = False
        # Batches begun with ``begin_batch``, and those of them that a worker has and no call took.
        # The first is a worker's, so that this process computes the next one beside it.
        self._turn, self._flying = 1, 0
        # Failed attempts to make the next segment.
        self._attempts = 0
        # Entries of the log before the next attempt to join them.
        self._join_at = _ENTRIES_MAX
        found = newest(self._client, config.name)
        if found is None:
            self._manifest = manifest
            self._manifest.number = 1
            self._manifest.home = config.keeper or self._client.node
            self._epoch = begin_epoch(self._client, config.name, self._manifest.home)
            self._manifest.writers = [[self._epoch, 0]]
            self._manifest.put(self._client, config.name)
        else:
            self._resume(found, manifest)
        self._workers: _Helpers | None = None
        if config.addresses():
            self._workers = RayWorkers(config) if config.ray else Workers(config)
        self._progress = Progress(len(config.addresses()), self._engine.next_number())

    def _resume(self, found: Manifest, wanted: Manifest) -> None:
        name, home = self._config.name, self._config.keeper or self._client.node
        for what in ("parameters", "stream", "segment"):
            ours, theirs = getattr(wanted, what), getattr(found, what)
            if what == "parameters":
                # Results do not depend on the number of threads.
                ours, theirs = ({**one, "threads": self._threads} for one in (ours, theirs))
            if ours != theirs:
                raise ValueError(
                    f"graph {name!r} is there with other {what}: {theirs}, not {ours}; to begin "
                    f"again, delete the objects whose names begin with {root(name)!r}"
                )
        # Before any read: from here on the former writer acknowledges nothing.
        self._epoch = begin_epoch(self._client, name, home)
        for attempt in range(_TAKEOVERS_MAX):
            # Includes commits made before the fence existed, or concurrently.
            self._manifest = newest(self._client, name) or found
            self._manifest.home = home
            self._manifest.parameters["threads"] = self._threads
            self._engine = engine_of(self._manifest, self._threads)
            without_lost = self._config.without_lost
            try:
                adopt(self._client, name, self._engine, self._manifest, without_lost=without_lost)
                log = counted(self._client, name, self._manifest)
                self._log = replay(self._client, name, self._engine, log)
                self._manifest.check_rows(name, self._engine.next_number())
                self._manifest.begin_epoch(self._epoch, self._engine.next_number())
                self._manifest.number += 1
                self._manifest.put(self._client, name)
            except (farrow.AlreadyExists, farrow.NotFound) as error:
                # The former writer committed a segment meanwhile.
                if attempt < _TAKEOVERS_MAX - 1:
                    continue
                if isinstance(error, farrow.NotFound):
                    raise missing(self._client, error) from None
                raise
            break
        tidy(self._client, name, self._manifest)

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
        trouble = self._trouble[1] if self._trouble else None
        waiting = {"log": len(self._log), "sealing": self._pending is not None, "trouble": trouble}
        return {**self._engine.stats(), "rows": self.rows, **waiting}

    def clear(self) -> None:
        """Empty the graph and delete its objects."""
        self._check()
        if self._pending is not None:
            self._pending.exception()
            self._pending = None
        before = self._manifest
        self._begin_epoch()
        self._manifest = Manifest(
            before.number + 1, before.stream, before.parameters, before.segment, before.home
        )
        self._manifest.writers = [[self._epoch, 0]]
        # Without this manifest, no row of the new epoch counts.
        self._run(lambda: self._manifest.put(self._client, self._config.name))
        self._log = []
        self._engine = engine_of(self._manifest, self._threads)
        self._expired.clear()
        names = self._client.list(root(self._config.name), all_nodes=True)["name"].to_pylist()
        mine = self._manifest.name(self._config.name)
        fences = f"{root(self._config.name)}writer/"
        drop(self._client, [one for one in names if one != mine and not one.startswith(fences)])
        self._refresh_workers()

    def learn(self, matrix: npt.NDArray[np.float64]) -> None:
        """Add rows."""
        self.learn_columns(*self._engine.split(matrix))

    def learn_columns(self, ends: Any, measured: Any) -> None:
        """Add rows."""
        if not self._manifest.parameters["is_causal"]:
            order = np.argsort(ends[3], kind="stable")
            ends, measured = ([one[order] for one in all] for all in (ends, measured))
        # A single large log entry would need as much room, and would delay full spans.
        for start in range(0, len(ends[0]), _ROWS_MAX):
            part = slice(start, start + _ROWS_MAX)
            self._learn([one[part] for one in ends], [one[part] for one in measured])

    def _learn(self, ends: Any, measured: Any) -> None:
        self._kept(Batch(ends, measured), lambda: self._engine.learn_columns(ends, measured))

    def learn_ahead(self, ends: Any, measured: Any) -> None:
        """Add rows whose features ``transform_ahead`` computes later."""
        for start in range(0, len(ends[0]), _ROWS_MAX):
            part = slice(start, start + _ROWS_MAX)
            batch = Batch([one[part] for one in ends], [one[part] for one in measured])
            try:
                self._learn_ahead(batch)
            except BaseException:
                # Segments may have rows of earlier parts already: these stay, without features, so
                # that other calls go on.
                self._engine.drop_ahead()
                raise

    def _learn_ahead(self, batch: Batch) -> None:
        self._logged(batch, lambda: self._engine.learn_ahead(batch.ends, batch.measured))

    def transform_ahead(self, rows: int) -> npt.NDArray[np.float64]:
        """Features of the next rows that were learned ahead."""
        self._check()
        self._advance()
        # After a signal the rows still wait for their features.
        return self._run(lambda: self._engine.transform_ahead(rows), (KeyboardInterrupt,))

    def drop_ahead(self) -> None:
        """Skip the features of all rows that were learned ahead."""
        self._engine.drop_ahead()

    def transform(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add rows; returns the rows with their features appended."""
        if self._workers is not None:
            return np.hstack([matrix, self.transform_columns(*self._engine.split(matrix))])
        return self._kept(self._split(matrix), lambda: self._engine.transform(matrix))

    def transform_columns(self, ends: Any, measured: Any) -> npt.NDArray[np.float64]:
        """Add rows; returns their features only."""
        batch, workers = self._batch(ends, measured), self._workers
        if workers is None or not batch.count:
            return self._kept(batch, lambda: self._engine.transform_columns(ends, measured))
        self._refuse_while_flying()
        share = (0, workers.count + 1)
        call = functools.partial(self._engine.transform_share, ends, measured, share)
        own = self._kept(batch, call, workers)
        features = self._run(lambda: workers.gather(self._client, own))
        self._progress.all_have_read()
        return features

    @property
    def in_flight(self) -> int:
        """How many batches ``begin_batch`` should have begun before the first is awaited."""
        return 1 if self._workers is None else 2 * (self._workers.count + 1)

    def begin_batch(self, ends: Any, measured: Any) -> Callable[[], npt.NDArray[np.float64]]:
        """Add rows; returns a function that waits for their features.  The workers and this process
        compute whole batches in turn.  The functions must be called in order."""
        batch, workers = self._batch(ends, measured), self._workers
        owner = -1 if workers is None else self._turn % (workers.count + 1) - 1
        self._check()
        if self._progress.lacks(self._engine.next_number()):
            self._refresh_workers()
        if workers is None or not batch.count or owner < 0:
            asked = None if workers is None else _One(workers, -1)
            call = functools.partial(self._engine.transform_columns, ends, measured)
            features = self._kept(batch, call, asked)
            self._turn += 1
            return lambda: features
        learn = functools.partial(self._engine.learn_columns, *batch.arrivals())
        self._kept(batch, learn, _One(workers, owner))
        end = self._engine.next_number()
        self._turn += 1
        self._flying += 1

        def awaited() -> npt.NDArray[np.float64]:
            found = np.zeros((len(batch.ends[0]), self._width))
            self._flying -= 1
            self._run(lambda: workers.take(self._client, owner, found))
            self._progress.has_read(owner, end)
            return found

        return awaited

    def _refresh_workers(self) -> None:
        """Wait until the workers have all rows of the graph."""
        if self._workers is not None:
            self._run(self._workers.refresh)
            self._progress.refreshed(self._engine.next_number())

    @functools.cached_property
    def _width(self) -> int:
        """The number of features."""
        none = np.zeros(0, np.int64)
        columns = [none.astype(float)] * self._columns()
        features, _ = self._engine.preview_columns([none] * 4, columns, None)
        return int(features.shape[1])

    def _refuse_while_flying(self) -> None:
        if self._flying:
            raise RuntimeError(
                f"{self._flying} batches of transform_each have no features yet: take them first"
            )

    def patterns(self, matrix: npt.NDArray[np.float64], most: int) -> tuple[Any, Any]:
        """As ``transform``, with the completed patterns."""
        return self._kept(self._split(matrix), lambda: self._engine.patterns(matrix, most))

    def patterns_columns(self, ends: Any, measured: Any, most: int) -> tuple[Any, Any]:
        """As ``transform_columns``, with the completed patterns."""
        batch = self._batch(ends, measured)
        return self._kept(batch, lambda: self._engine.patterns_columns(ends, measured, most))

    def preview(self, matrix: npt.NDArray[np.float64], most: int | None) -> tuple[Any, Any]:
        """The rows with the features that they would get now; nothing is stored or logged."""
        self._check()
        return self._engine.preview(matrix, most)

    def preview_columns(self, ends: Any, measured: Any, most: int | None) -> tuple[Any, Any]:
        """As ``preview``; the features only."""
        self._check()
        return self._engine.preview_columns(ends, measured, most)

    def _batch(self, ends: Any, measured: Any) -> Batch:
        return Batch(list(ends), list(measured), not self._manifest.parameters["is_causal"])

    def _split(self, matrix: npt.NDArray[np.float64]) -> Batch | Callable[[], Batch]:
        """The rows of a matrix; the logging thread splits those of a small call."""
        if 0 < len(matrix) <= _ROWS_MAX:
            return lambda: self._batch(*self._engine.split(matrix))
        return self._batch(*self._engine.split(matrix))

    def _kept(
        self,
        batch: Batch | Callable[[], Batch],
        call: Callable[[], _Result],
        workers: _Helpers | _One | None = None,
    ) -> _Result:
        """Add rows to the graph and to the log concurrently: to both, or to neither."""
        if isinstance(batch, Batch) and not 0 < batch.count <= _ROWS_MAX:
            return self._logged(batch, call, workers)
        self._prepare()
        number = self._engine.next_number()
        self._engine.begin()
        written = self._scribe.submit(self._write, number, batch, workers)
        try:
            result = call()
        except (Exception, KeyboardInterrupt):
            self._withdraw(written, workers)
            raise
        except BaseException as error:
            self._fail(error)
            raise
        try:
            self._log.append(self._written(written))
        except _NotLogged as error:
            raise error.reason from None
        self._run(self._engine.keep)
        return result

    def _logged(
        self, batch: Batch, call: Callable[[], _Result], workers: _Helpers | _One | None = None
    ) -> _Result:
        """Add rows to the log, then to the graph: the graph cannot remove them."""
        self._prepare()
        if not batch.count:
            return call()
        number = self._engine.next_number()
        try:
            entry = self._run(lambda: self._write(number, batch, workers), (_NotLogged,))
        except _NotLogged as error:
            raise error.reason from None
        try:
            result = call()
        except (ValueError, MemoryError):
            # The graph is unchanged if the engine rejects the rows.
            self._unlog(entry, workers)
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._log.append(entry)
        return result

    def _prepare(self) -> None:
        """Check for an earlier failure, advance the segments, and shorten a long log."""
        self._check()
        self._advance()
        if len(self._log) < _ENTRIES_MAX:
            self._join_at = _ENTRIES_MAX
        elif len(self._log) >= self._join_at:
            self._join_log()

    def _write(
        self, number: int, batch: Batch | Callable[[], Batch], workers: _Helpers | _One | None
    ) -> Entry:
        """Write rows to the log, and ask workers for their shares.

        Raises:
            _NotLogged: the log has no part of the rows.
            farrow.AlreadyExists: another process has taken the graph over.
        """
        if not isinstance(batch, Batch):
            try:
                batch = batch()
            except (ValueError, MemoryError) as error:
                # The engine will raise for these rows as well.
                raise _NotLogged(error) from error
        name, home = self._config.name, self._manifest.home
        try:
            entry = log(self._client, name, number, batch, home, self._epoch)
        except NOT_PUT as error:
            raise _NotLogged(error) from error
        # A later take-over reads this entry. An earlier one may or may not have read it, so the
        # entry stays, and this writer ends: a further entry could count in place of this one.
        self._check_fence("; that process decides whether the rows of this call count")
        if workers is not None:
            self._progress.ask(entry)
            workers.ask(entry)
        return entry

    def _check_fence(self, consequence: str = "") -> None:
        """Check that no other process has taken the graph over.

        Raises:
            farrow.AlreadyExists: the fence of the next epoch exists.
        """
        after = fence(self._config.name, self._epoch + 1)
        if self._client.contains(after):
            raise farrow.AlreadyExists(
                f"another process writes graph {self._config.name!r}: {after} is there{consequence}"
            )

    def _written(self, written: Future[Entry]) -> Entry:
        """The entry of rows in the graph; if logging failed, the graph removes the rows."""
        try:
            return written.result()
        except _NotLogged:
            self._run(self._engine.undo)
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _withdraw(self, written: Future[Entry], workers: _Helpers | _One | None) -> None:
        """Remove rows from the log that the graph rejected: they were not acknowledged."""
        try:
            entry = self._written(written)
        except _NotLogged:
            return
        self._unlog(entry, workers)
        self._run(self._engine.undo)

    def _unlog(self, entry: Entry, workers: _Helpers | _One | None) -> None:
        if workers is not None:
            # Workers have the rows, too.
            self._fail(RuntimeError(f"workers were asked for {entry.name}"))
        self._run(lambda: self._void(entry))

    def _void(self, entry: Entry) -> None:
        """Invalidate rows in the log that may have been read: a new epoch begins before them."""
        name, kept = self._config.name, self._manifest
        self._begin_epoch()
        kept.begin_epoch(self._epoch, entry.first)
        before, kept.number = kept.name(name), kept.number + 1
        kept.put(self._client, name)
        drop(self._client, [before, entry.name])

    def _begin_epoch(self) -> None:
        """Begin this writer's next epoch.

        Raises:
            farrow.AlreadyExists: another process has taken the graph over.
        """
        name, home = self._config.name, self._manifest.home
        self._epoch = self._run(lambda: begin_epoch(self._client, name, home, self._epoch))

    def _fail(self, error: BaseException) -> None:
        """Record that graph and log may differ; the graph still has all acknowledged rows."""
        self._engine.undo()
        self._failed = f"{type(error).__name__}: {error}"
        self._is_replaced = isinstance(error, farrow.AlreadyExists)

    def _run(
        self, call: Callable[[], _Result], harmless: tuple[type[BaseException], ...] = ()
    ) -> _Result:
        """Change graph or log: after a failure they may differ, except for harmless errors."""
        try:
            return call()
        except harmless:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _check(self) -> None:
        if os.getpid() != self._pid:
            # Its threads, and the pipes of its workers, are the parent's.
            raise farrow.Disconnected(
                f"this graph is written by process {self._pid}; attach it after a fork"
            )
        if self._is_replaced:
            raise farrow.AlreadyExists(
                f"another process writes graph {self._config.name!r} ({self._failed}): this "
                "GraphFeatures adds nothing more"
            )
        if self._failed is not None:
            raise RuntimeError(
                f"an earlier call on graph {self._config.name!r} failed ({self._failed}): "
                "make a new GraphFeatures and call its partial_fit with an empty batch; then its "
                "stats()['rows'] says how many rows the graph has"
            )

    def _join_log(self) -> None:
        """Join entries of the log that no worker may still read: the last of the longest run."""
        needs = self._progress.needs
        start, end = longest_run([x.epoch == self._epoch and not needs(x) for x in self._log])
        # Fewer are not worth the copy of the rows.
        if end - start < max(2, _ENTRIES_MAX // 8):
            return
        start = max(start, end - _ENTRIES_MAX // 2)
        short = self._log[start:end]
        self._run(self._check_fence)
        rows, name, home = joined(self._client, short), self._config.name, self._manifest.home
        put = functools.partial(log, self._client, name, short[0].first, rows, home, self._epoch)
        try:
            whole = self._run(put, NOT_PUT)
        except NOT_PUT:
            # A call may have room where all these rows have none.
            self._join_at = len(self._log) + _ENTRIES_MAX // 8
            return
        self._log[start:end] = [whole]
        drop(self._client, [one.name for one in short])

    def _advance(self) -> None:
        """Attach a finished segment, and begin the next one."""
        self._expired |= {int(about["first"]) for about in self._engine.expired()}
        if self._pending is not None:
            if not self._pending.done():
                return
            # A manifest or a deletion by a replaced writer would be one of its successor's graph.
            self._run(self._check_fence)
            pending, self._pending = self._pending, None
            try:
                name, node = pending.result()
                segment = opened(self._client.get(name))
                accounts = self._keep_accounts(segment)
            except (farrow.FarrowError, pa.ArrowException, MemoryError, OSError) as error:
                # The rows stay in this process and in the log: nothing is lost.
                self._attempts += 1
                self._trouble = (time.monotonic(), f"{type(error).__name__}: {error}")
            else:
                self._trouble = None
                self._commit(
                    {"name": name, "node": node or self._client.node or ""}, segment, accounts
                )
                self._attempts = 0
        if self._trouble and time.monotonic() < self._trouble[0] + _RETRY_SECONDS:
            return
        frozen = self._engine.freeze()
        if frozen is not None:
            self._pending = self._thread.submit(self._seal, frozen, self._manifest.made)

    def _seal(self, frozen: GraphFrozen, turn: int) -> tuple[str, str | None]:
        """Build a segment on a node with room for it; runs on its own thread."""
        plan: GraphPlan = frozen.plan()
        failure: Exception | None = None
        for node in nodes(self._client, self._config.placement, turn):
            name = self._part("segment", plan.about()["first"])
            try:
                sealed(self._client, plan, name, node)
            except (farrow.FarrowError, pa.ArrowException) as error:
                self._attempts += 1
                failure = error
                continue
            return name, node
        raise failure or farrow.NodeLost("no node can be reached")

    def _part(self, kind: str, first: int) -> str:
        """A name that no object has: neither one of a replaced writer, nor one of an earlier
        attempt, which may be there although the attempt failed."""
        attempt = f".{self._attempts}" if self._attempts else ""
        return f"{root(self._config.name)}{kind}/{first:020d}-{self._epoch}{attempt}"

    def _keep_accounts(self, segment: GraphSegment) -> tuple[str, int]:
        """Put the accounts that a segment needs and the manifest lacks; returns the name of their
        object and their number.  There are none, unless numbers of accounts are permanent."""
        manifest = self._manifest
        more = self._engine.accounts(manifest.known)
        more = more[: max(0, segment.about()["accounts"] - manifest.known)]
        name = self._part("accounts", manifest.known)
        if len(more):
            keep(self._client, more, name, elsewhere(self._client, manifest.home))
        return name, len(more)

    def _commit(
        self, where: dict[str, Any], segment: GraphSegment, accounts: tuple[str, int]
    ) -> None:
        """Replace edges by their segment, in this process and for all readers."""
        kept, client = self._manifest, self._client
        if accounts[1]:
            kept.accounts.append(accounts[0])
            kept.known += accounts[1]
        self._run(lambda: self._engine.attach(segment))
        expired = [one for one in kept.segments if one["about"]["first"] in self._expired]
        kept.segments = [one for one in kept.segments if one not in expired]
        kept.segments.append({**where, "about": segment.about(), "named": True})
        kept.made += 1
        is_permanent = kept.known > 0 and len(self._engine.accounts(kept.known - 1)) > 0
        unneeded = [] if is_permanent else kept.take_accounts()
        kept.late = self._engine.stragglers()
        before, kept.number = kept.name(self._config.name), kept.number + 1
        self._run(lambda: kept.put(client, self._config.name))
        # A take-over before the put may not know this manifest, and needs the objects that it
        # replaces; a later one reads it.
        self._run(self._check_fence)
        # From here on the rows of the segment are needed nowhere else, except by workers that have
        # yet to read them: such entries are deleted with the next segment.
        self._expired.clear()
        if self._workers is not None:
            # Between the entries, so that they have the rows of all segments of this manifest.
            self._workers.attach(kept.name(self._config.name))
        needs, end = self._progress.needs, kept.end()
        over = {one.name: one for one in self._log if one.end <= end and not needs(one)}
        self._log = [one for one in self._log if one.name not in over]
        drop(client, [before, *(one["name"] for one in expired), *over, *unneeded])
        if self._attempts:
            drop(client, failed_parts(client, self._config.name, kept, self._epoch))

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until all full spans have their segments.

        Raises:
            TimeoutError: after ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        none = np.zeros(0, np.int64)
        while True:
            self._check()
            self._advance()
            if time.monotonic() > end:
                raise TimeoutError(f"segments are not made after {timeout} s")
            if self._pending is None:
                if self._trouble or not self._engine.stats()["draining"]:
                    return
                # Each call removes some sealed edges from this process.
                self._engine.learn_columns([none] * 4, [none.astype(float)] * self._columns())
                continue
            try:
                self._pending.exception(max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"a segment is not made after {timeout} s") from None

    def _columns(self) -> int:
        statistics = self._manifest.parameters["statistics"]
        return 0 if statistics is None else sum(column != 3 for column in statistics[1])

    def close(self) -> None:
        """End the workers; the graph persists.  In a forked child nothing ends."""
        if os.getpid() != self._pid:
            return
        if self._workers is not None:
            self._workers.close()
            with contextlib.suppress(farrow.FarrowError):
                shares = names_of(self._client, f"{root(self._config.name)}share/")
                # A writer that was replaced leaves those of its successor.
                own = [one for one in shares if f"-{self._epoch}." in one]
                drop(self._client, own)
        self._thread.shutdown(wait=True)
        self._scribe.shutdown(wait=True)
        if self._pending is not None and self._pending.exception() is None:
            # No manifest names it: the next writer makes it again.
            drop(self._client, [self._pending.result()[0]])
