"""Huge tables: one pyarrow.Table whose chunks lie in the memory of several nodes."""

from __future__ import annotations

import doctest
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pytest

import farrow
import farrow.huge
from conftest import LIMIT_SECONDS, wait_until
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

SCHEMA = pa.schema({"n": pa.int64(), "kind": pa.string()})


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows of the test's table, which say their own numbers."""
    numbers = range(first, first + count)
    columns = [pa.array(numbers), pa.array([f"k{n % 3}" for n in numbers])]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Cluster:
    """Three nodes, a to c, and a client of each."""

    NAMES = ("a", "b", "c")

    def __init__(self, make_node: Callable[..., Node], reach: str = "mapped") -> None:
        self.is_mapped = reach == "mapped"
        addresses = free_addresses(len(self.NAMES))
        self.nodes = []
        for name, address in zip(self.NAMES, addresses, strict=True):
            flags = ["--plaintext", "--lease-ms", "2000", "--name", name, "--listen", address]
            flags += [] if self.is_mapped else ["--net=only", "--no-prepare"]
            for other in addresses:
                flags += [] if other == address else ["--join", other]
            self.nodes.append(make_node("--memory", "64MiB", *flags))
        self.clients = [farrow.connect(node.socket) for node in self.nodes]
        for number, client in enumerate(self.clients):
            wait_until(lambda c=client, n=number: self._puts(c, n), "a node that makes names")
        probes = [f"probe{number}" for number in range(3)]
        for client in self.clients:
            wait_until(lambda c=client: all(map(c.contains, probes)), "nodes that see each other")
        self.clients[0].delete(probes)

    @staticmethod
    def _puts(client: farrow.Client, number: int) -> bool:
        try:
            client.put(b"probe", f"probe{number}")
        except farrow.AlreadyExists:
            return True
        except farrow.FarrowError:
            return False
        return True

    def table(self, number: int = 0, name: str = "t") -> farrow.HugeTable:
        return self.clients[number].huge_table(name, SCHEMA)


@pytest.fixture(params=["mapped", "by net"])
def cluster(make_node: Callable[..., Node], request: pytest.FixtureRequest) -> Cluster:
    """Nodes that map each other's memory, and nodes that share none."""
    return Cluster(make_node, request.param)


@pytest.fixture
def spread(cluster: Cluster) -> farrow.HugeTable:
    """Rows 0 to 2999 on three nodes, as c sees them; the middle came last."""
    table = cluster.table()
    table.append(rows(0, 1000))
    table.append(rows(2000, 1000), 2000, node="b")
    cluster.table(2).append(pa.table(rows(1000, 1000)), position=1000)
    return cluster.table(2)


def test_chunks_of_three_nodes_are_one_table(cluster: Cluster, spread: farrow.HugeTable) -> None:
    table = spread.table()
    assert isinstance(table, pa.Table)
    table.validate(full=True)
    assert table.schema == spread.schema == SCHEMA
    assert table["n"].to_pylist() == list(range(3000))
    assert [
        (part.position, part.rows, part.node, part.version) for part in spread.partitions()
    ] == [
        (0, 1000, "a", 1),
        (1000, 1000, "c", 3),
        (2000, 1000, "b", 2),
    ]
    assert (spread.rows, spread.version, spread.name) == (3000, 3, "t")


def test_nothing_is_copied(cluster: Cluster, spread: farrow.HugeTable) -> None:
    client = cluster.clients[2]
    before = pa.total_allocated_bytes()
    column = spread.table()["n"]
    assert pa.total_allocated_bytes() == before
    for part, chunk in zip(spread.partitions(), column.chunks, strict=True):
        # The memory of the object itself, which is in this client's region if it is c's.
        data = chunk.buffers()[1]
        again = client.get(part.id)["n"]
        again = again.chunk(0) if isinstance(again, pa.ChunkedArray) else again
        assert data.address == again.buffers()[1].address, part
        is_own = client._offset(data.address, data.size) is not None
        # What is fetched is in the memory of the client's own node.
        assert is_own == (part.node == "c" or not cluster.is_mapped), part


def test_what_lies_in_the_pool_is_appended_in_place(cluster: Cluster) -> None:
    client, table = cluster.clients[1], cluster.table(1)
    numbers = pc.add(pa.array(range(100_000)), pa.scalar(0), memory_pool=client.memory_pool())
    kinds = pa.nulls(len(numbers), pa.string())
    batch = pa.RecordBatch.from_arrays([numbers, kinds], schema=SCHEMA)
    table.append(batch)
    seen = table.table()["n"].chunk(0).buffers()[1]
    assert seen.address == numbers.buffers()[1].address
    assert cluster.table(2).table()["n"].chunk(0).equals(numbers)


