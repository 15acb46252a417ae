"""Datasets over nodes that share no memory: only columns and chunks that a query needs travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import farrow
import farrow.dataset
from conftest import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
ONLY = ("--plaintext", "--net=only", "--no-prepare")
SCHEMA = pa.schema({"n": pa.int64(), "half": pa.float64(), "word": pa.string()})
CHUNKS, ROWS = 8, 50_000


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other."""
    return make_cluster(2, *ONLY)


def rows(number: int) -> pa.Table:
    n = np.arange(number * ROWS, (number + 1) * ROWS)
    return pa.table({"n": n, "half": n / 2, "word": [f"word {one:020}" for one in n]}, SCHEMA)


@pytest.fixture
def trades(two: Cluster) -> farrow.HugeTable:
    """As node a sees it: chunks of 0.4 MB a number and 1.4 MB of words, all in b but the last."""
    a, b = two.clients()
    table = b.huge_table("trades", SCHEMA)
    for number in range(CHUNKS - 1):
        table.append(rows(number))
    table.append(rows(CHUNKS - 1), node="a")
    return a.huge_table("trades")


def arrived(client: farrow.Client, read: Callable[[], Any]) -> tuple[Any, int]:
    """A result, and the bytes that came for it: without eviction all of them stay."""
    before = client.stats()["used"]
    found = read()
    return found, client.stats()["used"] - before


def test_only_what_a_query_needs_travels(two: Cluster, trades: farrow.HugeTable) -> None:
    """A dataset once fetched all chunks when it was opened: 16 MB here."""
    a = two.client("a")
    dataset, moved = arrived(a, trades.dataset)
    assert moved < 64 << 10, moved
    assert dataset.count_rows() == CHUNKS * ROWS
    n = pc.field("n")
    # One column of a chunk, and that of the filter.
    inside = (n >= 120_000) & (n < 120_010)
    found, moved = arrived(a, lambda: dataset.to_table(columns=["half"], filter=inside))
    assert found["half"].to_pylist() == [one / 2 for one in range(120_000, 120_010)]
    assert 0.6 * MB < moved < 1.2 * MB, moved
    # A filter that no chunk can match.
    none, moved = arrived(a, lambda: dataset.to_table(filter=n < 0))
    assert (none.num_rows, none.schema) == (0, SCHEMA)
    assert moved < 64 << 10, moved
    # An expression names its columns too; a chunk of this node does not travel.
    computed = {"twice": pc.field("half") * 2}
    found, moved = arrived(a, lambda: dataset.to_table(columns=computed, filter=n >= 349_999))
    assert found["twice"].to_pylist() == [float(one) for one in range(349_999, 400_000)]
    assert moved < 1.2 * MB, moved
    # A count needs the columns of the filter only: of two chunks, one of which is here already.
    found, moved = arrived(a, lambda: dataset.count_rows(filter=n < 60_000))
    assert found == 60_000
    assert moved < 1.2 * MB, moved


def test_all_methods_read_the_rows_of_other_nodes(trades: farrow.HugeTable) -> None:
    dataset = trades.dataset()
    n = pc.field("n")
    whole = pa.concat_tables([rows(number) for number in range(CHUNKS)])
    assert dataset.schema == SCHEMA
    assert dataset.to_table().equals(whole)
    assert pa.Table.from_batches(dataset.to_batches()).equals(whole)
    assert dataset.head(3).equals(whole.slice(0, 3))
    assert dataset.take(pa.array([5, 399_999])).equals(whole.take([5, 399_999]))
    assert dataset.scanner(columns=[]).count_rows() == CHUNKS * ROWS
    assert dataset.to_table(columns=["word", "n"]).equals(whole.select(["word", "n"]))
    filtered = dataset.filter(n >= 399_990)
    assert filtered.count_rows() == 10
    by_word = filtered.sort_by([("word", "descending")]).to_table()
    assert by_word["n"].to_pylist() == list(range(399_999, 399_989, -1))
    other = ds.dataset(pa.table({"n": [7, 399_995, -1], "note": ["x", "y", "z"]}))
    assert dataset.join(other, "n", join_type="inner").to_table().num_rows == 2
    assert filtered.join(other, "n", join_type="inner").to_table()["note"].to_pylist() == ["y"]
    assert dataset.replace_schema(SCHEMA).count_rows() == CHUNKS * ROWS
    assert len(list(dataset.get_fragments(n == 60_000))) == 1
    for fragment in dataset.get_fragments(n == 60_000):
        assert fragment.physical_schema == SCHEMA
        assert fragment.count_rows() == ROWS
        assert fragment.to_table(columns=["half"], filter=n == 60_000)["half"][0].as_py() == 30_000
        assert sum(batch.num_rows for batch in fragment.to_batches(columns=["n"])) == ROWS
        assert fragment.head(1)["n"].to_pylist() == [50_000]
        with pytest.raises(farrow.InvalidArgument, match="half"):
            fragment.scanner(pa.schema({"n": pa.int8()}))
    with pytest.raises(pa.ArrowInvalid, match="nosuch"):
        dataset.to_table(columns=["nosuch"])


