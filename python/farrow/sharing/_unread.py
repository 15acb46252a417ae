"""References that no process has read yet: the sender keeps them after it dropped their values.

With each message the sender puts a marker, an empty object with a lease of the same length.  The
first reader of the message deletes it.  So the sender sees by a look at its own node, without a
message, whether all messages of a reference were read.  Only then does the lease begin to run.  If
the sender ends, the leases of reference and markers run as those of any client.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable

from farrow import _native
from farrow.exceptions import Disconnected, FarrowError, LimitReached, NotFound

__all__ = ["Acknowledgements", "SentReference", "UnreadReferences"]

# A reference is ended this long after its last message was read, at most, and later if nothing was
# read for some time.  A look takes a microsecond for each message.
_LOOK_SECONDS_MIN = 0.1
_LOOK_SECONDS_MAX = 2.0
# Messages of one process that were not read.  Each takes an entry in the directory of its node.
_MARKERS_MAX = 65_536
# The markers of a value that is sent very often are looked at after this many messages.
_MARKERS_OF_VALUE = 256
# An exit waits for a look that is under way, which sends no message.
_JOIN_SECONDS = 2.0
# A node that does not answer is not tried at each message.
_RETRY_SECONDS = 10.0
_UNSENT_MAX = 4096

# Bytes of an object's id, with which the message of a reference ends.
_ID_BYTES = 16

_log = logging.getLogger("farrow.sharing")

# Whether an object with this id is at the node with this address.
IsThere = Callable[[str, bytes], bool]


class SentReference:
    """A reference, and the markers of its messages."""

    def __init__(self, reference: _native.SharedReference, keep_seconds: float | None) -> None:
        self.reference = reference
        # How long it waits for a reader after the sender dropped the value; None: no limit.
        self.keep_seconds = keep_seconds
        self.markers: list[_native.SharedReference] = []


class UnreadReferences:
    """The references of this process, those whose values were dropped in a thread that watches
    them."""

    def __init__(self, is_there: IsThere) -> None:
        self._is_there = is_there
        self._lock = threading.Lock()
        self._count = 0
        # A weakref callback may run inside of any call: the put of this queue is reentrant.
        self._dropped: queue.SimpleQueue[SentReference | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def mark(self, sent: SentReference, client: _native.Client, lease: float) -> bytes:
        """Put the marker of a further message.

        Returns:
            Its id.

        Raises:
            LimitReached: too many messages were not read.
            OutOfMemory, TooManyObjects, ...: as ``Client.put``.
        """
        self._start()
        if len(sent.markers) >= _MARKERS_OF_VALUE and len(sent.markers) % _MARKERS_OF_VALUE == 0:
            self._look(sent)
        with self._lock:
            if self._count >= _MARKERS_MAX:
                raise LimitReached(f"{self._count} messages with references were not read")
            self._count += 1
        try:
            marker = _native.put_shared(client, b"", lease, 0.0)
        except BaseException:
            with self._lock:
                self._count -= 1
            raise
        with self._lock:
            sent.markers.append(marker)
        return marker.message[-_ID_BYTES:]

    def drop(self, sent: SentReference) -> None:
        """End a reference once its messages were read.  Called from callbacks of the collector."""
        self._dropped.put(sent)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._watch, name="farrow-sharing", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise LimitReached(f"no thread can watch a reference: {error}") from None
            self._thread = thread
        # A thread that enters native code while the interpreter ends would abort the process.
        atexit.register(self._end)

    def _end(self) -> None:
        self._dropped.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _watch(self) -> None:
        waiting: list[tuple[SentReference, float]] = []
        pause, due = _LOOK_SECONDS_MIN, time.monotonic()
        while True:
            try:
                wait = max(due - time.monotonic(), 0.0) if waiting else None
                sent = self._dropped.get(timeout=wait)
                if sent is None:
                    return
                if self._look(sent):
                    waiting.append((sent, time.monotonic()))
                    pause = _LOOK_SECONDS_MIN
                    due = min(due, time.monotonic() + pause)
                # This thread may wait for long with the last reference to it.
                del sent
            except queue.Empty:
                pass
            if time.monotonic() >= due:
                before = len(waiting)
                waiting = [one for one in waiting if self._is_in_flight(*one)]
                pause = pause if len(waiting) < before else min(2 * pause, _LOOK_SECONDS_MAX)
                due = time.monotonic() + pause

    def _is_in_flight(self, sent: SentReference, dropped_at: float) -> bool:
        if not self._look(sent):
            return False
        limit = sent.keep_seconds
        if limit is None or time.monotonic() < dropped_at + limit:
            return True
        self._set_markers(sent, [])
        return False

    def _look(self, sent: SentReference) -> bool:
        """Whether a message of a reference was not read.  Forgets those that were."""
        address = sent.reference.address
        left = [one for one in [*sent.markers] if self._is_unread(address, one)]
        self._set_markers(sent, left)
        return bool(left)

    def _is_unread(self, address: str, marker: _native.SharedReference) -> bool:
        try:
            return self._is_there(address, marker.message[-_ID_BYTES:])
        except FarrowError as error:
            _log.debug("not known whether a message was read: %s", error)
            return True

    def _set_markers(self, sent: SentReference, left: list[_native.SharedReference]) -> None:
        with self._lock:
            self._count -= len(sent.markers) - len(left)
            sent.markers = left


class Acknowledgements:
    """What this process has read: it deletes the markers of the messages."""

    def __init__(self) -> None:
        # Of nodes that did not answer: the ids, and when they are tried next.
        self._unsent: dict[str, tuple[float, list[bytes]]] = {}
        self._lock = threading.Lock()

    def send(self, client: _native.Client, address: str, id: bytes) -> None:
        """Delete the marker of a message that was read.  The value is more important than the
        marker, which lasts until its sender ends: no error is raised."""
        with self._lock:
            due, ids = self._unsent.pop(address, (0.0, []))
            ids = [*ids[1 - _UNSENT_MAX :], id]
            if time.monotonic() < due:
                self._unsent[address] = due, ids
                return
        try:
            client.delete_many(ids)
        except NotFound:
            # The message was read before, or the sender has ended.
            pass
        except Disconnected as error:
            _log.debug("%d messages are not acknowledged yet: %s", len(ids), error)
            with self._lock:
                _, later = self._unsent.get(address, (0.0, []))
                due = time.monotonic() + _RETRY_SECONDS
                self._unsent[address] = due, [*ids, *later][-_UNSENT_MAX:]
        except FarrowError as error:
            _log.info("a message is not acknowledged: %s", error)