def test_compute_and_acero(spread: farrow.HugeTable) -> None:
    table = spread.table()
    assert pc.sum(table["n"]).as_py() == sum(range(3000))
    assert table.filter(pc.field("n") >= 2990)["n"].to_pylist() == list(range(2990, 3000))
    groups = table.group_by("kind").aggregate([("n", "sum")]).sort_by("kind")
    sums = [sum(range(k, 3000, 3)) for k in range(3)]
    assert groups.to_pylist() == [{"kind": f"k{k}", "n_sum": sums[k]} for k in range(3)]
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("filter", acero.FilterNodeOptions(pc.field("kind") == "k1")),
            acero.Declaration("aggregate", acero.AggregateNodeOptions([("n", "sum", None, "s")])),
        ]
    )
    assert plan.to_table().to_pylist() == [{"s": sums[1]}]


def test_duckdb(spread: farrow.HugeTable) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    trades = spread.table()
    found = duckdb.sql("select kind, sum(n) from trades group by kind order by kind").fetchall()
    assert trades.num_rows == 3000
    assert found == [(f"k{k}", sum(range(k, 3000, 3))) for k in range(3)]


def test_polars(spread: farrow.HugeTable) -> None:
    polars: Any = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.from_arrow(spread.table())
    assert frame.filter(polars.col("kind") == "k2")["n"].sum() == sum(range(2, 3000, 3))


def test_growth_is_seen_by_version(cluster: Cluster) -> None:
    table, other = cluster.table(), cluster.table(1)
    assert (table.version, table.rows, table.table().num_rows) == (0, 0, 0)
    assert table.table().schema == SCHEMA
    for number in range(5):
        part = other.append(rows(10 * number, 10), node=Cluster.NAMES[number % 3])
        assert part == table.partitions()[-1]
        assert (part.version, part.position) == (number + 1, 10 * number)
        assert table.version == number + 1
    for version in range(6):
        assert table.table(version)["n"].to_pylist() == list(range(10 * version))
        assert len(table.partitions(version)) == version
    with pytest.raises(farrow.InvalidArgument, match="version 6"):
        table.table(6)


def test_wait(cluster: Cluster) -> None:
    table, seen = cluster.table(), []
    waiting = threading.Thread(
        target=lambda: seen.append(table.wait(rows=20, timeout=LIMIT_SECONDS))
    )
    waiting.start()
    other = cluster.table(1)
    other.append(rows(10, 10), 10)
    other.append(rows(0, 10), 0)
    waiting.join(LIMIT_SECONDS)
    assert seen == [2]
    assert table.wait(version=1) == 2
    with pytest.raises(farrow.Timeout, match="21 rows"):
        table.wait(rows=21, timeout=0.01)
    with pytest.raises(farrow.InvalidArgument):
        table.wait()
    with pytest.raises(farrow.InvalidArgument):
        table.wait(rows=1, version=1)


def test_gaps_and_overlaps(cluster: Cluster) -> None:
    table = cluster.table()
    table.append(rows(0, 10))
    table.append(rows(15, 5), 15)
    with pytest.raises(farrow.RowsMissing, match="10 to 14") as missing:
        table.table()
    assert (missing.value.first, missing.value.last) == (10, 14)
    for first, count in [(9, 1), (0, 10), (14, 3), (19, 100), (5, 11)]:
        with pytest.raises(farrow.RowsTaken) as taken:
            cluster.table(1).append(rows(first, count), first)
        assert taken.value.version in (1, 2)
    cluster.table(1).append(rows(10, 5), 10)
    assert table.table()["n"].to_pylist() == list(range(20))


def test_what_is_refused(cluster: Cluster) -> None:
    table, client = cluster.table(), cluster.clients[1]
    words = pa.table({"n": ["one"], "kind": ["k"]})
    for call in (
        lambda: table.append(words),
        lambda: client.huge_table("t", words.schema),
    ):
        with pytest.raises(farrow.InvalidArgument, match='"n" is Int64 in the table, not Utf8'):
            call()
    with pytest.raises(farrow.InvalidArgument, match="no rows"):
        table.append(rows(0, 0))
    for position in (-1, 2**63 - 1, 2**64, "first"):
        with pytest.raises(farrow.InvalidArgument):
            table.append(rows(0, 1), position)  # type: ignore[arg-type]
    with pytest.raises(farrow.InvalidArgument, match="no node"):
        table.append(rows(0, 1), node="z")
    for nothing in (b"bytes", pa.array([1])):
        with pytest.raises(farrow.InvalidArgument):
            table.append(nothing)
    with pytest.raises(farrow.UnsupportedType):
        client.huge_table("other", {"n": "int64"})  # type: ignore[arg-type]
    with pytest.raises(farrow.NotFound):
        client.huge_table("other")
    client.put(b"plain", "plain")
    with pytest.raises(farrow.InvalidArgument, match="no huge table"):
        client.huge_table("plain")
    assert table.version == 0


def test_metadata_of_a_schema_plays_no_part(cluster: Cluster) -> None:
    marked = SCHEMA.with_metadata({"unit": "m"})
    table = cluster.clients[0].huge_table("marked", marked)
    table.append(rows(0, 3))
    again = cluster.clients[1].huge_table("marked", SCHEMA)
    assert again.schema.metadata == again.table().schema.metadata == {b"unit": b"m"}


