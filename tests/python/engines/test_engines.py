"""DuckDB, polars, pandas, Ibis, Narwhals and DataFusion over Farrow's tables, in place."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNKS = 4
ROWS = 200_000
MIB = 1 << 20


@pytest.fixture
def trades(client: farrow.Client) -> farrow.HugeTable:
    """Chunks of 200,000 rows, 16 B each, sorted by n."""
    table = client.huge_table("trades", pa.schema({"n": pa.int64(), "price": pa.float64()}))
    for number in range(CHUNKS):
        n = pa.array(range(number * ROWS, (number + 1) * ROWS))
        table.append(pa.table({"n": n, "price": pc.cast(n, pa.float64())}))
    return table


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, int]]]:
    """Columns and number of chunks of each scan."""
    seen: list[tuple[Any, int]] = []
    plain = farrow.dataset.FarrowDataset.scanner

    def scanner(self: Any, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        seen.append((columns, len(self.partitions(filter))))
        return plain(self, columns=columns, filter=filter, **options)

    monkeypatch.setattr(farrow.dataset.FarrowDataset, "scanner", scanner)
    return seen


def private_bytes() -> int:
    """Anonymous memory of this process: what a copy would add to."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Anonymous: +(\d+) kB", text, re.M)
    assert found
    return int(found[1]) << 10


RANGE = "select count(*), sum(price) from {} where n between 250000 and 250009"
IN_RANGE = (10, float(sum(range(250_000, 250_010))))


def test_duckdb_finds_a_dataset_by_its_variable(
    trades: farrow.HugeTable, scans: list[tuple[Any, int]]
) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    rows = trades.dataset()
    assert rows.count_rows() == CHUNKS * ROWS
    connection = duckdb.connect()
    assert connection.sql(RANGE.format("rows")).fetchall() == [IN_RANGE]
    assert scans[-1][1] == 1
    assert connection.sql("select count(*) from rows").fetchall() == [(CHUNKS * ROWS,)]


def test_duckdb_finds_attached_names(
    trades: farrow.HugeTable, client: farrow.Client, scans: list[tuple[Any, int]]
) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach, detach

    client.put(pa.table({"n": [250_001], "note": ["late"]}), "notes/today")
    client.put(b"no rows", "bytes")
    connection = duckdb.connect()
    names = attach(connection, client)
    assert names == ["notes/today", "trades"]
    assert connection.sql(RANGE.format("trades")).fetchall() == [IN_RANGE]
    columns, chunks = scans[-1]
    assert (set(columns), chunks) == ({"price"}, 1)
    joined = 'select price, note from trades join "notes/today" using (n)'
    assert connection.sql(joined).fetchall() == [(250_001.0, "late")]
    # Later rows are seen, and no view holds memory between queries.
    trades.append(pa.table({"n": [-1], "price": [0.5]}))
    assert connection.sql("select price from trades where n < 0").fetchall() == [(0.5,)]
    assert scans[-1][1] == 1
    detach(connection, names)
    with pytest.raises(duckdb.CatalogException):
        connection.sql('select * from "notes/today"')


def test_duckdb_filters_by_itself_where_no_chunk_is_skipped(
    trades: farrow.HugeTable, client: farrow.Client, scans: list[tuple[Any, int]]
) -> None:
    """Arrow's filter copies the rows that it leaves: over a filter of most rows, a query took five
    times as long as over a plain table."""
    duckdb: Any = pytest.importorskip("duckdb", minversion="2")
    from farrow.duckdb import attach

    connection = duckdb.connect()
    attach(connection, client)
    total = CHUNKS * ROWS
    most = "select count(*), max(n) from trades where price >= 10 and n < 10_000_000"
    assert connection.sql(most).fetchall() == [(total - 10, total - 1)]
    assert scans == []
    assert connection.sql(RANGE.format("trades")).fetchall() == [IN_RANGE]
    assert [chunks for _, chunks in scans] == [1]
    # The number of rows, which DuckDB asks for when it plans, is no answer of a later query.
    connection.execute("prepare counted as select count(*) from trades")
    later = connection.sql("select count(*) from trades")
    trades.append(pa.table({"n": [-1], "price": [0.5]}))
    assert connection.execute("execute counted").fetchall() == [(total + 1,)]
    assert later.fetchall() == [(total + 1,)]
    assert connection.sql("select price from trades where n < 0").fetchall() == [(0.5,)]


