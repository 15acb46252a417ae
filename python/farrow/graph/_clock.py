"""The speed of a transformer, in rows per second."""

from __future__ import annotations

import time
from typing import TypedDict

__all__ = ["Clock", "Rates"]


class Rates(TypedDict):
    """Calls that added rows since the transformer was created, loaded or emptied. Previews, failed
    calls and offline mode do not count. Seconds are those of whole calls, from rows to features:
    in a cluster they include the log and the workers."""

    calls: int
    rows: int
    seconds: float
    rows_per_second: float
    """Of all calls together; 0 before the first."""
    last_rows: int
    last_seconds: float
    last_rows_per_second: float


class Clock:
    """Adds up the rows and the time of calls."""

    def __init__(self) -> None:
        self._calls, self._rows, self._seconds = 0, 0, 0.0
        self._last = (0, 0.0)

    def add(self, rows: int, began: float) -> None:
        """Count a call that added ``rows`` rows and began at ``began`` (``time.perf_counter``)."""
        seconds = time.perf_counter() - began
        self._calls += 1
        self._rows += rows
        self._seconds += seconds
        self._last = (rows, seconds)

    def rates(self) -> Rates:
        """The counts and rates."""
        rows, seconds = self._last
        return {
            "calls": self._calls,
            "rows": self._rows,
            "seconds": self._seconds,
            "rows_per_second": self._rows / self._seconds if self._seconds else 0.0,
            "last_rows": rows,
            "last_seconds": seconds,
            "last_rows_per_second": rows / seconds if seconds else 0.0,
        }
