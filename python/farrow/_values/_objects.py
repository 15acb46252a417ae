"""Any Python object by pickle, with its large buffers in shared memory.

An object of bytes: the magic, the version, the number of parts, the offset and size of each part
(little-endian), and the parts at multiples of 64 bytes.  The first part is the pickle (protocol 5),
the others are its out-of-band buffers in their order.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

from farrow._nodes._connect import connect
from farrow.exceptions import InvalidArgument, InvalidDescriptor, UnsupportedType

if TYPE_CHECKING:
    from farrow._native import Client, ObjectRef
    from farrow._values._types import Target

__all__ = ["get_object", "pack", "put_object", "unpack"]

MAGIC = b"FARROWPK"
VERSION = 1
_ALIGNMENT = 64
_HEAD = struct.Struct("<8sII")
_PART = struct.Struct("<QQ")
# The header of this many parts is 1 MiB.
_PARTS_MAX = 65_536
_LABEL = "farrow.pickle"


def put_object(
    obj: Any, name: str | None = None, *, client: Client | None = None, wait: float = 0.0
) -> ObjectRef:
    """Store any Python object that can be pickled: models, dicts, sparse matrices, tensors.

    Buffers that the object offers to pickle 5 (NumPy arrays and what is made of them) are copied
    once into shared memory, and ``get_object`` uses them there in place.  Everything else is
    in the pickle.

    Args:
        obj: the object.
        name: a name to find it by, as in ``Client.put``; None: no name.
        client: the client to use; None: a connection for this call, by ``farrow.connect``.
        wait: seconds to wait for room.

    Returns:
        A reference to the object.

    Raises:
        UnsupportedType: the object cannot be pickled.
        AlreadyExists, OutOfMemory, ...: as ``Client.put``.

    Examples:
        >>> reference = farrow.put_object({"weights": np.arange(3.0)}, "put_object", client=client)
        >>> farrow.get_object("put_object", client=client)["weights"].tolist()
        [0.0, 1.0, 2.0]
    """
    total, pieces = pack(obj)
    client = client or connect()
    with client.create(total, name, metadata={_LABEL: str(VERSION)}, wait=wait) as writer:
        for offset, piece in pieces:
            writer.write(piece, offset)
        return writer.seal()


def get_object(target: Target, *, client: Client | None = None, timeout: float = 0.0) -> Any:
    """The object that ``put_object`` stored, unpickled; its buffers are in place and read-only.

    Unpickling runs code that the writer of the object chose.  Call this only for objects of
    writers that you trust as you trust your own program: any user that may put into the namespace
    can run code as you.  ``Client.get`` never unpickles.

    Args:
        target: a reference, a name, or an id of 16 bytes.
        client: the client to use; None: a connection for this call, by ``farrow.connect``.
        timeout: seconds to wait for the object to be sealed.

    Returns:
        An object equal to the stored one.

    Raises:
        InvalidDescriptor: the object was not stored by ``put_object``, or is damaged.
        NotFound, Timeout, ...: as ``Client.get``.

    Examples:
        >>> reference = farrow.put_object([1, {"two": 3}], client=client)
        >>> farrow.get_object(reference, client=client)
        [1, {'two': 3}]
    """
    value = (client or connect()).get(target, timeout=timeout)
    try:
        return unpack(value)
    except InvalidDescriptor as error:
        raise InvalidDescriptor(f"object {target!r} cannot be unpickled: {error}") from error


def pack(obj: Any) -> tuple[int, list[tuple[int, bytes | memoryview]]]:
    """The size of an object for a value, and its pieces with their offsets.

    Raises:
        UnsupportedType: the value cannot be pickled.
        InvalidArgument: it has too many buffers.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        stream = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(stream), *(buffer.raw() for buffer in buffers)]
    except (pickle.PicklingError, AttributeError, TypeError, BufferError) as error:
        raise UnsupportedType(f"cannot pickle {type(obj).__name__}: {error}") from error
    if len(parts) > _PARTS_MAX:
        raise InvalidArgument(f"{len(parts)} buffers in one object; the limit is {_PARTS_MAX}")
    head = [_HEAD.pack(MAGIC, VERSION, len(parts))]
    pieces: list[tuple[int, bytes | memoryview]] = []
    end = _HEAD.size + _PART.size * len(parts)
    for part in parts:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = offset + part.nbytes
        head.append(_PART.pack(offset, part.nbytes))
        if part.nbytes:
            pieces.append((offset, part))
    return end, [(0, b"".join(head)), *pieces]


def unpack(value: Any) -> Any:
    """The value that ``pack`` laid out in a buffer, which is untrusted input but for its pickle.

    Raises:
        InvalidDescriptor: the buffer was not laid out by ``pack``, or is damaged.
    """
    try:
        view = memoryview(value).cast("B")
    except (TypeError, ValueError):
        # ValueError: an array of times is no buffer.
        raise InvalidDescriptor(f"it is a {type(value).__name__}") from None
    stream, *buffers = _parts(view)
    try:
        return pickle.loads(stream, buffers=buffers)
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        # EOFError: the pickle ends too early.  ValueError: it has another protocol, or broken text.
        raise InvalidDescriptor(str(error)) from error


def _parts(view: memoryview) -> list[memoryview]:
    if view.nbytes < _HEAD.size:
        raise InvalidDescriptor(f"it has {view.nbytes} bytes")
    magic, version, count = _HEAD.unpack_from(view, 0)
    if magic != MAGIC:
        raise InvalidDescriptor("it was not stored by put_object")
    if version != VERSION:
        raise InvalidDescriptor(f"it has format {version}; this Farrow reads format {VERSION}")
    if not 0 < count <= _PARTS_MAX or view.nbytes < _HEAD.size + count * _PART.size:
        raise InvalidDescriptor(f"it says that it has {count} parts in {view.nbytes} bytes")
    parts = []
    for index in range(count):
        offset, size = _PART.unpack_from(view, _HEAD.size + index * _PART.size)
        if offset > view.nbytes or size > view.nbytes - offset:
            raise InvalidDescriptor(f"part {index} ends at byte {offset + size} of {view.nbytes}")
        parts.append(view[offset : offset + size])
    return parts
