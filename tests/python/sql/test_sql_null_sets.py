"""In SQL, null is in no set and out of none.  ``farrow.sql`` left out chunks in which a column has
only nulls, since Arrow's ``is_in`` of null is false."""

from __future__ import annotations

import pyarrow as pa
import pytest

import farrow

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")

# DataFusion turns fewer values than four into comparisons.
WHERE = {
    "(i in (1, 7, 8, 9, 10)) is null": 2,
    "(s in ('a', 'q', 'r', 'u', 'v')) is null": 2,
    "(i not in (1, 7, 8, 9, 10)) is null": 2,
    "not ((i in (1, 7, 8, 9, 10)) is not null)": 2,
    "((i in (1, 7, 8, 9, 10)) = true) is null": 2,
    "(i in (1, 7, 8, 9, null)) is null": 3,
    "(i in (1, 7, 8, 9, 10)) is not true": 3,
    "(i in (1, 7, 8, 9, 10)) is not null": 2,
    "i in (1, 7, 8, 9, 10)": 1,
    "i not in (1, 7, 8, 9, 10)": 1,
    "i = 1 and i = 2": 0,
}


@pytest.fixture
def rows(client: farrow.Client) -> farrow.Client:
    """A client of a table with a chunk of nulls and one without any."""
    table = client.huge_table("t", pa.schema({"i": pa.int64(), "s": pa.string()}))
    table.append(pa.table({"i": [None, None], "s": [None, None]}, table.schema))
    table.append(pa.table({"i": [1, 2], "s": ["a", "b"]}))
    return client


def test_chunks_of_nulls_are_read(rows: farrow.Client) -> None:
    queries = {where: f"select count(*) from t where {where}" for where in WHERE}
    found = {
        where: farrow.sql(query, rows, timeout=60).column(0)[0].as_py()
        for where, query in queries.items()
    }
    assert found == WHERE
    # Chunks are still left out where the filter is false for them.
    first = farrow_sql.explain(queries["i in (1, 7, 8, 9, 10)"], rows).splitlines()[0]
    assert first == "table t: 1 of 2 chunks, rows: 2 on this node"
