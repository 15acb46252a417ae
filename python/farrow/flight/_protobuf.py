"""The few flat messages of Flight SQL, in the wire format of Protocol Buffers.

Messages are input of any program that can connect.  A message is decoded into a list of its fields,
without recursion and with a limit, and whatever is not well formed raises :class:`Malformed`.
"""

from __future__ import annotations

from typing import NamedTuple

from farrow._protobuf import BYTES, VARINT, Malformed, decode_varint, encode_varint, spans

__all__ = ["Malformed", "Message", "encode"]

# Fields of one message; the longest is a list of all numbers of CommandGetSqlInfo.
_FIELDS_MAX = 4096


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
                    value, position = decode_varint(field.value, position)
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
            out += encode_varint(number << 3 | VARINT) + encode_varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += encode_varint(number << 3 | BYTES) + encode_varint(len(data)) + data
    return bytes(out)


def _decode(data: bytes) -> list[_Field]:
    fields: list[_Field] = []
    for span in spans(data):
        if len(fields) == _FIELDS_MAX:
            raise Malformed(f"more than {_FIELDS_MAX} fields")
        value: int | bytes
        if span.kind == VARINT:
            value, _ = decode_varint(data, span.content)
        else:
            value = bytes(data[span.content : span.end])
        fields.append(_Field(span.number, value))
    return fields
