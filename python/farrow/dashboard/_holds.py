"""When each hold was first seen.

A hold is one store into the memory of the node, and its reader makes no system call for a clock.
So the memory stores no time of a hold, and this process notes the time of the first reading that
shows it.  A hold that is released and taken again between two readings keeps its time.

The number of notes is that of the holds in the last reading, which the node limits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXACT_SECONDS", "HELD_MAX", "HoldTimes", "Moment", "Seen"]

# Holds in one reading: the limit of the node.
HELD_MAX = 4096
# The time of a hold counts as known if the reading before did not show it, and was this recent: two
# pauses of the slower reader, which reads while no page is open.
EXACT_SECONDS = 10.0


class Moment(NamedTuple):
    """A time of two clocks."""

    # Seconds since 1970, for users; this clock may be set.
    time: float
    # Seconds since the start of the machine: this clock is never set, and counts a suspend.
    boot: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


class Seen(NamedTuple):
    """When a hold was first seen."""

    # Time of the first reading that showed it, in seconds since 1970.
    since: float
    # The same time by the clock that is never set: holds are ordered by it.
    boot: float
    # Time of the last reading that would have shown it, and did not; None: not known.
    not_before: float | None
    # Whether these two are close to each other.
    is_exact: bool
    # It was there at the first reading of all.
    is_first: bool


class _Client(NamedTuple):
    # As in the overview of the node.
    row: dict[str, Any]
    # By id of the object.
    held: dict[bytes, Seen]
    # When the last reading began, if it listed all of its holds.
    complete: Moment | None


class HoldTimes:
    """Times of the holds of one node, from its overviews; not safe for several threads at once."""

    def __init__(self) -> None:
        self._clients: dict[tuple[int, int], _Client] = {}
        # When the last reading began.
        self._last: Moment | None = None
        self._are_all = True

    def note(self, clients: list[dict[str, Any]], began: Moment, ended: Moment) -> None:
        """Compare the clients of an overview with those of the one before.

        Args:
            clients: as ``Client._overview(cells, HELD_MAX)`` returns them.
            began: before the request.  A hold that is not shown began after it.
            ended: after the response.  A hold that is shown began before it.
        """
        noted: dict[tuple[int, int], _Client] = {}
        for row in clients:
            if not row["held"] and row["are_all_held"]:
                continue
            # A slot may pass to another process.
            key = row["slot"], row["pid"]
            before = self._clients.get(key)
            # A client without a note had no hold at the last reading.  After a list that was not
            # complete, a hold that is new in the list may be old.
            complete = before.complete if before else self._last
            new = Seen(
                since=ended.time,
                boot=ended.boot,
                not_before=complete.time if complete else None,
                is_exact=bool(complete and ended.boot - complete.boot <= EXACT_SECONDS),
                is_first=self._last is None,
            )
            earlier = before.held if before else {}
            ids = (
                one["hi"].to_bytes(8, "big") + one["lo"].to_bytes(8, "big") for one in row["held"]
            )
            held = {one: earlier.get(one, new) for one in ids}
            noted[key] = _Client(row, held, began if row["are_all_held"] else None)
        self._clients = noted
        self._are_all = all(one["are_all_held"] for one in clients)
        self._last = began

    def are_all(self, slot: int | None = None, pid: int | None = None) -> bool:
        """Whether the last reading had all holds: of one client, or of all."""
        if slot is None or pid is None:
            return self._are_all
        client = self._clients.get((slot, pid))
        return client is None or client.row["are_all_held"]

    def of_client(self, slot: int, pid: int) -> Iterator[tuple[dict[str, Any], bytes, Seen]]:
        """What one client holds: its row, the id of the object, and the time."""
        client = self._clients.get((slot, pid))
        if client is not None:
            yield from ((client.row, one, seen) for one, seen in client.held.items())

    def of_object(self, id: bytes) -> Iterator[tuple[dict[str, Any], bytes, Seen]]:
        """Who holds one object."""
        for client in self._clients.values():
            if (seen := client.held.get(id)) is not None:
                yield client.row, id, seen

    def all(self) -> Iterator[tuple[dict[str, Any], bytes, Seen]]:
        """All holds of the last reading."""
        for slot, pid in self._clients:
            yield from self.of_client(slot, pid)
