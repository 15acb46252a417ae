"""Workers on the nodes of a cluster, and a table whose rows lie on two nodes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = "farrow.sql/workers/"
# Two thousand million pairs, of which none matches: it takes minutes if it is not cancelled.
ENDLESS = (
    "select count(*) from numbers a join numbers b on sin(a.v) + sin(b.v) > 2 + cos(a.k) + b.k"
)


# How nodes read each other's memory: mapped, or brought by network.
FABRICS = {"mapped": (), "net": ("--plaintext", "--net=only", "--no-prepare")}


# What ``farrow sql-worker`` does, with another lease of exchanges.
_WORKER = (
    "import sys, farrow_sql.worker as worker; worker.LEASE_SECONDS = float(sys.argv.pop(1)); "
    "from farrow.cli import main; sys.exit(main(sys.argv[1:]))"
)


class Workers:
    """Processes of ``farrow sql-worker``.

    Args:
        cluster: the nodes.
        lease: seconds for which exchanges outlive the process that made them.
    """

    def __init__(self, cluster: Cluster, lease: float = 60.0) -> None:
        self.cluster = cluster
        self.processes: list[subprocess.Popen[bytes]] = []
        self._lease = str(lease)
        self._by_node: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, *flags: str) -> subprocess.Popen[bytes]:
        """One more, which answers."""
        client = self.cluster.client("a")
        before = set(client.list(WORKERS, all_nodes=True)["name"].to_pylist())
        socket = self.cluster.nodes[node].socket
        command = [sys.executable, "-c", _WORKER, self._lease]
        command += ["sql-worker", "--socket", socket, *flags]
        self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        process = self.processes[-1]

        def is_announced() -> bool:
            assert process.poll() is None, f"the worker at {node} ended: {process.returncode}"
            names = client.list(WORKERS, all_nodes=True)["name"].to_pylist()
            return bool(set(names) - before)

        wait_until(is_announced, f"a worker at {node}")
        self._by_node[node] = process
        return process

    def at(self, node: str) -> subprocess.Popen[bytes]:
        """The last one that was started at a node."""
        return self._by_node[node]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(LIMIT_SECONDS)


@pytest.fixture(scope="module", params=FABRICS)
def fabric(request: pytest.FixtureRequest) -> str:
    """How the nodes of a test read each other's memory."""
    return str(request.param)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, fabric: str) -> Iterator[Workers]:
    """Two nodes with a worker each, for all tests that end none."""
    made: list[Node] = []

    def make(*flags: str) -> Node:
        made.append(Node(tmp_path_factory.mktemp("node"), *flags))
        return made[-1]

    started = None
    try:
        started = Workers(Cluster(make, 2, *FABRICS[fabric]))
        for node in "ab":
            started.start(node)
        client = started.cluster.client("a")
        numbers(client, 40_000)
        yield started
    finally:
        if started is not None:
            started.close()
        for node in made:
            node.close()


def numbers(client: farrow.Client, rows: int) -> None:
    """A table of four chunks that lie on a and b in turn; v has a range of its own in each."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
    table = client.huge_table("numbers", schema)
    for chunk in range(4):
        first = chunk * rows // 4
        found = list(range(first, first + rows // 4))
        table.append(
            pa.table(
                {
                    "k": [n * 7919 % 1000 for n in found],
                    "v": [float(n) for n in found],
                    "s": [f"text {n % 7}" for n in found],
                }
            ),
            node="ab"[chunk % 2],
        )


def free_bytes(cluster: Cluster) -> int:
    """Of all nodes."""
    return sum(client.stats()["free"] for client in cluster.clients())


def nameless(client: farrow.Client) -> int:
    """Objects without a name: exchanges have none."""
    return sum(not name for name in client.list(all_nodes=True)["name"].to_pylist())


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture
def pair(make_cluster: Callable[..., Cluster], fabric: str) -> Iterator[Workers]:
    """Two nodes with a worker each, which the test may end."""
    started = Workers(make_cluster(2, *FABRICS[fabric]))
    try:
        for node in "ab":
            started.start(node)
        yield started
    finally:
        started.close()
