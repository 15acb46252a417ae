"""Ids, errors and parts of objects, as Plasma has them."""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from farrow import exceptions as _exceptions
from farrow.compat._plasma_notifications import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import farrow

__all__ = [
    "CREATED_AT",
    "DATA_BYTES",
    "PREFIX",
    "Creation",
    "ObjectID",
    "ObjectNotAvailable",
    "Parts",
    "PlasmaObjectExists",
    "PlasmaObjectNotFound",
    "PlasmaStoreFull",
    "check_buffer",
    "data_bytes_of",
    "id_of",
    "name_of",
    "plasma_errors",
    "seconds_of",
]

PREFIX = "plasma/"
# The label with the number of data bytes; the metadata follows them.
DATA_BYTES = "plasma-data-bytes"
# The label with the time of ``create``, in seconds since 1970.
CREATED_AT = "plasma-created-at"
# No number of bytes has more.
_DIGITS_MAX = 20


class PlasmaObjectNotFound(_exceptions.NotFound, pa.lib.ArrowException):  # type: ignore[misc]
    """The object does not exist, or is not in creation here."""


class PlasmaObjectExists(_exceptions.AlreadyExists, pa.lib.ArrowException):  # type: ignore[misc]
    """An object with this id exists, sealed or not."""


class PlasmaStoreFull(_exceptions.OutOfMemory, pa.lib.ArrowException):  # type: ignore[misc]
    """There is no room for the object."""


@contextlib.contextmanager
def plasma_errors() -> Iterator[None]:
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
    """The id of an object: 20 bytes, chosen by its creator.

    Args:
        object_id: the 20 bytes.

    Raises:
        ValueError: another number of bytes.

    Examples:
        >>> from farrow.compat import plasma
        >>> plasma.ObjectID(b"a" * 20) == plasma.ObjectID(b"a" * 20)
        True
    """

    __slots__ = ("_bytes",)

    def __init__(self, object_id: bytes) -> None:
        if len(object_id) != ID_BYTES:
            raise ValueError(f"an object id has {ID_BYTES} bytes, this one has {len(object_id)}")
        self._bytes = bytes(object_id)

    @staticmethod
    def from_random() -> ObjectID:
        """A random id.

        Returns:
            The id, by the random numbers of the operating system.

        Examples:
            >>> from farrow.compat import plasma
            >>> len(plasma.ObjectID.from_random().binary())
            20
        """
        return ObjectID(os.urandom(ID_BYTES))

    def binary(self) -> bytes:
        """The bytes of the id.

        Returns:
            20 bytes.

        Examples:
            >>> from farrow.compat import plasma
            >>> plasma.ObjectID(b"a" * 20).binary()
            b'aaaaaaaaaaaaaaaaaaaa'
        """
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectID) and other._bytes == self._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"ObjectID({self._bytes.hex()})"

    def __reduce__(self) -> tuple[type[ObjectID], tuple[bytes]]:
        return (ObjectID, (self._bytes,))


# Pickles and messages have the public path.
for _public in (
    ObjectID,
    ObjectNotAvailable,
    PlasmaObjectExists,
    PlasmaObjectNotFound,
    PlasmaStoreFull,
):
    _public.__module__ = "farrow.compat.plasma"


def name_of(object_id: ObjectID) -> str:
    """The name of an object in Farrow."""
    return PREFIX + object_id.binary().hex()


def id_of(name: str | None) -> ObjectID | None:
    """The id in an object's name; None if the name is not of this module."""
    digits = (name or "")[len(PREFIX) :]
    if len(digits) != 2 * ID_BYTES:
        return None
    try:
        found = ObjectID(bytes.fromhex(digits))
    except ValueError:
        return None
    # Other digits, such as capital ones, are a name that no id leads to.
    return found if name_of(found) == name else None


def data_bytes_of(labels: Mapping[str, str], nbytes: int) -> int:
    """The data bytes of an object of ``nbytes``: all of them without the label of ``create``, or if
    the label, which any program can write, has no such number."""
    text = labels.get(DATA_BYTES, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        return nbytes
    return min(int(text), nbytes)


def seconds_of(labels: Mapping[str, str], otherwise: float) -> float:
    """The time of creation in the labels, in seconds since 1970."""
    try:
        found = float(labels.get(CREATED_AT, otherwise))
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


def check_buffer(value: object, name: str, address: str) -> None:
    """Refuse what Farrow's ``put`` made of another value than bytes.

    Raises:
        UnsupportedType: it is no buffer.
    """
    if not isinstance(value, pa.Buffer):
        raise _exceptions.UnsupportedType(
            f"{name} is a {type(value).__name__} that another program put: "
            f'farrow.connect("{address}").get("{name}") reads it'
        )


class Parts(NamedTuple):
    """One object: its data and its metadata, both in place."""

    data: pa.Buffer
    metadata: pa.Buffer


class Creation(NamedTuple):
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
