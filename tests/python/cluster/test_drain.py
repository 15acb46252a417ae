"""A node is drained before it leaves: ``farrow node drain``."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
import farrow.dataset
from conftest import Cluster, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

KIB, MIB = 1 << 10, 1 << 20

#: Objects that move under load. A longer run: ``FARROW_DRAINS=1000``.
OBJECTS = int(os.environ.get("FARROW_DRAINS", "60"))

NET = ("--plaintext", "--net=only", "--no-prepare")


def drain(node: Node, *words: str) -> int:
    return main(["node", "drain", "--socket", node.socket, *words])


def reaches(client: farrow.Client) -> dict[str, str]:
    return {node.name: node.reach for node in client.nodes()}


@pytest.mark.parametrize("flags", [(), NET], ids=["mapped", "net"])
def test_named_objects_move_and_the_node_can_end(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    cluster = make_cluster(3, *flags)
    a, b, c = cluster.clients()
    table = pa.table({"x": list(range(5000)), "s": [f"row {row}" for row in range(5000)]})
    a.put(table, "table", metadata={"owner": "ops"})
    a.put(b"", "empty")
    a.put(bytes(range(256)) * 8192, "bytes")
    a.pin("bytes")
    a.create_namespace("team")
    for other in (b, c):
        other.create_namespace("team")
    farrow.connect(cluster.nodes["a"].socket, namespace="team").put(b"of the team", "table")
    sealed = {row["name"]: row["sealed_at"] for row in a.list().to_pylist()}
    held = c.get("table")
    assert drain(cluster.nodes["a"], "a", "--timeout", "0.5") == (0 if flags else 1)
    said = capsys.readouterr().out
    assert "4 objects" in said
    if not flags:
        # The reader of a mapped node is a client of the drained one.
        assert "still read" in said
        assert f"process {os.getpid()} holds" in said
    assert held.equals(table)
    del held
    assert drain(cluster.nodes["a"]) == 0
    assert "the node can end" in capsys.readouterr().out
    for client in (a, b, c):
        assert client.get("table").equals(table)
        assert client.get("bytes").to_pybytes() == bytes(range(256)) * 8192
        assert client.get("empty").size == 0
        assert client.metadata("table") == {"owner": "ops"}
    assert a.list().num_rows == 0
    rows = [*b.list().to_pylist(), *c.list().to_pylist()]
    assert {row["name"]: row["sealed_at"] for row in rows} == sealed
    assert {row["name"] for row in rows if row["pinned"]} == {"bytes"}
    cluster.nodes["a"].stop()
    team = farrow.connect(cluster.nodes["b"].socket, namespace="team")
    assert team.get("table").to_pybytes() == b"of the team"
    assert c.get("table").equals(table)


def test_a_draining_node_takes_nothing_new_and_says_so(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(2)
    a, b = cluster.clients()
    a.put(b"here", "here")
    assert drain(cluster.nodes["a"]) == 0
    assert reaches(a) == reaches(b) == {"a": "draining", "b": "live"}
    with pytest.raises(farrow.NodeDraining, match="farrow node drain --cancel") as refused:
        a.put(bytes(2 * MIB), "large")
    assert refused.value.node == "a"
    with pytest.raises(farrow.NodeDraining):
        b.put(b"x", "x", node="a")
    for rule in ("nearest", "most-free"):
        a.put(rule.encode(), rule, node=rule)
        assert rule in b.list()["name"].to_pylist()
    assert a.stats()["draining"] == 1
    assert a.stats()["moved_total"] == 1
    capsys.readouterr()
    assert main(["stat", "--socket", cluster.nodes["a"].socket]) == 0
    assert re.search(r"draining +1 objects moved \(4 B\), 0 left", capsys.readouterr().out)
    assert main(["nodes", "--socket", cluster.nodes["b"].socket]) == 0
    assert "draining" in capsys.readouterr().out
    assert drain(cluster.nodes["a"], "--cancel") == 0
    wait_until(lambda: reaches(b) == {"a": "live", "b": "live"}, "the end of the drain")
    a.put(bytes(2 * MIB), "large")
    assert b.get("here").to_pybytes() == b"here"


def test_what_cannot_move_stays_and_is_named(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(2)
    a, b = cluster.clients()
    unnamed = a.put(bytes(100 * KIB))
    table = a.huge_table("events", pa.schema([("x", pa.int64())]))
    table.append(pa.table({"x": [1, 2, 3]}))
    writer = a.create(10, "slow")
    a.put(bytes(50 * MIB), "large")
    b.put(bytes(40 * MIB), "full")
    assert drain(cluster.nodes["a"], "--timeout", "1", "--json") == 1
    left = json.loads(capsys.readouterr().out)
    assert [(name, size) for _, name, size, _ in left["stuck"]] == [("large", 50 * MIB)]
    assert "B free" in left["stuck"][0][3]
    assert left["tables"] == []
    assert a.list("events").num_rows == 0
    assert (left["unnamed"], left["unnamed_bytes"], left["writing"]) == (1, 100 * KIB, 1)
    # Nothing is lost, and what was being written is finished.
    assert a.get("large").size == 50 * MIB
    assert b.huge_table("events").table().num_rows == 3
    assert b.get(unnamed).size == 100 * KIB
    writer.buffer[:] = b"0123456789"
    writer.seal()
    b.delete("full")
    a.huge_table("events").drop()
    assert drain(cluster.nodes["a"], "--timeout", "30") == 1
    said = capsys.readouterr().out
    assert "1 objects without a name" in said
    assert drain(cluster.nodes["a"], "--drop-unnamed") == 0
    assert b.get("slow").to_pybytes() == b"0123456789"
    assert sorted(b.list()["name"].to_pylist()) == ["large", "slow"]


def test_objects_that_move_evict_nothing(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Later ones took the place of earlier ones and of the other node's, and the node could end."""
    cluster = make_cluster(2, "--plaintext", "--evict", "lru")
    a, b = cluster.clients()
    for number in range(5):
        a.put(bytes(8 * MIB), f"a{number}")
        b.put(bytes(8 * MIB), f"b{number}")
    assert drain(cluster.nodes["a"], "--timeout", "2", "--json") == 1
    left = json.loads(capsys.readouterr().out)
    there = {*a.list()["name"].to_pylist(), *b.list()["name"].to_pylist()}
    assert there == {f"{node}{number}" for node in "ab" for number in range(5)}
    assert len(left["stuck"]) == a.list().num_rows > 0
    assert b.stats()["evicted_total"] == 0
    # A put makes room as always.
    b.put(bytes(30 * MIB), "more")
    assert b.stats()["evicted_total"] > 0


