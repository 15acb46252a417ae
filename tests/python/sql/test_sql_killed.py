"""SQL over three nodes of which one, or a worker, or a process of a worker is killed at random in
each query: the rows are right, or an error names what was killed; nothing of it stays.

``FARROW_SQL_KILLS=100`` makes the queries as many over each kind of nodes, and
``FARROW_SQL_KILLS_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from conftest import Cluster, wait_until
from sql_cases import FABRICS, WORKERS, Workers, nameless, numbers, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
from farrow_sql._worker import _workers  # noqa: E402

pytest_plugins = ["sql_cases"]

QUERIES = int(os.environ.get("FARROW_SQL_KILLS", "4"))
SEED = int(os.environ.get("FARROW_SQL_KILLS_SEED", "1"))
ROWS = 40_000
LEASE_SECONDS = 5.0
# A hang is an error of its own.
LIMIT_SECONDS = 60.0
NODES = "abc"

# Exchanges of both sides, groups and a sort; all rows of a result that lies on several nodes.
TEXTS = [
    "select a.k % 10 as x, count(*) as n from numbers a join numbers b on a.k = b.k group by 1 "
    "order by 1",
    "select a.v, b.s from numbers a join numbers b on a.v = b.v + 1",
    "select s, sum(v) as t, count(distinct k) as d from numbers group by s order by s",
    "select k, v, row_number() over (partition by k order by v) as r from numbers where v < 30000",
    "select count(*) as c from few",
]


class Killer:
    """Kills something once so many tasks have finished, after a moment."""

    def __init__(self, chance: random.Random, workers: Workers) -> None:
        self.kind = chance.choice(["node", "worker", "process"])
        # The client is of node a: that one stays.
        self.node = chance.choice("bc" if self.kind == "node" else NODES)
        self._tasks = chance.randrange(0, 7)
        self._seconds = chance.choice([0.0, 0.0, chance.random() * 0.2])
        self._workers = workers
        self.is_done = False

    def __str__(self) -> str:
        return f"{self.kind} of {self.node} after {self._tasks} tasks and {self._seconds:.3f} s"

    def tell(self, done: int, total: int) -> None:
        """Take the progress of a query."""
        if done >= min(self._tasks, total - 1):
            self.kill()

    def kill(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        time.sleep(self._seconds)
        if self.kind == "node":
            self._workers.cluster.nodes[self.node].kill9()
            return
        worker = self._workers.at(self.node)
        if self.kind == "worker":
            worker.kill()
            worker.wait()
            return
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def is_named(self, error: farrow.FarrowError) -> bool:
        """Whether the message has the name of the node, quoted or as a part of the worker's."""
        return f'"{self.node}"' in str(error) or f"{self.node!r}" in str(error)

    def repair(self) -> None:
        if self.kind == "node":
            self._workers.cluster.nodes[self.node].start()
            self._workers.cluster.settle(len(NODES))
        elif self.kind == "worker":
            self._workers.start(self.node)


def sorted_rows(table: pa.Table) -> list[Any]:
    return sorted(rows_of(table))


def uses_all(client: farrow.Client) -> bool:
    """Whether there is a worker on each node that answers."""
    prepared = farrow_sql._run._query.Query("select count(*) from few", client).prepare()
    try:
        return "".join(worker.node for worker in prepared.workers) == NODES
    finally:
        prepared.close()


def requested(client: farrow.Client, text: str, killer: Killer) -> list[Any] | farrow.FarrowError:
    """The rows of a query, or an error of one of the kinds that a kill can cause."""
    try:
        return sorted_rows(farrow.sql(text, client, timeout=LIMIT_SECONDS, progress=killer.tell))
    except (farrow.NodeLost, farrow.NodeUnreachable, _workers.WorkerLost) as error:
        return error


def other_names(client: farrow.Client) -> set[str]:
    """Of all objects but the announcements of workers."""
    names = client.list(all_nodes=True)["name"].to_pylist()
    return {name for name in names if not name.startswith(WORKERS)}


def test_killed_at_random(make_cluster: Callable[..., Cluster], fabric: str) -> None:
    chance = random.Random(SEED)
    cluster = make_cluster(len(NODES), *FABRICS[fabric])
    client = cluster.client("a")
    numbers(client, ROWS)
    client.put(pa.table({"k": [1, 2, 3]}), "few")
    before = other_names(client)
    workers = Workers(cluster, LEASE_SECONDS)
    outcomes = {"right": 0, "named": 0}
    try:
        for node in NODES:
            workers.start(node)
        wanted = {text: sorted_rows(farrow.sql(text, client, timeout=60)) for text in TEXTS}
        assert [len(wanted[text]) for text in TEXTS] == [10, ROWS - 1, 7, 30_000, 1]
        for number in range(QUERIES):
            text = chance.choice(TEXTS)
            killer = Killer(chance, workers)
            story = f"query {number} of seed {SEED}: {text!r}, {killer}"
            found = requested(client, text, killer)
            if isinstance(found, farrow.FarrowError):
                assert killer.is_done, f"{story}: {found}"
                assert killer.is_named(found), f"{story}: {found}"
                outcomes["named"] += 1
            else:
                assert found == wanted[text], story
                outcomes["right"] += 1
            killer.kill()
            killer.repair()
            wait_until(lambda: uses_all(client), f"all workers answer after {story}")
            if killer.kind == "node":
                # The rows of a node are there again with it.
                assert sorted_rows(farrow.sql(text, client, timeout=60)) == wanted[text], story
        # What killed processes had produced ends with its lease.
        wait_until(lambda: nameless(client) == 0, "the exchanges are deleted", 30 + LEASE_SECONDS)
        assert other_names(client) == before
        assert client.list(WORKERS, all_nodes=True).num_rows == len(NODES)
    finally:
        workers.close()
        print(f"{fabric}, seed {SEED}: {outcomes}", file=sys.stderr)
    assert sum(outcomes.values()) == QUERIES
