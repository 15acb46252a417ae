"""Columns of Farrow's tables as functions of the number of the row.

DataFusion has no way to put a table of Python into a serialized plan.  It resolves functions by
their names, though.  So a table is read as ``select column_0(value), ... from range(first, end)``:
the function gets the numbers of a batch of rows, and returns those rows of the column in place.  A
filter leaves gaps in the numbers: then the function takes the rows that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datafusion
import numpy as np
import pyarrow as pa

from farrow._scan import _ending
from farrow_sql._errors import QueryFailed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Column", "register"]

# Types of the offsets of strings and bytes.
_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
# Batches of rows can have the dictionaries of several chunks.
_INDEX = pa.int32()
_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Column:
    """The rows ``first`` to ``first + len(values)`` of one column."""

    def __init__(
        self, values: pa.ChunkedArray, first: int, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._type = _widened(values.type)
        self._chunks = [_as(self._type, chunk) for chunk in values.chunks if len(chunk)]
        lengths = np.array([len(chunk) for chunk in self._chunks], np.int64)
        # The row at which each chunk begins, and the end.
        self._starts = np.concatenate([[0], np.cumsum(lengths)]) + first
        self._is_cancelled = is_cancelled

    def __call__(self, numbers: pa.Array) -> pa.Array:
        """The values of these rows."""
        with _ending.call():
            return self._values(numbers)

    def _values(self, numbers: pa.Array) -> pa.Array:
        if self._is_cancelled():
            raise QueryFailed("the query was cancelled")
        if len(numbers) == 0:
            # Unlike ``pa.array``, of any type.
            return pa.nulls(0, self._type)
        if numbers.null_count:
            raise QueryFailed(f"{numbers.null_count} of {len(numbers)} numbers of rows are null")
        rows = numbers.to_numpy(zero_copy_only=False)
        least, most = int(rows.min()), int(rows.max())
        if least < self._starts[0] or most >= self._starts[-1]:
            raise QueryFailed(
                f"rows {least} to {most} of a part that has {self._starts[0]} to {self._starts[-1]}"
            )
        if most - least == len(rows) - 1 and bool(np.all(rows[1:] - rows[:-1] == 1)):
            return self._range(least, most + 1)
        return self._some(rows)

    def _range(self, begin: int, end: int) -> pa.Array:
        first, last = self._chunk_of(begin), self._chunk_of(end - 1)
        parts = []
        for number in range(first, last + 1):
            start = self._starts[number]
            chunk = self._chunks[number]
            low, high = max(0, begin - start), min(len(chunk), end - start)
            parts.append(chunk.slice(low, high - low))
        return _rebased(parts[0]) if len(parts) == 1 else _joined(parts)

    def _some(self, rows: np.ndarray[Any, Any]) -> pa.Array:
        found = np.searchsorted(self._starts, rows, side="right") - 1
        if found[0] == found[-1] and bool(np.all(found == found[0])):
            chunk = int(found[0])
            return _take(self._chunks[chunk], rows - self._starts[chunk])
        # The rows of each chunk, then back into the order that was asked for.
        order = np.argsort(found, kind="stable")
        numbers, begins = np.unique(found[order], return_index=True)
        ends = [*begins[1:], len(rows)]
        parts = [
            _take(self._chunks[number], rows[order[begin:end]] - self._starts[number])
            for number, begin, end in zip(numbers, begins, ends, strict=True)
        ]
        joined = _joined(parts)
        if bool(np.all(order[1:] > order[:-1])):
            return joined
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return _take(joined, back)

    def _chunk_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1


def _widened(kind: pa.DataType) -> pa.DataType:
    """The type, with indices for the dictionaries of all chunks together."""
    if not pa.types.is_dictionary(kind) or kind.index_type.bit_width >= _INDEX.bit_width:
        return kind
    return pa.dictionary(_INDEX, kind.value_type, kind.ordered)


def _as(kind: pa.DataType, values: pa.Array) -> pa.Array:
    if values.type == kind:
        return values
    indices = values.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary, ordered=kind.ordered)


def _joined(parts: list[pa.Array]) -> pa.Array:
    """The values of several arrays, one after another."""
    try:
        return pa.concat_arrays(parts)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Arrow unifies no dictionaries with nulls, as DataFusion makes them in lists.
        return pa.concat_arrays([_without_null_words(part) for part in parts])


def _without_null_words(values: pa.Array) -> pa.Array:
    """The same values, whose nulls are none of the words of dictionaries."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        is_word = values.dictionary.is_valid().to_numpy(zero_copy_only=False)
        numbers = pa.array(np.cumsum(is_word) - 1, kind.index_type, mask=~is_word)
        words = values.dictionary.drop_null()
        return pa.DictionaryArray.from_arrays(
            numbers.take(values.indices), words, ordered=kind.ordered
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _without_null_words(values.values)
        own = values.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(values), own, values.null_count, values.offset, [items]
        )
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [_without_null_words(values.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    return values


def _take(values: pa.Array, rows: np.ndarray[Any, Any]) -> pa.Array:
    """Some rows of an array.  Arrow takes none of views: those are taken as plain strings."""
    plain = _PLAIN.get(values.type)
    if plain is not None:
        first = int(rows.min())
        around = values.slice(first, int(rows.max()) + 1 - first).cast(plain)
        return around.take(pa.array(rows - first)).cast(values.type)
    try:
        return values.take(pa.array(rows))
    except pa.ArrowNotImplementedError:
        # Run by run of rows that follow each other.
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        runs = np.split(rows, ends)
        return pa.concat_arrays([values.slice(int(run[0]), len(run)) for run in runs])


def _rebased(values: pa.Array) -> pa.Array:
    """The same values at the beginning of their buffers, in place where the type allows it.

    DataFusion counts the buffers of an array as its memory, from their beginning: a late slice of a
    large chunk would be charged with nearly the whole chunk.
    """
    kind = values.type
    if values.offset == 0:
        return values
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _rebased(values.storage))
    if pa.types.is_dictionary(kind):
        indices = _rebased(values.indices)
        return pa.DictionaryArray.from_arrays(
            indices, values.dictionary, ordered=kind.ordered, safe=False
        )
    if kind in _OFFSETS:
        return _rebased_texts(values)
    if _is_fixed_width(kind):
        width = kind.bit_width // 8
        data = values.buffers()[1].slice(values.offset * width, len(values) * width)
        return _from_buffers(values, data)
    try:
        return _take(values, np.arange(len(values)))
    except pa.ArrowNotImplementedError:
        return values


def _rebased_texts(values: pa.Array) -> pa.Array:
    """Strings or bytes, with offsets of their own."""
    _, offsets, data = values.buffers()
    kind = _OFFSETS[values.type]
    ends = np.frombuffer(offsets, kind)[values.offset : values.offset + len(values) + 1]
    begin, end = int(ends[0]), int(ends[-1])
    own = pa.py_buffer(b"") if data is None else data.slice(begin, end - begin)
    return _from_buffers(values, pa.py_buffer(ends - kind(begin)), own)


def _from_buffers(values: pa.Array, *buffers: pa.Buffer) -> pa.Array:
    """An array of these buffers with the validity of a slice."""
    validity = None
    if values.null_count:
        validity = values.buffers()[0]
        if values.offset % 8 == 0:
            validity = validity.slice(values.offset // 8, (len(values) + 7) // 8)
        else:
            validity = values.is_valid().buffers()[1]
    return pa.Array.from_buffers(values.type, len(values), [validity, *buffers], values.null_count)


def _is_fixed_width(kind: pa.DataType) -> bool:
    """Whether values are whole bytes of one buffer."""
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width > 0)
    is_number = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return bool(is_number and kind.bit_width % 8 == 0)


def register(context: datafusion.SessionContext, name: str, column: Column) -> None:
    """Let plans of a session call the column by a name."""
    function = datafusion.udf(column, [pa.int64()], column._type, "immutable", name=name)
    context.register_udf(function)
