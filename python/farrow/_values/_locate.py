"""Locations of the buffers of a value: the result of ``Client.locate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow.exceptions import UnsupportedType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow._native import Client
    from farrow._values._types import BufferLocation

__all__ = ["buffers_of", "locate"]


def locate(client: Client, value: Any) -> list[BufferLocation]:
    """One entry for each non-empty buffer, in the order of the value."""
    found: list[BufferLocation] = []
    for column, chunk, number, address, size in buffers_of(value):
        offset = client._offset(address, size)
        found.append(
            {
                "column": column,
                "chunk": chunk,
                "buffer": number,
                "address": address,
                "offset": offset,
                "bytes": size,
                "in_region": offset is not None,
            }
        )
    return found


def buffers_of(value: Any) -> Iterator[tuple[str, int, int, int, int]]:
    """Column, chunk, buffer, address and size of each buffer."""
    if isinstance(value, (pa.Table, pa.RecordBatch)):
        for name, column in zip(value.column_names, value.columns, strict=True):
            for _, chunk, number, address, size in buffers_of(column):
                yield name, chunk, number, address, size
    elif isinstance(value, pa.ChunkedArray):
        for chunk, array in enumerate(value.chunks):
            for _, _, number, address, size in buffers_of(array):
                yield "", chunk, number, address, size
    elif isinstance(value, pa.Array):
        for number, buffer in enumerate(_of_array(value)):
            if buffer is not None and buffer.size:
                yield "", 0, number, buffer.address, buffer.size
    elif isinstance(value, pa.Buffer):
        yield "", 0, 0, value.address, value.size
    elif hasattr(value, "__array_interface__"):
        yield "", 0, 0, value.__array_interface__["data"][0], value.nbytes
    else:
        try:
            buffer = pa.py_buffer(value)
        except TypeError:
            raise UnsupportedType(
                f"{type(value).__name__} is no pyarrow value, numpy array or bytes-like"
            ) from None
        yield "", 0, 0, buffer.address, buffer.size


def _of_array(array: pa.Array) -> list[pa.Buffer | None]:
    """The buffers of an array and of its children, then those of all its dictionaries."""
    buffers: list[pa.Buffer | None] = list(array.buffers())
    for dictionary in _dictionaries(array):
        buffers += _of_array(dictionary)
    return buffers


def _dictionaries(array: pa.Array) -> Iterator[pa.Array]:
    if isinstance(array, pa.ExtensionArray):
        yield from _dictionaries(array.storage)
    elif isinstance(array, pa.DictionaryArray):
        yield array.dictionary
    elif isinstance(array, (pa.StructArray, pa.UnionArray)):
        for number in range(array.type.num_fields):
            yield from _dictionaries(array.field(number))
    elif isinstance(array, pa.MapArray):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif isinstance(array, pa.RunEndEncodedArray) or hasattr(array, "values"):
        yield from _dictionaries(array.values)
