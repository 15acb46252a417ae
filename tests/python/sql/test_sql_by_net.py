"""SQL over nodes that share no memory: what travels, and what is left of it.

That queries return the same rows there is tested by ``test_sql.py`` and ``test_sql_failures.py``,
which run over both kinds of nodes.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset
import farrow.duckdb
from conftest import Cluster, Node, scrape, wait_until
from sql_cases import FABRICS, Workers, nameless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
duckdb = pytest.importorskip("duckdb", minversion="2")
from farrow.flight import _engine  # noqa: E402
from farrow.flight._engine import TableSource  # noqa: E402

SCHEMA = pa.schema({"n": pa.int64(), "half": pa.float64(), "word": pa.string()})
CHUNKS, ROWS = 4, 50_000
# An int64 of each row; the words have 1.2 MB a chunk.
COLUMN_BYTES = CHUNKS * ROWS * 8


def append(client: farrow.Client, nodes: str) -> None:
    """A table of four chunks, on these nodes in turn."""
    table = client.huge_table("trades", SCHEMA)
    for number in range(CHUNKS):
        n = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"n": n, "half": n / 2, "word": [f"word {one:020}" for one in n]}, SCHEMA)
        table.append(rows, node=nodes[number % len(nodes)])


@pytest.fixture
def net(make_cluster: Callable[..., Cluster]) -> Iterator[Workers]:
    """Nodes a and b, which map nothing of each other, without workers."""
    started = Workers(make_cluster(2, *FABRICS["net"]))
    yield started
    started.close()


def ran(client: farrow.Client, query: str) -> tuple[pa.Table, farrow_sql._run._query.Moved]:
    """The rows, and what moved between nodes."""
    rows, prepared = farrow_sql._run._query.Query(query, client, timeout=60).run()
    assert prepared.plan is not None, prepared.reason
    return rows, prepared.moved


def used(net: Workers) -> list[int]:
    """Bytes of objects and copies on each node."""
    return [client.stats()["used"] for client in net.cluster.clients()]


def test_only_columns_and_chunks_that_are_asked_for_travel(net: Workers) -> None:
    """All rows are on b, and the only worker is on a."""
    net.start("a")
    a, b = net.cluster.clients()
    append(b, "b")
    before = used(net)
    rows, moved = ran(b, "select sum(n) as s from trades")
    assert rows["s"].to_pylist() == [sum(range(CHUNKS * ROWS))]
    assert (moved.table_rows, moved.table_bytes) == (CHUNKS * ROWS, COLUMN_BYTES)
    # Copies stay until their room is needed: one column of three, and some metadata.
    came = used(net)[0] - before[0]
    assert COLUMN_BYTES <= came < 1.25 * COLUMN_BYTES
    # Of one chunk two columns: the filter leaves the others out before anything is read.
    rows, moved = ran(b, f"select max(half) as h from trades where n < {ROWS // 2}")
    assert rows["h"].to_pylist() == [(ROWS // 2 - 1) / 2]
    assert (moved.table_rows, moved.table_bytes) == (ROWS, 2 * 8 * ROWS)
    # Rows are counted where nothing of them is read.
    _, moved = ran(b, "select count(*) from trades")
    assert moved.table_bytes == 0
    text = farrow_sql.explain("select sum(half) from trades", a, analyze=True)
    assert "read 200000 rows of tables (200000 of other nodes, 1.53 MiB)" in text
    assert ", 200000 rows of tables (1.53 MiB), 0 B of the result" in text


def test_a_limit_reads_the_rows_that_it_returns(net: Workers) -> None:
    net.start("a")
    _, b = net.cluster.clients()
    append(b, "b")
    rows, moved = ran(b, "select * from trades limit 7")
    assert rows.num_rows == 7
    assert moved.table_rows == 7
    assert moved.table_bytes < 7 * 100


def test_exchanges_travel_and_nothing_of_them_stays(net: Workers) -> None:
    for node in "ab":
        net.start(node)
    a, b = net.cluster.clients()
    append(a, "ab")
    # Half of each side is exchanged: some 6 MB, as objects of each task for the other one.
    query = (
        "select t.n, u.word from trades t join trades u on t.n = u.n + 1 where u.half < 1000000 "
        "order by t.n"
    )
    # Copies of what announces tables and workers stay.
    ran(b, query)
    wait_until(lambda: nameless(a) == 0, "the exchanges are deleted")
    before = used(net)
    rows, moved = ran(b, query)
    assert rows["n"].to_pylist() == list(range(1, CHUNKS * ROWS))
    assert rows["word"][-1].as_py() == f"word {CHUNKS * ROWS - 2:020}"
    assert moved.table_bytes == 0
    assert moved.exchange_bytes > 1 << 20
    # No more than all of both sides, and then all rows for the last stage.
    assert moved.exchange_bytes < 4 * CHUNKS * ROWS * (8 + 8 + 29)
    wait_until(lambda: nameless(a) == 0, "the exchanges are deleted")
    # The result was brought to the client's node, where it stays as long as it is held.
    assert moved.result_bytes in (0, rows.nbytes)
    assert rows["word"][0].as_py() == f"word {0:020}"
    del rows
    wait_until(lambda: used(net) <= before, f"no memory is left over: {used(net)}, {before}")


def test_small_tables_are_read_whole_by_each_task(net: Workers) -> None:
    """So the rows of the large side stay where they are."""
    for node in "ab":
        net.start(node)
    a, _ = net.cluster.clients()
    append(a, "ab")
    a.put(pa.table({"key": pa.array(range(100), pa.int64()), "name": ["x"] * 100}), "small")
    # The large side's words would be exchanged.
    query = "select max(word) as w, max(name) as x, count(*) as c from {} on n % 100 = key"
    wanted = {"w": [f"word {CHUNKS * ROWS - 1:020}"], "x": ["x"], "c": [CHUNKS * ROWS]}
    for tables in ("trades join small", "small join trades"):
        rows, moved = ran(a, query.format(tables))
        assert rows.to_pydict() == wanted
        assert 0 < moved.exchange_bytes < 10_000, tables


def test_tables_are_found_without_their_rows(make_cluster: Callable[..., Cluster]) -> None:
    """Plans and catalogs fetched each object whole."""
    cluster = make_cluster(2, *FABRICS["net"], "--metrics")
    a, b = cluster.clients()
    n = np.arange(CHUNKS * ROWS)
    rows = pa.table({"n": n, "word": [f"word {one:020}" for one in n]})
    b.put(rows, "trades")
    b.put(rows.to_batches()[0], "batch")
    before = fetched(cluster)
    text = farrow_sql.explain("select sum(n) from trades join batch using (n)", a)
    assert f"table trades: 1 of 1 chunks, rows: {len(n)} on b" in text
    assert f"table batch: 1 of 1 chunks, rows: {len(n)} on b" in text
    assert farrow.duckdb.attach(duckdb.connect(), client=a) == ["batch", "trades"]
    tables = TableSource(lambda: a)
    assert [tables.schema(name) for name in tables.names()] == [rows.schema] * 2
    assert fetched(cluster) - before < 10_000
    # All of it is fetched where it is asked for.
    assert farrow.sql("select sum(n) as s from trades", a)["s"].to_pylist() == [n.sum()]
    assert fetched(cluster) - before >= n.nbytes


def flight_rows(client: farrow.Client, query: str) -> list[tuple[object, ...]]:
    """The rows of a query of ``farrow flight``."""
    engine = _engine.QueryEngine(TableSource(lambda: client), memory=256 << 20, threads=1)
    try:
        with engine.connection() as connection:
            statement = engine.parse(connection, query)
            engine.attach(connection, statement, is_snapshot=True)
            return engine.relation(connection, statement, None).fetchall()
    finally:
        engine.close()


def duckdb_rows(client: farrow.Client, query: str) -> list[tuple[object, ...]]:
    """The rows of a query over ``farrow.duckdb``."""
    with duckdb.connect() as connection:
        farrow.duckdb.attach(connection, client=client)
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("rows_of", [flight_rows, duckdb_rows])
@pytest.mark.parametrize("kind", ["table", "batch"])
def test_queries_fetch_the_columns_of_a_put_table_that_they_read(
    make_cluster: Callable[..., Cluster],
    rows_of: Callable[[farrow.Client, str], list[tuple[object, ...]]],
    kind: str,
) -> None:
    """They fetched the object whole."""
    cluster = make_cluster(2, *FABRICS["net"], "--metrics")
    a, b = cluster.clients()
    n = np.arange(CHUNKS * ROWS)
    rows = pa.table({"n": n, "half": n / 2, "word": [f"word {one:020}" for one in n]})
    b.put(rows if kind == "table" else rows.combine_chunks().to_batches()[0], "trades")
    for query, columns in (
        ("select sum(n) from trades", 1),
        # DuckDB reads the first column.
        ("select count(*) from trades", 1),
        ("select max(half) from trades where n < 1000", 2),
        ("select count(*), min(n) from trades where half >= 99999.5", 2),
    ):
        before = fetched(cluster)
        # Equal to those at the node that has the rows.
        assert rows_of(a, query) == rows_of(b, query)
        came = fetched(cluster) - before
        # Columns that an earlier query fetched may be there still.
        assert came <= columns * n.nbytes + 20_000, query
        if "sum(n)" in query:
            assert came >= n.nbytes
    query = "select * from trades where n % 50000 = 7 order by n"
    assert rows_of(a, query) == rows_of(b, query)


def test_a_dataset_of_a_put_table_fetches_what_is_read(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(2, *FABRICS["net"], "--metrics")
    a, b = cluster.clients()
    n = np.arange(CHUNKS * ROWS)
    rows = pa.table({"n": n, "word": [f"word {one:020}" for one in n]})
    b.put(rows, "trades")
    before = fetched(cluster)
    opened = farrow.dataset.dataset("trades", a)
    assert opened.schema == rows.schema
    assert opened.count_rows() == len(n)
    assert fetched(cluster) - before < 10_000
    assert opened.head(5).equals(rows.slice(0, 5))
    assert opened.head(5, columns=["word"])["word"].to_pylist() == rows["word"][:5].to_pylist()
    assert opened.head(0).num_rows == 0
    assert fetched(cluster) - before < 200_000
    few = opened.to_table(columns=["n"], filter=pc.field("n") < 3)
    assert few.to_pydict() == {"n": [0, 1, 2]}
    assert fetched(cluster) - before < 200_000 + n.nbytes
    [fragment] = opened.get_fragments()
    assert fragment.head(2, columns=["n"]).to_pydict() == {"n": [0, 1]}
    assert opened.to_table().equals(rows)
    assert opened.head(len(n) + 1).equals(rows)
    with pytest.raises(farrow.InvalidArgument, match="version 1 of an object"):
        farrow.dataset.dataset("trades", a, version=1)


def test_a_put_table_moves_or_is_replaced_while_it_is_read(
    make_cluster: Callable[..., Cluster],
) -> None:
    """A moved object has another id; one that replaces it has other rows."""
    cluster = make_cluster(3, *FABRICS["net"])
    a, b, c = cluster.clients()
    rows = pa.table({"n": [1, 2, 3], "word": ["x", "y", "z"]})
    b.put(rows, "trades")
    opened = farrow.dataset.dataset("trades", a)
    b._drain(True)
    wait_until(lambda: not b._drain()["untold"], "all members to know of the drain")
    b._move_object(b.list("trades")["id"][0].as_py(), "c", 30.0)
    assert opened.to_table().equals(rows)
    c.put(pa.table({"n": [4], "word": ["w"]}), "trades", replace=True)
    with pytest.raises(farrow.NotFound, match="'trades' was deleted or replaced"):
        opened.to_table(columns=["word"])
    with duckdb.connect() as connection:
        farrow.duckdb.attach(connection, client=a)
        assert connection.execute("select n from trades").fetchall() == [(4,)]
        c.put(pa.table({"n": [5], "word": ["v"]}), "trades", replace=True)
        assert connection.execute("select n from trades").fetchall() == [(5,)]


def test_a_table_that_cannot_be_read_hides_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = farrow.connect(node.socket)
    client.put(pa.table({"n": [1]}), "trades")
    tables = TableSource(lambda: client)

    def fail(error: Exception) -> None:
        def found(name: str, client: farrow.Client) -> None:
            raise error

        monkeypatch.setattr(_engine, "NewestRows", found)

    for error in (farrow.NodeLost("b"), farrow.NodeUnreachable("b"), farrow.NotFound("trades")):
        fail(error)
        assert tables.schema("trades") is None
    fail(farrow.Disconnected("the node has ended"))
    with pytest.raises(farrow.Disconnected):
        tables.schema("trades")


def fetched(cluster: Cluster) -> int:
    """Bytes that node a has fetched from other nodes."""
    # A node repeats numbers that are younger.
    time.sleep(0.11)
    text = scrape(cluster.nodes["a"])
    found = re.search(r"^farrow_fetched_bytes_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))
