"""Answers of DataFusion over Farrow's tables are those that it gives over its own tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

datafusion = pytest.importorskip("datafusion", reason="datafusion is not installed")

from farrow.datafusion import attach  # noqa: E402

if TYPE_CHECKING:
    import farrow


# DataFusion's own answers: NaN is greater than each number and equal to itself.
NAN_FILTERS = {
    "price > 1": [3, 6],
    "price >= 'nan'::double": [3],
    "price <= 'nan'::double": [0, 1, 2, 3, 4, 6],
    "not price > 1": [0, 1, 2, 4],
    "price in (0.0, 'nan'::double)": [1, 2, 3],
    "price between 0.5 and 'nan'::double": [3, 4, 6],
    "n > 2 and price <> 1": [3, 6],
    "price > other": [3, 6],
}


@pytest.mark.parametrize("where", NAN_FILTERS)
def test_datafusion_compares_nan_as_in_its_own_tables(client: farrow.Client, where: str) -> None:
    """DataFusion leaves a filter to a dataset, and Arrow left out each row with NaN."""
    price = [-math.inf, 0.0, -0.0, math.nan, 1.0, None, math.inf]
    rows = pa.table({"n": range(7), "price": price, "other": [1.0] * 7})
    halves = pa.array([0.0, 1.0, None, 2.0, 3.0, 4.0, 5.0], pa.float16())
    rows = rows.append_column('a "half".Column', halves)
    client.huge_table("trades", rows.schema).append(rows)
    context = datafusion.SessionContext()
    context.register_record_batches("own", [rows.to_batches()])
    assert attach(context, client) == ["trades"]
    # Types, names, nulls and the sign of zero are those of the table.
    read = context.sql("select * from trades").to_arrow_table()
    assert read.schema.remove_metadata() == rows.schema
    assert str(read.to_pylist()) == str(rows.to_pylist())
    for table in ("own", "trades"):
        found = context.sql(f"select n from {table} where {where}").to_arrow_table()
        assert sorted(found["n"].to_pylist()) == NAN_FILTERS[where]


# In SQL, null is in no set and out of none.
SET_FILTERS = {
    "n not in (1, 3, 4, 5, 6)": [2, 7],
    "(n in (1, 3, 4, 5, 6)) is null": [None, None],
    "not (n in (1, 3, 4, 5, 6) and name = 'b')": [1, 2, 7],
    "name not in ('a', 'c', 'd', 'e')": [2, 7],
    "n not in (1, 3, 4, 5, null)": [],
    "n in (1, 3, 4, 5, 6)": [1],
    "n > 1 and n not in (1, 3, 4, 5, 6) and name is not null": [2, 7],
    "ratio = 'nan'::double": [2],
}


@pytest.mark.parametrize("where", SET_FILTERS)
def test_datafusion_finds_null_in_no_set(client: farrow.Client, where: str) -> None:
    """DataFusion leaves a set of four values and more to a dataset, as ``is_in``, and Arrow's is
    false for null."""
    rows = pa.table(
        {
            "n": [1, 2, None, 7, None],
            "name": ["a", "b", None, "x", None],
            "ratio": pa.array([0.5, math.nan, None, 2.0, 3.0]).dictionary_encode(),
        }
    )
    table = client.huge_table("trades", rows.schema)
    for start in (0, 3):
        table.append(rows.slice(start, 3))
    context = datafusion.SessionContext()
    context.register_record_batches("own", [rows.to_batches()])
    assert attach(context, client) == ["trades"]
    for source in ("own", "trades"):
        found = context.sql(f"select n from {source} where {where}").to_arrow_table()
        assert sorted(found["n"].to_pylist(), key=str) == SET_FILTERS[where], source


def test_datafusion_takes_a_filter_that_contradicts_itself(client: farrow.Client) -> None:
    """DataFusion passes ``false``, a scalar and no expression, which pyarrow refuses."""
    client.put(pa.table({"n": [1, 2, 3]}), "trades")
    context = datafusion.SessionContext()
    attach(context, client)
    query = "select count(*) as c from trades where n = 1 and n = 2"
    assert context.sql(query).to_arrow_table().to_pylist() == [{"c": 0}]


def test_datafusion_attaches_a_table_with_a_union(client: farrow.Client) -> None:
    children = [pa.array([1, 2]), pa.array(["x", "y"])]
    client.put(
        pa.table({"n": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), children)}), "u"
    )
    context = datafusion.SessionContext()
    assert attach(context, client) == ["u"]
    assert context.sql("select n from u").to_arrow_table().to_pydict() == {"n": [1, "y"]}


def test_datafusion_reads_columns_in_place(client: farrow.Client) -> None:
    """Each chunk is a partition, and the columns of a query are read where they are."""
    rows, chunks = 20_000, 3
    schema = pa.schema({"n": pa.int64(), "name": pa.string(), "k": pa.int32()})
    trades = client.huge_table("trades", schema)
    for chunk in range(chunks):
        numbers = range(chunk * rows, (chunk + 1) * rows)
        names = [f"name {number}" for number in numbers]
        trades.append(pa.table([list(numbers), names, [chunk] * rows], schema=schema))
    context = datafusion.SessionContext()
    attach(context, client)
    frame = context.sql("select name, n from trades")
    plan = frame.execution_plan()
    assert plan.partition_count == chunks
    projection = plan.display_indent().split("projection=[", 1)[-1].split("]")[0]
    assert sorted(projection.split(", ")) == ["n", "name"], plan.display_indent()
    batches = frame.collect()
    assert sum(batch.num_rows for batch in batches) == chunks * rows
    buffers = [one for batch in batches for one in client.locate(batch) if one["bytes"] >= 4096]
    assert len(buffers) >= 3 * chunks
    assert all(one["in_region"] for one in buffers)
    # A filter is pushed as well: the other chunks are no partitions.
    some = context.sql(f"select name from trades where n >= {2 * rows}").execution_plan()
    assert some.partition_count <= 2
