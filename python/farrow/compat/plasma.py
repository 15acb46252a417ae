"""The interface of ``pyarrow.plasma`` on Farrow.

Arrow removed Plasma in release 12.  A program for Plasma runs with a changed import::

    import farrow.compat.plasma as plasma

    client = plasma.connect("/tmp/plasma")          # the socket of ``farrow node --socket``
    object_id = client.put([1, 2, 3])
    assert client.get(object_id) == [1, 2, 3]

Differences are on the page "Coming from Plasma" of the documentation.  ``put`` and ``get`` pickle
values, and unpickling runs code: read only objects of processes that you trust.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

import farrow
from farrow import exceptions as _exceptions
from farrow._objects import pack, unpack
from farrow.compat._plasma_notifications import ID_BYTES, Notifications, unpacked
from farrow.compat._plasma_store import start_plasma_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Sequence

    from farrow.compat._plasma_notifications import RawNotification
    from farrow.events import Event, Subscription

__all__ = [
    "ObjectID",
    "ObjectNotAvailable",
    "PlasmaBuffer",
    "PlasmaClient",
    "PlasmaObjectExists",
    "PlasmaObjectNotFound",
    "PlasmaStoreFull",
    "connect",
    "start_plasma_store",
]

_PREFIX = "plasma/"
# The label with the number of data bytes; the metadata follows them.
_DATA_BYTES = "plasma-data-bytes"
# The metadata of objects that ``put`` made.
_PICKLED = b"farrow-pickle-5"
# The label with the time of ``create``, in seconds since 1970.
_CREATED_AT = "plasma-created-at"
_SOCKET_WAIT_SECONDS = 0.1
_WITHOUT_TIMEOUT = -1

PlasmaBuffer = pa.Buffer
# Not in the class, where `list` is a method.
_Decoded: TypeAlias = tuple[list["ObjectID"], list[int], list[int]]
# Id, data bytes, metadata bytes.
_Notification: TypeAlias = tuple["ObjectID", int, int]


class PlasmaObjectNotFound(_exceptions.NotFound, pa.lib.ArrowException):  # type: ignore[misc]
    """The object does not exist, or is not in creation here."""


class PlasmaObjectExists(_exceptions.AlreadyExists, pa.lib.ArrowException):  # type: ignore[misc]
    """An object with this id exists, sealed or not."""


class PlasmaStoreFull(_exceptions.OutOfMemory, pa.lib.ArrowException):  # type: ignore[misc]
    """There is no room for the object."""


@contextlib.contextmanager
def _plasma_errors() -> Iterator[None]:
    """Farrow's errors as those of Plasma, which are also pyarrow's."""
    try:
        yield
    except _exceptions.AlreadyExists as error:
        raise PlasmaObjectExists(str(error)) from error
    except _exceptions.OutOfMemory as error:
        full = PlasmaStoreFull(str(error))
        full.__dict__.update(error.__dict__)
        raise full from error


class ObjectNotAvailable:
    """The result of ``get`` for an object that was not sealed in time."""


class ObjectID:
    """The id of an object: 20 bytes, chosen by its creator."""

    __slots__ = ("_bytes",)

    def __init__(self, object_id: bytes) -> None:
        if len(object_id) != ID_BYTES:
            raise ValueError(f"an object id has {ID_BYTES} bytes, this one has {len(object_id)}")
        self._bytes = bytes(object_id)

    @staticmethod
    def from_random() -> ObjectID:
        """A random id."""
        return ObjectID(os.urandom(ID_BYTES))

    def binary(self) -> bytes:
        """The 20 bytes."""
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectID) and other._bytes == self._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"ObjectID({self._bytes.hex()})"

    def __reduce__(self) -> tuple[type[ObjectID], tuple[bytes]]:
        return (ObjectID, (self._bytes,))


def _name(object_id: ObjectID) -> str:
    return _PREFIX + object_id.binary().hex()


def _id_of(name: str | None) -> ObjectID | None:
    """The id in an object's name; None if the name is not of this module."""
    digits = (name or "")[len(_PREFIX) :]
    if len(digits) != 2 * ID_BYTES:
        return None
    try:
        return ObjectID(bytes.fromhex(digits))
    except ValueError:
        return None


class _Parts(NamedTuple):
    """One object: its data and its metadata, both in place."""

    data: pa.Buffer
    metadata: pa.Buffer


class _Creation(NamedTuple):
    """An object that is not sealed yet: its writer, its sizes, and its time of creation."""

    writer: farrow.Writer
    data_bytes: int
    metadata_bytes: int
    created_at: float

    def entry(self) -> dict[str, Any]:
        """The entry of the object in ``list``."""
        return {
            "data_size": self.data_bytes,
            "metadata_size": self.metadata_bytes,
            "ref_count": 1,
            "create_time": self.created_at,
            "construct_duration": -1,
            "state": "created",
        }