FILTERS = [
    "n = 2", "n <> 2", "n < 2 or n > 8", "n > 5 and x > 0.5", "n is null", "n is not null",
    "not (n > 5)", "x > 4.5", "x <> 1", "x >= 'nan'::double", "x < 'nan'::double", "isnan(x)",
    "s >= 'k'", "s like '%e%'", "c = 'k'", "c in ('a', 'e')", "n in (1, 4, 9)", "n between 4 and 9",
    "d > date '2023-12-31'", "t >= timestamptz '2024-01-01 00:00:08+00'", "n + 1 > 5", "false",
]  # fmt: skip


def test_filters_of_duckdb_find_the_rows_of_a_plain_table(
    mixed: farrow.HugeTable, client: farrow.Client
) -> None:
    """Whether Arrow or DuckDB applies a filter, nulls and NaN mean the same."""
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    attach(connection, client, ["mixed"])
    connection.register("plain", mixed.table())
    for filter in FILTERS:
        query = "select n, x::varchar, s, c from {} where " + filter
        found = connection.sql(query.format("mixed")).fetchall()
        assert found == connection.sql(query.format("plain")).fetchall(), filter


def test_names_that_differ_in_case_only_are_not_attached(client: farrow.Client) -> None:
    """DuckDB ignores the case of names: a query of one table returned the rows of the other."""
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    client.put(pa.table({"n": [1]}), "Sales")
    client.put(pa.table({"n": [2]}), "sales")
    connection = duckdb.connect()
    with pytest.raises(farrow.InvalidArgument, match="'Sales' and 'sales' differ in case only"):
        attach(connection, client)
    attach(connection, client, ["Sales"])
    assert connection.sql('select n from "Sales"').fetchall() == [(1,)]


def test_attached_views_report_what_is_wrong(client: farrow.Client) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    connection = duckdb.connect()
    with pytest.raises(farrow.NotFound):
        attach(connection, client, ["none"])
    table = client.huge_table("t", pa.schema({"a": pa.int64()}))
    table.append(pa.table({"a": [1]}))
    attach(connection, client, ["t"])
    assert connection.sql("select a from t").fetchall() == [(1,)]
    table.drop()
    with pytest.raises(Exception, match=r"no object|dropped|not found"):
        connection.sql("select a from t").fetchall()
    client.huge_table("t", pa.schema({"a": pa.string()})).append(pa.table({"a": ["x"]}))
    with pytest.raises(Exception, match="another schema"):
        connection.sql("select a from t").fetchall()


