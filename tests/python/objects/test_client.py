"""The rest of the surface: references, contains, delete, wait, list, stats, locate."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import run_python, wait_until
from farrow import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node


def test_references(client: farrow.Client) -> None:
    reference = client.put(b"x", "x")
    assert reference.name == "x"
    assert len(reference.id) == 16
    assert reference.hex() == reference.id.hex()
    assert reference.hex() in repr(reference)
    assert "'x'" in repr(reference)
    same = farrow.ObjectRef(reference.id)
    assert same == reference
    assert hash(same) == hash(reference)
    assert same.name is None
    assert client.put(b"y") != reference
    assert reference != "x"
    for again in (pickle.loads(pickle.dumps(reference)), copy.deepcopy(reference)):
        assert again == reference
        assert again.name == "x"
    for target in (reference, "x", reference.id):
        assert client.get(target).to_pybytes() == b"x"
        assert client.contains(target)
    with pytest.raises(farrow.InvalidArgument, match="16 bytes"):
        farrow.ObjectRef(b"short")
    with pytest.raises(AttributeError):
        reference.name = "other"  # type: ignore[misc]


def test_delete(client: farrow.Client) -> None:
    client.put(b"1", "a")
    second, third = client.put_many([b"2", b"3"])
    held = client.get(second)
    client.delete("a")
    client.delete([second, third.id])
    for target in ("a", second, third):
        assert not client.contains(target)
    assert held.to_pybytes() == b"2"
    client.put(b"again", "a")
    assert client.get("a").to_pybytes() == b"again"
    client.delete([])


def test_deleted_space_comes_back(client: farrow.Client) -> None:
    for _ in range(20):
        reference = client.put(bytes(100 << 20))
        value = client.get(reference)
        client.delete(reference)
        del value
    assert client.stats()["objects"] == 0


def test_get_waits(client: farrow.Client) -> None:
    other = farrow.connect(client.address)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.get, "late", timeout=30) for _ in range(2)]
        many = pool.submit(client.get_many, ["late", "later"], timeout=30)
        time.sleep(0.05)
        assert not any(future.done() for future in (*waiting, many))
        other.put(b"here", "late")
        assert [future.result(30).to_pybytes() for future in waiting] == [b"here"] * 2
        assert not many.done()
        other.put(b"too", "later")
        assert [value.to_pybytes() for value in many.result(30)] == [b"here", b"too"]


def test_wait(client: farrow.Client) -> None:
    first = client.put(b"x", "first")
    assert client.wait([first, "first"], timeout=0) == [True, True]
    assert client.wait([first, "second"], timeout=0.02) == [True, False]
    assert client.wait([], timeout=0) == []
    thread = threading.Timer(0.05, lambda: client.put(b"y", "second"))
    thread.start()
    assert client.wait([first, "second"], timeout=30) == [True, True]
    thread.join()


def test_a_reserved_name_is_not_sealed(client: farrow.Client) -> None:
    writer = client.create(4, "slow")
    assert not client.contains("slow")
    with pytest.raises(farrow.NotFound):
        client.get("slow")
    writer.buffer[:] = b"done"
    writer.seal()
    assert client.get("slow").to_pybytes() == b"done"


def test_list(client: farrow.Client) -> None:
    empty = client.list()
    assert empty.num_rows == 0
    table = pa.table({"n": list(range(1000))})
    references = [client.put(table, f"t/{i}") for i in range(3)]
    unnamed = client.put(b"0123456789")
    listed = client.list("t/")
    assert listed.schema == empty.schema
    assert listed.column_names == [
        "name",
        "id",
        "kind",
        "bytes",
        "sealed_at",
        "creator_pid",
        "metadata",
        "pinned",
        "last_use",
        "spilled",
    ]
    assert listed["name"].to_pylist() == ["t/0", "t/1", "t/2"]
    assert listed["id"].to_pylist() == [reference.id for reference in references]
    assert listed["kind"].to_pylist() == ["table"] * 3
    assert all(size >= 8000 for size in listed["bytes"].to_pylist())
    assert all(moment is not None for moment in listed["sealed_at"].to_pylist())
    everything = client.list()
    assert everything.num_rows == 4
    row = next(row for row in everything.to_pylist() if row["id"] == unnamed.id)
    assert row["name"] is None
    assert row["kind"] == "bytes"
    assert row["bytes"] == 10
    assert client.list("nothing like it").num_rows == 0


def test_every_statistic_of_a_node_has_a_unit(client: farrow.Client) -> None:
    of_client = {"fabrics", "is_at_agreed_address", "base", "pool_allocated", "pool_refused"}
    units = _native.stats_units()
    assert set(units) == set(client.stats()) - of_client
    assert (units["used"], units["holds"], units["fabric"]) == ("bytes", "count", "text")


def test_stats(client: farrow.Client) -> None:
    before = client.stats()
    for key in ("capacity", "used", "free", "objects", "holds", "clients"):
        assert isinstance(before[key], int), key
    assert before["capacity"] >= 200 << 20
    reference = client.put(bytes(1 << 20))
    held = client.get(reference)
    after = client.stats()
    assert after["objects"] == before["objects"] + 1
    assert after["used"] >= before["used"] + (1 << 20)
    assert after["holds"] == before["holds"] + 1
    del held
    wait_until(lambda: client.stats()["holds"] == before["holds"], "the hold to go")


def test_locate(client: farrow.Client) -> None:
    table = pa.table({"a": [1, 2], "b": pa.array(["x", "y"]).dictionary_encode()})
    for place in client.locate(table):
        assert not place["in_region"]
        assert place["offset"] is None
    places = client.locate(client.get(client.put(table)))
    assert {place["column"] for place in places} == {"a", "b"}
    for place in places:
        assert place["in_region"]
        assert place["offset"] is not None
        assert place["bytes"] > 0
    base = {place["address"] - place["offset"] for place in places}  # type: ignore[operator]
    assert len(base) == 1
    assert not client.locate(b"of Python")[0]["in_region"]
    with pytest.raises(farrow.UnsupportedType):
        client.locate(5)


def test_threads_share_a_client(client: farrow.Client) -> None:
    def work(seed: int) -> int:
        for i in range(100):
            name = f"{seed}/{i}"
            client.put(name.encode() * 10, name)
            assert client.get(name).to_pybytes() == name.encode() * 10
            if i % 2:
                client.delete(name)
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    assert client.list().num_rows == 8 * 50


def test_import_is_light(client: farrow.Client) -> None:
    script = """
