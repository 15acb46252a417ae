"""The rows of calls: each is added to the graph and to the log, or to neither.

A separate thread writes a call's rows to the log while the graph adds them and computes; the call
returns when both are done.  If one fails, the other removes its rows.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from farrow.graph.cluster._objects import NOT_PUT, Batch, LogEntry, drop, joined, log, longest_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from farrow.graph.cluster._sealing import Sealing
    from farrow.graph.cluster._writer import GraphWriter

_Result = TypeVar("_Result")
# Entries of the log before half of them are joined.
_ENTRIES_MAX = 256
# Most rows of a provisional call, and of an entry of a split call. Larger calls are logged before
# the graph adds them, because provisional rows evict nothing.
_ROWS_MAX = 1 << 16


class _NotLogged(Exception):
    """The log has no part of an entry, so the writer may continue.  All other errors end it: two
    entries of one epoch with the same first row and different rows must not exist."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Helpers(Protocol):
    """Workers that compute features of the rows of an entry."""

    def ask(self, entry: LogEntry) -> None:
        """Give them the entry."""


def parts(rows: int) -> Iterator[slice]:
    """Parts of a call, each with at most as many rows as an entry.

    A single large log entry would need as much room, and would delay full spans.
    """
    for start in range(0, rows, _ROWS_MAX):
        yield slice(start, start + _ROWS_MAX)


class CallLog:
    """The log of a graph, and the calls that write it."""

    def __init__(self, writer: GraphWriter, sealing: Sealing) -> None:
        self._writer = writer
        self._sealing = sealing
        self._scribe = ThreadPoolExecutor(1, thread_name_prefix="farrow-graph-log")
        # Entries of the log before the next attempt to join them.
        self._join_at = _ENTRIES_MAX

    def batch(self, ends: Any, measured: Any) -> Batch:
        """The rows of a call."""
        is_causal = self._writer.manifest.parameters["is_causal"]
        return Batch(list(ends), list(measured), not is_causal)

    def split(self, matrix: npt.NDArray[np.float64]) -> Batch | Callable[[], Batch]:
        """The rows of a matrix; the logging thread splits those of a small call."""
        engine = self._writer.engine
        if 0 < len(matrix) <= _ROWS_MAX:
            return lambda: self.batch(*engine.split(matrix))
        return self.batch(*engine.split(matrix))

    def add(
        self,
        batch: Batch | Callable[[], Batch],
        call: Callable[[], _Result],
        workers: Helpers | None = None,
    ) -> _Result:
        """Add rows to the graph and to the log concurrently: to both, or to neither."""
        if isinstance(batch, Batch) and not 0 < batch.count <= _ROWS_MAX:
            return self.add_logged(batch, call, workers)
        self._prepare()
        engine = self._writer.engine
        number = engine.next_number()
        engine.begin()
        written = self._scribe.submit(self._write, number, batch, workers)
        try:
            result = call()
        except (Exception, KeyboardInterrupt):
            self._withdraw(written, workers)
            raise
        except BaseException as error:
            self._writer.fail(error)
            raise
        try:
            self._writer.entries.append(self._written(written))
        except _NotLogged as error:
            raise error.reason from None
        self._writer.run(engine.keep)
        return result

    def add_logged(
        self, batch: Batch, call: Callable[[], _Result], workers: Helpers | None = None
    ) -> _Result:
        """Add rows to the log, then to the graph: the graph cannot remove them."""
        self._prepare()
        if not batch.count:
            return call()
        number = self._writer.engine.next_number()
        try:
            entry = self._writer.run(lambda: self._write(number, batch, workers), (_NotLogged,))
        except _NotLogged as error:
            raise error.reason from None
        try:
            result = call()
        except (ValueError, MemoryError):
            # The graph is unchanged if the engine rejects the rows.
            self._unlog(entry, workers)
            raise
        except BaseException as error:
            self._writer.fail(error)
            raise
        self._writer.entries.append(entry)
        return result

    def close(self) -> None:
        """End the logging thread."""
        self._scribe.shutdown(wait=True)

    def _prepare(self) -> None:
        """Check for an earlier failure, advance the segments, and shorten a long log."""
        self._writer.check()
        self._sealing.advance()
        if len(self._writer.entries) < _ENTRIES_MAX:
            self._join_at = _ENTRIES_MAX
        elif len(self._writer.entries) >= self._join_at:
            self._join()

    def _write(
        self, number: int, batch: Batch | Callable[[], Batch], workers: Helpers | None
    ) -> LogEntry:
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
        writer = self._writer
        name, home = writer.config.name, writer.manifest.home
        try:
            entry = log(writer.client, name, number, batch, home, writer.epoch)
        except NOT_PUT as error:
            raise _NotLogged(error) from error
        # A later take-over reads this entry. An earlier one may or may not have read it, so the
        # entry stays, and this writer ends: a further entry could count in place of this one.
        writer.check_fence("; that process decides whether the rows of this call count")
        if workers is not None:
            writer.progress.ask(entry)
            workers.ask(entry)
        return entry

    def _written(self, written: Future[LogEntry]) -> LogEntry:
        """The entry of rows in the graph; if logging failed, the graph removes the rows."""
        try:
            return written.result()
        except _NotLogged:
            self._writer.run(self._writer.engine.undo)
            raise
        except BaseException as error:
            self._writer.fail(error)
            raise

    def _withdraw(self, written: Future[LogEntry], workers: Helpers | None) -> None:
        """Remove rows from the log that the graph rejected: they were not acknowledged."""
        try:
            entry = self._written(written)
        except _NotLogged:
            return
        self._unlog(entry, workers)
        self._writer.run(self._writer.engine.undo)

    def _unlog(self, entry: LogEntry, workers: Helpers | None) -> None:
        if workers is not None:
            # Workers have the rows, too.
            self._writer.fail(RuntimeError(f"workers were asked for {entry.name}"))
        self._writer.run(lambda: self._void(entry))

    def _void(self, entry: LogEntry) -> None:
        """Invalidate rows in the log that may have been read: a new epoch begins before them."""
        writer = self._writer
        name, manifest = writer.config.name, writer.manifest
        writer.begin_epoch()
        manifest.begin_epoch(writer.epoch, entry.first)
        before, manifest.number = manifest.name(name), manifest.number + 1
        manifest.put(writer.client, name)
        drop(writer.client, [before, entry.name])

    def _join(self) -> None:
        """Join entries of the log that no worker may still read: the last of the longest run."""
        writer = self._writer
        needs, entries = writer.progress.needs, writer.entries
        start, end = longest_run([x.epoch == writer.epoch and not needs(x) for x in entries])
        # Fewer are not worth the copy of the rows.
        if end - start < max(2, _ENTRIES_MAX // 8):
            return
        start = max(start, end - _ENTRIES_MAX // 2)
        short = entries[start:end]
        writer.run(writer.check_fence)
        rows, name, home = joined(writer.client, short), writer.config.name, writer.manifest.home
        put = functools.partial(log, writer.client, name, short[0].first, rows, home, writer.epoch)
        try:
            whole = writer.run(put, NOT_PUT)
        except NOT_PUT:
            # A call may have room where all these rows have none.
            self._join_at = len(entries) + _ENTRIES_MAX // 8
            return
        entries[start:end] = [whole]
        drop(writer.client, [one.name for one in short])