def test_names_that_look_like_parts_of_a_huge_table_are_attached(
    trades: farrow.HugeTable, client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: a table under a folder of 32 hexadecimal digits, such as ``uuid4().hex``,
    was taken for a part of a huge table and not attached.  A table that was deleted while others
    were attached made all of them fail."""
    from farrow._scan import _attached

    run = "0123456789abcdef0123456789abcdef"
    mine = [f"runs/{run}/1764144000", f"runs/{run}/losses"]
    for name in mine:
        client.put(pa.table({"n": [1]}), name)
    assert _attached.table_names(client) == [*mine, "trades"]

    client.put(pa.table({"n": [1]}), "gone")
    listed = _attached.table_names(client)
    client.delete("gone")
    monkeypatch.setattr(_attached, "table_names", lambda client: listed)
    assert list(_attached.newest_rows(client, None)) == [*mine, "trades"]
    with pytest.raises(farrow.NotFound):
        _attached.newest_rows(client, ["gone"])


def test_duckdb_copies_nothing(trades: farrow.HugeTable) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    rows = trades.dataset()
    connection = duckdb.connect()
    query = "select sum(n), sum(price) from rows"
    connection.sql(query).fetchall()
    before = private_bytes()
    found = connection.sql(query).fetchall()
    total = sum(range(CHUNKS * ROWS))
    assert found == [(total, float(total))]
    assert rows.count_rows() == CHUNKS * ROWS
    assert private_bytes() - before < 6 * MIB, "the rows are 12 MiB"


def test_polars_skips_chunks_and_columns(
    trades: farrow.HugeTable, client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl: Any = pytest.importorskip("polars")
    from farrow.polars import scan

    read: list[tuple[int, int]] = []
    plain = pl.from_arrow

    def from_arrow(table: Any, **options: Any) -> Any:
        read.append((table.num_rows, table.num_columns))
        return plain(table, **options)

    frame = scan("trades", client)
    monkeypatch.setattr(pl, "from_arrow", from_arrow)
    found = frame.filter(pl.col("n").is_between(250_000, 250_009)).select(pl.col("price").sum())
    assert found.collect().item() == IN_RANGE[1]
    assert read == [(10, 2)], "of a sorted chunk, the range"
    read.clear()
    assert frame.select(pl.col("price").sum()).collect().item() == float(sum(range(CHUNKS * ROWS)))
    assert read == [(ROWS, 1)] * CHUNKS
    read.clear()
    assert frame.head(5).collect()["n"].to_list() == [0, 1, 2, 3, 4]
    assert len(read) == 1
    assert frame.filter(pl.col("n") > 10).head(2).collect()["n"].to_list() == [11, 12]
    assert frame.collect().height == CHUNKS * ROWS


def test_polars_uses_the_rows_in_place(trades: farrow.HugeTable, client: farrow.Client) -> None:
    pl: Any = pytest.importorskip("polars")
    from farrow.polars import scan

    frame = scan(trades).collect()
    for chunk in frame["n"].get_chunks():
        data = chunk.to_arrow().buffers()[1]
        assert client._offset(data.address, data.size) is not None
    assert frame.equals(pl.from_arrow(trades.table()))


@pytest.mark.parametrize("is_put", [False, True])
def test_polars_keeps_the_filter_of_a_dataset(
    trades: farrow.HugeTable, client: farrow.Client, is_put: bool
) -> None:
    """All rows of the chunks that could match were returned."""
    pl: Any = pytest.importorskip("polars")
    from farrow.polars import scan

    rows = trades.dataset()
    if is_put:
        client.put(trades.table(), "copied")
        rows = farrow.dataset.dataset("copied", client)
    filtered = rows.filter(pc.field("n") >= 199_990).filter(pc.field("price") < 200_010)
    n = pl.col("n")
    frame = scan(filtered)
    assert frame.collect()["n"].to_list() == list(range(199_990, 200_010))
    assert frame.filter(n < 199_992).collect()["n"].to_list() == [199_990, 199_991]
    assert frame.select("price").collect()["price"].to_list()[:1] == [199_990.0]
    assert frame.select(n.max()).collect().item() == 200_009
    assert frame.filter(n % 2 == 0).head(2).collect()["n"].to_list() == [199_990, 199_992]
    assert frame.head(11).collect().height == 11
    assert frame.select(pl.len()).collect().item() == filtered.count_rows() == 20
    assert scan(trades).select(pl.len()).collect().item() == CHUNKS * ROWS


def test_duckdb_keeps_the_filter_of_a_dataset(trades: farrow.HugeTable) -> None:
    """Views of ``attach`` have no filter of their own; a dataset registered the same way can."""
    duckdb: Any = pytest.importorskip("duckdb", minversion="2")
    from farrow._scan._duckdb_source import register

    connection = duckdb.connect()
    filtered = trades.dataset().filter(pc.field("n") < 10)
    register(connection, "few", filtered)
    assert connection.sql("select count(*), max(price) from few").fetchall() == [(10, 9.0)]
    assert connection.sql("select n from few where price >= 9").fetchall() == [(9,)]
    assert filtered._share_read(pc.field("price") >= 0) == 10 / (CHUNKS * ROWS)


# Each as Python for polars, and the chunks that it reads.
PREDICATES: list[tuple[Callable[[Any], Any], list[int]]] = [
    (lambda pl: pl.col("n") == 2, [0]),
    (lambda pl: (pl.col("n") < 2) | (pl.col("n") > 8), [0, 2]),
    (lambda pl: (pl.col("n") > 5) & (pl.col("x").cos() > 2), [1, 2]),
    (lambda pl: (pl.col("n") > 5) | (pl.col("x").cos() > 2), [0, 1, 2]),
    (lambda pl: ~(pl.col("n") > 5), [0, 1]),
    (lambda pl: pl.col("n").is_null(), [1]),
    (lambda pl: pl.col("n") != 3, [0, 1, 2]),
    (lambda pl: pl.col("x") > 4.5, [1]),
    (lambda pl: pl.col("x").is_nan(), [0, 1, 2]),
    (lambda pl: pl.col("s") >= "k", [2]),
    (lambda pl: pl.col("c") == "k", [0, 1, 2]),
    (lambda pl: pl.col("t") > pl.lit(TIMES[8]).dt.offset_by("1m"), [0, 1, 2]),
    (lambda pl: pl.col("t") >= TIMES[8], [2]),
    (lambda pl: pl.col("d") < TIMES[3].date(), []),
    (lambda pl: pl.lit(None).cast(pl.Boolean), [0, 1, 2]),
    (lambda pl: pl.col("n").is_in([7, 8]), [0, 1, 2]),
]
TIMES = [pc.strptime(f"2024-01-01 00:00:{n:02}", "%Y-%m-%d %H:%M:%S", "us") for n in range(10)]
TIMES = [pa.scalar(time.as_py(), pa.timestamp("us", "UTC")).as_py() for time in TIMES]


@pytest.fixture
def mixed(client: farrow.Client) -> farrow.HugeTable:
    """Three chunks; the middle one has a null and a NaN, which polars puts above all numbers."""
    letters = [["a", "b", "c"], ["d", "e", "f"], ["j", "k", "l"]]
    table = None
    for number, s in enumerate(letters):
        n = [4 * number + 1, 4 * number + 2, None if number == 1 else 4 * number]
        columns = {
            "n": pa.array(n),
            "x": [0.5 + 2 * number, math.nan if number == 1 else 1.0, 0.0],
            "s": s,
            "c": pa.array(s).dictionary_encode(),
            "t": pa.array([TIMES[4 * number]] * 3, pa.timestamp("us", "UTC")),
            "d": pa.array([TIMES[4 * number].date()] * 3),
        }
        rows = pa.table(columns)
        table = table or client.huge_table("mixed", rows.schema)
        table.append(rows)
    assert table is not None
    return table


@pytest.mark.parametrize("number", range(len(PREDICATES)))
def test_predicates_mean_what_polars_says(mixed: farrow.HugeTable, number: int) -> None:
    """polars orders NaN above all numbers and has names of its own for most things: chunks are
    skipped by comparisons alone, and polars applies the filter."""
    pl: Any = pytest.importorskip("polars")
    from farrow.polars import _pruning_filter, scan

    make, chunks = PREDICATES[number]
    predicate = make(pl)
    plain = pl.from_arrow(mixed.table()).filter(predicate)
    assert scan(mixed).filter(predicate).collect().equals(plain)
    dataset = mixed.dataset()
    # As the optimizer hands it over, with typed literals.
    seen: list[Any] = []
    io = pytest.importorskip("polars.io.plugins")

    def source(_columns: Any, pushed: Any, _rows: Any, _size: Any) -> Any:
        seen.append(pushed)
        frame = pl.from_arrow(mixed.table())
        yield frame if pushed is None else frame.filter(pushed)

    schema = pl.from_arrow(mixed.schema.empty_table()).schema
    io.register_io_source(source, schema=schema).filter(predicate).collect()
    found = _pruning_filter(seen[0], dataset.schema) if seen and seen[0] is not None else None
    assert [part.position // 3 for part in dataset.partitions(found)] == chunks


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_the_first_rows_of_a_scan_are_those_before_the_filter(
    client: farrow.Client, engine: str
) -> None:
    """polars passes the number of rows and the filter that follows in one call."""
    pl: Any = pytest.importorskip("polars")
    from farrow.polars import scan

    table = client.huge_table("nine", pa.schema({"x": pa.int64()}))
    for first in (0, 3, 6):
        table.append(pa.table({"x": range(first, first + 3)}))
    frame = pl.DataFrame({"x": range(9)})
    for first in (0, 2, 4, 5, 9, 20):
        for least in (0, 2, 4, 8, 99):
            condition = pl.col("x") >= least
            for ask in (
                lambda rows, n=first, c=condition: rows.head(n).filter(c),
                lambda rows, n=first, c=condition: rows.filter(c).head(n),
                lambda rows, n=first, c=condition: rows.head(n).filter(c).head(2),
            ):
                found = ask(scan(table)).collect(engine=engine)
                assert found.equals(ask(frame)), (first, least)


def test_polars_scans_the_dataset_as_well(
    trades: farrow.HugeTable, scans: list[tuple[Any, int]]
) -> None:
    pl: Any = pytest.importorskip("polars")
    frame = pl.scan_pyarrow_dataset(trades.dataset())
    assert frame.filter(pl.col("n") < 10).select("price").collect().height == 10
    assert scans[-1][1] == 1


def test_pandas_takes_a_filtered_table(trades: farrow.HugeTable) -> None:
    pd: Any = pytest.importorskip("pandas")
    found = (
        trades.dataset().to_table(filter=pc.field("n") < 10).to_pandas(types_mapper=pd.ArrowDtype)
    )
    assert found["price"].sum() == sum(range(10))
    whole = trades.table().to_pandas(types_mapper=pd.ArrowDtype)
    chunk = pa.chunked_array(whole["n"].array.__arrow_array__()).chunk(0)
    assert chunk.buffers()[1].address == trades.table()["n"].chunk(0).buffers()[1].address


def test_narwhals_takes_a_table(trades: farrow.HugeTable) -> None:
    nw: Any = pytest.importorskip("narwhals")
    frame = nw.from_native(trades.dataset().to_table(filter=pc.field("n") < 10))
    assert frame.filter(nw.col("n") > 7)["price"].sum() == 17.0


def test_ibis_reads_attached_names(
    trades: farrow.HugeTable, client: farrow.Client, scans: list[tuple[Any, int]]
) -> None:
    ibis: Any = pytest.importorskip("ibis", reason="ibis-framework is not installed")
    pytest.importorskip("pyarrow_hotfix", reason="ibis-framework[duckdb] is not installed")
    from farrow.duckdb import attach

    connection = ibis.duckdb.connect()
    attach(connection.con, client, ["trades"])
    table = connection.table("trades")
    found = table.filter(table.n.between(250_000, 250_009)).price.sum().execute()
    assert found == IN_RANGE[1]
    assert scans[-1][1] == 1


@pytest.fixture
def fragments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Filter and number of fragments of each scan of DataFusion."""
    seen: list[tuple[str, int]] = []
    plain = farrow.dataset.FarrowDataset.get_fragments

    def get_fragments(self: Any, filter: Any = None) -> Any:
        found = list(plain(self, filter))
        seen.append((str(filter), len(found)))
        return iter(found)

    monkeypatch.setattr(farrow.dataset.FarrowDataset, "get_fragments", get_fragments)
    return seen


def test_datafusion_prunes_fragments(
    trades: farrow.HugeTable, fragments: list[tuple[str, int]]
) -> None:
    datafusion: Any = pytest.importorskip("datafusion", reason="datafusion is not installed")
    context = datafusion.SessionContext()
    context.register_dataset("trades", trades.dataset())
    [batch] = context.sql("select count(*), sum(price) from trades where n < 10").collect()
    assert [column[0].as_py() for column in batch.columns] == [10, 45.0]
    assert fragments[-1][1] == 1


def test_datafusion_finds_attached_names(
    trades: farrow.HugeTable, client: farrow.Client, fragments: list[tuple[str, int]]
) -> None:
    datafusion: Any = pytest.importorskip("datafusion", reason="datafusion is not installed")
    from farrow.datafusion import attach, detach

    client.put(pa.table({"n": [250_001], "note": ["late"]}), "Notes/to.day")
    client.put(b"no rows", "bytes")
    context = datafusion.SessionContext()
    names = attach(context, client)
    assert names == ["Notes/to.day", "trades"]

    def rows(query: str) -> list[Any]:
        return context.sql(query).to_arrow_table().to_pylist()

    where = "where n between 250000 and 250009"
    found = rows(f"select count(*) as c, sum(price) as s from trades {where}")
    assert found == [{"c": IN_RANGE[0], "s": IN_RANGE[1]}]
    assert fragments[-1][1] == 1
    joined = 'select price, note from trades t join "Notes/to.day" using (n)'
    assert rows(joined) == [{"price": 250_001.0, "note": "late"}]
    # Later rows are seen, and attaching again is no error.
    trades.append(pa.table({"n": [-1], "price": [0.5]}))
    assert rows("select price from trades where n < 0") == [{"price": 0.5}]
    assert fragments[-1][1] == 1
    assert rows("select count(*) as c from trades") == [{"c": CHUNKS * ROWS + 1}]
    assert attach(context, client) == names
    detach(context, names)
    with pytest.raises(Exception, match="not found"):
        rows("select * from trades")
    with pytest.raises(farrow.NotFound):
        attach(context, client, ["none"])


def test_a_table_that_an_engine_cannot_read_is_left_out(client: farrow.Client) -> None:
    """One table of another client, with half floats or a union, made ``attach`` fail for all."""
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    types = pa.array([0, 1], pa.int8())
    children = [pa.array([1, 2]), pa.array(["x", "y"])]
    union = pa.UnionArray.from_sparse(types, children)
    dense = pa.UnionArray.from_dense(types, pa.array([0, 0], pa.int32()), children)
    client.put(pa.table({"n": [7]}), "good")
    client.put(pa.table({"n": union}), "union")
    client.put(pa.table({"n": pa.array([1.0], pa.float16())}), "bad/halves")
    client.put(pa.table({"n": dense}), "bad/union")
    client.put(pa.table({"n": [1]}).select([]), "bad/no columns")
    client.put(pa.table({"n": [1]}), "bad/label", metadata={"farrow.huge_table": "99"})
    connection = duckdb.connect()
    with pytest.warns(UserWarning, match="not attached: ") as warned:
        assert attach(connection, client) == ["good", "union"]
    assert sum("'bad/" in str(one.message) for one in warned) == 3
    assert sum('"bad/label" has layout 99' in str(one.message) for one in warned) == 1
    assert {one.filename for one in warned} == {__file__}
    assert connection.sql("select n from good").fetchall() == [(7,)]
    assert connection.sql('select n from "union"').fetchall() == [(1,), ("y",)]
    with pytest.raises(farrow.UnsupportedType, match=r"'bad/halves': .*Unsupported"):
        attach(connection, client, ["good", "bad/halves"])


@pytest.mark.parametrize("engine", ["duckdb", "datafusion"])
def test_a_snapshot_is_one_version_however_often_a_query_names_it(
    client: farrow.Client, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Each scan opened the newest rows, so a query that named a table twice read two versions."""
    import importlib

    from farrow._scan._attached import NewestRows

    pytest.importorskip(engine)
    attach = importlib.import_module(f"farrow.{engine}").attach
    table = client.huge_table("v", pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [0]}))
    plain = NewestRows._open_for_scan

    def append_behind(self: Any) -> Any:
        found = plain(self)
        table.append(pa.table({"id": [table.rows]}))
        return found

    monkeypatch.setattr(NewestRows, "_open_for_scan", append_behind)
    query = "select count(*) from v where id not in (select id from v)"

    def answer(snapshot: bool) -> int:
        if engine == "duckdb":
            import duckdb

            connection = duckdb.connect()
            attach(connection, client, ["v"], snapshot=snapshot)
            found: int = connection.sql(query).fetchall()[0][0]
            return found
        import datafusion

        context = datafusion.SessionContext()
        attach(context, client, ["v"], snapshot=snapshot)
        [batch] = context.sql(query).collect()
        number: int = batch.column(0)[0].as_py()
        return number

    assert answer(True) == 0
    assert answer(False) > 0, "the rows grow within a query"


UNKNOWN_TO_POLARS = {
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])]),
    "union": pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN_TO_POLARS)
def test_polars_refuses_types_that_it_lacks_with_a_clear_error(
    client: farrow.Client, kind: str
) -> None:
    """It ended in a panic, which is no Exception, or in an error of Arrow."""
    import farrow.polars

    client.put(pa.table({"a": UNKNOWN_TO_POLARS[kind]}), "t")
    with pytest.raises(farrow.UnsupportedType, match="polars"):
        farrow.polars.scan("t", client)
