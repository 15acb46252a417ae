"""Sizes of the buffers in an Arrow IPC file or stream, from its metadata.

The file is read, not mapped: another process may truncate it meanwhile, and a load beyond the end
of a mapped file ends the process. Bodies are skipped.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

# https://arrow.apache.org/docs/format/Columnar.html, "Encapsulated message format".
_CONTINUATION = -1
_MAGIC = b"ARROW1"
# The magic at the start of a file is padded to a multiple of 8.
_FIRST = 8
_FOOTER = struct.Struct(f"<i{len(_MAGIC)}s")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
# Numbers of fields in Message.fbs. A union has two: its type and its value.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3


class Damaged(ValueError):
    """Metadata that cannot be right. The load reports it."""


def buffer_sizes(file: BinaryIO, *, is_file: bool) -> Iterator[int | None]:
    """Bytes of the buffers of each batch and dictionary; None: they are compressed.

    Raises:
        Damaged: the metadata cannot be right, or the file is too short.
    """
    position, end = 0, file.seek(0, 2)
    if is_file:
        position, end = _FIRST, _footer_start(file, end)
    while position + 4 <= end:
        position, length = _metadata_start(file, position)
        if length == 0:
            return
        message = _Table.root(_read(file, position, length))
        body = message.number("<q", _BODY_LENGTH)
        if body < 0 or position + length + body > end:
            raise Damaged(f"a body of {body} bytes in a file of {end}")
        position += length + body
        header, kind = message.table(_HEADER), message.number("<B", _HEADER_TYPE)
        if kind == _DICTIONARY_BATCH and header is not None:
            header = header.table(_DICTIONARY_DATA)
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) and header is not None:
            yield None if header.table(_COMPRESSION) else header.sum_of_buffers()


def _footer_start(file: BinaryIO, end: int) -> int:
    length, magic = _FOOTER.unpack(_read(file, end - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC or not 0 <= length <= end - _FOOTER.size:
        raise Damaged("no footer of an Arrow file")
    return int(end - _FOOTER.size - length)


def _metadata_start(file: BinaryIO, position: int) -> tuple[int, int]:
    """Where the metadata of a message is, and its length. Old files have no continuation mark."""
    (length,) = struct.unpack("<i", _read(file, position, 4))
    position += 4
    if length == _CONTINUATION:
        (length,) = struct.unpack("<i", _read(file, position, 4))
        position += 4
    return position, length


def _read(file: BinaryIO, position: int, length: int) -> bytes:
    if position < 0 or length < 0:
        raise Damaged(f"{length} bytes at {position}")
    file.seek(position)
    data = file.read(length)
    if len(data) < length:
        raise Damaged(f"{len(data)} of {length} bytes at {position}")
    return data


class _Table:
    """A table of a FlatBuffer. A field that is not there has the value 0, or None."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._unpack("<i", at)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        try:
            return cls(data, struct.unpack_from("<I", data)[0])
        except struct.error as error:
            raise Damaged(str(error)) from None

    def _unpack(self, kind: str, at: int) -> int:
        if at < 0:
            raise Damaged(f"a field at {at}")
        try:
            return int(struct.unpack_from(kind, self._data, at)[0])
        except struct.error as error:
            raise Damaged(str(error)) from None

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._unpack("<H", self._fields):
            return None
        distance = self._unpack("<H", self._fields + slot)
        return self._at + distance if distance else None

    def number(self, kind: str, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else self._unpack(kind, place)

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + self._unpack("<I", place))

    def sum_of_buffers(self) -> int:
        place = self._place(_BUFFERS)
        if place is None:
            return 0
        start = place + self._unpack("<I", place)
        count = self._unpack("<I", start)
        if start + 4 + 16 * count > len(self._data):
            raise Damaged(f"{count} buffers in {len(self._data)} bytes of metadata")
        # Pairs of offset and length.
        pairs = struct.unpack_from(f"<{2 * count}q", self._data, start + 4)
        if any(length < 0 for length in pairs[1::2]):
            raise Damaged("a buffer of negative length")
        return sum(pairs[1::2])
