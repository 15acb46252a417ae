"""A node is drained in bad moments: objects in files, full nodes, writers, lost members."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import Cluster, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node

KIB, MIB = 1 << 10, 1 << 20

NET = ("--plaintext", "--net=only", "--no-prepare")


def drain(node: Node, *words: str) -> int:
    return main(["node", "drain", "--socket", node.socket, "--timeout", "60", *words])


def content(number: int, size: int) -> bytes:
    return bytes([number % 256]) * size


def check(clients: list[farrow.Client], expected: dict[str, bytes]) -> None:
    """Each name is at one node, and each client gets its bytes."""
    listed = [name for client in clients for name in client.list()["name"].to_pylist()]
    assert sorted(name for name in listed if name) == sorted(expected)
    for client in clients:
        for name, value in expected.items():
            assert client.get(name).to_pybytes() == value, name


@pytest.mark.parametrize("flags", [("--plaintext",), NET], ids=["mapped", "net"])
def test_objects_in_spill_files_move(
    make_cluster: Callable[..., Cluster], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    cluster = make_cluster(3, *flags, "--spill", str(tmp_path / "spill"))
    a, b, c = cluster.clients()
    expected = {f"n{number}": content(number, 5 * MIB) for number in range(20)}
    for name, value in expected.items():
        a.put(value, name, metadata={"of": name})
    spilled = a.stats()["objects_spilled"]
    assert spilled > 5
    assert drain(cluster.nodes["a"]) == 0
    assert a.stats()["objects_spilled"] == 0
    assert b.metadata("n0") == {"of": "n0"}
    cluster.nodes["a"].stop()
    # Each node restores its own: one that is asked by another says that it is at it.
    listed = []
    for client in (b, c):
        names = client.list()["name"].to_pylist()
        for name in names:
            assert client.get(name).to_pybytes() == expected[name], name
        listed += names
    assert sorted(listed) == sorted(expected)


def test_a_table_stays_whole_where_no_node_has_room(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(2)
    a, b = cluster.clients()
    table = a.huge_table("t", pa.schema([("x", pa.int64())]))
    for chunk in range(4):
        table.append(pa.table({"x": [chunk] * (10 * MIB // 8)}))
    b.put(bytes(35 * MIB), "full")
    rows = table.rows
    assert drain(cluster.nodes["a"], "--timeout", "1", "--json") == 1
    left = json.loads(capsys.readouterr().out)
    [(_, name, parts, nbytes, why)] = left["tables"]
    assert name == "t"
    assert 0 < parts < 4
    assert nbytes == parts * 10 * MIB
    assert "B free" in why
    for client in (a, b):
        assert client.huge_table("t").table().num_rows == rows
    assert {part.node for part in table.partitions()} == {"a", "b"}
    b.delete("full")
    assert drain(cluster.nodes["a"], "--timeout", "30") == 0
    cluster.nodes["a"].stop()
    values = b.huge_table("t").table()["x"].to_pylist()
    assert values == [chunk for chunk in range(4) for _ in range(10 * MIB // 8)]


def test_clients_that_keep_writing_hear_that_the_node_drains(
    make_cluster: Callable[..., Cluster],
) -> None:
    """What was sealed is there; what the draining node refuses goes elsewhere."""
    cluster = make_cluster(3)
    a, b, c = cluster.clients()
    over, written, refused, failures = threading.Event(), {}, [0], []

    def write(writer: int) -> None:
        client, number = cluster.client("a"), 0
        while not over.is_set():
            name, value = f"w{writer}-{number}", content(number, 20 * KIB)
            number += 1
            try:
                try:
                    client.put(value, name)
                except farrow.NodeDraining:
                    refused[0] += 1
                    client.put(value, name, node="nearest")
                written[name] = value
            except farrow.FarrowError as error:
                failures.append(repr(error))
            time.sleep(0.002)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)
        assert drain(cluster.nodes["a"]) == 0
        time.sleep(0.3)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:5]
    assert refused[0] > 0
    assert a.list().num_rows == 0
    cluster.nodes["a"].stop()
    check([b, c], written)


@pytest.mark.parametrize("flags", [("--plaintext",), NET], ids=["mapped", "net"])
def test_two_nodes_drain_at_once(
    make_cluster: Callable[..., Cluster], flags: tuple[str, ...]
) -> None:
    """Nothing moves to a node that drains, also not what was on its way as its drain began."""
    cluster = make_cluster(3, *flags)
    a, b, c = cluster.clients()
    expected = {}
    for number in range(40):
        for client, node in ((a, "a"), (b, "b")):
            expected[f"{node}{number}"] = content(number, 30 * KIB)
            client.put(expected[f"{node}{number}"], f"{node}{number}")
    table = a.huge_table("t", pa.schema([("x", pa.int64())]))
    for client in (a, b, a, b):
        client.huge_table("t").append(pa.table({"x": [1, 2, 3]}))
    ended = {}

    def run(node: str) -> None:
        ended[node] = drain(cluster.nodes[node])

    threads = [threading.Thread(target=run, args=(node,)) for node in "ab"]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert ended == {"a": 0, "b": 0}
    assert a.list().num_rows == b.list().num_rows == 0
    assert table.table()["x"].to_pylist() == [1, 2, 3] * 4
    for node in "ab":
        cluster.nodes[node].stop()
    for name, value in expected.items():
        assert c.get(name).to_pybytes() == value
    assert c.huge_table("t").table()["x"].to_pylist() == [1, 2, 3] * 4


def test_a_member_is_killed_while_another_one_drains(make_cluster: Callable[..., Cluster]) -> None:
    """It is the authority of about a third of the names, and keeps some of what has moved."""
    cluster = make_cluster(3)
    a, b, c = cluster.clients()
    expected = {f"n{number}": content(number, 100 * KIB) for number in range(90)}
    for name, value in expected.items():
        a.put(value, name)
    ended = []
    draining = threading.Thread(
        target=lambda: ended.append(drain(cluster.nodes["a"], "--timeout", "25"))
    )
    draining.start()
    for _ in range(2):
        time.sleep(0.4)
        cluster.nodes["c"].restart()
    draining.join()
    assert ended == [0]
    everywhere = {"a": "draining", "b": "live", "c": "live"}

    def reaches(client: farrow.Client) -> dict[str, str]:
        return {node.name: node.reach for node in client.nodes()}

    for client in (a, b, c):
        wait_until(lambda client=client: reaches(client) == everywhere, "all nodes to be back")
    assert a.list().num_rows == 0
    check([a, b, c], expected)
    for name in expected:
        a.delete(name)
        b.put(b"again", name)
