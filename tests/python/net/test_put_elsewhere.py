"""Puts into the memory of a node that the writer's node does not map."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from arrow_cases import variants
from conftest import LIMIT_SECONDS, Cluster, wait_until
from net_cases import MB, ONLY, assert_same, is_put, table

if TYPE_CHECKING:
    pass

pytest_plugins = ["net_cases"]


def test_a_put_into_memory_that_is_not_mapped_lies_there(two: Cluster) -> None:
    a, b = two.clients()
    before = a.stats()["used"]
    cases: dict[str, Any] = dict(variants())
    cases |= {
        "byte": b"x",
        "page": bytes(range(256)) * 16,
        "megabyte": os.urandom(MB),
        "array": np.random.default_rng(1).random((300, 200)),
        "table": table(),
        "batch": pa.record_batch({"x": [1, 2, None]}),
    }
    refs = {
        name: a.put(value, name, node="b", metadata={"case": name}) for name, value in cases.items()
    }
    own = {one["name"]: one["id"] for one in b.list().to_pylist()}
    for name, value in cases.items():
        # The object is one of `b`, under the reference that its writer has.
        assert own[name] == refs[name].id
        found = b.get(name)
        assert_same(found, value, name)
        assert b.metadata(refs[name]) == {"case": name}
        assert b.contains(refs[name])
    # Nothing of it stays in the writer's memory, and its reader brings it like any other object.
    wait_until(lambda: a.stats()["used"] == before, "the staged objects go")
    assert a.get(refs["table"]).equals(table())
    nameless = a.put(table(1000), node="b")
    assert b.get(nameless).equals(table(1000))
    b.delete(nameless)
    with pytest.raises(farrow.NotFound):
        a.get(nameless)


def test_a_put_elsewhere_that_cannot_succeed_leaves_nothing(two: Cluster) -> None:
    a, b = two.clients()
    b.put(b"taken", "taken")
    for client in (a, b):
        client.put(b"bystander")
    before = [client.stats()["used"] for client in (a, b)]
    with pytest.raises(farrow.AlreadyExists):
        a.put(np.zeros(MB, np.uint8), "taken", node="b")
    with pytest.raises(farrow.AlreadyExists):
        a.put_many([b"one", b"two"], ["one", "taken"], node="b")
    assert not b.contains("one")
    room = b.stats()["capacity"]
    with pytest.raises((farrow.TooLarge, farrow.OutOfMemory)):
        a.put(np.zeros(room + MB, np.uint8), "large", node="b")
    with pytest.raises(farrow.InvalidArgument, match="no node"):
        a.put(b"x", node="nobody")
    wait_until(lambda: [client.stats()["used"] for client in (a, b)] == before, "all is back")
    # The names are free again.
    assert a.put(b"now", "large", node="b").name == "large"
    assert b.get("large").to_pybytes() == b"now"


def test_batches_and_writers_go_elsewhere_too(two: Cluster) -> None:
    a, b = two.clients()
    refs = a.put_many([b"one", np.arange(9), table(10)], ["one", None, "three"], node="b")
    assert [b.contains(ref) for ref in refs] == [True] * 3
    assert b.get("one").to_pybytes() == b"one"
    assert np.array_equal(b.get(refs[1]), np.arange(9))
    writer = a.create(3 * MB, "written", node="b", metadata={"by": "a"})
    # The name is taken from the beginning.
    with pytest.raises(farrow.AlreadyExists):
        b.put(b"other", "written")
    content = os.urandom(3 * MB)
    writer.write(content)
    assert not b.contains("written")
    ref = writer.seal()
    assert b.get(ref).to_pybytes() == b.get("written").to_pybytes() == content
    assert b.metadata("written") == {"by": "a"}
    a.create(10, "aborted", node="b").abort()
    wait_until(lambda: is_put(b, "aborted"), "the name is free")


def test_who_waits_for_a_name_hears_of_a_put_from_elsewhere(two: Cluster) -> None:
    a, b = two.clients()
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(b.get, "late", timeout=LIMIT_SECONDS)]
        waits += [threads.submit(client.wait, ["late"], timeout=LIMIT_SECONDS) for client in (a, b)]
        time.sleep(0.1)
        a.put(b"here", "late", node="b")
        assert waits[0].result().to_pybytes() == b"here"
        assert [wait.result() for wait in waits[1:]] == [[True], [True]]


def test_a_writer_killed_while_it_puts_elsewhere_leaves_nothing(two: Cluster) -> None:
    a, b = two.clients()
    script = """
import sys, farrow
import numpy as np
client = farrow.connect(sys.argv[1])
print("ready", flush=True)
n = 0
while True:
    client.put(np.full(2_000_000, n, np.int32), f"killed {n}", node="b")
    n += 1
"""
    before = a.stats()["used"]
    for turn in range(4):
        command = [sys.executable, "-c", script, two.nodes["a"].socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.2 + 0.13 * turn)
            writer.kill()
        # What was put is whole; names in creation are free; the staged object is gone.
        wait_until(lambda: a.stats()["used"] == before, "the staged object goes")
        names = sorted(one["name"] for one in b.list("killed").to_pylist())
        for name in names:
            assert (b.get(name) == int(name.split()[1])).all()
        b.delete_many(names)
        next_name = f"killed {len(names)}"
        wait_until(lambda name=next_name: is_put(b, name), "the name is free")
        b.delete(next_name)


def test_a_node_lost_while_an_object_is_put_there_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(2, *ONLY)
    a = cluster.client("a")
    a.put(b"first", node="b")
    cluster.nodes["b"].kill9()
    before = time.monotonic()
    with pytest.raises((farrow.NodeLost, farrow.NodeUnreachable), match="b"):
        while time.monotonic() < before + LIMIT_SECONDS:
            a.put(np.zeros(MB, np.uint8), node="b")
    assert a.put(b"at home").id


def test_a_node_that_may_only_read_puts_nothing_elsewhere(two: Cluster) -> None:
    a, b = two.clients()
    b.permit("a", "read")
    for name in ("named", None):
        with pytest.raises(farrow.NotPermitted, match="write"):
            a.put(b"x", name, node="b")
    assert b.list().num_rows == 0
    b.permit("a", "read,write")
    assert b.get(a.put(b"x", node="b")).to_pybytes() == b"x"