class PlasmaClient:
    """A connection to a node, with Plasma's methods; made by ``connect``."""

    def __init__(self, client: farrow.Client) -> None:
        self._client: farrow.Client | None = client
        self._address = client.address
        self._writers: dict[ObjectID, _Creation] = {}
        self._notifications: Notifications | None = None
        # Evictions, whose events have the exact sizes.
        self._evictions: Subscription | None = None
        # Data of objects that this client read and that is still in use.
        self._in_use: weakref.WeakValueDictionary[ObjectID, pa.Buffer] = (
            weakref.WeakValueDictionary()
        )

    @property
    def _store(self) -> farrow.Client:
        if self._client is None:
            raise _exceptions.Disconnected("this client was disconnected")
        return self._client

    @property
    def store_socket_name(self) -> str:
        """Path of the node's socket."""
        return self._address

    def create(self, object_id: ObjectID, data_size: int, metadata: bytes = b"") -> pa.Buffer:
        """Allocate an object, to be written and then sealed.

        Returns:
            A mutable buffer of ``data_size`` bytes: for ``memoryview``, ``numpy.frombuffer`` or
            ``pyarrow.FixedSizeBufferWriter``.

        Raises:
            PlasmaObjectExists: an object with this id exists, sealed or not.
            PlasmaStoreFull: there is no room.
        """
        metadata = bytes(metadata)
        created_at = time.time()
        labels = {_CREATED_AT: repr(created_at)}
        if metadata:
            labels[_DATA_BYTES] = str(data_size)
        size = data_size + len(metadata)
        with _plasma_errors():
            writer = self._store.create(size, _name(object_id), metadata=labels)
        view = writer.buffer
        view[data_size:] = metadata
        self._writers[object_id] = _Creation(writer, data_size, len(metadata), created_at)
        return pa.py_buffer(view[:data_size])

    def seal(self, object_id: ObjectID) -> None:
        """Make an object that this client created immutable and visible.

        Raises:
            PlasmaObjectNotFound: this client is not creating it.
        """
        self._created(object_id).seal()

    def abort(self, object_id: ObjectID) -> None:
        """Release an object that this client created and did not seal.

        Raises:
            PlasmaObjectNotFound: this client is not creating it.
        """
        self._created(object_id).abort()

    def _created(self, object_id: ObjectID) -> farrow.Writer:
        """Remove and return the writer of an object."""
        creation = self._writers.pop(object_id, None)
        if creation is None:
            raise PlasmaObjectNotFound(f"{object_id!r} is not in creation here")
        return creation.writer

    def create_and_seal(self, object_id: ObjectID, data: bytes, metadata: bytes = b"") -> None:
        """Create, write and seal an object in one call."""
        self.put_raw_buffer(data, object_id, metadata)

    def get_buffers(
        self, object_ids: Iterable[ObjectID], timeout_ms: int = -1, with_meta: bool = False
    ) -> list[Any]:
        """The data of objects, in place; with_meta: pairs of metadata as bytes and data.

        Args:
            object_ids: ids of the objects.
            timeout_ms: milliseconds to wait for all of them; -1: no limit.
            with_meta: return the metadata too.

        Returns:
            One for each id; None, or a pair of None, for an object that was not sealed in time.
        """
        found = self._parts(object_ids, timeout_ms)
        if not with_meta:
            return [None if parts is None else parts.data for parts in found]
        return [
            (None, None) if parts is None else (parts.metadata.to_pybytes(), parts.data)
            for parts in found
        ]

    def get_metadata(
        self, object_ids: Iterable[ObjectID], timeout_ms: int = -1
    ) -> list[pa.Buffer | None]:
        """The metadata of objects; arguments as for ``get_buffers``."""
        found = self._parts(object_ids, timeout_ms)
        return [None if parts is None else parts.metadata for parts in found]

    def _parts(self, object_ids: Iterable[ObjectID], timeout_ms: int) -> list[_Parts | None]:
        end = None if timeout_ms == _WITHOUT_TIMEOUT else time.monotonic() + timeout_ms / 1e3
        return [self._part(object_id, end) for object_id in object_ids]

    def _part(self, object_id: ObjectID, end: float | None) -> _Parts | None:
        name = _name(object_id)
        left = float("inf") if end is None else max(end - time.monotonic(), 0.0)
        try:
            whole = self._store.get(name, timeout=left)
            labels = self._store.metadata(name)
        except (_exceptions.NotFound, _exceptions.Timeout):
            return None
        data_bytes = int(labels.get(_DATA_BYTES, whole.size))
        parts = _Parts(whole.slice(0, data_bytes), whole.slice(data_bytes))
        self._in_use[object_id] = parts.data
        return parts

    def put(
        self,
        value: Any,
        object_id: ObjectID | None = None,
        memcopy_threads: int = 6,
        serialization_context: None = None,
    ) -> ObjectID:
        """Store a Python value.

        Args:
            value: anything that can be pickled.
            object_id: its id; None: a random one.
            memcopy_threads: ignored; Farrow chooses.
            serialization_context: must be None.
        """
        _check_context(serialization_context)
        object_id = ObjectID.from_random() if object_id is None else object_id
        size, pieces = pack(value)
        buffer = memoryview(self.create(object_id, size, _PICKLED)).cast("B")
        try:
            for at, piece in pieces:
                buffer[at : at + len(piece)] = piece
        except BaseException:
            self.abort(object_id)
            raise
        self.seal(object_id)
        return object_id

    def put_raw_buffer(
        self,
        value: Any,
        object_id: ObjectID | None = None,
        metadata: bytes = b"",
        memcopy_threads: int = 6,
    ) -> ObjectID:
        """Store bytes unchanged; ``get_buffers`` returns them."""
        object_id = ObjectID.from_random() if object_id is None else object_id
        view = memoryview(value).cast("B")
        memoryview(self.create(object_id, view.nbytes, metadata)).cast("B")[:] = view
        self.seal(object_id)
        return object_id

    def get(
        self,
        object_ids: ObjectID | Sequence[ObjectID],
        timeout_ms: int = -1,
        serialization_context: None = None,
    ) -> Any:
        """The value of an object that ``put`` stored, or a list of values for a list of ids.

        An object that was not sealed in time is ``ObjectNotAvailable``.  An object that another
        method stored is a buffer.
        """
        _check_context(serialization_context)
        ids = [object_ids] if isinstance(object_ids, ObjectID) else list(object_ids)
        values = [_value(parts) for parts in self._parts(ids, timeout_ms)]
        return values[0] if isinstance(object_ids, ObjectID) else values

    def contains(self, object_id: ObjectID) -> bool:
        """Whether the object is sealed."""
        return self._store.contains(_name(object_id))

    def hash(self, object_id: ObjectID) -> bytes:
        """A hash of 8 bytes over the object's data and metadata.

        Raises:
            PlasmaObjectNotFound: the object does not exist.
        """
        parts = self._part(object_id, time.monotonic())
        if parts is None:
            raise PlasmaObjectNotFound(f"no {object_id!r}")
        digest = blake2b(parts.data, digest_size=8)
        digest.update(parts.metadata)
        return digest.digest()

    def list(self) -> dict[ObjectID, dict[str, Any]]:
        """Sealed objects, and those that this client is creating: for each its sizes, its state,
        and its time of creation in seconds since 1970."""
        objects = {created: one.entry() for created, one in self._writers.items()}
        listed = self._store.list(_PREFIX).select(["name", "bytes", "metadata", "sealed_at"])
        # Nanoseconds do not fit Python's datetime.
        times = listed["sealed_at"].cast(pa.int64())
        for row in listed.set_column(3, "sealed_at", times).to_pylist():
            object_id = _id_of(row["name"])
            if object_id is None:
                continue
            labels = dict(row["metadata"] or [])
            data_bytes = int(labels.get(_DATA_BYTES, row["bytes"]))
            sealed_at = row["sealed_at"] / 1e9
            created_at = float(labels.get(_CREATED_AT, sealed_at))
            objects[object_id] = {
                "data_size": data_bytes,
                "metadata_size": row["bytes"] - data_bytes,
                "ref_count": int(object_id in self._in_use),
                "create_time": created_at,
                "construct_duration": max(sealed_at - created_at, 0.0),
                "state": "sealed",
            }
        return objects

    def evict(self, num_bytes: int) -> int:
        """Evict objects until ``num_bytes`` more bytes are free, least recently used first.

        Objects that are held, pinned or in creation stay.  Objects of other programs may be
        evicted too.

        Returns:
            The data and metadata bytes of the evicted objects; less than ``num_bytes`` if nothing
            more can be evicted.
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

    def delete(self, object_ids: Iterable[ObjectID]) -> None:
        """Delete objects.  Missing ones are ignored."""
        for object_id in object_ids:
            self._delete(_name(object_id))

    def _delete(self, target: str | bytes) -> bool:
        try:
            self._store.delete(target)
        except _exceptions.NotFound:
            return False
        return True

    def subscribe(self) -> None:
        """Start to collect notifications for ``get_next_notification``."""
        if self._notifications is None:
            subscription = self._store.subscribe(_PREFIX, kinds=("sealed", "deleted", "evicted"))
            self._notifications = Notifications(subscription, self._notification)

    def get_next_notification(self) -> _Notification:
        """The next object that was sealed or deleted: id, bytes of data, bytes of metadata.

        Both lengths are -1 for a deleted object.  Waits until there is a notification.

        Raises:
            InvalidArgument: ``subscribe`` was not called, or the socket has the notifications.
            LimitReached: notifications were missed, because too many were not read.
        """
        object_id, data_bytes, metadata_bytes = self._subscribed().next()
        return ObjectID(object_id), data_bytes, metadata_bytes

    def _subscribed(self) -> Notifications:
        if self._notifications is None:
            raise _exceptions.InvalidArgument("subscribe() comes first")
        return self._notifications

    def _notification(self, event: Event) -> RawNotification | None:
        """The notification of an event; None for an object that is no Plasma object."""
        if isinstance(event, farrow.events.Gap):
            raise _exceptions.LimitReached(f"{event.missed} notifications were missed")
        object_id = _id_of(event.name)
        if object_id is None:
            return None
        if isinstance(event, farrow.events.Deleted):
            return object_id.binary(), -1, -1
        data_bytes = self._data_bytes(event.id, event.nbytes)
        return object_id.binary(), data_bytes, event.nbytes - data_bytes

    def _data_bytes(self, target: bytes, nbytes: int) -> int:
        """The number of data bytes of an object: all, if it was deleted since."""
        try:
            return int(self._store.metadata(target).get(_DATA_BYTES, nbytes))
        except _exceptions.NotFound:
            return nbytes

    def get_notification_socket(self) -> socket.socket:
        """A socket with the notifications: for each one 8 bytes of length, then what
        ``decode_notifications`` takes.  It ends where ``get_next_notification`` would raise.

        Raises:
            InvalidArgument: ``subscribe`` was not called.
        """
        return self._subscribed().to_socket()

    def decode_notifications(self, buf: bytes) -> _Decoded:
        """Ids, data sizes and metadata sizes in a message of the notification socket."""
        found = unpacked(buf)
        return (
            [ObjectID(object_id) for object_id, _, _ in found],
            [data_bytes for _, data_bytes, _ in found],
            [metadata_bytes for _, _, metadata_bytes in found],
        )

    def store_capacity(self) -> int:
        """Bytes of the node's memory."""
        return int(self._store.stats()["capacity"])

    def debug_string(self) -> str:
        """The node's counters as text."""
        return "\n".join(f"{key}: {value}" for key, value in self._store.stats().items())

    def disconnect(self) -> None:
        """Abort objects in creation and close the client.  Values that were read stay readable."""
        for creation in self._writers.values():
            creation.writer.abort()
        self._writers.clear()
        for stream in (self._notifications, self._evictions):
            if stream is not None:
                stream.close()
        client, self._client = self._client, None
        self._evictions = self._notifications = None
        if client is not None:
            client.close()

    def to_capsule(self) -> Any:
        """Not supported: there is no C++ client of Plasma."""
        raise NotImplementedError("there is no C++ client of Plasma below; see farrow.h")


