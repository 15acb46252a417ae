"""The exceptions of Farrow: a common base class, and one class for each possible reaction.

Every class also derives from the built-in exception of the same meaning: ``except KeyError``,
``except MemoryError`` and ``except TimeoutError`` work too.  Messages contain the numbers; those
that a program may need are attributes as well.
"""

from __future__ import annotations

from threading import BrokenBarrierError as ThreadBarrierBroken
from typing import TYPE_CHECKING

__all__ = [
    "AlreadyExists",
    "BarrierBroken",
    "CutOff",
    "DamagedFile",
    "Disconnected",
    "FarrowError",
    "InternalError",
    "InvalidArgument",
    "InvalidDescriptor",
    "LimitReached",
    "NamespaceInUse",
    "NodeDraining",
    "NodeLost",
    "NodeUnreachable",
    "NotFound",
    "NotPermitted",
    "NotRestored",
    "NotSpilled",
    "OutOfMemory",
    "PermissionDenied",
    "ProtocolError",
    "QuotaExceeded",
    "RowsMissing",
    "RowsTaken",
    "Timeout",
    "TooLarge",
    "TooManyObjects",
    "UnsupportedType",
]


class FarrowError(Exception):
    """The base class of all errors of Farrow.  Raised itself only for errors of the system."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return Exception.__str__(self)


class NotFound(FarrowError, KeyError):
    """No sealed object has this name or id, or no namespace has this name."""


class AlreadyExists(FarrowError):
    """The name is taken, by a sealed object or by an object that is being written."""


class NotRestored(FarrowError, OSError):
    """A spilled object cannot be restored: its file is missing, damaged or of another object.

    The object is still listed, as spilled, and can be deleted.

    Attributes:
        file: path of the file.
    """

    file: str = ""


# MemoryError comes first: it has a __new__ of its own, which Python refuses to call by name for a
# class whose first base has another.  Some libraries unpickle errors that way, as tblib for Dask.
class OutOfMemory(MemoryError, FarrowError):
    """The region has no room.

    Attributes:
        what: ``"objects"``, or ``"names"``, which have their own part of the region.
        requested: bytes requested.
        free: total bytes free for it.
        largest: bytes of the largest free extent.
        used: bytes used by names, if there is no room for names.
        waiting: requests that wait for memory and are served first.
        waited_seconds: seconds that the node waited for room, if requested.
    """

    what: str = "objects"
    requested: int = 0
    free: int = 0
    largest: int = 0
    used: int = 0
    waiting: int = 0
    waited_seconds: float = 0.0


class NotSpilled(OutOfMemory):
    """The region has no room, and objects cannot be written to the spill folder.

    Attributes:
        folder: the folder, or the bucket.
        nbytes: bytes of the file that could not be written.
        reason: the error of the system.
    """

    folder: str = ""
    nbytes: int = 0
    reason: str = ""


class TooLarge(OutOfMemory):
    """The request exceeds the whole region: neither waiting nor deleting helps.

    Attributes:
        capacity: bytes of the region.
    """

    capacity: int = 0


class LimitReached(FarrowError):
    """A table of the node is full: clients, grants or holds.  Or all threads of an asyncio client
    wait.

    Attributes:
        limit: the number for which the node was started, or the number of threads.
    """

    limit: int = 0


class TooManyObjects(LimitReached):
    """The region's directory of objects is full."""


class NamespaceInUse(FarrowError):
    """A namespace cannot be dropped: it has objects or clients.

    Attributes:
        objects: number of sealed objects in it.
        nbytes: bytes granted to its clients, and bytes of its objects, including deleted ones that
            are still read.
        clients: number of clients in it.
    """

    objects: int = 0
    nbytes: int = 0
    clients: int = 0


class QuotaExceeded(LimitReached):
    """This client, or its namespace, is at its limit.

    Attributes:
        what: ``"bytes"`` or ``"objects"``.
        requested: number requested.
        used: number in use: memory granted for writing, and objects, including deleted ones that
            are still read.
        limit: the limit.
        whose: the client, or the namespace.
        waiting: requests that wait for objects of this quota and are served first.
        waited_seconds: seconds that the node waited for room, if requested.
    """

    what: str = ""
    requested: int = 0
    used: int = 0
    whose: str = ""
    waiting: int = 0
    waited_seconds: float = 0.0


