"""Objects of nodes whose memory no other maps: brought by network, found by all processes of a
node, gone everywhere once they are deleted."""

from __future__ import annotations

import concurrent.futures
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from arrow_cases import variants
from conftest import LIMIT_SECONDS, Cluster, run_python, wait_until
from farrow.cli import main
from net_cases import MB, ONLY, assert_same, is_removed, row, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest_plugins = ["net_cases"]


def test_every_kind_of_value_arrives_as_it_was_put(two: Cluster) -> None:
    a, b = two.clients()
    cases: dict[str, Any] = dict(variants())
    cases |= {
        "empty": b"",
        "byte": b"x",
        "page": bytes(range(256)) * 16,
        "megabyte": os.urandom(MB),
        "array": np.random.default_rng(1).random((300, 200)),
        "table": table(),
        "batch": pa.record_batch({"x": [1, 2, None]}),
        "chunked": pa.chunked_array([[1, 2], [3], []]),
    }
    refs = {name: b.put(value, name) for name, value in cases.items()}
    for name, value in cases.items():
        for found in (a.get(name), a.get(refs[name]), a.get(name)):
            assert_same(found, value, name)
    assert row(a, "b").fabric == "net"
    # A batch of them too.
    small = a.get_many(["byte", "page", "empty"])
    assert [one.to_pybytes() for one in small] == [cases[n] for n in ("byte", "page", "empty")]


def test_a_reference_is_the_same_on_both_nodes(two: Cluster) -> None:
    a, b = two.clients()
    ref = b.put(b"bytes", "named", metadata={"key": "value"})
    assert a.get(ref).to_pybytes() == b"bytes"
    assert a.metadata("named") == a.metadata(ref) == {"key": "value"}
    for client in (a, b):
        assert client.contains(ref)
        assert client.contains("named")
        assert not client.contains("nothing")
    with pytest.raises(farrow.AlreadyExists):
        a.put(b"other", "named")
    # By an id that nobody named.
    nameless = b.put(table(1000))
    assert a.get(nameless).equals(table(1000))
    a.delete(nameless)
    for client in (a, b):
        with pytest.raises(farrow.NotFound):
            client.get(nameless)


def test_the_second_process_sends_no_question(two: Cluster) -> None:
    """Also while the home is stopped."""
    a, b = two.clients()
    b.put(table(), "trades")
    a.get("trades")
    os.kill(two.nodes["b"].pid, signal.SIGSTOP)
    try:
        script = """
import sys, farrow
client = farrow.connect(sys.argv[1])
print(client.get("trades")["x"].to_numpy().sum(), client.stats()["requests"])
before = client.stats()["requests"]
for _ in range(10):
    client.get("trades")
print(client.stats()["requests"] - before)
"""
        first, second = run_python(script, two.nodes["a"].socket).splitlines()
        assert first.split()[0] == str(sum(range(100_000)))
        # The count itself is one.
        assert second == "1"
    finally:
        os.kill(two.nodes["b"].pid, signal.SIGCONT)


def test_processes_that_want_the_same_bring_it_once(two: Cluster) -> None:
    a, b = two.clients()
    b.put(np.zeros(10 * MB, np.uint8), "zeros")
    clients = [two.client("a") for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda client: client.get("zeros").sum(), clients))
    assert found == [0] * 8
    del found
    # One copy, not eight.
    assert a.stats()["used"] < 11 * MB


@pytest.mark.parametrize("by", ["a", "b"])
def test_what_is_deleted_is_found_on_no_node_and_stays_readable_where_it_is_held(
    two: Cluster, by: str
) -> None:
    a, b = two.clients()
    for number in range(20):
        value = np.full(50_000, number)
        b.put(value, "thing")
        held = a.get("thing")
        view = memoryview(held)
        two.client(by).delete("thing")
        # As soon as the delete has returned.
        assert is_removed(a, "thing")
        assert is_removed(b, "thing")
        assert (held == number).all()
        assert view[0] == number
        del held, view
    # All memory comes back on both nodes.
    for client in (a, b):
        wait_until(lambda client=client: client.stats()["used"] == 0, f"{client.stats()}")


def test_a_name_that_is_used_again_has_its_new_value_at_once(two: Cluster) -> None:
    a, b = two.clients()
    chance = random.Random(1)
    for number in range(100):
        home, deleter, reader = (chance.choice((a, b)) for _ in range(3))
        home.put(number.to_bytes(8, "little") * 100, "name")
        for client in (reader, a, b):
            found = client.get("name").to_pybytes()
            assert int.from_bytes(found[:8], "little") == number
        deleter.delete("name")


