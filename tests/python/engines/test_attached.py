"""Attached tables between queries: what is read again, and what stays in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset
from farrow._scan import _statistics
from farrow._scan._attached import NewestRows

ROWS = 100
SCHEMA = pa.schema({"day": pa.int64(), "price": pa.float64(), "note": pa.string()})


def day_rows(day: int, price: float = 1.0) -> pa.Table:
    columns = {"day": [day] * ROWS, "price": [price] * ROWS, "note": ["a note"] * ROWS}
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def trades(client: farrow.Client) -> farrow.HugeTable:
    """Six chunks, one for each day."""
    table = client.huge_table("trades", SCHEMA)
    for day in range(6):
        table.append(day_rows(day))
    return table


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str] | None, slice]]:
    """Columns and rows of each read of a huge table."""
    seen: list[tuple[list[str] | None, slice]] = []
    plain = farrow.dataset._HugeRows.fetch

    def fetch(self: Any, columns: list[str] | None, rows: slice) -> pa.Table:
        seen.append((columns, rows))
        return plain(self, columns, rows)

    monkeypatch.setattr(farrow.dataset._HugeRows, "fetch", fetch)
    return seen


def test_a_scan_reads_only_its_columns_of_chunks_that_can_match(
    trades: farrow.HugeTable,
    client: farrow.Client,
    fetched: list[tuple[list[str] | None, slice]],
) -> None:
    rows = NewestRows(trades.name, client)
    day = pc.field("day")
    found = rows.scanner(columns=["price"], filter=(day > 1) & (day < 4)).to_table()
    assert found.equals(pa.table({"price": [1.0] * 2 * ROWS}))
    assert fetched == [(["day", "price"], slice(2 * ROWS, 4 * ROWS))]
    assert rows.count_rows() == 6 * ROWS
    assert len(list(rows.get_fragments(day == 5))) == 1
    # The count reads nothing, and the fragment one chunk.
    assert fetched[1:] == [(None, slice(5 * ROWS, 6 * ROWS))]


def test_statistics_of_a_chunk_are_read_once(trades: farrow.HugeTable) -> None:
    first = {chunk.partition.id: chunk for chunk in farrow.dataset.statistics(trades)}
    trades.append(day_rows(6))
    second = farrow.dataset.statistics(trades)
    known = [chunk for chunk in second if chunk.partition.id in first]
    assert len(known) == len(second) - 1 == 6
    assert all(chunk.columns is first[chunk.partition.id].columns for chunk in known)
    assert second[-1].columns is not None
    assert second[-1].columns[("day",)].max.as_py() == 6
    # An older version has fewer chunks, also if later ones are known.
    assert len(farrow.dataset.statistics(trades, 2)) == 2


def test_no_rows_stay_in_memory_between_queries(
    trades: farrow.HugeTable, client: farrow.Client
) -> None:
    rows = NewestRows(trades.name, client)
    before = client.stats()["used"]
    assert rows.scanner(filter=pc.field("day") == 3).to_table().num_rows == ROWS
    trades.drop()
    assert client.stats()["used"] < before - 6 * ROWS * 16
    with pytest.raises(farrow.NotFound):
        rows.scanner()


def test_a_table_of_the_same_name_has_its_own_statistics(
    trades: farrow.HugeTable, client: farrow.Client
) -> None:
    rows = NewestRows(trades.name, client)
    early = pc.field("day") < 3
    assert rows.scanner(filter=early).to_table().num_rows == 3 * ROWS
    trades.drop()
    again = client.huge_table("trades", SCHEMA)
    for day in range(6):
        again.append(day_rows(10 - day, price=2.0))
    assert rows.scanner(filter=early).to_table().num_rows == 0
    assert rows.scanner(filter=pc.field("price") > 1.5).to_table().num_rows == 6 * ROWS
    again.append(day_rows(1))
    assert rows.scanner(filter=early).to_table().num_rows == ROWS


def test_known_statistics_are_limited(
    trades: farrow.HugeTable, client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = client.huge_table("other", SCHEMA)
    other.append(day_rows(1))
    farrow.dataset.statistics(trades)
    monkeypatch.setattr(_statistics, "_COLUMNS_MAX", 10)
    # Six chunks of three columns are too many, and the table that was used last stays.
    farrow.dataset.statistics(other)
    assert [*_statistics._known] == [other._id]
    for table, count in ((trades, 1), (other, 0)):
        found = table.dataset().partitions(pc.field("day") == 4)
        assert len(found) == count
    assert trades._id not in _statistics._known


def test_a_table_without_columns_is_counted(client: farrow.Client) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    table = client.huge_table("narrow", pa.schema({"n": pa.int64()}))
    for number in range(3):
        table.append(pa.table({"n": [number] * ROWS}))
    connection = duckdb.connect()
    attach(connection, client, ["narrow"])
    counted = "select count(*) from narrow"
    assert connection.sql(counted).fetchall() == [(3 * ROWS,)]
    assert connection.sql(counted + " where n <> 1").fetchall() == [(2 * ROWS,)]
    twice = "select n, n + 1, sum(n) over () from narrow order by 1 limit 1"
    assert connection.sql(twice).fetchall() == [(0, 1, 3 * ROWS)]
