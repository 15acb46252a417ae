"""Filters of Arrow with the three-valued logic of SQL for ``is_in``.

``is_in`` of null is false, so its negation is true; in SQL both are null.  An expression has no
public parts: its serialized form is a schema whose metadata lists the parts in order, as pairs of
names and values, with a batch of one row that has the literals.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from farrow._scan._pruning import text_of

__all__ = ["sql_filter", "with_null_sets"]

_Pair = tuple[bytes, bytes]

_CALL, _END, _OPTIONS, _LITERAL = b"call", b"end", b"options", b"literal"
_SET = b"is_in"
# What shows that an ``is_in`` of null is not false: its result is negated or looked at.
_LOOKS = ("invert(", "is_null(", "is_valid(", "if_else(")


def sql_filter(filter: pc.Expression | pa.Scalar | None) -> pc.Expression | None:
    """A filter that DataFusion gives to a dataset, with the logic of SQL.  It can be a constant, to
    which DataFusion simplifies contradictions.

    Raises:
        ValueError: as ``with_null_sets``.
    """
    if filter is None:
        return None
    return pc.scalar(filter) if isinstance(filter, pa.Scalar) else with_null_sets(filter)


def with_null_sets(filter: pc.Expression) -> pc.Expression:
    """The filter, in which ``is_in`` of null is null.

    Raises:
        ValueError: this version of Arrow stores an expression in another form.
    """
    text = text_of(filter)
    if text is not None and ("is_in(" not in text or not any(one in text for one in _LOOKS)):
        return filter
    rebuild, (stored, *_) = filter.__reduce__()
    try:
        literals = pa.ipc.open_file(stored).get_batch(0)
        parts = iter(_pairs(literals.schema))
        null = (_LITERAL, str(literals.num_columns).encode())
        rewritten = _rewritten(next(parts), parts, null)
        if next(parts, None) is not None:
            raise ValueError("parts behind the expression")
        columns = [*literals.columns, pa.array([None], pa.bool_())]
        schema = pa.schema(
            [pa.field("", column.type) for column in columns],
            metadata=pa.KeyValueMetadata(rewritten),
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        result: pc.Expression = rebuild(sink.getvalue())
    except (pa.ArrowException, LookupError, StopIteration, TypeError, ValueError) as error:
        raise ValueError(f"IN of several values, negated, by pyarrow {pa.__version__}") from error
    return result


def _rewritten(pair: _Pair, parts: Iterator[_Pair], null: _Pair) -> list[_Pair]:
    """The expression that begins with this pair; each ``is_in(a, ...)`` in it becomes
    ``if_else(is_valid(a), is_in(a, ...), null)``."""
    kind, value = pair
    if kind == b"nested_field_ref":
        return [pair, *(next(parts) for _ in range(int(value)))]
    if kind != _CALL:
        return [pair]
    found, operands = [pair], []
    for part in parts:
        if part[0] in (_OPTIONS, _END):
            found.append(part)
            if part[0] == _END:
                break
        else:
            operands.append(_rewritten(part, parts, null))
            found += operands[-1]
    else:
        raise ValueError("a call without an end")
    if value != _SET:
        return found
    is_valid = [(_CALL, b"is_valid"), *operands[0], (_END, b"is_valid")]
    return [(_CALL, b"if_else"), *is_valid, *found, null, (_END, b"if_else")]


def _pairs(schema: pa.Schema) -> list[_Pair]:
    """The metadata of a schema with all values of a key, which ``metadata`` has once.

    By the C data interface: the third pointer of the structure is to the number of pairs, and then
    each key and value behind its length, all as int32.
    """
    pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = schema.__arrow_c_schema__()
    structure = pointer_of(capsule, b"arrow_schema")
    address = ctypes.cast(structure, ctypes.POINTER(ctypes.c_void_p))[2]
    if not address:
        return []

    def number() -> int:
        nonlocal address
        value = ctypes.c_int32.from_address(address).value
        address += 4
        return value

    def text() -> bytes:
        nonlocal address
        length = number()
        value = ctypes.string_at(address, length)
        address += length
        return value

    return [(text(), text()) for _ in range(number())]
