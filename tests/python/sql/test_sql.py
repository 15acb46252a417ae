"""SQL over two nodes: TPC-H as DuckDB answers it, plans, errors and the command."""

from __future__ import annotations

import contextlib
import decimal
import math
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import farrow
from conftest import wait_until
from farrow import cli
from sql_cases import Workers, nameless, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
pytest_plugins = ["sql_cases"]


# TPC-H


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; averages of decimals have six digits in DataFusion."""
    if isinstance(one, (float, decimal.Decimal)) or isinstance(other, (float, decimal.Decimal)):
        if one is None or other is None:
            return one is other
        return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=1.0001e-6)
    return bool(one == other)


@pytest.fixture(scope="module")
def tpch(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """DuckDB's own tables, and the same rows in chunks that lie on both nodes in turn."""
    duckdb = pytest.importorskip("duckdb")
    program = Path(sys.executable).with_name("tpchgen-cli")
    if not program.exists():
        pytest.skip("tpchgen-cli is not installed")
    folder = tmp_path_factory.mktemp("tpch")
    command = [str(program), "parquet", "-s", "0.01", "--output-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    client = workers.cluster.client("a")
    connection = duckdb.connect()
    for path in sorted(folder.glob("*.parquet")):
        connection.execute(f"create table {path.stem} as from '{path}'")
        rows = pq.read_table(path)
        table = client.huge_table(path.stem, rows.schema.remove_metadata())
        step = max(1, -(-rows.num_rows // 5))
        for number, start in enumerate(range(0, rows.num_rows, step)):
            chunk = rows.slice(start, step).replace_schema_metadata().combine_chunks()
            table.append(chunk, node="ab"[number % 2])
    return connection


def tpch_queries() -> dict[int, str]:
    text = (ROOT / "bench" / "tpch" / "queries.sql").read_text()
    _, *parts = re.split(r"^-- query (\d+)$", text, flags=re.M)
    return {int(number): sql for number, sql in zip(parts[::2], parts[1::2], strict=True)}


def test_all_queries_of_tpch_are_distributed_and_right(tpch: Any, workers: Workers) -> None:
    queries = tpch_queries()
    assert list(queries) == list(range(1, 23))
    client = workers.cluster.client("a")
    for number, text in queries.items():
        wanted = tpch.execute(text).fetchall()
        found, prepared = farrow_sql._run._query.Query(text, client, timeout=120).run()
        assert prepared.plan is not None, (number, prepared.reason)
        nodes = {worker.node for run in prepared.runs for worker in run.workers.values()}
        assert nodes == {"a", "b"}, number
        rows = rows_of(found)
        assert len(rows) == len(wanted), number
        for row, other in zip(rows, wanted, strict=True):
            assert all(map(same, row, other)), (number, row, other)
    # No filter of all queries lost everything.
    assert len(tpch.execute(queries[1]).fetchall()) == 4
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")


def test_another_answer_is_seen() -> None:
    """The canary."""
    assert same(decimal.Decimal("1.50"), 1.5)
    assert not same(1.5, 1.51)
    assert not same("a", "b")
    assert not same(None, 0.0)


# What queries can be


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("select count(*) from numbers", [(40_000,)]),
        ("select sum(v) from numbers where k < 0", [(None,)]),
        ("select k from numbers where k < 0", []),
        ("select k, count(*) from numbers where k < 0 group by k", []),
        ("select count(*) from numbers a cross join numbers b", [(1_600_000_000,)]),
        ("select v from numbers order by v desc limit 2", [(39_999.0,), (39_998.0,)]),
        ("select 1 + 1", [(2,)]),
        (
            "select s, r from (select s, row_number() over (partition by s order by v desc) as r "
            "from numbers) where r = 2 order by s limit 1",
            [("text 0", 2)],
        ),
        (
            "select count(*), count(b.v) from numbers a left join "
            "(select * from numbers where v >= 39990) b on a.v = b.v",
            [(40_000, 10)],
        ),
        # A join that has to see all of its left side; the same numbers on both sides.
        (
            "select count(*) from (select v from numbers where v < 50) a left join "
            "(select v from numbers where v < 40) b on a.v < b.v",
            [(50 + 39 * 40 // 2 - 39,)],
        ),
        (
            "select count(*) from numbers where k not in (select k from numbers where v < 1)",
            [(39_960,)],
        ),
        (
            "select sum(n) from (select count(*) as n from numbers union all select k from numbers "
            "where v = 1)",
            [(40_000 + 919,)],
        ),
        ("select count(distinct k), count(distinct s) from numbers", [(1000, 7)]),
        # Words of plans in constants.
        ("select k from numbers where s = 'mode=CollectLeft'", []),
        ('select count(*) from "numbers" n where n.v between 5 and 7;', [(3,)]),
    ],
)  # fmt: skip
def test_answers(workers: Workers, query: str, wanted: list[Any]) -> None:
    assert rows_of(farrow.sql(query, workers.cluster.client("b"), timeout=60)) == wanted


@pytest.fixture
def few(workers: Workers) -> Iterator[farrow.Client]:
    """A client, and a small table: keys twice, keys of no number, and null."""
    client = workers.cluster.client("a")
    keys = [*range(0, 1100, 11), 5, 5, None, None, -1]
    client.put(pa.table({"key": pa.array(keys, pa.int64()), "n": range(len(keys))}), "few")
    yield client
    client.delete("few")


# Each with the join that DataFusion makes of it, and whether tasks read all of the small side.
JOINS = [
    ("numbers join few on k = key", "Inner", True),
    ("few join numbers on k = key", "Inner", True),
    ("numbers left join few on k = key", "Left", True),
    ("few left join numbers on k = key", "Left", False),
    ("numbers right join few on k = key", "Right", False),
    ("few right join numbers on k = key", "Right", True),
    ("numbers full join few on k = key", "Full", False),
    ("few full join numbers on k = key", "Full", False),
    ("numbers where exists (select 1 from few where key = k)", "LeftSemi", True),
    ("few where exists (select 1 from numbers where key = k)", "LeftSemi", False),
    ("numbers where not exists (select 1 from few where key = k)", "LeftAnti", True),
    ("few where not exists (select 1 from numbers where key = k)", "LeftAnti", False),
    ("numbers where v < 9 or exists (select 1 from few where key = k)", "LeftMark", True),
    ("few where n < 9 or exists (select 1 from numbers where key = k)", "LeftMark", False),
    # Of a constant nothing is known about the join.
    ("few left join numbers on k = key and n || s <> 'join_type=Inner'", "Left", False),
    # Two in one stage, and one whose rows have to stay partitioned by the key of the group.
    ("numbers join few a on k = a.key left join few b on k = b.key + 1", "Inner", True),
    ("numbers join few a on k = a.key left join few b on v = b.key + 1", "Inner", True),
    ("(select k, count(*) from numbers join few on k = key group by k)", "Inner", False),
]


@pytest.mark.parametrize(("source", "kind", "is_broadcast"), JOINS)
def test_joins_with_a_small_table(
    few: farrow.Client, source: str, kind: str, is_broadcast: bool
) -> None:
    """Each task reads the small side whole if no row of it is returned for want of a match."""
    query = f"select * from {source}"
    found, prepared = farrow_sql._run._query.Query(query, few, timeout=60).run()
    assert prepared.plan is not None, prepared.reason
    local = farrow_sql._run._query.LocalQuery(few, query, farrow_sql._deadline.NEVER)

    def ordered(rows: pa.Table) -> list[str]:
        return sorted(map(repr, rows_of(rows)))

    assert ordered(found) == ordered(local.run(prepared.sources))
    assert found.num_rows > 0
    text = farrow_sql.explain(query, few)
    assert f"join_type={kind}," in text
    # Without a broadcast the rows of both tables are partitioned by the key.
    assert text.count("partitioning=Hash([k@") == (0 if is_broadcast else 1), text


LIMITS = [
    ("select * from numbers limit 3", 3),
    ("select s from numbers where v >= 39990 limit 30", 10),
    ("select k, s from numbers limit 30 offset 39990", 10),
    ("select k from numbers limit 5 offset 50000", 0),
    ("select * from (select k, v from numbers where v > 5 limit 7) order by v", 7),
    ("select a.s from (select * from numbers limit 10) a join numbers b on a.v = b.v", 10),
    ("select k from numbers where k > 3 limit 0", 0),
]


@pytest.mark.parametrize(("query", "count"), LIMITS)
def test_a_limit_without_an_order(workers: Workers, query: str, count: int) -> None:
    """It ran in the client's process: columns were computed after it, by numbers of other rows."""
    client = workers.cluster.client("b")
    found, prepared = farrow_sql._run._query.Query(query, client, timeout=60).run()
    assert prepared.plan is not None, prepared.reason
    assert found.num_rows == count
    # Rows as they are in the table, and no row twice.
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    if "v" in found.column_names:
        assert len(set(rows)) == count
        for row in found.to_pylist():
            assert row["k"] == int(row["v"]) * 7919 % 1000
            assert row.get("s", f"text {int(row['v']) % 7}") == f"text {int(row['v']) % 7}"
    if query == LIMITS[0][0]:
        assert sum(run.rows_read for run in prepared.runs) == 3


def test_results_and_exchanges_stay_in_place(workers: Workers) -> None:
    client = workers.cluster.client("a")
    found = farrow.sql("select s, v from numbers where v >= 100 order by v", client)
    assert found.num_rows == 39_900
    address = found["v"].chunk(0).buffers()[1].address
    mapped = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split("-", 1) for line in mapped if "/farrow-" in line]
    inside = [int(low, 16) <= address < int(rest.split()[0], 16) for low, rest in ranges]
    assert any(inside), "the result is in the memory of a node"
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")
    # The result holds its memory.
    assert found["v"][-1].as_py() == 39_999.0


def test_chunks_that_a_filter_leaves_out_are_not_read(workers: Workers) -> None:
    client = workers.cluster.client("a")
    text = farrow_sql.explain("select sum(k) from numbers where v >= 30000", client, analyze=True)
    assert "table numbers: 1 of 4 chunks, rows: 10000 on b" in text
    assert "read 10000 rows of tables" in text
    # Of two scans of a table, each counts.
    query = (
        "select count(*) from numbers a join numbers b on a.k = b.k where a.v < 5 and b.v > 39000"
    )
    assert "table numbers: 2 of 4 chunks" in farrow_sql.explain(query, client)
    everything = "select count(*) from numbers a join numbers b on a.k = b.k where a.v < 5"
    assert "table numbers: 4 of 4 chunks" in farrow_sql.explain(everything, client)


def test_explain_says_where_tasks_run_and_what_moves(workers: Workers) -> None:
    client = workers.cluster.client("a")
    query = "select k, count(*) from numbers group by k"
    planned = farrow_sql.explain(query, client)
    assert "stage 0: 2 tasks, 1 on a, 1 on b" in planned
    assert "table numbers: 20000 + 20000 rows" in planned
    ran = farrow_sql.explain(query, client, analyze=True)
    assert "read 40000 rows of tables (0 of other nodes, 0 B)" in ran
    moved = re.search(r"moved between nodes: (\S+ \S+) of exchanges, 0 rows of tables \(0 B\)", ran)
    assert moved is not None
    assert moved[1] != "0 B"


def test_what_cannot_be_divided_runs_here(workers: Workers) -> None:
    client = workers.cluster.client("a")
    query = (
        "with recursive n as (select 1 as i union all select i + 1 from n where i < 3) "
        "select * from n"
    )
    assert sorted(rows_of(farrow.sql(query, client))) == [(1,), (2,), (3,)]
    assert "one stage, in this process: the operator" in farrow_sql.explain(query, client)


def test_a_window_over_equal_columns_of_a_join_runs_here(workers: Workers) -> None:
    """DataFusion sorts by one of two columns that a join makes equal, and partitions by the other.
    After an exchange it no longer knows that they are equal, and the query ended with its error."""
    client = workers.cluster.client("a")
    query = (
        "select row_number() over (partition by b.v order by a.v, a.k, b.v, b.k) as r "
        "from numbers a join numbers b on a.v = b.v join numbers c on c.v = a.k where a.v < 100"
    )
    assert rows_of(farrow.sql(query, client, timeout=60)) == [(1,)] * 100
    text = farrow_sql.explain(query, client)
    assert "one stage, in this process: a part of the plan cannot run by itself" in text


def test_tables_of_other_kinds(workers: Workers) -> None:
    client = workers.cluster.client("b")
    client.put(pa.table({"K": [1, 2], "d": pa.array(["x", "y"]).dictionary_encode()}), "Some/Table")
    client.put(pa.record_batch({"k": [2, 3], "empty": pa.nulls(2, pa.float64())}), "batch")
    client.huge_table("without rows", pa.schema([("k", pa.int64())]))
    try:
        query = 'select t."K", t.d, b.empty from "Some/Table" t join batch b on t."K" = b.k'
        assert rows_of(farrow.sql(query, workers.cluster.client("a"))) == [(2, "y", None)]
        assert rows_of(farrow.sql('select count(k) from "without rows"', client)) == [(0,)]
    finally:
        client.delete(["Some/Table", "batch"])
        client.huge_table("without rows").drop()


# Errors


def test_errors_have_the_words_of_datafusion(workers: Workers) -> None:
    client = workers.cluster.client("a")
    with pytest.raises(farrow.InvalidArgument, match=r"Valid fields are .*numbers\.k"):
        farrow.sql("select nope from numbers", client)
    with pytest.raises(farrow.InvalidArgument, match=r"'datafusion\.public\.nothing' not found"):
        farrow.sql("select * from nothing", client)
    with pytest.raises(farrow.InvalidArgument, match="not supported"):
        farrow.sql("create table x as select 1", client)
    with pytest.raises(farrow.InvalidArgument, match="not supported"):
        farrow.sql("copy numbers to 'file.csv'", client)
    with pytest.raises(farrow_sql.QueryFailed, match="Divide by zero"):
        farrow.sql("select 1 / (k - k) from numbers", client)
    with pytest.raises(farrow.InvalidArgument, match="a timeout of -1"):
        farrow.sql("select 1", client, timeout=-1)
    # The workers serve the next query.
    assert rows_of(farrow.sql("select count(*) from numbers", client)) == [(40_000,)]


# The command


def test_the_command(workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    socket = workers.cluster.nodes["a"].socket

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "farrow.cli", "sql", "--socket", socket, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    shown = run("select count(*) as n from numbers")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "40000" in shown.stdout
    target = tmp_path / "out.parquet"

    def call(*words: str) -> str:
        assert cli.main(["sql", "--socket", socket, *words]) == 0
        return capsys.readouterr().out

    call("select k from numbers where v < 3", "-o", str(target))
    assert pq.read_table(target).num_rows == 3
    assert "stage 0: 2 tasks" in call("select sum(k) from numbers", "--explain")
    assert "moved between nodes" in call("select sum(k) from numbers", "--analyze")
    assert cli.main(["sql", "--socket", socket, "select nope from numbers"]) == 1
    assert capsys.readouterr().err.startswith("farrow: query not accepted: ")


def test_the_command_shows_its_progress_on_a_terminal(workers: Workers) -> None:
    ours, terminal = pty.openpty()
    socket = workers.cluster.nodes["a"].socket
    command = [sys.executable, "-m", "farrow.cli", "sql", "--socket", socket]
    query = "select k, sum(v) from numbers group by k"
    shown = bytearray()

    def read() -> None:
        # A terminal without a process at its other end is an error of input.
        with contextlib.suppress(OSError):
            while some := os.read(ours, 1 << 16):
                shown.extend(some)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        done = subprocess.run(
            [*command, query], stdout=subprocess.PIPE, stderr=terminal, env=environment,
            timeout=100, check=False,
        )  # fmt: skip
    finally:
        os.close(terminal)
        reader.join(20)
        os.close(ours)
    assert done.returncode == 0, shown
    assert b"tasks" in shown
    assert b" %" in shown


def test_without_the_package_an_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "farrow_sql", None)
    with pytest.raises(ImportError, match="pip install farrow-sql"):
        farrow.sql("select 1")
    assert cli.main(["sql", "select 1"]) == 1
    assert "pip install farrow-sql" in capsys.readouterr().err
