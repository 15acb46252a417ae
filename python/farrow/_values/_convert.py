"""Values of ``Client.get`` as those of other libraries: its argument ``as_``.

The extension imports this module for the first conversion, and each library when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from farrow.exceptions import InvalidArgument, UnsupportedType

__all__ = ["convert", "in_polars"]

_TABULAR = (pa.Table, pa.RecordBatch)
_COLUMN = (pa.Array, pa.ChunkedArray)


def convert(value: Any, kind: str) -> Any:
    """The value in the given library, in place wherever the library can use Arrow memory.

    Raises:
        InvalidArgument: there is no such library here.
        UnsupportedType: the library has no value of this kind; the message says what has.
        ImportError: the library is not installed.
    """
    conversions = {
        "pandas": _pandas,
        "polars": in_polars,
        "numpy": _numpy,
        "torch": _torch,
        "duckdb": _duckdb,
    }
    if kind not in conversions:
        raise InvalidArgument(f"as_ is {kind!r}, not one of {', '.join(conversions)}")
    try:
        return conversions[kind](value)
    except pa.ArrowNotImplementedError as error:
        # A type within the value.
        raise _unsupported(value, kind, str(error)) from error


def _unsupported(value: Any, kind: str, help_: str) -> UnsupportedType:
    return UnsupportedType(f"no {kind} value of a {type(value).__name__}: {help_}")


def _pandas(value: Any) -> Any:
    import pandas as pd

    if isinstance(value, _TABULAR):
        return value.to_pandas(types_mapper=pd.ArrowDtype)
    if isinstance(value, _COLUMN):
        array = value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])
        return pd.Series(pd.arrays.ArrowExtensionArray(array))
    raise _unsupported(value, "pandas", "tables and columns have one")


def in_polars(value: Any) -> Any:
    """A table or column as polars has it.

    Raises:
        UnsupportedType: polars has no such type.
    """
    import polars as pl

    if not isinstance(value, _TABULAR + _COLUMN):
        raise _unsupported(value, "polars", "tables and columns have one")
    try:
        if isinstance(value, pa.Table | pa.ChunkedArray):
            return pl.from_arrow(value, rechunk=False)
        return pl.from_arrow(value)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        # polars panics on some types, which is no Exception.
        raise _unsupported(value, "polars", str(error)) from error


def _columns(value: Any, kind: str) -> list[tuple[str, Any]]:
    """Name and values of each column, for a dict."""
    names = value.schema.names
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise _unsupported(value, kind, f"several of its columns are called {twice}")
    return list(zip(names, value.columns, strict=True))


def _numpy(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, pa.Tensor):
        return value.to_numpy()
    if isinstance(value, pa.Buffer):
        return np.frombuffer(value, dtype=np.uint8)
    if isinstance(value, pa.Array):
        return value.to_numpy(zero_copy_only=False)
    if isinstance(value, pa.ChunkedArray):
        if value.num_chunks == 1:
            return value.chunk(0).to_numpy(zero_copy_only=False)
        return value.to_numpy()
    if isinstance(value, _TABULAR):
        return {name: _numpy(column) for name, column in _columns(value, "numpy")}
    raise _unsupported(value, "numpy", "arrays, columns, tables and bytes have one")


def _torch(value: Any) -> Any:
    import warnings

    import torch

    if isinstance(value, _TABULAR):
        return {name: _torch(column) for name, column in _columns(value, "torch")}
    array = _numpy(value)
    if array.dtype.kind not in "biuf":
        raise _unsupported(value, "torch", f"its items are {array.dtype}, not numbers")
    with warnings.catch_warnings():
        # The tensor shares read-only memory: a store to it faults instead of changing the object.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array)


def _duckdb(value: Any) -> Any:
    import duckdb

    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        try:
            return duckdb.from_arrow(value)
        except (duckdb.NotSupportedError, duckdb.InvalidInputException) as error:
            raise _unsupported(value, "DuckDB", str(error)) from error
    raise _unsupported(value, "DuckDB", "tables have one")
