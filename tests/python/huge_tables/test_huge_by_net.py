"""Huge tables of nodes that share no memory: what travels, and what remains after a failure. What
they have in common with mapped memory is in test_huge_table.py."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, run_python, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
ONLY = ("--plaintext", "--net=only", "--no-prepare")
SCHEMA = pa.schema({"n": pa.int64(), "half": pa.float64()})


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other."""
    return make_cluster(2, *ONLY)


def rows(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table({"n": numbers, "half": numbers / 2}, SCHEMA)


def test_only_the_asked_chunks_and_columns_are_fetched(two: Cluster) -> None:
    a, b = two.clients()
    writer = b.huge_table("t", SCHEMA)
    for number in range(8):
        writer.append(rows(100_000 * number, 100_000))
    table = a.huge_table("t")
    before = a.stats()["used"]

    def fetched(**what: object) -> tuple[pa.Table, int]:
        part = table.table(**what)
        return part, a.stats()["used"] - before

    # 100 rows of a chunk of 100,000: some pages.
    part, used = fetched(rows=slice(250_000, 250_100))
    assert part.equals(rows(250_000, 100))
    assert used < 64 << 10, used
    del part
    # One of two columns: 800 kB for each of eight chunks.
    part, used = fetched(columns=["half"])
    assert part["half"].to_pylist()[:2] == [0.0, 0.5]
    assert part.num_rows == 800_000
    assert 6 * MB < used < 8 * MB, used
    del part
    # Another process of the node finds what is there, and brings nothing.
    whole = table.table()
    assert whole.equals(rows(0, 800_000))
    used = a.stats()["used"]
    script = """
import sys, farrow
table = farrow.connect(sys.argv[1]).huge_table("t").table()
print(table["n"].to_numpy().sum())
"""
    assert int(run_python(script, two.nodes["a"].socket)) == 800_000 * 799_999 // 2
    assert a.stats()["used"] == used
    writer.drop()
    assert whole.equals(rows(0, 800_000))
    with pytest.raises(farrow.NotFound):
        table.table()


def test_appends_from_both_sides_make_one_table(two: Cluster) -> None:
    tables = [client.huge_table("t", SCHEMA) for client in two.clients()]

    def append(number: int) -> None:
        table = tables[number % 2]
        node = "ab"[number // 2 % 2]
        table.append(rows(1000 * number, 1000), 1000 * number, node=node, timeout=LIMIT_SECONDS)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(append, range(16)))
    for table in tables:
        assert table.version == 16
        assert table.table().equals(rows(0, 16_000))
        assert {part.node for part in table.partitions()} == {"a", "b"}
    for client in two.clients():
        # Chunks are exempt from eviction, and nothing else is left of the appends.
        for node in "ab":
            listed = client.list("t/", node=node).to_pylist()
            assert len(listed) == 8 + 2 * (node == "a"), [one["name"] for one in listed]
            assert all(one["pinned"] for one in listed)


def test_an_append_that_finds_no_room_leaves_nothing(two: Cluster) -> None:
    a, b = two.clients()
    table = a.huge_table("t", SCHEMA)
    table.append(rows(0, 1000), node="b")
    big = b.put(np.zeros(40 * MB, np.uint8))
    used = [client.stats()["used"] for client in (a, b)]
    with pytest.raises(farrow.OutOfMemory):
        table.append(rows(1000, 1_500_000), node="b", timeout=0.2)
    wait_until(lambda: [client.stats()["used"] for client in (a, b)] == used, "all is back")
    assert b.put(b"small", "small").name == "small"
    b.delete(big)
    table.append(rows(1000, 500_000), node="b")
    assert b.huge_table("t").table().equals(rows(0, 501_000))


def test_an_appender_killed_half_way_leaves_whole_versions(two: Cluster) -> None:
    a, b = two.clients()
    table = b.huge_table("t", SCHEMA)
    table.append(rows(0, 1), node="b")
    # Its root is fetched.
    assert a.huge_table("t").rows == 1
    before = a.stats()["used"]
    script = """
import sys, farrow
import numpy as np, pyarrow as pa
table = farrow.connect(sys.argv[1]).huge_table("t")
print("ready", flush=True)
while True:
    n = np.arange(table.rows, table.rows + 200_000)
    table.append(pa.table({"n": n, "half": n / 2}), node="b")
"""
    for turn in range(3):
        command = [sys.executable, "-c", script, two.nodes["a"].socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.15 + 0.11 * turn)
            writer.kill()
        wait_until(lambda: a.stats()["used"] < before + MB, "the staged rows go")
        whole = table.table()
        assert whole.equals(rows(0, table.rows))
        del whole
        # The version that it may have begun is free.
        table.append(rows(table.rows, 10), node="b", timeout=LIMIT_SECONDS)
    chunks = sum(part.nbytes for part in table.partitions())
    # Nothing but the chunks is left in the other node.
    wait_until(lambda: b.stats()["used"] < chunks + MB, f"{b.stats()['used']} of {chunks}")
    table.drop()
    wait_until(lambda: b.stats()["used"] < MB, f"{b.stats()}")


def test_a_home_killed_while_it_is_read_is_named(make_cluster: Callable[..., Cluster]) -> None:
    nodes = make_cluster(3, *ONLY)
    a, _, c = nodes.clients()
    table = a.huge_table("t", SCHEMA)
    for number in range(6):
        table.append(rows(100_000 * number, 100_000), node="bc"[number % 2])
    held = c.huge_table("t").table()

    def read_until_lost() -> farrow.FarrowError:
        # Each process has to fetch again.
        while True:
            try:
                table.table(rows=slice(0, int(time.monotonic() * 1e6) % 500_000 + 1))
            except farrow.FarrowError as error:
                return error

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_until_lost)
        time.sleep(0.3)
        nodes.nodes["b"].kill9()
        error = reading.result(LIMIT_SECONDS)
    assert isinstance(error, farrow.NodeLost | farrow.NodeUnreachable), error
    assert error.node == "b"
    with pytest.raises((farrow.NodeLost, farrow.NodeUnreachable), match="b"):
        table.append(rows(600_000, 1), node="c")
    # What was read stays readable, without its home.
    assert held.equals(rows(0, 600_000))
    nodes.nodes["b"].start()
    nodes.settle(3)

    def is_whole() -> bool:
        try:
            return a.huge_table("t").table().equals(rows(0, 600_000))
        except (farrow.NodeLost, farrow.NodeUnreachable):
            return False

    wait_until(is_whole, "the table after the node is back")