def test_readers_see_no_value_older_than_the_last_delete(two: Cluster) -> None:
    """While writers replace it all the time, on both nodes."""
    stop, errors = threading.Event(), []
    oldest = [0]

    def read(name: str) -> None:
        client = two.client(name)
        while not stop.is_set():
            least = oldest[0]
            try:
                found = client.get("counter", timeout=1.0).to_pybytes()
            except (farrow.NotFound, farrow.Timeout):
                continue
            number = int.from_bytes(found[:8], "little")
            if number < least or found != number.to_bytes(8, "little") * 5000:
                errors.append((name, number, least))

    threads = [threading.Thread(target=read, args=(name,)) for name in "aabb"]
    for thread in threads:
        thread.start()
    clients = two.clients()
    for number in range(1, 60):
        clients[number % 2].put(number.to_bytes(8, "little") * 5000, "counter")
        time.sleep(0.005)
        clients[number // 2 % 2].delete("counter")
        # What any get finds from here on is newer.
        oldest[0] = number + 1
    stop.set()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert errors == []


def test_waits_end_when_another_node_seals(two: Cluster) -> None:
    a, b = two.clients()
    timer = threading.Timer(0.3, lambda: b.put(b"x" * 100_000, "later"))
    timer.start()
    assert len(a.get("later", timeout=LIMIT_SECONDS)) == 100_000
    assert a.wait(["later", "never"], num=1, timeout=5.0) == [True, False]
    timer.join()


def test_copies_make_room_for_each_other_and_for_objects_of_the_node(
    make_cluster: Callable[..., Cluster],
) -> None:
    nodes = make_cluster(2, *ONLY, "--cache=24MiB")
    a, b = nodes.clients()
    for number in range(5):
        b.put(np.full(10 * MB, number, np.uint8), f"{number}")
    for _ in range(2):
        for number in range(5):
            found = a.get(f"{number}")
            assert (found == number).all()
            del found
            assert a.stats()["used"] <= 24 * MB
    # What is held stays, and is counted.
    held = [a.get("0"), a.get("1")]
    with pytest.raises(farrow.FarrowError, match="--cache"):
        a.get("2")
    assert all((one == number).all() for number, one in enumerate(held))
    del held
    assert (a.get("2") == 2).all()
    # An object of the node's own needs no permission of copies that nobody holds.
    a.put(np.zeros(60 * MB, np.uint8), "own")
    assert (b.get("4") == 4).all()
    with pytest.raises(farrow.OutOfMemory):
        a.get("3")


def test_an_object_that_other_nodes_copied_is_not_evicted_before_they_let_go(
    make_cluster: Callable[..., Cluster],
) -> None:
    nodes = make_cluster(2, *ONLY, "--evict", "lru")
    a, b = nodes.clients()
    for number in range(4):
        b.put(np.full(14 * MB, number, np.uint8), f"{number}")
        a.get(f"{number}")
    # There is room only where some of these go, and a hears of it before their names are free.
    b.put(np.full(14 * MB, 9, np.uint8), "new")
    there = [number for number in range(4) if b.contains(f"{number}")]
    assert len(there) < 4
    for number in range(4):
        if number in there:
            assert (a.get(f"{number}") == number).all()
        else:
            assert is_removed(a, f"{number}")
            a.put(b"again", f"{number}")
            assert b.get(f"{number}").to_pybytes() == b"again"


def test_a_spilled_object_is_brought_back_where_it_is(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    nodes = make_cluster(2, *ONLY, "--spill", str(tmp_path))
    a, b = nodes.clients()
    for number in range(8):
        b.put(np.full(14 * MB, number, np.uint8), f"{number}")
    assert b.stats()["spilled_total"] > 0
    for number in range(8):
        found = a.get(f"{number}")
        assert (found == number).all()
        del found


def test_what_needs_the_memory_itself_says_so(two: Cluster) -> None:
    """A client in the memory of another node needs memory that is mapped."""
    a, b = two.clients()
    b.put(b"there", "there")
    for call in (lambda: a.at("b"), lambda: a.stats(node="b")):
        with pytest.raises(farrow.NodeUnreachable) as caught:
            call()
        assert caught.value.node == "b"
    assert a.get("there").to_pybytes() == b"there"
    assert a.list().num_rows == 0


def test_metadata_and_presence_bring_no_object(two: Cluster) -> None:
    a, b = two.clients()
    big = b.put(np.zeros(10 * MB, np.uint8), "big", metadata={"key": "value"})
    for target in ("big", big):
        assert a.contains(target)
        assert a.metadata(target) == {"key": "value"}
    assert a.stats()["used"] == 0
    a.get("big")
    assert a.metadata("big") == a.metadata(big) == {"key": "value"}
    b.delete("big")
    for target in ("big", big):
        assert not a.contains(target)
        with pytest.raises(farrow.NotFound):
            a.metadata(target)


def test_lists_come_by_network(two: Cluster) -> None:
    a, b = two.clients()
    a.put(b"here", "in a")
    names = [f"in b/{number:05}" for number in range(4000)]
    b.put_many([b"x"] * len(names), names)
    nameless = b.put(table(1000), metadata={"kind": "table"})
    at_b = a.list(node="b")
    assert at_b.equals(b.list())
    assert at_b["name"].to_pylist() == [*names, None]
    everywhere = a.list(all_nodes=True)
    assert everywhere["node"].to_pylist() == ["a", *["b"] * 4001]
    assert a.list("in b/0399", node="b")["name"].to_pylist() == names[3990:]
    found = a.list(where={"kind": "table"}, all_nodes=True)
    assert found["id"].to_pylist() == [nameless.id]
    assert found["bytes"].to_pylist() == b.list(where={"kind": "table"})["bytes"].to_pylist()
    # A replica is listed where its object is.
    a.get(names[0])
    assert a.list()["name"].to_pylist() == ["in a"]
    assert a.list("nothing", node="b").num_rows == 0
    # A namespace lists its own objects, also where another node does not have it.
    for client in (a, b):
        client.create_namespace("team")
    in_a, in_b = (farrow.connect(two.nodes[name].socket, namespace="team") for name in "ab")
    in_b.put(b"secret", "in team")
    assert in_a.get("in team").to_pybytes() == b"secret"
    assert in_a.list(node="b")["name"].to_pylist() == ["in team"]
    assert a.list("in t", node="b").num_rows == 0
    a.create_namespace("only in a")
    alone = farrow.connect(two.nodes["a"].socket, namespace="only in a")
    assert alone.list(all_nodes=True).num_rows == 0
    with pytest.raises(farrow.InvalidArgument, match="no node"):
        a.list(node="c")
    two.nodes["b"].kill9()
    with pytest.raises((farrow.NodeLost, farrow.NodeUnreachable)) as caught:
        a.list(node="b")
    assert caught.value.node == "b"


def test_certificates_are_for_data_too(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    certs = str(tmp_path / "certs")
    assert main(["certs", "init", certs]) == 0
    for name in "ab":
        assert main(["certs", "issue", certs, name, "127.0.0.1"]) == 0
    a, b = make_cluster(2, "--net=only", "--no-prepare", "--certs", certs).clients()
    assert row(a, "b").fabric == "net+TLS"
    b.put(table(), "secret")
    assert a.get("secret").equals(table())
    b.delete("secret")
    assert is_removed(a, "secret")


def test_a_node_that_may_not_read_reads_nothing(two: Cluster) -> None:
    a, b = two.clients()
    b.put(b"secret", "secret")
    b.permit("a", "none")
    with pytest.raises(farrow.PermissionDenied):
        a.get("secret")
    with pytest.raises(farrow.PermissionDenied):
        a.delete("secret")
    assert b.get("secret").to_pybytes() == b"secret"
    b.permit("a", "read")
    assert a.get("secret").to_pybytes() == b"secret"
    with pytest.raises(farrow.PermissionDenied):
        a.delete("secret")
    b.permit("a", "read, delete")
    a.delete("secret")
    assert is_removed(b, "secret")


def test_a_forked_child_reads_what_was_brought(two: Cluster) -> None:
    b = two.client("b")
    b.put(np.arange(1_000_000), "numbers")
    script = """
import os, sys, time, farrow, numpy as np
client = farrow.connect(sys.argv[1])
held = client.get("numbers")
read, write = os.pipe()
if os.fork() == 0:
    os.read(read, 1)
    time.sleep(0.3)
    assert (held == np.arange(1_000_000)).all()
    print("right", flush=True)
    os._exit(0)
del held
client.delete("numbers")
client.put(np.zeros(4_000_000), "other")
os.write(write, b"x")
os.wait()
"""
    assert run_python(script, two.nodes["a"].socket).strip() == "right"
    assert is_removed(b, "numbers")
