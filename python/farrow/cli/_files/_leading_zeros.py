"""Numbers with leading zeros, such as postcodes: columns that have one anywhere stay text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from farrow.cli._files._sniff import compression_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from farrow.cli._files._sniff import TextShape

__all__ = ["columns_with_zeros"]

# It and what is computed of it stay in a cache of the processor.
_PIECE_BYTES = 256 << 10
# What a field begins behind, besides the delimiter.
_BEGINS = b'\n\r"'
_ZERO, _DIGITS = ord("0"), 10


def columns_with_zeros(path: Path, shape: TextShape, columns: Sequence[str]) -> list[str]:
    """Those of these columns of integers in which some number begins with a zero.

    The bytes are searched first, for any field of that kind.  Only if there is one, the columns are
    read again, block by block.
    """
    if not _may_have_zeros(path, shape.delimiter):
        return []
    read = pacsv.ReadOptions(column_names=list(shape.columns), skip_rows=shape.skip_lines)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=list(columns)
    )
    left, found = list(columns), []
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        for batch in pacsv.open_csv(stream, read, shape.parse_options(), convert):
            has = pc.match_substring_regex
            with_zeros = [
                name for name in left if pc.any(has(batch.column(name), r"^\s*[+-]?0[0-9]")).as_py()
            ]
            found += with_zeros
            left = [name for name in left if name not in with_zeros]
            if not left:
                break
    return found


def _may_have_zeros(path: Path, delimiter: str) -> bool:
    """Whether a zero and a digit follow the beginning of any field."""
    rest = b""
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        while piece := stream.read(_PIECE_BYTES):
            data = np.frombuffer(rest + piece, np.uint8)
            before = data[:-2]
            is_number = before == ord(delimiter)
            for sign in _BEGINS:
                is_number |= before == sign
            is_number &= data[1:-1] == _ZERO
            is_number &= data[2:] - _ZERO < _DIGITS
            if is_number.any():
                return True
            rest = piece[-2:]
    return False
