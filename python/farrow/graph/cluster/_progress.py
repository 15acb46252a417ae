"""The entries of the log that workers may still read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farrow.graph.cluster._objects import LogEntry


class LogProgress:
    """How far each worker has read the log.

    A worker adds the rows of all entries that it is given, in order, and answers only for those
    whose features it computes.  So the entries between its last answer and the last entry that it
    was given must stay: segments and joined entries cannot replace them, because a worker computes
    the features of one call.
    """

    def __init__(self, workers: int, rows: int) -> None:
        self._read = [rows] * workers
        self._requested = rows

    def ask(self, entry: LogEntry) -> None:
        """Record that all workers were given an entry."""
        self._requested = entry.end

    def has_read(self, worker: int, end: int) -> None:
        """Record that a worker has the rows before ``end``."""
        self._read[worker] = max(self._read[worker], end)

    def all_have_read(self) -> None:
        """Record that the workers have read all entries that they were given."""
        self._read = [self._requested] * len(self._read)

    def refreshed(self, rows: int) -> None:
        """Record that all workers have the rows before ``rows``."""
        self._requested = rows
        self.all_have_read()

    def lacks(self, rows: int) -> bool:
        """Whether workers were not given all of the entries before ``rows``.  They need the
        manifest then: that of a later row may lack segments that are in the window."""
        return bool(self._read) and self._requested != rows

    def needs(self, entry: LogEntry) -> bool:
        """Whether a worker may still read an entry."""
        return bool(self._read) and min(self._read) < entry.end and entry.first < self._requested