class RowsMissing(FarrowError, LookupError):
    """A huge table has a gap: some rows are not appended yet, but later rows are.

    Attributes:
        first: the first missing row.
        last: the last row of this gap.
    """

    first: int = 0
    last: int = 0


class RowsTaken(FarrowError, ValueError):
    """Some of the rows to be appended to a huge table exist already.

    Attributes:
        first: the first existing row.
        last: the last one.
        version: the version of the table that added them.
    """

    first: int = 0
    last: int = 0
    version: int = 0


class Timeout(FarrowError, TimeoutError):
    """The object was not sealed, or the node did not answer, within the time given.

    Attributes:
        waited_seconds: seconds that the call waited.
    """

    waited_seconds: float = 0.0


class InvalidDescriptor(FarrowError):
    """The description of an object is damaged; the object was not used."""


class Disconnected(FarrowError, ConnectionError):
    """No node answers at this socket, the node ended or was replaced by one with other memory, or
    this process is a fork of the client: connect again.

    Tables that were read before stay readable.
    """


class NodeLost(FarrowError, ConnectionError):
    """The node that stores the object, or shall store it, cannot be reached; other nodes keep
    working.

    Values of that node that were read before stay readable.

    Attributes:
        node: name of the node.
    """

    node: str = ""


class NodeUnreachable(NodeLost):
    """The node is alive, but this client's node cannot map its memory.

    This client can neither read objects of that node nor put objects there.  Names stay unique: the
    name of an object of that node is taken.

    Attributes:
        node: name of the node.
        address: address at which the node listens.
        reason: the reason why its memory cannot be mapped.
    """

    address: str = ""
    reason: str = ""


class NodeDraining(FarrowError):
    """The node takes no new objects: its objects move to other nodes before it leaves.

    Objects are got, deleted and held there as before.  ``put(node="nearest")`` and
    ``put(node="most-free")`` choose among the other nodes.

    Attributes:
        node: name of the node.
    """

    node: str = ""


class BarrierBroken(FarrowError, ThreadBarrierBroken):
    """Not all parties will reach the barrier: one has ended, or its timeout expired.

    Attributes:
        who: the party that ended or timed out.
    """

    who: str = ""


class CutOff(FarrowError, ConnectionError):
    """The node does not reach the majority of its cluster, so it does not know which names are
    free.

    Attributes:
        node: name of the node that refused the request.
    """

    node: str = ""


class PermissionDenied(FarrowError, PermissionError):
    """The node or the system denies access to this user."""


class NotPermitted(PermissionDenied):
    """The node that stores the object, or shall store it, denies this to the client's node.

    Attributes:
        node: the client's node.
        namespace: the namespace; "" is the default one.
        right: the missing right: ``"read"``, ``"write"`` or ``"delete"``.
    """

    node: str = ""
    namespace: str = ""
    right: str = ""


class InvalidArgument(FarrowError, ValueError):
    """An argument has an invalid value, such as a name of 300 bytes."""


class DamagedFile(FarrowError, ValueError):
    """A saved file was changed after it was written, or is of another kind; it was not used.

    Attributes:
        path: path of the file.
    """

    path: str = ""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str]]:
        return DamagedFile, (str(self), self.path)


class UnsupportedType(InvalidArgument, TypeError):
    """This kind of Python object cannot be put, or is no target."""


class ProtocolError(FarrowError):
    """Client and node have different protocol versions, or one of them violated the protocol."""


if TYPE_CHECKING:

    class InternalError(FarrowError, RuntimeError):
        """A defect of Farrow: its native part panicked.

        The message says what happened there.  The client can be used on; please report it.
        """

else:
    # The extension raises this class for every panic.  PyO3 derives it from BaseException, which
    # `except Exception` does not catch.
    from farrow._native import InternalError

    InternalError.__bases__ = (RuntimeError, FarrowError)
    InternalError.__name__ = InternalError.__qualname__ = "InternalError"
    InternalError.__module__ = __name__
    InternalError.__doc__ = """A defect of Farrow: its native part panicked.

    The message says what happened there.  The client can be used on; please report it.
    """
