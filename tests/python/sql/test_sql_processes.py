"""The processes of workers: which queries occupy them, and what they leave when they end."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Node, run_python, wait_until
from sql_cases import WORKERS, nameless, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")

QUERY = "select sum(k) from numbers"
# Is not divided.
WHOLE = (
    "with recursive r as (select 1 as n union all select n + 1 from r where n < 50) "
    "select count(*) from r join numbers on k = n"
)


@pytest.fixture
def worker(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that serves one query at a time, and a table."""
    client = farrow.connect(node.socket)
    client.put(pa.table({"k": list(range(100))}), "numbers")
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--queries", "1"]
    process = subprocess.Popen([*command, "--socket", node.socket], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: client.list(WORKERS).num_rows == 1, "a worker")
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)


def is_served(client: farrow.Client) -> bool:
    """Whether a query runs on the worker."""
    found, prepared = farrow_sql._run._query.Query(QUERY, client, timeout=60).run()
    assert rows_of(found) == [(4950,)]
    return prepared.plan is not None


def test_a_query_in_the_client_occupies_no_worker(
    node: Node, worker: subprocess.Popen[bytes]
) -> None:
    """It kept a process of each worker until its end, which did nothing meanwhile."""
    client = farrow.connect(node.socket)
    prepared = farrow_sql._run._query.Query(WHOLE, client, timeout=60).prepare()
    try:
        assert prepared.plan is None
        assert is_served(client)
    finally:
        prepared.close()
    assert rows_of(farrow.sql(WHOLE, client, timeout=60)) == [(50,)]


def test_a_query_that_turns_out_to_be_whole_occupies_no_worker(
    node: Node, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some plans are found to be whole only when their tasks are made."""
    client = farrow.connect(node.socket)
    query = farrow_sql._run._query
    run_tasks, run_here = query.Schedule.run, query.LocalQuery.run
    seen = []

    def run(schedule: Any) -> Any:
        monkeypatch.setattr(query.Schedule, "run", run_tasks)
        raise farrow_sql.CannotDistribute("a child that is not in its parent")

    def run_local(local: Any, found: Any) -> pa.Table:
        seen.append(is_served(client))
        return run_here(local, found)

    monkeypatch.setattr(query.Schedule, "run", run)
    monkeypatch.setattr(query.LocalQuery, "run", run_local)
    found, prepared = query.Query(QUERY, client, timeout=60).run()
    assert rows_of(found) == [(4950,)]
    assert prepared.plan is None
    assert seen == [True]


def test_a_worker_that_ends_leaves_nothing(node: Node, worker: subprocess.Popen[bytes]) -> None:
    """What a task had put and not yet shared stayed, without a name and a lease, until the node
    ended: its announcement, by which others find it, was deleted."""
    client = farrow.connect(node.socket)
    [name] = client.list(WORKERS)["name"].to_pylist()
    labels = {"farrow.sql.worker": name, "farrow.sql.process": str(worker.pid)}
    client.put(pa.table({"k": list(range(100_000))}), metadata=labels)
    assert nameless(client) == 1
    worker.terminate()
    assert worker.wait(LIMIT_SECONDS) == 0
    assert nameless(client) == 0


def test_workers_that_end_in_each_run_fail_the_query(
    client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was of a private class."""
    runs = []

    def run(query: Any, prepared: Any) -> None:
        runs.append(prepared)
        raise farrow_sql._worker._workers.WorkerLost("worker a-1 on node 'a' ended: reset by peer")

    client.put(pa.table({"k": [1]}), "numbers")
    monkeypatch.setattr(farrow_sql._run._query.Query, "_run", run)
    with pytest.raises(farrow_sql.QueryFailed, match="worker a-1 on node 'a' ended"):
        farrow.sql(QUERY, client, timeout=60)
    assert len(runs) == 3


FORKED = """
import os, sys
import farrow
address, query = sys.argv[1], "select sum(k) as s from numbers group by k % 3 order by 1"

def ask(client):
    try:
        print(farrow.sql(query, client, timeout=60).to_pydict(), flush=True)
    except farrow.InvalidArgument as error:
        print(error, flush=True)

client = farrow.connect(address)
if sys.argv[2] == "used":
    ask(client)
if os.fork() == 0:
    ask(farrow.connect(address))
    os._exit(0)
os.wait()
ask(client)
"""


@pytest.mark.parametrize("before", ["used", "unused"])
def test_a_forked_child_does_not_wait_for_threads_of_its_parent(
    client: farrow.Client, node: Node, before: str
) -> None:
    """It waited forever, also with a timeout."""
    client.put(pa.table({"k": list(range(6))}), "numbers")
    lines = run_python(FORKED, node.socket, before).splitlines()
    rows = "{'s': [3, 5, 7]}"
    if before == "used":
        assert lines[1].startswith("the process from which this one was forked has used DataFusion")
        assert [lines[0], lines[2]] == [rows, rows]
    else:
        assert lines == [rows, rows]


ENDS = """
import sys
import farrow
client = farrow.connect(sys.argv[1])
print(farrow.sql("select sum(k) as s from numbers where k < 6", client).to_pydict(), flush=True)
try:
    # It computes for much longer, also after the timeout.
    farrow.sql("select count(*) from numbers a join numbers b on a.k <> b.k", client, timeout=0.5)
except farrow.Timeout:
    print("late", flush=True)
"""


def test_processes_end_with_queries_that_still_run(client: farrow.Client) -> None:
    """A thread of DataFusion that enters an interpreter in its finalization aborts the process: a
    test that forks saw it once."""
    client.put(pa.table({"k": list(range(100_000))}), "numbers")
    for _ in range(4):
        assert run_python(ENDS, client.address).splitlines() == ["{'s': [15]}", "late"]
