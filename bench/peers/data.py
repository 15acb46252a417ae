"""The table that peers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Rows of a pattern that is repeated: fast to write, and larger than any cache.
_PIECE_ROWS = 1 << 23
_STRIDE = 20


def make_table(rows: int, pool: Any = None) -> Any:
    """Three columns, int64, int8 and uint16, of ``rows`` rows: 11 bytes a row.

    With a pool the same values are computed straight into its memory.
    """
    arrays = []
    for dtype, modulus in ((np.int64, 1 << 40), (np.int8, 127), (np.uint16, 60_000)):
        width = np.dtype(dtype).itemsize
        buffer = pa.allocate_buffer(rows * width, memory_pool=pool)
        values = np.frombuffer(buffer, dtype=dtype)
        piece = min(_PIECE_ROWS, rows)
        pattern = ((np.arange(piece) * _STRIDE) % modulus).astype(dtype)
        for start in range(0, rows, max(piece, 1)):
            count = min(piece, rows - start)
            values[start : start + count] = pattern[:count]
        del values
        arrays.append(pa.Array.from_buffers(pa.from_numpy_dtype(dtype), rows, [None, buffer]))
    return pa.table(arrays, names=["a", "b", "c"])


def checksum(table: Any) -> int:
    """The sum of all values, to check that the same table was read."""
    return sum(int(pc.sum(column).as_py() or 0) for column in table.columns)
