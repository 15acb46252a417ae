"""The wire format of Protocol Buffers, for the few flat messages of Flight SQL.

Messages are input of anybody who can connect.  A message is decoded into a list of its fields,
without recursion and with a limit, and whatever is not well formed raises :class:`Malformed`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Malformed", "Message", "encode"]

# Fields of one message; the longest is a list of all numbers of CommandGetSqlInfo.
_FIELDS_MAX = 4096
_VARINT_BYTES_MAX = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes are no message of the expected type."""


class _Field(NamedTuple):
    number: int
    value: int | bytes


class Message:
    """The fields of one message, by their numbers.

    An absent field has the default of its type: 0, False or empty.

    Args:
        data: the encoded message.

    Raises:
        Malformed: the bytes are no message, or it has more than 4,096 fields.
    """

    def __init__(self, data: bytes) -> None:
        self._fields = _decode(data)

    def has(self, number: int) -> bool:
        """Whether a field is present."""
        return any(field.number == number for field in self._fields)

    def integers(self, number: int) -> list[int]:
        """The values of a repeated field of unsigned integers, packed or not."""
        found: list[int] = []
        for field in self._fields:
            if field.number != number:
                continue
            if isinstance(field.value, int):
                found.append(field.value)
            else:
                position = 0
                while position < len(field.value):
                    value, position = _varint(field.value, position)
                    found.append(value)
        if len(found) > _FIELDS_MAX:
            raise Malformed(f"field {number} has {len(found)} values, {_FIELDS_MAX} are allowed")
        return found

    def boolean(self, number: int) -> bool:
        """A boolean field."""
        values = self.integers(number)
        return bool(values and values[-1])

    def binaries(self, number: int) -> list[bytes]:
        """The values of a repeated field of bytes or messages."""
        values = [field.value for field in self._fields if field.number == number]
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise Malformed(f"field {number} is a number, not bytes")
        return found

    def binary(self, number: int) -> bytes:
        """A field of bytes or a message."""
        values = self.binaries(number)
        return values[-1] if values else b""

    def texts(self, number: int) -> list[str]:
        """The values of a repeated field of strings."""
        try:
            return [value.decode() for value in self.binaries(number)]
        except UnicodeDecodeError as error:
            raise Malformed(f"field {number} is not UTF-8 at byte {error.start}") from None

    def text(self, number: int) -> str:
        """A field of a string."""
        values = self.texts(number)
        return values[-1] if values else ""

    def optional_text(self, number: int) -> str | None:
        """A field of a string; None if it is absent."""
        return self.text(number) if self.has(number) else None


def encode(*fields: tuple[int, int | bytes | str]) -> bytes:
    """A message of these fields: numbers as varints, bytes and strings with their length."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _encoded(number << 3 | _VARINT) + _encoded(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _encoded(number << 3 | _BYTES) + _encoded(len(data)) + data
    return bytes(out)


def _decode(data: bytes) -> list[_Field]:
    fields: list[_Field] = []
    position = 0
    while position < len(data):
        if len(fields) == _FIELDS_MAX:
            raise Malformed(f"more than {_FIELDS_MAX} fields")
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed("a field with the number 0")
        value: int | bytes
        if kind == _VARINT:
            value, position = _varint(data, position)
        else:
            if kind == _BYTES:
                length, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise Malformed(f"field {number} has the unknown wire type {kind}")
            if length > len(data) - position:
                left = len(data) - position
                raise Malformed(f"field {number} has {length} bytes, {left} are left")
            value = bytes(data[position : position + length])
            position += length
        fields.append(_Field(number, value))
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_VARINT_BYTES_MAX):
        if position + count >= len(data):
            raise Malformed("a number ends early")
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, position + count + 1
    raise Malformed("a number has more than 64 bits")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
