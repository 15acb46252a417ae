"""Nodes chosen by a rule instead of a name: ``node="nearest"`` and ``node="most-free"``, and the
measurements that the rule uses."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import Cluster, wait_until
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MB = 1 << 20
NET_ONLY = ("--plaintext", "--net=only", "--no-prepare")


@pytest.fixture
def apart(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Three nodes that map nothing of each other."""
    return make_cluster(3, *NET_ONLY)


def rows(client: farrow.Client) -> dict[str, farrow.NodeInfo]:
    return {node.name: node for node in client.nodes()}


def free(client: farrow.Client, name: str) -> float:
    """Free bytes of a node; NaN, which is neither more nor less than anything, if not known."""
    found = rows(client)[name].free
    return math.nan if found is None else found


def wait_for_measurements(client: farrow.Client, count: int) -> None:
    def is_measured() -> bool:
        others = [node for node in client.nodes() if not node.is_own]
        return len(others) == count and all(
            node.free is not None and node.latency_us is not None for node in others
        )

    wait_until(is_measured, "the other nodes have answered with their room")


def home_of(client: farrow.Client, name: str) -> str:
    listed = client.list(name, all_nodes=True).to_pylist()
    [home] = [row["node"] for row in listed if row["name"] == name]
    return str(home)


def fill(client: farrow.Client, nbytes: int, name: str = "filler") -> None:
    """Take memory of the client's node. The object is pinned, so it is not evicted."""
    client.put(np.zeros(nbytes, np.uint8), name)
    client.pin(name)


def test_nodes_say_how_they_are_reached_and_what_they_cost(apart: Cluster) -> None:
    a, b, _ = apart.clients()
    wait_for_measurements(a, 2)
    found = rows(a)
    own, far = found["a"], found["b"]
    assert own.free == a.stats()["free"]
    assert (own.latency_us, own.bytes_per_second) == (None, None)
    assert far.fabric == "net"
    # Nothing was fetched, so no bandwidth is known.
    assert far.bytes_per_second is None
    before = far.free
    assert before is not None
    fill(b, 16 * MB)
    wait_until(lambda: free(a, "b") <= before - 16 * MB, "the room of b has changed")
    assert a.get("filler").nbytes == 16 * MB
    wait_until(lambda: (rows(a)["b"].bytes_per_second or 0) > 0, "the transfer was measured")
    assert rows(a)["c"].bytes_per_second is None


def test_objects_are_placed_by_a_rule_where_no_memory_is_shared(apart: Cluster) -> None:
    a, b, _ = apart.clients()
    fill(b, 8 * MB)
    wait_for_measurements(a, 2)
    wait_until(lambda: free(a, "b") + 8 * MB <= free(a, "c"), "a knows of the room of both")
    a.put(b"near", "near", node="nearest")
    assert home_of(a, "near") == "a"
    fill(a, 4 * MB, "more")
    a.put(np.ones(MB, np.uint8), "free", node="most-free")
    assert home_of(a, "free") == "c"
    assert a.get("free").sum() == MB

    fill(b, 40 * MB, "much")
    wait_until(lambda: free(a, "b") < 20 * MB, "a knows that b is full")
    a.put_many([bytes(2 * MB)] * 10, [f"many/{n}" for n in range(10)], node="most-free")
    assert {home_of(a, f"many/{n}") for n in range(10)} == {"c"}
    with a.create(3, "created", node="most-free") as writer:
        writer.buffer[:] = b"abc"
    assert b.get("created").to_pybytes() == b"abc"
    table = a.huge_table("huge", pa.schema({"x": pa.int64()}))
    assert table.append(pa.table({"x": [1, 2]}), node="nearest").node == "a"
    wait_until(lambda: free(a, "c") < free(a, "a"), "a knows what c has taken")
    assert table.append(pa.table({"x": [3]}), node="most-free").node == "a"
    # A pool for another node is in the own memory.
    assert a.at("most-free").node == "a"
    assert a.memory_pool(node="most-free", expect=MB).bytes_allocated() == 0


def test_the_next_mapped_node_takes_what_the_own_one_cannot(nodes: Cluster) -> None:
    a = nodes.client("a")
    wait_for_measurements(a, 2)
    fill(a, 50 * MB)
    try:
        big = np.arange(3 * MB)  # 24 MiB
        a.put(big, "big", node="nearest")
        assert home_of(a, "big") in {"b", "c"}
        assert np.array_equal(a.get("big"), big)
        near = a.at("nearest")
        assert near.node == "a"
        writers = a.create_many([20 * MB, 20 * MB], ["one", "two"], node="most-free")
        for writer in writers:
            writer.seal()
        assert home_of(a, "one") == home_of(a, "two") != "a"
        pool = a.memory_pool(node="most-free", expect=4 * MB, strict=True)
        numbers = pa.array(range(1000), memory_pool=pool)
        assert not any(buffer["in_region"] for buffer in a.locate(numbers))
        del numbers, pool
    finally:
        a.unpin("filler")


def test_no_node_with_room_is_an_error_with_the_numbers(nodes: Cluster) -> None:
    a = nodes.client("a")
    wait_for_measurements(a, 2)
    for name in nodes.names:
        a.put(np.zeros(40 * MB, np.uint8), f"filler/{name}", node=name)
        a.pin(f"filler/{name}")
    try:
        for rule in ("nearest", "most-free"):
            with pytest.raises(farrow.OutOfMemory) as caught:
                a.create(50 * MB, node=rule)
            text = str(caught.value)
            assert caught.value.requested == 50 * MB
            assert 0 < caught.value.free < 50 * MB
            assert rule in text
            for name in nodes.names:
                assert f"{name}: " in text, text
            with pytest.raises(farrow.OutOfMemory, match="B in all"):
                a.create(10 << 30, node=rule)
    finally:
        for name in nodes.names:
            a.unpin(f"filler/{name}")


def test_a_lost_node_is_not_chosen(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(3)
    a = cluster.client("a")
    wait_for_measurements(a, 2)
    fill(a, 30 * MB)
    fill(cluster.client("b"), 20 * MB, "less")
    wait_until(lambda: free(a, "b") < free(a, "c"), "c has the most room")
    cluster.nodes["c"].kill9()
    wait_until(lambda: rows(a)["c"].reach == "lost", "c is lost")
    assert rows(a)["c"].free is None
    a.put(bytes(MB), "put", node="most-free")
    assert home_of(a, "put") == "b"


def test_without_a_cluster_the_rules_mean_the_own_node(node: Any) -> None:
    client = farrow.connect(node.socket)
    for rule in ("nearest", "most-free"):
        ref = client.put(b"alone", node=rule)
        assert client.get(ref).to_pybytes() == b"alone"
        [ref] = client.put_many([b"one"], node=rule)
        assert client.at(rule).get(ref).to_pybytes() == b"one"
        with client.create(1, node=rule) as writer:
            writer.buffer[:] = b"x"
        assert pa.array([1, 2], memory_pool=client.memory_pool(node=rule)).to_pylist() == [1, 2]


@pytest.mark.parametrize("name", ["nearest", "most-free"])
def test_no_node_can_have_the_name_of_a_rule(name: str, tmp_path: Path) -> None:
    [address] = free_addresses(1)
    command = [
        sys.executable, "-m", "farrow", "node", "--socket", str(tmp_path / "s"), "--memory",
        "16MiB", "--name", name, "--listen", address, "--plaintext",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "no node can have the name" in done.stderr
    assert name in done.stderr