def _check_context(serialization_context: None) -> None:
    if serialization_context is not None:
        raise NotImplementedError("serialization contexts left Arrow; values are pickled")


def _value(parts: _Parts | None) -> Any:
    if parts is None:
        return ObjectNotAvailable
    return unpack(parts.data) if parts.metadata.to_pybytes() == _PICKLED else parts.data


def connect(
    store_socket_name: str | os.PathLike[str], *earlier: Any, num_retries: int = -1
) -> PlasmaClient:
    """Connect to the node at a socket.

    Args:
        store_socket_name: path of the socket.
        earlier: arguments by position of earlier releases: the number of retries; or the socket of
            the manager and the release delay, which are ignored, and then the retries.
        num_retries: number of retries, a tenth of a second apart; -1: 50.

    Returns:
        A client with the methods of ``pyarrow.plasma.PlasmaClient``.

    Raises:
        Disconnected: no node answers.

    Examples:
        >>> from farrow.compat import plasma
        >>> store = plasma.connect(client.address)
        >>> number = store.put([1, 2, 3])
        >>> store.get(number)
        [1, 2, 3]
        >>> store.disconnect()
    """
    if len(earlier) == 1 and isinstance(earlier[0], int):
        num_retries = earlier[0]
    elif len(earlier) == 3:
        num_retries = int(earlier[2])
    elif len(earlier) > 3:
        raise TypeError(f"connect() takes 4 arguments by position, not {len(earlier) + 1}")
    tries = (50 if num_retries < 0 else num_retries) + 1
    for left in range(tries - 1, -1, -1):
        try:
            return PlasmaClient(farrow.connect(store_socket_name))
        except _exceptions.Disconnected:
            if left == 0:
                raise
            time.sleep(_SOCKET_WAIT_SECONDS)
    raise AssertionError("there is at least one try")
