"""The methods of a client of Plasma that read and write no data: deletes, events, statistics."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeAlias

import farrow
from farrow import exceptions as _exceptions
from farrow.compat._plasma_notifications import Notifications, unpacked
from farrow.compat._plasma_types import PREFIX, ObjectID, data_bytes_of, id_of, name_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

    from farrow.compat._plasma_notifications import RawNotification
    from farrow.events import Event, Sealed, Subscription

__all__ = ["StoreClient"]

_Decoded: TypeAlias = tuple[list[ObjectID], list[int], list[int]]
# Id, data bytes, metadata bytes.
_Notification: TypeAlias = tuple[ObjectID, int, int]

# Objects of this client whose sizes are noted for its notifications.
_SIZES_MAX = 10_000
# Objects with one id whose notifications are to come.
_LIVES_MAX = 100


class StoreClient:
    """Methods of ``PlasmaClient`` that need no data of an object."""

    def __init__(self, client: farrow.Client) -> None:
        self._client: farrow.Client | None = client
        self._notifications: Notifications | None = None
        # Evictions, whose events have the exact sizes.
        self._evictions: Subscription | None = None
        # Data and metadata bytes of objects that this client sealed, the newest last. An id may
        # have had several objects.
        self._sizes: OrderedDict[ObjectID, deque[tuple[int, int]]] = OrderedDict()
        self._sizes_lock = threading.Lock()

    @property
    def _store(self) -> farrow.Client:
        if self._client is None:
            raise _exceptions.Disconnected("this client was disconnected")
        return self._client

    def delete(self, object_ids: Iterable[ObjectID]) -> None:
        """Delete objects.  Missing ones are ignored, and readers can still read what they have.

        Args:
            object_ids: ids of the objects.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = store.put_raw_buffer(b"abc")
            >>> store.delete([number])
            >>> store.contains(number)
            False
            >>> store.disconnect()
        """
        for object_id in object_ids:
            with contextlib.suppress(_exceptions.NotFound):
                self._store.delete(name_of(object_id))

    def evict(self, num_bytes: int) -> int:
        """Evict the least recently used objects.

        Objects that are held, pinned or in creation stay.  Objects of other programs may be
        evicted too.

        Args:
            num_bytes: bytes to free.

        Returns:
            The data and metadata bytes of the evicted objects; less than ``num_bytes`` if nothing
            more can be evicted.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.
            PermissionDenied: this user may not evict.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.evict(0)
            0
            >>> store.disconnect()
        """
        if self._evictions is None:
            self._evictions = self._store.subscribe(kinds=("evicted",), timeout=0.0)
        # Evictions for want of room since the last call are no part of this one.
        for _ in self._evictions:
            pass
        evicted = 0
        # The node counts in whole cache lines: it may stop a few bytes early.
        while evicted < num_bytes and self._store.evict(num_bytes - evicted)["objects"]:
            evicted += sum(getattr(event, "nbytes", 0) for event in self._evictions)
        return evicted

    def subscribe(self) -> None:
        """Start to collect notifications, for the two ways to read them.

        A thread collects up to 1,000,000 of them.  Further calls have no effect.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.subscribe()
            >>> number = store.put_raw_buffer(b"abc")
            >>> store.get_next_notification() == (number, 3, 0)
            True
            >>> store.disconnect()
        """
        if self._notifications is None:
            subscription = self._store.subscribe(PREFIX, kinds=("sealed", "deleted", "evicted"))
            self._notifications = Notifications(subscription, self._notification)

    def get_next_notification(self) -> _Notification:
        """Wait for the next object that is sealed or deleted.

        Returns:
            Its id, its bytes of data and its bytes of metadata; both numbers are -1 for a deleted
            object.

        Raises:
            InvalidArgument: ``subscribe`` was not called, or the socket has the notifications.
            LimitReached: notifications were missed, because too many were not read.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.subscribe()
            >>> store.delete([store.put_raw_buffer(b"abc", metadata=b"m")])
            >>> [store.get_next_notification()[1:] for _ in range(2)]
            [(3, 1), (-1, -1)]
            >>> store.disconnect()
        """
        object_id, data_bytes, metadata_bytes = self._subscribed().next()
        return ObjectID(object_id), data_bytes, metadata_bytes

    def get_notification_socket(self) -> socket.socket:
        """A socket with the notifications.

        A message has 8 bytes of length, then what ``decode_notifications`` takes.

        Returns:
            The socket.  It ends where ``get_next_notification`` would raise an error.

        Raises:
            InvalidArgument: ``subscribe`` was not called.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.subscribe()
            >>> channel = store.get_notification_socket()
            >>> number = store.put_raw_buffer(b"abc")
            >>> message = channel.recv(int.from_bytes(channel.recv(8), "little"))
            >>> store.decode_notifications(message) == ([number], [3], [0])
            True
            >>> store.disconnect()
        """
        return self._subscribed().to_socket()

    def decode_notifications(self, buf: bytes) -> _Decoded:
        """Decode a message of the notification socket.

        Args:
            buf: the message without its length.

        Returns:
            Three lists of one length: the ids, the bytes of data, the bytes of metadata.  Both
            numbers are -1 for a deleted object.

        Raises:
            InvalidArgument: the length is not that of whole notifications.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.decode_notifications(b"")
            ([], [], [])
            >>> store.disconnect()
        """
        found = unpacked(buf)
        return (
            [ObjectID(object_id) for object_id, _, _ in found],
            [data_bytes for _, data_bytes, _ in found],
            [metadata_bytes for _, _, metadata_bytes in found],
        )

    def store_capacity(self) -> int:
        """The memory of the node.

        Returns:
            Bytes.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.store_capacity() == client.stats()["capacity"]
            True
            >>> store.disconnect()
        """
        return int(self._store.stats()["capacity"])

    def debug_string(self) -> str:
        """The statistics of the node as text.

        Returns:
            One line for each, with its name and its value.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> "capacity: " in store.debug_string()
            True
            >>> store.disconnect()
        """
        return "\n".join(f"{key}: {value}" for key, value in self._store.stats().items())

    def _subscribed(self) -> Notifications:
        if self._notifications is None:
            raise _exceptions.InvalidArgument("call subscribe() first")
        return self._notifications

    def _notification(self, event: Event) -> RawNotification | None:
        """The notification of an event; None for an object that is no Plasma object."""
        if isinstance(event, farrow.events.Gap):
            raise _exceptions.LimitReached(f"{event.missed} notifications were missed")
        object_id = id_of(event.name)
        if object_id is None:
            return None
        if not isinstance(event, farrow.events.Sealed):
            return object_id.binary(), -1, -1
        data_bytes = self._data_bytes(event, object_id)
        return object_id.binary(), data_bytes, event.nbytes - data_bytes

    @contextlib.contextmanager
    def _noted_sizes(
        self, object_id: ObjectID, data_bytes: int, metadata_bytes: int
    ) -> Iterator[None]:
        """Note the sizes of an object before its seal: it may be deleted right after it, and then
        its labels are deleted too.  They are forgotten if it is not sealed."""
        if self._notifications is None:
            yield
            return
        with self._sizes_lock:
            of_id = self._sizes.setdefault(object_id, deque(maxlen=_LIVES_MAX))
            of_id.append((data_bytes, metadata_bytes))
            self._sizes.move_to_end(object_id)
            if len(self._sizes) > _SIZES_MAX:
                self._sizes.popitem(last=False)
        try:
            yield
        except BaseException:
            with self._sizes_lock:
                of_id = self._sizes.pop(object_id, deque())
                if len(of_id) > 1:
                    of_id.pop()
                    self._sizes[object_id] = of_id
            raise

    def _data_bytes(self, event: Sealed, object_id: ObjectID) -> int:
        """The number of data bytes of a sealed object.  All, if another client sealed it and it was
        deleted since."""
        with self._sizes_lock:
            of_id = self._sizes.get(object_id, deque())
            # Events have the order of the seals. An earlier object without one left this behind.
            while of_id:
                data_bytes, metadata_bytes = of_id.popleft()
                if not of_id:
                    del self._sizes[object_id]
                if data_bytes + metadata_bytes == event.nbytes:
                    return data_bytes
        try:
            return data_bytes_of(self._store.metadata(event.id), event.nbytes)
        except _exceptions.NotFound:
            return event.nbytes

    def _end_streams(self) -> None:
        for stream in (self._notifications, self._evictions):
            if stream is not None:
                stream.close()
        self._evictions = self._notifications = None