def test_rights_are_those_of_the_nodes(two: Cluster) -> None:
    a, b = two.clients()
    b.huge_table("t", SCHEMA).append(rows(0, 10))
    b.permit("a", "read")
    table = a.huge_table("t")
    assert table.table().equals(rows(0, 10))
    with pytest.raises(farrow.NotPermitted, match="write"):
        table.append(rows(10, 10), node="b")
    b.permit("a", "none")
    with pytest.raises(farrow.PermissionDenied):
        table.table()
    b.permit("a", "all")
    assert table.append(rows(10, 10), node="b").position == 10
    assert b.huge_table("t").table().equals(rows(0, 20))


def test_a_wait_ends_when_the_rows_are_there(two: Cluster) -> None:
    a, b = two.clients()
    table, other = a.huge_table("t", SCHEMA), b.huge_table("t")
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(one.wait, rows=20, timeout=LIMIT_SECONDS) for one in (table, other)]
        other.append(rows(0, 10))
        table.append(rows(10, 10), node="b")
        assert [wait.result() for wait in waits] == [2, 2]


def test_pins_are_those_of_the_home(make_cluster: Callable[..., Cluster]) -> None:
    nodes = make_cluster(2, *ONLY, "--evict", "lru")
    a, b = nodes.clients()
    b.put(np.full(8 * MB, 7, np.uint8), "named")
    nameless = b.put(np.full(8 * MB, 8, np.uint8))
    a.pin("named")
    a.pin(nameless)
    assert b.list()["pinned"].to_pylist() == [True, True]
    for _ in range(8):
        b.put(np.zeros(10 * MB, np.uint8))
    assert (a.get("named") == 7).all()
    assert (a.get(nameless) == 8).all()
    # By a name whose replica is here, it is the original that is pinned.
    a.unpin("named")
    a.unpin(nameless)
    assert not any(b.list()["pinned"].to_pylist())
    with pytest.raises(farrow.NotFound):
        a.pin("nothing")
    b.permit("a", "read")
    with pytest.raises(farrow.NotPermitted):
        a.pin("named")


def test_a_pool_for_a_far_node_is_in_the_own_one(two: Cluster) -> None:
    a, b = two.clients()
    numbers = pa.array(np.arange(100_000), type=pa.int64())
    pool = a.memory_pool(node="b", strict=True)
    doubled = pc.add(numbers, numbers, memory_pool=pool)
    assert all(buffer["in_region"] for buffer in a.locate(doubled))
    ref = a.put(pa.table({"n": doubled}), "doubled", node="b")
    assert b.get("doubled")["n"].chunk(0).equals(doubled)
    assert b.list()["id"].to_pylist() == [ref.id]
    assert a.list().num_rows == 0
    with pytest.raises(farrow.InvalidArgument, match="no node"):
        a.memory_pool(node="nobody")
