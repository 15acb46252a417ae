"""Write an object of the store as a file, in the format of the file name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS", "as_table", "format_for", "write_object"]

# Name of a format, and its file extensions.
FORMATS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".csv.gz"),
    "ipc": (".arrow", ".feather", ".ipc"),
    "ipc-stream": (".arrows",),
    "npy": (".npy",),
    "raw": (".bin", ".raw"),
}
_Writer = Callable[[pa.Table, BinaryIO], None]


def format_for(path: Path) -> str | None:
    """The format of a file name, or None if its extension is unknown."""
    name = path.name.lower()
    for word, endings in FORMATS.items():
        if name.endswith(endings):
            return word
    return None


def as_table(value: Any) -> pa.Table:
    """A table of an object's value, sharing its buffers.

    Arrays become one column named ``value``.

    Raises:
        TypeError: the value is bytes or an n-dimensional array.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return pa.table({"value": value})
    raise TypeError(f"a {type(value).__name__} is not a table")


def write_object(value: Any, sink: BinaryIO, word: str) -> None:
    """Write an object of the store to an open binary file.

    Args:
        value: Table, RecordBatch, Array, ChunkedArray, ndarray or pyarrow.Buffer.
        sink: the output file.
        word: a key of ``FORMATS``.  ``raw`` accepts bytes and arrays, ``npy`` arrays of numbers,
            the others tables.

    Raises:
        OSError: the file cannot be written.
        TypeError: the format cannot hold such an object.
        pyarrow.ArrowException: the format cannot hold such a column (CSV of lists).
    """
    if word == "raw":
        _write_raw(value, sink)
    elif word == "npy":
        _write_npy(value, sink)
    else:
        writers: dict[str, _Writer] = {
            "parquet": lambda table, out: pq.write_table(table, out),
            "csv": lambda table, out: pacsv.write_csv(table, out),
            "ipc": _write_ipc_file,
            "ipc-stream": _write_ipc_stream,
        }
        writers[word](as_table(value), sink)


def _write_ipc_file(table: pa.Table, sink: BinaryIO) -> None:
    # The file format has one dictionary per column for all its chunks.
    table = table.unify_dictionaries()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _write_ipc_stream(table: pa.Table, sink: BinaryIO) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _write_raw(value: Any, sink: BinaryIO) -> None:
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        raise TypeError(f"a {type(value).__name__} has no raw bytes: use ipc, parquet or csv")
    view = memoryview(value)
    sink.write(view if view.c_contiguous else view.tobytes())


def _write_npy(value: Any, sink: BinaryIO) -> None:
    import numpy as np

    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__name__} is not an n-dimensional array")
    np.save(sink, value, allow_pickle=False)
