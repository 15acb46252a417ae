"""Prepared statements: their text and bound parameters, until they are closed or expire."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["IDLE_SECONDS", "PreparedStatement", "PreparedStatements", "parameters"]

# A statement that is unused for this time is closed: its program has ended.
IDLE_SECONDS = 600.0
_STATEMENTS_MAX = 1024
_HANDLE_BYTES = 16
# Parameters of one statement, and of all.
_ROWS_MAX = 1024
_BOUND_BYTES_MAX = 8 << 20
_ALL_BOUND_BYTES_MAX = 64 << 20


class PreparedStatement:
    """One prepared statement.

    Attributes:
        handle: by which the client names it.
        sql: its text.
        bound: the parameters, a row for each execution; None: none are bound.
    """

    def __init__(self, sql: str, now: float) -> None:
        self.handle = secrets.token_bytes(_HANDLE_BYTES)
        self.sql = sql
        self.bound: pa.Table | None = None
        self.used_at = now


class PreparedStatements:
    """The prepared statements of all clients; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: dict[bytes, PreparedStatement] = {}

    def create(self, sql: str) -> PreparedStatement:
        """Keep a statement.

        Raises:
            FlightUnavailableError: 1,024 statements are open.
        """
        now = time.monotonic()
        prepared = PreparedStatement(sql, now)
        with self._lock:
            self._expire(now)
            if len(self._statements) >= _STATEMENTS_MAX:
                raise flight.FlightUnavailableError(
                    f"{_STATEMENTS_MAX} prepared statements are open: close some"
                )
            self._statements[prepared.handle] = prepared
        return prepared

    def find(self, handle: bytes) -> PreparedStatement:
        """The statement with a handle.

        Raises:
            ArrowKeyError: it was closed, or was not used for ten minutes.
        """
        now = time.monotonic()
        with self._lock:
            self._expire(now)
            prepared = self._statements.get(handle)
            if prepared is None:
                raise pa.ArrowKeyError(
                    f"no such prepared statement: it was closed, or not used for {IDLE_SECONDS:g} s"
                )
            prepared.used_at = now
            return prepared

    def bind(self, handle: bytes, bound: pa.Table) -> None:
        """Replace the parameters of a statement.

        Raises:
            ArrowKeyError: as ``find``.
            FlightUnavailableError: the parameters of all statements have 64 MiB.
        """
        prepared = self.find(handle)
        with self._lock:
            remaining = [one for one in self._statements.values() if one is not prepared]
            taken = sum(one.bound.nbytes for one in remaining if one.bound is not None)
            if taken + bound.nbytes > _ALL_BOUND_BYTES_MAX:
                raise flight.FlightUnavailableError(
                    f"bound parameters have {taken} B, and {bound.nbytes} B more were sent; "
                    f"{_ALL_BOUND_BYTES_MAX} B are allowed: close some statements"
                )
            prepared.bound = bound

    def close(self, handle: bytes) -> None:
        """Forget a statement, if it exists."""
        with self._lock:
            self._statements.pop(handle, None)

    def _expire(self, now: float) -> None:
        old = [
            handle
            for handle, prepared in self._statements.items()
            if now - prepared.used_at > IDLE_SECONDS
        ]
        for handle in old:
            del self._statements[handle]


def parameters(batches: Iterable[pa.RecordBatch | None], schema: pa.Schema) -> pa.Table:
    """Read parameters that a client sends, and check their memory.

    Raises:
        ArrowInvalid: there are more than 1,024 rows or 8 MiB, or a batch is not well formed.
    """
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for count, batch in enumerate(batches):
        if count >= _ROWS_MAX:
            raise pa.ArrowInvalid(f"more than {_ROWS_MAX} batches of parameters")
        if batch is None:
            continue
        # Before anything reads a value: lengths and offsets are the client's.
        batch.validate(full=True)
        rows += batch.num_rows
        size += batch.nbytes
        if rows > _ROWS_MAX or size > _BOUND_BYTES_MAX:
            raise pa.ArrowInvalid(
                f"{rows} rows of parameters with {size} B; "
                f"{_ROWS_MAX} rows and {_BOUND_BYTES_MAX} B are allowed"
            )
        found.append(batch)
    return pa.Table.from_batches(found, schema)
