"""SQL over two nodes where workers, nodes and clients end, and where memory is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, Node, wait_until
from sql_cases import ENDLESS, FABRICS, WORKERS, Workers, free_bytes, nameless, numbers, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
pytest_plugins = ["sql_cases"]

QUERIES = "farrow.sql/queries/"
QUERY = (
    "select a.k % 10 as x, count(*) as n from numbers a join numbers b on a.k = b.k "
    "group by 1 order by 1"
)


def test_a_query_beyond_its_time_is_cancelled(workers: Workers) -> None:
    client = workers.cluster.client("a")
    with pytest.raises(farrow.Timeout, match=r"did not end within 1\.0 s, and was cancelled"):
        farrow.sql(ENDLESS, client, timeout=1.0)
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")
    assert rows_of(farrow.sql("select count(*) from numbers", client, timeout=60)) == [(40_000,)]


def test_ctrl_c_cancels(workers: Workers) -> None:
    client = workers.cluster.client("a")

    def interrupt(done: int, total: int) -> None:
        if done >= 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        farrow.sql("select k, count(*) from numbers group by k", client, progress=interrupt)
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")


def test_a_killed_client_leaves_nothing(workers: Workers) -> None:
    client = workers.cluster.client("a")
    script = (
        "import sys, farrow\n"
        "def tell(done, total):\n"
        "    print(done, flush=True)\n"
        f"farrow.sql('''{ENDLESS}''', farrow.connect(sys.argv[1]), progress=tell)\n"
    )
    command = [sys.executable, "-c", script, workers.cluster.nodes["a"].socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() not in ("2", ""):
            continue
        assert process.poll() is None
        assert nameless(client) > 0
        assert client.list(QUERIES)["metadata"].to_pylist()
        process.kill()
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")
    wait_until(lambda: len(client.list(QUERIES)) == 0, "its announcement is deleted")


def test_a_query_is_announced_while_it_runs(workers: Workers) -> None:
    client = workers.cluster.client("a")
    text = "select k, count(*) from numbers group by k"
    seen: list[list[tuple[str, str]]] = []

    def look(done: int, total: int) -> None:
        seen.extend(client.list(QUERIES)["metadata"].to_pylist())

    farrow.sql(text, client, progress=look)
    labels = dict(seen[0])
    assert (labels["query"], labels["pid"]) == (text, str(os.getpid()))
    assert int(labels["workers"]) == len(workers.processes)
    assert len(client.list(QUERIES)) == 0


def test_a_worker_killed_in_the_middle(pair: Workers) -> None:
    """Its tasks run elsewhere, and what it produced is read: it is in the store."""
    client = pair.cluster.client("a")
    numbers(client, 80_000)
    wanted = rows_of(farrow.sql(QUERY, client))
    assert [row[0] for row in wanted] == list(range(10))
    assert sum(row[1] for row in wanted) == 80_000 * 80
    doomed = pair.processes[1]
    seen = []

    def kill(done: int, total: int) -> None:
        seen.append(done)
        # Its part of both inputs of the join is there.
        if done >= 4 and doomed.poll() is None:
            doomed.kill()
            doomed.wait()

    assert rows_of(farrow.sql(QUERY, client, progress=kill, timeout=60)) == wanted
    assert max(seen) == seen[-1]
    # The next query finds one worker, and removes what the other one announced.
    assert rows_of(farrow.sql(QUERY, client, timeout=60)) == wanted
    assert client.list(WORKERS, all_nodes=True).num_rows == 1


def test_a_killed_node_is_named(make_cluster: Callable[..., Cluster], fabric: str) -> None:
    """Of three: two are no majority once one is lost."""
    cluster = make_cluster(3, *FABRICS[fabric])
    client = cluster.client("a")
    numbers(client, 8_000)
    client.put(pa.table({"k": [1, 2]}), "small")
    started = Workers(cluster)
    try:
        for node in "ab":
            started.start(node)
        assert len(rows_of(farrow.sql(QUERY, client, timeout=60))) == 10
        _kill_node_b(started, client)
    finally:
        started.close()


def _kill_node_b(started: Workers, client: farrow.Client) -> None:
    started.cluster.nodes["b"].kill9()
    started.processes[1].kill()

    def is_lost() -> bool:
        return any(node.name == "b" and node.reach == "lost" for node in client.nodes())

    wait_until(is_lost, "a excludes b")
    with pytest.raises(farrow.NodeLost, match="b"):
        farrow.sql(QUERY, client, timeout=60)
    # Tables of living nodes are still there.
    assert rows_of(farrow.sql("select sum(k) from small", client, timeout=60)) == [(3,)]


def test_a_full_node_is_an_error_with_numbers(pair: Workers) -> None:
    client = pair.cluster.client("a")
    numbers(client, 80_000)
    free = free_bytes(pair.cluster)
    # Rows by the million that no later operator makes fewer before they are exchanged.
    wide = (
        "select a.s, b.s, row_number() over (partition by a.v + b.v order by a.k) "
        "from numbers a join numbers b on a.k = b.k where a.k < 700"
    )
    with pytest.raises(farrow.OutOfMemory, match=r"\d+ B"):
        farrow.sql(wide, client, timeout=100)
    wait_until(lambda: nameless(client) == 0, "the exchanges are deleted")
    wait_until(lambda: free_bytes(pair.cluster) >= free - (1 << 20), "the memory is free")


def test_without_workers(make_node: Callable[..., Node]) -> None:
    client = farrow.connect(make_node().socket)
    table = client.huge_table("trades", pa.schema([("day", pa.int32()), ("price", pa.float64())]))
    for day in range(3):
        table.append(pa.table({"day": pa.array([day] * 2, pa.int32()), "price": [1.0, 2.0]}))
    found = farrow.sql("select day, sum(price) from trades group by day order by day", client)
    assert rows_of(found) == [(0, 3.0), (1, 3.0), (2, 3.0)]
    text = farrow_sql.explain("select sum(price) from trades where day = 1", client)
    assert "table trades: 1 of 3 chunks, rows: 2 on this node" in text
    assert "one stage, in this process: the cluster has no workers" in text
    slow = (
        "select count(*) from range(0, 20000) a join range(0, 20000) b on a.value < b.value "
        "cross join range(0, 20000) c"
    )
    with pytest.raises(farrow.Timeout):
        farrow.sql(slow, client, timeout=0.5)
    wait_until(
        lambda: not any(one.name == "farrow-sql query" for one in threading.enumerate()),
        "its thread ends",
    )


def _one_node(client: farrow.Client) -> None:
    table = client.huge_table("numbers", pa.schema({"v": pa.float64()}))
    table.append(pa.table({"v": [float(n) for n in range(400)]}))


def test_a_worker_finds_a_node_that_starts_again_without_its_memory(node: Node) -> None:
    """The worker found its announcement in the memory that was gone, and never made another."""
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--socket", node.socket]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as worker:

        def is_announced() -> bool:
            assert worker.poll() is None
            return farrow.connect(node.socket).list(WORKERS).num_rows == 1

        wait_until(is_announced, "a worker")
        node.kill9()
        for path in node.memory_dir.iterdir():
            path.unlink()
        node.start()
        wait_until(is_announced, "the worker after the restart")
        client = farrow.connect(node.socket)
        _one_node(client)

        def runs_at_the_worker() -> bool:
            text = farrow_sql.explain("select count(*) from numbers", client)
            return "in this process" not in text

        wait_until(runs_at_the_worker, "a query at the worker")
        query = "select count(*), sum(v) from numbers"
        assert rows_of(farrow.sql(query, client, timeout=60)) == [(400, 79_800.0)]
        worker.terminate()
        assert worker.wait(LIMIT_SECONDS) == 0


def test_a_worker_that_cannot_be_announced_ends_with_the_reason(node: Node) -> None:
    """It served nothing, without a word."""
    farrow.connect(node.socket).create_namespace("full", nbytes=64)
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--socket", node.socket]
    done = subprocess.run(
        [*command, "--namespace", "full"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "quota" in line
