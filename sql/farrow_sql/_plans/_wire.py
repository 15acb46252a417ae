"""Exchange the children of a serialized plan.

DataFusion serializes a physical plan as protobuf: a message for each operator, in it one field with
the operator's own message, and in that the messages of its children.  Python cannot build plans, so
a child is replaced here, in the bytes: by those of another plan, which DataFusion serialized.
Nothing else of the format is known, and a child that is not found once is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow._protobuf import BYTES, Malformed, encode_varint, spans
from farrow_sql._errors import CannotDistribute

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["replace_children", "replace_texts"]


def replace_children(plan: bytes, children: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A plan in which each child, given as its bytes, is another one.

    Equal children are exchanged in the order given.

    Raises:
        CannotDistribute: a child is not in the plan, or the plan is no protobuf.
    """
    pending = list(children)
    try:
        result = _replace(plan, pending, depth=1)
    except Malformed as error:
        raise CannotDistribute(f"a plan that is no protobuf: {error}") from None
    if pending:
        raise CannotDistribute(f"{len(pending)} of {len(children)} children are not in their plan")
    return result


def replace_texts(plan: bytes, texts: Sequence[tuple[str, str]]) -> bytes:
    """A plan whose outermost operator has other texts, such as names of columns."""
    return replace_children(plan, [(old.encode(), new.encode()) for old, new in texts])


def _replace(message: bytes, pending: list[tuple[bytes, bytes]], depth: int) -> bytes:
    result = bytearray()
    for span in spans(message):
        found = content = message[span.content : span.end]
        if span.kind == BYTES:
            if depth > 0:
                found = _replace(content, pending, depth - 1)
            else:
                for number, (old, new) in enumerate(pending):
                    if content == old:
                        found = new
                        del pending[number]
                        break
        if found is content:
            result += message[span.begin : span.end]
        else:
            result += encode_varint(span.number << 3 | BYTES) + encode_varint(len(found)) + found
    return bytes(result)