def test_columns_and_rows(cluster: Cluster, spread: farrow.HugeTable) -> None:
    whole = spread.table()
    for wanted in (
        slice(0, 10), slice(990, 1010), slice(500, 2500), slice(-5, None), slice(3000), slice(7, 7)
    ):  # fmt: skip
        first, end, _ = wanted.indices(3000)
        part = spread.table(rows=wanted)
        part.validate(full=True)
        assert part.equals(whole.slice(first, end - first)), wanted
        kinds = spread.table(columns=["kind"], rows=wanted)
        assert kinds.equals(whole.select(["kind"]).slice(first, end - first)), wanted
    swapped = cluster.table(0).table(columns=["kind", "n"])
    assert swapped.equals(whole.select(["kind", "n"]))
    assert spread.table(columns=[]).num_rows == 3000
    assert spread.table(1, columns=["n"])["n"].to_pylist() == list(range(1000))
    with pytest.raises(farrow.InvalidArgument, match="nothing"):
        spread.table(columns=["nothing"])
    empty = cluster.table(1, "empty")
    assert empty.table(columns=["kind"]).schema == pa.schema([SCHEMA.field("kind")])
    # Of a table with a gap, the rows before and behind it.
    spread.append(rows(5000, 10), 5000)
    assert spread.table(rows=slice(0, 3000)).equals(whole)
    assert spread.table(rows=slice(5000, None))["n"].to_pylist() == list(range(5000, 5010))
    with pytest.raises(farrow.RowsMissing) as missing:
        spread.table(rows=slice(2990, 4000))
    assert (missing.value.first, missing.value.last) == (3000, 3999)


def test_drop(cluster: Cluster, spread: farrow.HugeTable) -> None:
    retained = spread.table()
    cluster.table(1).drop()
    for call in (spread.table, spread.drop, lambda: spread.append(rows(0, 1))):
        with pytest.raises(farrow.NotFound):
            call()
    assert retained["n"].to_pylist() == list(range(3000))
    assert all(client.list("t").num_rows == 0 for client in cluster.clients)
    assert cluster.table().version == 0


def test_a_lost_node_is_named(cluster: Cluster, spread: farrow.HugeTable) -> None:
    other = cluster.table(0, "elsewhere")
    other.append(rows(0, 10))
    cluster.nodes[1].kill9()
    found: list[str] = []

    def is_lost() -> bool:
        try:
            spread.table()
        except farrow.FarrowError as error:
            found.append(str(error))
            return True
        return False

    wait_until(is_lost, "an error that names it")
    assert 'node "b" is lost' in found[0]
    with pytest.raises(farrow.FarrowError, match='node "b" is lost'):
        spread.append(rows(3000, 1))
    if cluster.is_mapped:
        other.append(rows(10, 10))
        assert other.table()["n"].to_pylist() == list(range(20))
    else:
        # Which names it had is not known, so none is granted; what is there is readable.
        with pytest.raises(farrow.NodeLost, match='node "b" is lost'):
            other.append(rows(10, 10))
        assert other.table()["n"].to_pylist() == list(range(10))
    cluster.nodes[1].start()
    wait_until(lambda: not is_lost(), "the node is back")
    assert spread.table()["n"].to_pylist() == list(range(3000))


def test_one_node_alone(client: farrow.Client) -> None:
    table = client.huge_table("t", SCHEMA)
    table.append(rows(0, 10))
    table.append(pa.Table.from_batches([rows(10, 5), rows(15, 0), rows(15, 5)]))
    assert table.table()["n"].to_pylist() == list(range(20))
    assert [(part.node, part.rows) for part in table.partitions()] == [("", 10), ("", 10)]
    assert repr(table) == '<farrow.HugeTable "t">'


def test_other_types(client: farrow.Client) -> None:
    columns = pa.table(
        {
            "d": pa.array(["x", "y", "x"]).dictionary_encode(),
            "l": pa.array([[1], None, [2, 3]]),
            "s": pa.array([{"a": 1}, {"a": None}, None]),
        }
    )
    table = client.huge_table("t", columns.schema)
    table.append(columns)
    table.append(columns.slice(1))
    assert table.table().equals(pa.concat_tables([columns, columns.slice(1)]))
    empty = client.huge_table("none", pa.schema([]))
    empty.append(columns.select([]))
    assert empty.table().num_rows == 3


def test_the_example_runs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARROW_SOCKET", node.socket)
    text = farrow.huge.__doc__ or ""
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ") or not line]
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert names["trades"].table()["price"].to_pylist() == [1.5, 2.5, 3.5, 4.5]
    assert names["trades"].table(version=1)["price"].to_pylist() == [1.5, 2.5]
    assert not doctest.DocTestFinder().find(farrow.huge)[0].examples, "it is run here"
