"""``get(as_=)`` of types that a library does not have: one error, whatever the library raises."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import farrow

PAIRS = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
)
DECIMALS = pa.array([Decimal("1.5")], pa.decimal256(60, 2))
# By library, types that it does not have.
MISSING = {
    # A panic, which ``except Exception`` does not catch.
    "polars, decimal256": DECIMALS,
    "polars, union": PAIRS,
    "polars, run-end encoded": pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([1, 2])),
    "polars, interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "numpy, union": PAIRS,
    "duckdb, decimal256": DECIMALS,
    "duckdb, half floats": pa.array([np.float16(1)], pa.float16()),
}


def test_duckdb_has_no_table_without_columns(client: farrow.Client) -> None:
    pytest.importorskip("duckdb")
    reference = client.put(pa.table({"x": [1]}).select([]))
    with pytest.raises(farrow.UnsupportedType, match="no DuckDB value of a "):
        client.get(reference, as_="duckdb")


@pytest.mark.parametrize("case", MISSING)
def test_types_that_a_library_does_not_have(client: farrow.Client, case: str) -> None:
    library, _ = case.split(", ")
    pytest.importorskip(library)
    array = MISSING[case]
    values = [pa.table({"x": array}), pa.record_batch([array], names=["x"])]
    # DuckDB has no columns without a table.
    values += [] if library == "duckdb" else [array, pa.chunked_array([array])]
    for value in values:
        reference = client.put(value)
        with pytest.raises(farrow.UnsupportedType, match=f"(?i)no {library} value of a "):
            client.get(reference, as_=library)
