"""The wire format of Protocol Buffers: the fields of one message, and its numbers.

Messages are input: a message is divided into its fields without recursion, and whatever is not well
formed raises :class:`Malformed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BYTES", "VARINT", "Malformed", "Span", "decode_varint", "encode_varint", "spans"]

# Types of fields.
VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
# Seven bits in each byte, the least significant first.
_VARINT_BYTES_MAX = 10


class Malformed(ValueError):
    """Bytes are no message of the expected type."""


class Span(NamedTuple):
    """Where a field is in its message: from its key, from its content, and its end."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


def spans(data: bytes) -> Iterator[Span]:
    """The fields of a message, in their order.

    Raises:
        Malformed: the bytes are no message.
    """
    begin = 0
    while begin < len(data):
        key, content = decode_varint(data, begin)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed("a field with the number 0")
        if kind == VARINT:
            _, end = decode_varint(data, content)
        elif kind == BYTES:
            length, content = decode_varint(data, content)
            end = content + length
        elif kind in _FIXED_BYTES:
            end = content + _FIXED_BYTES[kind]
        else:
            raise Malformed(f"field {number} has the unknown wire type {kind}")
        if end > len(data):
            length, left = end - content, len(data) - content
            raise Malformed(f"field {number} has {length} bytes, {left} are left")
        yield Span(number, kind, begin, content, end)
        begin = end


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it.

    Raises:
        Malformed: it ends early, or has more than 64 bits.
    """
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


def encode_varint(value: int) -> bytes:
    """A number of at most 64 bits, not negative."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
