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
import weakref

from farrow import _native
from farrow.exceptions import Disconnected, FarrowError, LimitReached, NodeLost, NotFound, Timeout

__all__ = ["Acknowledgements", "SentReference", "UnreadReferences"]

# A reference is ended this long after its last message was read, at most, and later if nothing was
# read for some time.  A look takes a microsecond for each message.
_LOOK_SECONDS_MIN = 0.1
_LOOK_SECONDS_MAX = 2.0
# Messages of one process that were not read.  Each takes an entry in the directory of its node.
_MARKERS_MAX = 65_536
# The markers of a value that is sent very often are looked at after this many messages.
_MARKERS_OF_VALUE = 256
# The looks take at most one part in this number of the time.
_IDLE_SHARE = 50
# An exit waits for a look that is under way, which sends no message.
_JOIN_SECONDS = 2.0
# A node that does not answer is not tried at each message.
_RETRY_SECONDS = 10.0
_UNSENT_MAX = 4096

# Bytes of an object's id, with which the message of a reference ends.
_ID_BYTES = 16

_log = logging.getLogger("farrow.sharing")


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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Markers that were not seen to be read.
        self._count = 0
        self._marked: weakref.WeakSet[SentReference] = weakref.WeakSet()
        self._looked_at_all = 0.0
        # A weakref callback may run inside of any call: the put of this queue is reentrant.
        self._dropped: queue.SimpleQueue[SentReference | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def mark(self, sent: SentReference) -> bytes:
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
        self._look_at_all()
        with self._lock:
            if self._count >= _MARKERS_MAX:
                raise LimitReached(f"{self._count} messages with references were not read")
            self._count += 1
            self._marked.add(sent)
        try:
            marker = sent.reference.mark()
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

    def _look_at_all(self) -> None:
        """Forget the messages of living values that were read, if there are too many of them."""
        with self._lock:
            now = time.monotonic()
            if self._count < _MARKERS_MAX or now < self._looked_at_all + _LOOK_SECONDS_MAX:
                return
            self._looked_at_all = now
            marked = list(self._marked)
        for sent in marked:
            self._look(sent)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
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
        pause, due, spent = _LOOK_SECONDS_MIN, time.monotonic(), 0.0
        while True:
            try:
                wait = max(due - time.monotonic(), 0.0) if waiting else None
                sent = self._dropped.get(timeout=wait)
                if sent is None:
                    return
                if self._look(sent):
                    waiting.append((sent, time.monotonic()))
                    pause = max(_LOOK_SECONDS_MIN, _IDLE_SHARE * spent)
                    due = min(due, time.monotonic() + pause)
                # This thread may wait for long with the last reference to it.
                del sent
            except queue.Empty:
                pass
            if (start := time.monotonic()) >= due:
                before = len(waiting)
                waiting = [one for one in waiting if self._is_in_flight(*one)]
                pause = pause if len(waiting) < before else min(2 * pause, _LOOK_SECONDS_MAX)
                spent = time.monotonic() - start
                due = time.monotonic() + max(pause, _IDLE_SHARE * spent)

    def _is_in_flight(self, sent: SentReference, dropped_at: float) -> bool:
        if not self._look(sent):
            return False
        limit = sent.keep_seconds
        if limit is None or time.monotonic() < dropped_at + limit:
            return True
        with self._lock:
            self._count -= len(sent.markers)
            sent.markers = []
        return False

    def _look(self, sent: SentReference) -> bool:
        """Whether a message of a reference was not read.  Forgets those that were."""
        read = {one for one in [*sent.markers] if not self._is_unread(one)}
        with self._lock:
            # Another thread may have put further ones, or looked too.
            left = [one for one in sent.markers if one not in read]
            self._count -= len(sent.markers) - len(left)
            sent.markers = left
        return bool(left)

    def _is_unread(self, marker: _native.SharedReference) -> bool:
        try:
            return marker.is_there()
        except FarrowError as error:
            _log.debug("not known whether a message was read: %s", error)
            return True


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
        except (Disconnected, NodeLost, Timeout) as error:
            _log.debug("%d messages are not acknowledged yet: %s", len(ids), error)
            with self._lock:
                _, later = self._unsent.get(address, (0.0, []))
                due = time.monotonic() + _RETRY_SECONDS
                self._unsent[address] = due, [*ids, *later][-_UNSENT_MAX:]
        except FarrowError as error:
            _log.info("a message is not acknowledged: %s", error)
