"""Names with a NUL, where the Arrow C data interface ends them, are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import narwhals as nw
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import farrow
from farrow._values import _kinds

_NESTED = pa.array([{"q\0r": 1}])
PYARROW = {
    "table": pa.table({"a\0b": [1], "a\0c": [2]}),
    "batch": pa.record_batch({"x": _NESTED}),
    "array": _NESTED,
    "chunked": pa.chunked_array([_NESTED]),
    "list": pa.array([[{"q\0r": 1}]]),
    "map": pa.array([[("k", {"q\0r": 1})]], pa.map_(pa.string(), _NESTED.type)),
    "dictionary": pa.DictionaryArray.from_arrays([0], pa.array([{"q\0r": 1}])),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])], ["q\0r"]),
}
OTHER = {
    "polars": pl.DataFrame({"a\0b": [1]}),
    "polars struct": pl.DataFrame({"a": [[{"q\0r": 1}]]}),
    "polars series": pl.Series("a\0b", [1]),
    "pandas": pd.DataFrame({"a\0b": [1]}),
    "pandas index": pd.DataFrame({"a": [1]}, index=pd.Index([1], name="i\0j")),
    "pandas struct": pd.DataFrame(
        {"a": pd.Series([{"q\0r": 1}], dtype=pd.ArrowDtype(_NESTED.type))}
    ),
    "pandas dicts": pd.DataFrame({"a": [None, {"q\0r": 1}]}),
    "pandas lists": pd.DataFrame([[1, [{"q": 1}]], [2, [{"q\0r": 2}]]], columns=["a", "b"]),
    "pandas series of dicts": pd.Series([{"q": 1}, {"q\0r": 1}]),
    "subclass": type("Frame", (pl.DataFrame,), {})({"a\0b": [1]}),
    "narwhals": nw.from_native(pl.DataFrame({"a\0b": [1]})),
    "reader": pa.table({"a\0b": [1]}).to_reader(),
}


@pytest.mark.parametrize("value", [*PYARROW.values(), *OTHER.values()], ids=[*PYARROW, *OTHER])
def test_a_name_with_nul_is_refused(client: farrow.Client, value: Any) -> None:
    """Regression test: names were cut there, so that two columns got one name; polars ended the
    process."""
    with pytest.raises(farrow.InvalidArgument, match="after a NUL"):
        client.put(value, "n")
    assert "n" not in client


def test_a_name_without_nul_that_pandas_does_not_export_is_no_matter(client: farrow.Client) -> None:
    frame = pd.DataFrame({"a": [1]}, index=pd.RangeIndex(1, name="i\0j"))
    assert client.get(client.put(frame)).column_names == ["a"]


@pytest.mark.parametrize("value", PYARROW.values(), ids=PYARROW)
def test_without_a_bridge(value: Any) -> None:
    with pytest.raises(farrow.InvalidArgument, match="after a NUL"):
        _kinds.check_names(value)


def test_a_put_without_a_bridge_checks_names(node: Any) -> None:
    script = """
import farrow, pyarrow as pa
client = farrow.connect()
try:
    client.put(pa.table({"a\\0b": [1]}))
except farrow.InvalidArgument as error:
    print(error)
table = pa.table({"a": [1], "s": [{"t": [{"u": 2}]}], "": [{"": 3}]})
assert client.get(client.put(table)).equals(table)
"""
    env = {**os.environ, "FARROW_SOCKET": node.socket, "FARROW_BRIDGE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, timeout=60, check=True, capture_output=True
    )
    assert b"after a NUL" in done.stdout, done


def test_a_schema_with_nul_is_refused(client: farrow.Client) -> None:
    """A huge table had two columns of one name, and refused all rows."""
    nested = pa.schema({"a": pa.struct([pa.field("q\0r", pa.int64())])})
    for schema in (pa.schema([("a\0x", pa.int64()), ("a\0y", pa.int64())]), nested):
        with pytest.raises(farrow.InvalidArgument, match="after a NUL"):
            client.huge_table("trades", schema)
    assert not client.contains("trades")