def test_a_drain_is_refused_where_nothing_can_move(
    make_node: Callable[..., Node],
    make_cluster: Callable[..., Cluster],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert drain(make_node()) == 1
    assert "no cluster" in capsys.readouterr().err
    cluster = make_cluster(2)
    assert drain(cluster.nodes["a"], "b") == 1
    assert "'a', not 'b'" in capsys.readouterr().err
    assert drain(cluster.nodes["a"], "--to", "c") == 1
    assert "the live other nodes are ['b']" in capsys.readouterr().err
    assert reaches(cluster.client("b"))["a"] == "live"


@pytest.mark.parametrize("flags", [(), NET], ids=["mapped", "net"])
def test_no_call_fails_while_objects_move(
    make_cluster: Callable[..., Cluster], flags: tuple[str, ...]
) -> None:
    """Clients of all nodes get, delete and put again while a node is drained, and find no gap."""
    cluster = make_cluster(3, *flags)
    a, b, c = cluster.clients()
    names = [f"n{number}" for number in range(OBJECTS)]
    for number, name in enumerate(names):
        a.put(bytes([number % 256]) * (10 * KIB + number), name)
    over, failures, gets = threading.Event(), [], [0]

    def read(name_of_node: str, seed: int) -> None:
        client, chance = cluster.client(name_of_node), random.Random(seed)
        while not over.is_set():
            number = chance.randrange(OBJECTS // 2)
            try:
                value = client.get(names[number]).to_pybytes()
                if value != bytes([number % 256]) * (10 * KIB + number):
                    failures.append((name_of_node, names[number], "other bytes"))
                if not client.contains(names[number]):
                    failures.append((name_of_node, names[number], "is not contained"))
            except farrow.FarrowError as error:
                failures.append((name_of_node, names[number], repr(error)))
            gets[0] += 1

    def change(name_of_node: str) -> None:
        """Objects of the upper half are deleted while they move: each is gone afterwards."""
        client = cluster.client(name_of_node)
        for number in range(OBJECTS // 2, OBJECTS):
            try:
                client.delete(names[number])
                if client.contains(names[number]):
                    failures.append((name_of_node, names[number], "is there after its delete"))
                client.put(b"again", names[number], node="nearest")
            except farrow.FarrowError as error:
                failures.append((name_of_node, names[number], repr(error)))

    threads = [
        threading.Thread(target=read, args=(node, seed))
        for node, seed in [("a", 1), ("b", 2), ("c", 3)]
    ]
    threads.append(threading.Thread(target=change, args=("b",)))
    for thread in threads:
        thread.start()
    try:
        ended = drain(cluster.nodes["a"], "--timeout", "120")
        threads[-1].join()
        time.sleep(0.2)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:5]
    assert ended == 0
    assert gets[0] > 0
    listed = [*a.list()["name"].to_pylist(), *b.list()["name"].to_pylist()]
    listed += c.list()["name"].to_pylist()
    assert sorted(listed) == sorted(names), "each name once"


@pytest.mark.parametrize("flags", [(), NET], ids=["mapped", "net"])
def test_clients_of_a_draining_node_put_at_another_one(
    make_cluster: Callable[..., Cluster], flags: tuple[str, ...]
) -> None:
    """The bytes of an object that goes by network are in the draining node for a moment."""
    cluster = make_cluster(2, *flags)
    a, b = cluster.clients()
    # Another client: the one that drains may still get memory, to move what is there.
    farrow.connect(cluster.nodes["a"].socket)._drain(True)
    for place in ("nearest", "most-free", "b"):
        for size in (10, 100 * KIB, MIB):
            for wait in (0.0, 5.0):
                name = f"{place}-{size}-{wait}"
                a.put(bytes(size), name, node=place, wait=wait)
                assert b.get(name).size == size
        with a.create(4, f"created-{place}", node=place) as writer:
            writer.buffer[:] = b"abcd"
            writer.seal()
        assert b.get(f"created-{place}").to_pybytes() == b"abcd"
        a.put_many([b"1", bytes(MIB)], [f"{place}-1", f"{place}-2"], node=place)
    for refused in (
        lambda: a.put(b"x", "here"),
        lambda: a.put(bytes(MIB)),
        lambda: a.put(b"x", "here", node="a"),
        lambda: a.create(MIB),
    ):
        with pytest.raises(farrow.NodeDraining):
            refused()
    assert a.list().num_rows == 0
    assert {name.split("-")[0] for name in b.list()["name"].to_pylist()} >= {"nearest", "most"}
    wait_until(lambda: a.stats()["used"] == 0, "the memory of what was on its way")
    assert drain(cluster.nodes["a"], "--timeout", "30") == 0


@pytest.mark.parametrize("flags", [(), NET], ids=["mapped", "net"])
def test_huge_tables_move_and_outlive_the_node(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    """Tables with their root or chunks on the node, in two namespaces."""
    cluster = make_cluster(3, *flags)
    a, b, c = cluster.clients()
    for client in (a, b, c):
        client.create_namespace("team")
    schema = pa.schema([("x", pa.int64())])
    size = 1000

    def team(node: str) -> farrow.Client:
        return farrow.connect(cluster.nodes[node].socket, namespace="team")

    def append(table: farrow.HugeTable, chunk: int) -> None:
        table.append(pa.table({"x": list(range(chunk * size, (chunk + 1) * size))}))

    def check(table: farrow.HugeTable, chunks: int) -> None:
        assert table.table()["x"].to_pylist() == list(range(chunks * size))
        assert table.table(version=1).num_rows == size
        assert "a" not in {part.node for part in table.partitions()}
        found = farrow.dataset.statistics(table)
        assert [one.columns[("x",)].min.as_py() for one in found] == list(
            range(0, chunks * size, size)
        )

    at_a, at_c = a.huge_table("at-a", schema), c.huge_table("at-c", schema, sort_by="x")
    team_a = team("a").huge_table("at-a", schema)
    for chunk, client in enumerate([a, b, a, c]):
        append(client.huge_table("at-a"), chunk)
        append(client.huge_table("at-c"), chunk)
        append(team_a, chunk)
    opened, dataset = b.huge_table("at-a"), farrow.dataset.dataset("at-c", b)
    assert opened.rows == 4 * size
    assert drain(cluster.nodes["a"], "--json", "--timeout", "60" if flags else "4") == (
        0 if flags else 1
    )
    left = json.loads(capsys.readouterr().out)
    assert left["tables"] == left["stuck"] == []
    if not flags:
        # The dataset holds chunks in place.
        assert left["retiring"] == 2
    assert dataset.count_rows() == 4 * size
    del dataset
    assert drain(cluster.nodes["a"], "--timeout", "30") == 0
    assert a.list().num_rows == 0
    check(at_a, 4)
    cluster.nodes["a"].stop()
    check(opened, 4)
    append(opened, 4)
    check(c.huge_table("at-a"), 5)
    with pytest.raises(farrow.InvalidArgument, match="ascends"):
        append(b.huge_table("at-c"), 0)
    append(b.huge_table("at-c"), 4)
    check(at_c, 5)
    moved = team("b").huge_table("at-a")
    check(moved, 4)
    moved.drop()
    assert team("b").list().num_rows == team("c").list().num_rows == 0


def test_a_table_of_a_draining_node_moves_once_its_root_does(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes drain at once: the chunks at one wait for the root at the other."""
    cluster = make_cluster(3)
    a, b, c = cluster.clients()
    table = a.huge_table("t", pa.schema([("x", pa.int64())]))
    for client in (a, b):
        client.huge_table("t").append(pa.table({"x": [1, 2]}))
    for client in (a, b):
        client._drain(True)
    assert drain(cluster.nodes["b"], "--to", "c", "--timeout", "1", "--json") == 1
    left = json.loads(capsys.readouterr().out)
    [(namespace, name, parts, _, why)] = left["tables"]
    assert (namespace, name, parts) == ("", "t", 1)
    assert why == "c: the root of its table is at node a, which drains as well"
    # A draining node takes nothing of another one.
    assert drain(cluster.nodes["a"], "--to", "b", "--timeout", "0.5") == 1
    assert drain(cluster.nodes["a"], "--timeout", "30") == 0
    assert drain(cluster.nodes["b"], "--timeout", "30") == 0
    assert table.rows == c.huge_table("t").rows == 4
    assert {part.node for part in c.huge_table("t").partitions()} == {"c"}
    assert a.list().num_rows == b.list().num_rows == 0
