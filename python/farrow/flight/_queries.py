"""Queries that run: how many at a time, for how long, and how they end early.

A query has a slot from its first statement until its last row is sent.  A thread looks at all of
them and ends those whose client has ended, whose time is over, or that were cancelled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow.flight._engine import QueryEngine

__all__ = ["Call", "Queries", "RunningQuery"]

# How often running queries are looked at.
_INTERVAL_SECONDS = 0.1
# Limits of a query's wait for a slot: seconds, and waiting queries.
_WAIT_SECONDS = 30.0
_WAITING_MAX = 64


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """One call of a client, which any thread can ask whether the client still waits."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers
        self._lock = threading.Lock()
        self._context: Any = None
        self._is_over = False

    def begin(self, context: Any) -> None:
        """Called first by the method that answers."""
        with self._lock:
            self._context = context

    @property
    def is_abandoned(self) -> bool:
        """Whether the call was cancelled, has passed the client's deadline, or has ended."""
        # The context ends as soon as the call is completed.
        with self._lock:
            return self._is_over or (self._context is not None and self._context.is_cancelled())

    def sending_headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return self._headers

    def call_completed(self, exception: Exception | None) -> None:
        """Called by Flight at the end of each call."""
        with self._lock:
            self._is_over = True
            self._context = None


class RunningQuery:
    """A query that has a slot.

    Attributes:
        id: by which a client cancels it.
        connection: its connection of DuckDB.
    """

    def __init__(self, queries: Queries, call: Call, id: bytes) -> None:
        self.id = id
        self.connection: Any = None
        self._queries = queries
        self._call = call
        self._ends_at = time.monotonic() + queries.seconds
        # Held while DuckDB works for the query.
        self._lock = threading.Lock()
        # Held while the connection is interrupted, or closed: never both.
        self._end = threading.Lock()
        self._error: flight.FlightError | None = None
        self._reader: Any = None
        self._is_closed = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Around each use of the connection; the reason why the query was ended replaces the error
        of DuckDB."""
        with self._lock:
            self._raise_if_ended()
            try:
                yield
            except Exception:
                self._raise_if_ended()
                raise

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise flight.FlightCancelledError("the query has ended")

    def open(self, engine: QueryEngine) -> None:
        """Connect."""
        with self.working():
            self.connection = engine.connection()

    def batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        """The rows; the reader is closed with the query."""
        self._reader = reader
        while True:
            with self.working():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch

    def look(self, now: float) -> None:
        """End the query if its client has ended, its time is over, or it was stopped before."""
        if self._error is not None:
            self.stop(self._error)
        elif self._call.is_abandoned:
            self.stop(flight.FlightCancelledError("the client has ended the call"))
        elif now >= self._ends_at:
            seconds = self._queries.seconds
            self.stop(flight.FlightTimedOutError(f"the query took longer than {seconds:g} s"))

    def stop(self, error: flight.FlightError) -> None:
        """End it from another thread; called again until it has ended.

        DuckDB forgets an interrupt that arrives before a statement starts.
        """
        self._error = self._error or error
        with self._end, contextlib.suppress(Exception):
            if self.connection is not None:
                self.connection.interrupt()
        if self._lock.acquire(blocking=False):
            # The client does not read: nothing else would ever end it.
            try:
                self._close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Free its connection, its tables and its slot."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with self._end:
                for one in (self._reader, self.connection):
                    # An interrupted query reports that once more.
                    with contextlib.suppress(Exception):
                        if one is not None:
                            one.close()
                self._reader = self.connection = None
        finally:
            self._queries.leave(self)


class Queries:
    """All queries that run.

    Args:
        engine: the database.
        most: how many run at a time.
        seconds: how long one may take, from its slot until its last row is sent.
    """

    def __init__(self, engine: QueryEngine, *, most: int, seconds: float) -> None:
        self.seconds = seconds
        self._engine = engine
        self._most = most
        self._running: set[RunningQuery] = set()
        self._waiting = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._watcher = threading.Thread(target=self._watch, name="farrow-flight", daemon=True)
        self._watcher.start()

    def begin(self, call: Call, id: bytes = b"") -> RunningQuery:
        """A query with a slot, which ``Query.close`` gives back.

        Args:
            call: the call of the client.
            id: by which it can be cancelled; empty: by its client alone.

        Raises:
            FlightUnavailableError: no slot became free within 30 s, or many queries wait already.
            FlightCancelledError: the client does not wait any more.
        """
        with self._changed:
            if len(self._running) >= self._most and self._waiting >= _WAITING_MAX:
                raise self._busy()
            self._waiting += 1
            try:
                self._wait(call)
            finally:
                self._waiting -= 1
            # Its time begins with its slot.
            query = RunningQuery(self, call, id)
            self._running.add(query)
        try:
            query.open(self._engine)
        except BaseException:
            query.close()
            raise
        return query

    def _wait(self, call: Call) -> None:
        end = time.monotonic() + _WAIT_SECONDS
        while len(self._running) >= self._most or self._is_closed:
            if self._is_closed:
                raise flight.FlightUnavailableError("the server ends")
            if call.is_abandoned:
                raise flight.FlightCancelledError("the client has ended the call")
            if time.monotonic() >= end:
                raise self._busy()
            self._changed.wait(_INTERVAL_SECONDS)

    def _busy(self) -> flight.FlightUnavailableError:
        return flight.FlightUnavailableError(
            f"{len(self._running)} queries run, {self._most} are allowed, and "
            f"{self._waiting} wait: try again later"
        )

    def leave(self, query: RunningQuery) -> None:
        """Called by a query that has ended."""
        with self._changed:
            self._running.discard(query)
            self._changed.notify_all()

    def cancel(self, id: bytes) -> bool:
        """End the queries with an id; False if there are none."""
        with self._changed:
            found = [query for query in self._running if id and query.id == id]
        for query in found:
            query.stop(flight.FlightCancelledError("the query was cancelled"))
        return bool(found)

    @property
    def count(self) -> int:
        """How many run."""
        with self._changed:
            return len(self._running)

    def close(self) -> None:
        """End all queries."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        end = time.monotonic() + 10.0
        while self.count and time.monotonic() < end:
            self._stop_all()
            time.sleep(_INTERVAL_SECONDS / 10)
        self._watcher.join(10.0)

    def _stop_all(self) -> None:
        with self._changed:
            found = list(self._running)
        for query in found:
            query.stop(flight.FlightUnavailableError("the server ends"))

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                found = list(self._running)
            now = time.monotonic()
            for query in found:
                query.look(now)
            time.sleep(_INTERVAL_SECONDS)
