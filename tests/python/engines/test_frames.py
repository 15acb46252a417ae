"""pandas, Narwhals and Ibis over Farrow's tables.

Chunks that cannot match are not read.  Numbers and strings are used where they lie, where the
library promises that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNKS = 4
ROWS = 10_000
LOW, HIGH = 12_000, 12_009
TOTAL = float(sum(range(LOW, HIGH + 1)))


@pytest.fixture
def trades(client: farrow.Client) -> farrow.HugeTable:
    """Chunks of 10,000 rows, sorted by n; each chunk has all names."""
    schema = pa.schema({"n": pa.int64(), "price": pa.float64(), "name": pa.string()})
    table = client.huge_table("trades", schema)
    for number in range(CHUNKS):
        n = pa.array(range(number * ROWS, (number + 1) * ROWS))
        names = [f"name {one % 7}" for one in range(ROWS)]
        table.append(pa.table({"n": n, "price": pc.cast(n, pa.float64()), "name": names}))
    return table


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of chunks of each scan."""
    seen: list[int] = []
    plain = farrow.dataset.FarrowDataset._read

    def read(self: Any, filter: Any, columns: Any) -> Any:
        seen.append(len(self.partitions(filter)))
        return plain(self, filter, columns)

    monkeypatch.setattr(farrow.dataset.FarrowDataset, "_read", read)
    return seen


def is_shared(client: farrow.Client, column: pa.ChunkedArray) -> bool:
    """Whether the values of all chunks lie in the memory of a node."""
    values = [chunk.buffers()[-1] for chunk in column.chunks]
    return all(client._offset(one.address, one.size) is not None for one in values)


# ---- pandas


def test_pandas_uses_numbers_and_strings_in_place(
    trades: farrow.HugeTable, client: farrow.Client, reads: list[int]
) -> None:
    pd: Any = pytest.importorskip("pandas")
    frame = trades.table().to_pandas(types_mapper=pd.ArrowDtype)
    for name in ("n", "price", "name"):
        column = pa.chunked_array(frame[name].array.__arrow_array__())
        assert is_shared(client, column), name
    selected = trades.dataset().to_table(filter=pc.field("n").isin([LOW, HIGH]))
    assert reads == [1]
    assert selected.to_pandas(types_mapper=pd.ArrowDtype)["n"].to_list() == [LOW, HIGH]


def test_pandas_cannot_write_into_a_table(trades: farrow.HugeTable) -> None:
    """A frame copies on its first write: what other processes read must not change."""
    pd: Any = pytest.importorskip("pandas")
    table = trades.table()
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame.loc[0, "price"] = -1.0
    frame["n"] += 1
    assert frame["price"].iloc[0] == -1.0
    assert trades.table()["price"][0].as_py() == 0.0
    assert trades.table()["n"][0].as_py() == 0


def test_pandas_takes_a_table_by_the_arrow_interface(trades: farrow.HugeTable) -> None:
    pd: Any = pytest.importorskip("pandas")
    if not hasattr(pd.DataFrame, "from_arrow"):
        pytest.skip("DataFrame.from_arrow came with pandas 3")
    frame = pd.DataFrame.from_arrow(trades.table())
    assert len(frame) == CHUNKS * ROWS
    assert frame["price"].sum() == float(sum(range(CHUNKS * ROWS)))
    assert str(frame["name"].dtype) == "str"
    # It converts; what it has is its own.
    frame.loc[0, "price"] = -1.0
    assert trades.table()["price"][0].as_py() == 0.0


# ---- Narwhals


def test_narwhals_uses_a_table_in_place(trades: farrow.HugeTable, client: farrow.Client) -> None:
    nw: Any = pytest.importorskip("narwhals")
    frame = nw.from_native(trades.table())
    for name in ("n", "price", "name"):
        assert is_shared(client, frame.get_column(name).to_native()), name
    assert frame.select("price").to_native()["price"].chunk(0).buffers()[1].address == (
        trades.table()["price"].chunk(0).buffers()[1].address
    )


def test_narwhals_pushes_a_filter_into_duckdb(
    trades: farrow.HugeTable, client: farrow.Client, reads: list[int]
) -> None:
    nw: Any = pytest.importorskip("narwhals")
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    connection = duckdb.connect()
    attach(connection, client, ["trades"])
    lazy = nw.from_native(connection.table("trades"))
    reads.clear()
    found = lazy.filter(nw.col("n") >= LOW, nw.col("n") <= HIGH).select(nw.col("price").sum())
    assert found.collect()["price"].to_list() == [TOTAL]
    assert reads == [1]


def test_narwhals_pushes_a_filter_into_polars(
    trades: farrow.HugeTable, client: farrow.Client, reads: list[int]
) -> None:
    nw: Any = pytest.importorskip("narwhals")
    pytest.importorskip("polars")
    from farrow.polars import scan

    lazy = nw.from_native(scan("trades", client))
    found = lazy.filter(nw.col("n").is_between(LOW, HIGH)).select(nw.col("price").sum())
    assert found.collect()["price"].to_list() == [TOTAL]
    assert reads == [1]


# ---- Ibis


def test_ibis_pushes_a_filter_into_duckdb(
    trades: farrow.HugeTable, client: farrow.Client, reads: list[int]
) -> None:
    ibis: Any = pytest.importorskip("ibis", reason="ibis-framework is not installed")
    from farrow.duckdb import attach

    connection = ibis.duckdb.connect()
    attach(connection.con, client, ["trades"])
    table = connection.table("trades")
    reads.clear()
    found = table.filter(table.n.between(LOW, HIGH)).agg(total=table.price.sum())
    assert found.to_pyarrow()["total"].to_pylist() == [TOTAL]
    assert reads == [1]
    # A later append is seen by the same expression.
    trades.append(pa.table({"n": [LOW], "price": [0.5], "name": ["late"]}))
    assert found.to_pyarrow()["total"].to_pylist() == [TOTAL + 0.5]
