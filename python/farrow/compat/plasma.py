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
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import farrow
from farrow import exceptions as _exceptions
from farrow._values._listed import listed_rows
from farrow._values._objects import pack, unpack
from farrow.compat._plasma_client import StoreClient
from farrow.compat._plasma_store import start_plasma_store
from farrow.compat._plasma_types import (
    CREATED_AT,
    DATA_BYTES,
    PREFIX,
    Creation,
    ObjectID,
    ObjectNotAvailable,
    Parts,
    PlasmaObjectExists,
    PlasmaObjectNotFound,
    PlasmaStoreFull,
    check_buffer,
    data_bytes_of,
    id_of,
    name_of,
    plasma_errors,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

# The metadata of objects that ``put`` made.
_PICKLED = b"farrow-pickle-5"
_SOCKET_WAIT_SECONDS = 0.1
_WITHOUT_TIMEOUT = -1

PlasmaBuffer = pa.Buffer


class PlasmaClient(StoreClient):
    """A connection to a node, with Plasma's methods; made by ``connect``.

    Objects are those of the default namespace of the node, in its own memory.  Times to wait are
    milliseconds, sizes are bytes.
    """

    def __init__(self, client: farrow.Client) -> None:
        super().__init__(client)
        self._address = client.address
        self._writers: dict[ObjectID, Creation] = {}
        # Data of objects that this client read and that is still in use.
        self._in_use: weakref.WeakValueDictionary[ObjectID, pa.Buffer] = (
            weakref.WeakValueDictionary()
        )

    @property
    def store_socket_name(self) -> str:
        """Path of the node's socket.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.store_socket_name == client.address
            True
            >>> store.disconnect()
        """
        return self._address

    def create(self, object_id: ObjectID, data_size: int, metadata: bytes = b"") -> pa.Buffer:
        """Allocate an object, to be written and then sealed.

        Args:
            object_id: its id.
            data_size: bytes of its data.
            metadata: its metadata, at most as large as the memory allows.

        Returns:
            A mutable buffer of ``data_size`` bytes: for ``memoryview``, ``numpy.frombuffer`` or
            ``pyarrow.FixedSizeBufferWriter``.

        Raises:
            PlasmaObjectExists: an object with this id exists, sealed or not.
            PlasmaStoreFull: there is no room.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = plasma.ObjectID.from_random()
            >>> memoryview(store.create(number, 3)).cast("B")[:] = b"abc"
            >>> store.seal(number)
            >>> store.get_buffers([number])[0].to_pybytes()
            b'abc'
            >>> store.disconnect()
        """
        metadata = bytes(metadata)
        created_at = time.time()
        labels = {CREATED_AT: repr(created_at)}
        if metadata:
            labels[DATA_BYTES] = str(data_size)
        size = data_size + len(metadata)
        with plasma_errors():
            writer = self._store.create(size, name_of(object_id), metadata=labels)
        view = writer.buffer
        view[data_size:] = metadata
        self._writers[object_id] = Creation(writer, data_size, len(metadata), created_at)
        return pa.py_buffer(view[:data_size])

    def seal(self, object_id: ObjectID) -> None:
        """Make an object that this client created immutable and visible.

        Args:
            object_id: its id.

        Raises:
            PlasmaObjectNotFound: this client is not creating it.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = plasma.ObjectID.from_random()
            >>> buffer = store.create(number, 3)
            >>> store.seal(number)
            >>> store.contains(number)
            True
            >>> store.disconnect()
        """
        creation = self._created(object_id)
        with self._noted_sizes(object_id, creation.data_bytes, creation.metadata_bytes):
            creation.writer.seal()

    def abort(self, object_id: ObjectID) -> None:
        """Release an object that this client created and did not seal.

        Args:
            object_id: its id.

        Raises:
            PlasmaObjectNotFound: this client is not creating it.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = plasma.ObjectID.from_random()
            >>> buffer = store.create(number, 3)
            >>> store.abort(number)
            >>> store.contains(number)
            False
            >>> store.disconnect()
        """
        self._created(object_id).writer.abort()

    def _created(self, object_id: ObjectID) -> Creation:
        """Remove and return what is known of an object in creation."""
        creation = self._writers.pop(object_id, None)
        if creation is None:
            raise PlasmaObjectNotFound(f"{object_id!r} is not in creation here")
        return creation

    def create_and_seal(self, object_id: ObjectID, data: bytes, metadata: bytes = b"") -> None:
        """Create, write and seal an object in one call.

        Args:
            object_id: its id.
            data: its data: anything with the buffer protocol.
            metadata: its metadata.

        Raises:
            PlasmaObjectExists: an object with this id exists, sealed or not.
            PlasmaStoreFull: there is no room.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = plasma.ObjectID.from_random()
            >>> store.create_and_seal(number, b"abc", b"m")
            >>> store.get_metadata([number])[0].to_pybytes()
            b'm'
            >>> store.disconnect()
        """
        self.put_raw_buffer(data, object_id, metadata)

    def get_buffers(
        self, object_ids: Iterable[ObjectID], timeout_ms: int = -1, with_meta: bool = False
    ) -> list[Any]:
        """The data of objects, in place.

        Args:
            object_ids: ids of the objects.
            timeout_ms: milliseconds to wait for all of them; -1: no limit.
            with_meta: return the metadata too.

        Returns:
            One read-only buffer for each id, or None for an object that was not sealed in time.
            ``with_meta``: pairs of metadata as bytes and data, or pairs of None.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = store.put_raw_buffer(b"abc")
            >>> missing = plasma.ObjectID.from_random()
            >>> found, nothing = store.get_buffers([number, missing], timeout_ms=0)
            >>> found.to_pybytes(), nothing
            (b'abc', None)
            >>> store.disconnect()
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
        """The metadata of objects, in place.

        Args:
            object_ids: ids of the objects.
            timeout_ms: milliseconds to wait for all of them; -1: no limit.

        Returns:
            One read-only buffer for each id, or None for an object that was not sealed in time.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = store.put_raw_buffer(b"abc", metadata=b"m")
            >>> store.get_metadata([number])[0].to_pybytes()
            b'm'
            >>> store.disconnect()
        """
        found = self._parts(object_ids, timeout_ms)
        return [None if parts is None else parts.metadata for parts in found]

    def _parts(self, object_ids: Iterable[ObjectID], timeout_ms: int) -> list[Parts | None]:
        end = None if timeout_ms == _WITHOUT_TIMEOUT else time.monotonic() + timeout_ms / 1e3
        return [self._part(object_id, end) for object_id in object_ids]

    def _part(self, object_id: ObjectID, end: float | None) -> Parts | None:
        name = name_of(object_id)
        while True:
            left = float("inf") if end is None else max(end - time.monotonic(), 0.0)
            try:
                whole = self._store.get(name, timeout=left)
            except (_exceptions.NotFound, _exceptions.Timeout):
                return None
            check_buffer(whole, name, self._address)
            # The labels of the object that was read: another one may have its name by now. While
            # ``whole`` is held, no other object lies there.
            with contextlib.suppress(_exceptions.NotFound):
                labels = self._store.metadata(name)
                again = self._store.get(name)
                check_buffer(again, name, self._address)
                if (again.address, again.size) == (whole.address, whole.size):
                    break
        data_bytes = data_bytes_of(labels, whole.size)
        parts = Parts(whole.slice(0, data_bytes), whole.slice(data_bytes))
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

        Returns:
            The id.

        Raises:
            PlasmaObjectExists: an object with this id exists, sealed or not.
            PlasmaStoreFull: there is no room.
            UnsupportedType: the value cannot be pickled.
            NotImplementedError: there is a serialization context.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.get(store.put({"a": 1}))
            {'a': 1}
            >>> store.disconnect()
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
        """Store bytes unchanged; ``get_buffers`` returns them.

        Args:
            value: the bytes: anything with the buffer protocol.
            object_id: its id; None: a random one.
            metadata: its metadata.
            memcopy_threads: ignored; Farrow chooses.

        Returns:
            The id.

        Raises:
            PlasmaObjectExists: an object with this id exists, sealed or not.
            PlasmaStoreFull: there is no room.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = store.put_raw_buffer(b"abc")
            >>> store.get_buffers([number])[0].to_pybytes()
            b'abc'
            >>> store.disconnect()
        """
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
        """The value of an object that ``put`` stored.

        Args:
            object_ids: one id, or a list of ids.
            timeout_ms: milliseconds to wait for all of them; -1: no limit.
            serialization_context: must be None.

        Returns:
            The value, or a list of values for a list of ids.  An object that was not sealed in time
            is the class ``ObjectNotAvailable``.  An object that another method stored is a buffer.

        Raises:
            NotImplementedError: there is a serialization context.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.get([store.put(1), store.put("two")])
            [1, 'two']
            >>> store.get(plasma.ObjectID.from_random(), timeout_ms=0) is plasma.ObjectNotAvailable
            True
            >>> store.disconnect()
        """
        _check_context(serialization_context)
        ids = [object_ids] if isinstance(object_ids, ObjectID) else list(object_ids)
        values = [_value(parts) for parts in self._parts(ids, timeout_ms)]
        return values[0] if isinstance(object_ids, ObjectID) else values

    def contains(self, object_id: ObjectID) -> bool:
        """Whether an object is sealed.

        Args:
            object_id: its id.

        Returns:
            False also for an object in creation.

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.contains(plasma.ObjectID.from_random())
            False
            >>> store.disconnect()
        """
        return self._store.contains(name_of(object_id))

    def hash(self, object_id: ObjectID) -> bytes:
        """A hash over the data and metadata of an object.

        Args:
            object_id: its id.

        Returns:
            8 bytes, of BLAKE2b.

        Raises:
            PlasmaObjectNotFound: the object does not exist.
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> one, same = store.put_raw_buffer(b"abc"), store.put_raw_buffer(b"abc")
            >>> store.hash(one) == store.hash(same)
            True
            >>> store.disconnect()
        """
        parts = self._part(object_id, time.monotonic())
        if parts is None:
            raise PlasmaObjectNotFound(f"no {object_id!r}")
        digest = blake2b(parts.data, digest_size=8)
        digest.update(parts.metadata)
        return digest.digest()

    def list(self) -> dict[ObjectID, dict[str, Any]]:
        """Sealed objects, and those that this client is creating.

        Returns:
            For each id a dict: data_size and metadata_size in bytes; ref_count, 1 if this client
            has its data in use, else 0; create_time, in seconds since 1970; construct_duration, in
            seconds until it was sealed, or -1; and state, "created" or "sealed".

        Raises:
            Disconnected: the node has ended, or this client was disconnected.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> number = store.put_raw_buffer(b"abc")
            >>> store.list()[number]["data_size"]
            3
            >>> store.disconnect()
        """
        objects = {created: one.entry() for created, one in self._writers.items()}
        listed = self._store.list(PREFIX).select(["name", "bytes", "metadata", "sealed_at"])
        for row in listed_rows(listed):
            object_id = id_of(row["name"])
            if object_id is None:
                continue
            labels = dict(row["metadata"] or [])
            data_bytes = data_bytes_of(labels, row["bytes"])
            sealed_at = row["sealed_at"] / 1e9
            created_at = seconds_of(labels, sealed_at)
            objects[object_id] = {
                "data_size": data_bytes,
                "metadata_size": row["bytes"] - data_bytes,
                "ref_count": int(object_id in self._in_use),
                "create_time": created_at,
                "construct_duration": max(sealed_at - created_at, 0.0),
                "state": "sealed",
            }
        return objects

    def disconnect(self) -> None:
        """Abort objects in creation and close the client.  Values that were read stay readable.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.disconnect()
            >>> store.contains(plasma.ObjectID.from_random())
            Traceback (most recent call last):
            farrow.exceptions.Disconnected: ...
        """
        for creation in self._writers.values():
            creation.writer.abort()
        self._writers.clear()
        self._end_streams()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def to_capsule(self) -> Any:
        """Not supported: there is no C++ client of Plasma.

        Returns:
            Nothing.

        Raises:
            NotImplementedError: always.

        Examples:
            >>> from farrow.compat import plasma
            >>> store = plasma.connect(client.address)
            >>> store.to_capsule()
            Traceback (most recent call last):
            NotImplementedError: ...
            >>> store.disconnect()
        """
        raise NotImplementedError("there is no C++ client of Plasma below; see farrow.h")


def _check_context(serialization_context: None) -> None:
    if serialization_context is not None:
        raise NotImplementedError("serialization contexts left Arrow; values are pickled")


def _value(parts: Parts | None) -> Any:
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
