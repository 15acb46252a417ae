"""The exceptions of Farrow: one umbrella, one class for each thing a caller can do about it.

Every class is also the built-in exception a Python programmer would expect, so that
``except KeyError``, ``except MemoryError`` or ``except TimeoutError`` work too.  Messages carry
the numbers; where a program may want them, they are attributes as well.
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
    "NodeLost",
    "NodeUnreachable",
    "NotFound",
    "NotGranted",
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
    """Anything that went wrong in Farrow.  Raised by itself only for errors of the system."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return Exception.__str__(self)


class NotFound(FarrowError, KeyError):
    """No sealed object has this name or id, or no namespace this name."""


class AlreadyExists(FarrowError):
    """The name is taken, by a sealed object or by one that is being written."""


class NotRestored(FarrowError, OSError):
    """A spilled object cannot be brought back: its file is missing, torn or of something else.

    The object is still listed, as spilled, and can be deleted.

    Attributes:
        file: the file.
    """

    file: str = ""


class OutOfMemory(FarrowError, MemoryError):
    """The region has no room.

    Attributes:
        what: what there is no room for: ``"objects"``, or ``"names"``, whose bytes lie apart.
        asked: bytes that were asked for.
        free: bytes free for it, in all.
        largest: bytes of the largest free piece.
        used: bytes that names take, where there is no room for names.
        waiting: requests that wait for memory and come first.
        waited_seconds: how long the node waited for room, when it was asked to.
    """

    what: str = "objects"
    asked: int = 0
    free: int = 0
    largest: int = 0
    used: int = 0
    waiting: int = 0
    waited_seconds: float = 0.0


class NotSpilled(OutOfMemory):
    """The region has no room, and what might leave it cannot be written to the spill folder.

    Attributes:
        folder: the folder, or the bucket.
        nbytes: bytes of the file that could not be written.
        reason: what the system says.
    """

    folder: str = ""
    nbytes: int = 0
    reason: str = ""


class TooLarge(OutOfMemory):
    """More than the region could ever hold: neither waiting nor deleting helps.

    Attributes:
        capacity: bytes of the region.
    """

    capacity: int = 0


class LimitReached(FarrowError):
    """A table of the node is full: clients, grants or holds.

    Attributes:
        limit: how many the node was started for.
    """

    limit: int = 0


class TooManyObjects(LimitReached):
    """The region's directory of objects is full."""


class NamespaceInUse(FarrowError):
    """A namespace cannot be dropped: something or somebody is in it.

    Attributes:
        objects: sealed objects in it.
        nbytes: bytes granted to its clients, and those of objects; also of deleted ones as long as
            somebody reads them.
        clients: clients in it.
    """

    objects: int = 0
    nbytes: int = 0
    clients: int = 0


class QuotaExceeded(LimitReached):
    """This client, or its namespace, has as much as it may have.

    Attributes:
        what: ``"bytes"`` or ``"objects"``.
        asked: how many were asked for.
        used: how many it has: memory held for what will be written, and objects, deleted ones as
            long as somebody reads them.
        limit: how many it may have.
        whose: the client, or the namespace.
        waiting: requests that wait for objects of this quota and come first.
        waited_seconds: how long the node waited for room, when it was asked to.
    """

    what: str = ""
    asked: int = 0
    used: int = 0
    whose: str = ""
    waiting: int = 0
    waited_seconds: float = 0.0


class RowsMissing(FarrowError, LookupError):
    """Nobody has appended some rows of a huge table yet, but later ones.

    Attributes:
        first: the first row that is missing.
        last: the last one of this gap.
    """

    first: int = 0
    last: int = 0


class RowsTaken(FarrowError, ValueError):
    """Some of the rows to be appended to a huge table are there already.

    Attributes:
        first: the first row of those that are there.
        last: the last one.
        version: the version of the table in which they came.
    """

    first: int = 0
    last: int = 0
    version: int = 0


class Timeout(FarrowError, TimeoutError):
    """The object was not sealed, or the node did not answer, within the time given.

    Attributes:
        waited_seconds: how long the call waited.
    """

    waited_seconds: float = 0.0


class InvalidDescriptor(FarrowError):
    """The bytes that describe an object do not hold together; nothing of it was used."""


class Disconnected(FarrowError, ConnectionError):
    """There is no node at this socket, it went away, or this process is a fork of the client.

    Tables that were got before stay readable.
    """


class NodeLost(FarrowError, ConnectionError):
    """The node in whose memory it lies, or is to lie, cannot be reached; other nodes go on.

    Values of that node that were got before stay readable.

    Attributes:
        node: name of the node.
    """

    node: str = ""


class NodeUnreachable(NodeLost):
    """The node lives, but its memory cannot be mapped by this client's node.

    So its objects cannot be read, and nothing can be put there, from here.  Names stay unique: a
    name that an object of that node has is taken.

    Attributes:
        node: name of the node.
        address: where the node listens.
        reason: why its memory cannot be mapped.
    """

    address: str = ""
    reason: str = ""


class BarrierBroken(FarrowError, ThreadBarrierBroken):
    """Not all parties of a barrier will come: one has ended, or its time is over.

    Attributes:
        who: whoever does not come, or gave up.
    """

    who: str = ""


class CutOff(FarrowError, ConnectionError):
    """The node does not reach most of its cluster, and so cannot say which names are free.

    Attributes:
        node: name of the node that was asked.
    """

    node: str = ""


class PermissionDenied(FarrowError, PermissionError):
    """The node or the system refuses this user."""


class NotGranted(PermissionDenied):
    """The node in whose memory it lies, or is to lie, does not let this client's node do it.

    Attributes:
        node: the client's node.
        namespace: the namespace; "" is the default one.
        right: what it lacks: ``"read"``, ``"write"`` or ``"delete"``.
    """

    node: str = ""
    namespace: str = ""
    right: str = ""


class InvalidArgument(FarrowError, ValueError):
    """An argument has a value that makes no sense here, such as a name of 300 bytes."""


class DamagedFile(FarrowError, ValueError):
    """A saved file is not as it was written, or is no such file; nothing of it was used.

    Attributes:
        path: the file.
    """

    path: str = ""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str]]:
        return DamagedFile, (str(self), self.path)


class UnsupportedType(InvalidArgument, TypeError):
    """This kind of Python object cannot be put, or named as a target."""


class ProtocolError(FarrowError):
    """Client and node do not speak the same version, or one of them broke the rules."""


if TYPE_CHECKING:

    class InternalError(FarrowError, RuntimeError):
        """A defect of Farrow: its native part panicked.

        The message says what happened there.  The client can be used on; please report it.
        """

else:
    # The class that the extension module raises for a panic, wherever it happens.  The library
    # that makes it derives it from BaseException, which no `except Exception` catches.
    from farrow._native import InternalError

    InternalError.__bases__ = (RuntimeError, FarrowError)
    InternalError.__name__ = InternalError.__qualname__ = "InternalError"
    InternalError.__module__ = __name__
    InternalError.__doc__ = """A defect of Farrow: its native part panicked.

    The message says what happened there.  The client can be used on; please report it.
    """
