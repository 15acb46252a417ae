"""Exchange the children of a serialized plan.

DataFusion serializes a physical plan as protobuf: a message for each operator, in it one field with
the operator's own message, and in that the messages of its children.  Python cannot build plans, so
a child is replaced here, in the bytes: by those of another plan, which DataFusion serialized.
Nothing else of the format is known, and a child that is not found once is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow_sql._errors import CannotDistribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["replace_children", "replace_texts"]

# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# A varint has seven bits in each of at most ten bytes.
_VARINT_BYTES = 10


def replace_children(plan: bytes, children: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A plan in which each child, given as its bytes, is another one.

    Equal children are exchanged in the order given.

    Raises:
        CannotDistribute: a child is not in the plan, or the plan is no protobuf.
    """
    pending = list(children)
    result = _replace(plan, pending, depth=1)
    if pending:
        raise CannotDistribute(f"{len(pending)} of {len(children)} children are not in their plan")
    return result


def replace_texts(plan: bytes, texts: Sequence[tuple[str, str]]) -> bytes:
    """A plan whose outermost operator has other texts, such as names of columns."""
    return replace_children(plan, [(old.encode(), new.encode()) for old, new in texts])


def _replace(message: bytes, pending: list[tuple[bytes, bytes]], depth: int) -> bytes:
    result = bytearray()
    for key, wire_type, whole, content in _fields(message):
        found = content
        if wire_type == _BYTES:
            if depth > 0:
                found = _replace(content, pending, depth - 1)
            else:
                for number, (old, new) in enumerate(pending):
                    if content == old:
                        found = new
                        del pending[number]
                        break
        if found is content:
            result += whole
        else:
            result += _varint(key) + _varint(len(found)) + found
    return bytes(result)


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Key, wire type, all bytes and content of each field."""
    at = 0
    while at < len(message):
        key, content = _read_varint(message, at)
        wire_type = key & 7
        if wire_type == _BYTES:
            length, content = _read_varint(message, content)
            end = content + length
        elif wire_type == _VARINT:
            _, end = _read_varint(message, content)
        elif wire_type in (_FIXED64, _FIXED32):
            end = content + (8 if wire_type == _FIXED64 else 4)
        else:
            raise CannotDistribute(f"a plan with a field of wire type {wire_type}")
        if end > len(message):
            raise CannotDistribute(f"a plan with a field that ends at {end} of {len(message)} B")
        yield key, wire_type, message[at:end], message[content:end]
        at = end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise CannotDistribute(f"a plan with a number at {at} that does not end")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