def test_a_read_past_the_methods_is_an_error(trades: farrow.HugeTable) -> None:
    """Arrow's own C++ has no rows of other nodes: it may not find an empty table."""
    declaration = acero.Declaration("scan", acero.ScanNodeOptions(trades.dataset()))
    with pytest.raises(OSError, match="rows-of-other-nodes"):
        declaration.to_table()
    # pyarrow asks each part of a union for its rows in another schema.
    union = ds.dataset([trades.dataset(), ds.dataset(rows(0))])
    assert union.count_rows() == (CHUNKS + 1) * ROWS


def test_engines_read_rows_of_other_nodes(two: Cluster, trades: farrow.HugeTable) -> None:
    a = two.client("a")
    duckdb: Any = pytest.importorskip("duckdb")
    pl: Any = pytest.importorskip("polars")
    import farrow.polars

    found = trades.dataset()
    connection = duckdb.connect()
    connection.register("trades", found)
    query = "select sum(half), count(*) from trades where n between 250000 and 250009"
    total = sum(range(250_000, 250_010)) / 2
    got, moved = arrived(a, lambda: connection.sql(query).fetchall())
    assert got == [(total, 10)]
    assert moved < 1.2 * MB, moved
    frame = farrow.polars.scan(found).filter(pl.col("n").is_between(100_000, 100_009))
    got, moved = arrived(a, lambda: frame.select(pl.col("half").sum()).collect().item())
    assert got == sum(range(100_000, 100_010)) / 2
    assert moved < 1.2 * MB, moved


def test_gaps_and_dropped_tables_are_errors(two: Cluster, trades: farrow.HugeTable) -> None:
    dataset = trades.dataset()
    trades.append(rows(0), position=(CHUNKS + 1) * ROWS, node="b")
    with pytest.raises(farrow.RowsMissing, match=str(CHUNKS * ROWS)):
        trades.dataset()
    assert dataset.count_rows(filter=pc.field("n") < 10) == 10
    two.client("b").huge_table("trades").drop()
    # It never reads as a table with fewer rows.
    with pytest.raises(farrow.NotFound):
        dataset.to_table(columns=["word"])


def test_parts_of_one_batch_are_those_of_a_far_put_table(two: Cluster) -> None:
    """Rows of several parts come as one batch: a scan of them ended with a StopIteration."""
    a, b = two.clients()
    part = 1 << 17
    table = pa.table({"n": np.arange(3 * part), "half": np.arange(3 * part) / 2})
    b.put(table, "parts", statistics=True)
    found = farrow.dataset.dataset("parts", client=a)
    n = pc.field("n")
    assert len(list(found.partitions(n >= 0))) == 3
    assert found.to_table().equals(table)
    assert pa.Table.from_batches(found.to_batches()).equals(table)
    inside = (n >= part - 5) & (n < part + 7)
    assert found.to_table(filter=inside).equals(table.slice(part - 5, 12))
    assert found.count_rows(filter=n >= part + 3) == 2 * part - 3
    assert found.head(part + 9).equals(table.slice(0, part + 9))