import sys, farrow
heavy = {"numpy", "pandas", "rich", "polars", "duckdb", "asyncio", "pyarrow.compute"}
import pyarrow
before = {name for name in heavy if name in sys.modules}
print(sorted(before))
"""
    plain = "import sys, pyarrow; print(sorted({'numpy'} & sys.modules.keys()))"
    with_numpy = run_python(plain).strip() == "['numpy']"
    assert run_python(script).strip() == ("['numpy']" if with_numpy else "[]")


def test_a_value_takes_the_place_of_another(client: farrow.Client, node) -> None:
    other = farrow.connect(node.socket)
    first = client.put(b"old", "n", replace=True)
    with pytest.raises(farrow.AlreadyExists):
        client.put(b"new", "n")
    view = other.get("n")
    table = pa.table({"n": range(10_000)})
    second = client.put(table, "n", replace=True, metadata={"k": "v"})
    assert other.get("n").equals(table)
    assert view.to_pybytes() == b"old"
    assert not other.contains(first.id)
    assert other.list("n")["id"].to_pylist() == [second.id]
    with client.create(3, "n", replace=True) as writer:
        writer.buffer[:] = b"abc"
        assert other.get("n").equals(table), "until the seal"
    assert other.get("n").to_pybytes() == b"abc"
    writer = client.create(3, "n", replace=True)
    writer.abort()
    assert other.get("n").to_pybytes() == b"abc"
    with pytest.raises(farrow.OutOfMemory):
        client.put(bytes(240 << 20), "n", replace=True)
        client.put(bytes(240 << 20), "n", replace=True)
    assert other.contains("n")


def test_a_client_of_a_replaced_node_learns_it(make_node: Callable[..., Node]) -> None:
    """Before, it read the memory of the node that was gone for ever."""
    node = make_node()
    old = farrow.connect(node.socket, timeout=20)
    table = pa.table({"n": range(100_000)})
    old.put(table, "n")
    held = old.get("n")
    node.kill9()
    # Nobody has taken its place: what it had is still right.
    time.sleep(0.6)
    assert old.get("n").equals(table)
    for path in node.memory_dir.iterdir():
        path.unlink()
    node.start()
    new = farrow.connect(node.socket)
    new.put(b"another", "n")

    def is_notified() -> bool:
        try:
            return not old.get("n").equals(table)
        except farrow.Disconnected:
            return True

    wait_until(is_notified, "the client to be told")
    calls: list[Callable[[], object]] = [
        lambda: old.contains("n"),
        lambda: old.list(),
        lambda: old.put(b"lost"),
        lambda: old.put(b"lost", "m"),
        lambda: old.get_many(["n"]),
        lambda: old.get("n", timeout=1),
        lambda: old.huge_table("n"),
        old.stats,
    ]
    for call in calls:
        with pytest.raises(farrow.Disconnected, match="replaced"):
            call()
    assert held.equals(table), "what was read stays readable"
    assert new.get("n").to_pybytes() == b"another"
    assert new.list().num_rows == 1


def test_reads_do_not_wait_for_a_daemon_that_does_not_answer_yet(
    make_node: Callable[..., Node],
) -> None:
    """A supervisor listens while its next daemon starts, and a read needs neither."""
    node = make_node()
    client = farrow.connect(node.socket, timeout=20)
    client.put(pa.table({"n": range(100)}), "n")
    node.kill9()
    Path(node.socket).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(node.socket)
        listener.listen(64)
        until = time.monotonic() + 3
        reads = 0
        while time.monotonic() < until:
            client.get("n")
            reads += 1
        # Before, each look at the connection waited for a second.
        assert reads > 100
    client.close()


def test_a_client_says_why_it_cannot_be_sent(client: farrow.Client) -> None:
    """It was ``cannot pickle 'farrow.Client' object``."""
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"call farrow\.connect\(\) in the other process"):
            send(client)


@pytest.mark.parametrize("call", ["get", "subscribe"])
def test_a_call_that_needs_the_daemon_lets_other_threads_run(node: Node, call: str) -> None:
    """A get that needed another page of holds, and a subscription, waited for the node with the
    GIL: all threads stood still, also the one that would have let the node go on."""
    client = farrow.connect(node.socket)
    names = [f"held {number}" for number in range(1200)]
    client.put_many([b"value"] * len(names), names)
    # The first page of holds, and more than half of a second one at most.
    held = [client.get(name) for name in names[:600]]
    os.kill(node.pid, signal.SIGSTOP)
    timer = threading.Timer(0.5, os.kill, (node.pid, signal.SIGCONT))
    timer.start()
    try:
        if call == "get":
            held += [client.get(name) for name in names[600:]]
            assert bytes(held[-1]) == b"value"
        else:
            client.subscribe().close()
    finally:
        timer.join()
