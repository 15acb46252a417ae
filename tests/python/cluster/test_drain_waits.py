"""A drain that waits: for readers that never let go, for members and for room.  What
``farrow node drain`` and ``farrow doctor`` report, the deadline, and a cancellation."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import Cluster, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bucket_cases import Bucket
    from conftest import Node

pytest_plugins = ["bucket_cases"]

KIB, MIB = 1 << 10, 1 << 20

NET = ("--plaintext", "--net=only", "--no-prepare")

_HOLD = """
import sys, farrow
client = farrow.connect(sys.argv[1])
values = [client.get(name) for name in sys.argv[2:]]
print("holds", flush=True)
sys.stdin.read()
"""

_WRITE = """
import sys, farrow
client = farrow.connect(sys.argv[1])
writer = client.create(10, sys.argv[2])
print("writes", flush=True)
sys.stdin.read()
writer.buffer[:] = b"0123456789"
writer.seal()
"""


def drain(node: Node, *words: str) -> int:
    return main(["node", "drain", "--socket", node.socket, *words])


@contextlib.contextmanager
def client_process(script: str, node: Node, *names: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has done its call and waits for the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, node.socket, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() != ""
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[[Node], tuple[str, list[Any]]]:
    """The first line of ``farrow doctor`` at a node, and its findings about a drain."""

    def run(node: Node) -> tuple[str, list[Any]]:
        capsys.readouterr()
        main(["doctor", "--socket", node.socket])
        verdict = capsys.readouterr().out.splitlines()[0]
        main(["doctor", "--socket", node.socket, "--json"])
        document = json.loads(capsys.readouterr().out)
        assert "obstacles" not in document["drain"]
        return verdict, [one for one in document["findings"] if one["level"] == "drain"]

    return run


def test_doctor_knows_how_far_a_drain_is(
    make_cluster: Callable[..., Cluster], doctor: Callable[[Node], tuple[str, list[Any]]]
) -> None:
    cluster = make_cluster(2)
    a, b = cluster.clients()
    node = cluster.nodes["a"]
    verdict, found = doctor(node)
    assert verdict.startswith("A node works here")
    assert found == []
    a.put(b"1234", "small")
    a.put(bytes(50 * MIB), "large")
    b.put(bytes(40 * MIB), "full")
    a.create_namespace("team")
    b.create_namespace("team")
    with farrow.connect(node.socket, namespace="team") as team:
        unnamed = team.put(bytes(100 * KIB))
    with client_process(_WRITE, node, "slow"):
        assert drain(node, "--timeout", "0.5") == 1
        # The free memory of other nodes is known after their next answers.
        wait_until(lambda: len(doctor(node)[1]) == 4, "all findings")
        verdict, found = doctor(node)
    assert verdict == (
        "Node a is being drained: 1 objects, 4 B have moved, 1 objects, 50.0 MiB are left; 4 are"
        " in the way."
    )
    idle, room, no_name, written = found
    assert idle["what"] == "no object moved within 1 s"
    assert idle["command"].startswith("farrow node drain a ")
    assert room["what"].startswith("large has 50.0 MiB; free at other nodes: b: 2")
    assert no_name["what"] == "1 objects, 100 KiB have no name"
    assert written["what"] == "1 objects with a name are being written by clients"
    verdict, found = doctor(cluster.nodes["b"])
    assert verdict == "Being drained in this cluster: a. farrow doctor there shows the state."
    assert found == []
    a.delete("large")
    with farrow.connect(node.socket, namespace="team") as team:
        team.delete(unnamed)
    assert drain(node, "--timeout", "30") == 0
    verdict, found = doctor(node)
    assert verdict == (
        "Node a is drained: 1 objects, 4 B have moved, and none is left. farrow node drain a"
        " checks huge tables, then the node can end."
    )
    assert found == []


def test_doctor_sees_that_objects_move(make_cluster: Callable[..., Cluster]) -> None:
    """Of a drain that goes on, it says nothing of a command that does not run."""
    from farrow.cli._node._doctor_drain import drain_status

    cluster = make_cluster(2)
    a = cluster.client("a")
    for number in range(400):
        a.put(bytes(20 * KIB), f"n{number}")
    ended: list[int] = []
    moving = threading.Thread(
        target=lambda: ended.append(drain(cluster.nodes["a"], "--timeout", "60"))
    )
    moving.start()
    wait_until(lambda: a.stats()["moved_total"] > 0, "the first object to move")
    seen = drain_status(cluster.client("a"))
    moving.join()
    assert ended == [0]
    assert 0 < seen.left < 400
    assert seen.is_moving
    assert seen.obstacles == []


def test_a_member_that_does_not_answer_is_in_the_way(
    make_cluster: Callable[..., Cluster],
    doctor: Callable[[Node], tuple[str, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that hangs is excluded after some leases: until then nothing moves."""
    # Long enough for two runs of the doctor before that.
    monkeypatch.setattr("conftest.LEASE_MS", "15000")
    cluster = make_cluster(3)
    a = cluster.client("a")
    a.put(b"bytes", "x")
    os.kill(cluster.nodes["c"].pid, signal.SIGSTOP)
    try:
        a._drain(True)
        wait_until(
            lambda: [node for node, _ in a._drain()["untold"]] == ["c"], "b to know of the drain"
        )
        verdict, found = doctor(cluster.nodes["a"])
        assert verdict.startswith("Node a is being drained: 0 objects, 0 B have moved, 1 objects")
        assert found[0]["what"].startswith("node c does not know of the drain: ")
        assert found[0]["consequence"] == "no object moves before it does"
        # The drain goes on as soon as a view excludes it.
        assert drain(cluster.nodes["a"], "--timeout", "60") == 0
        assert cluster.client("b").get("x").to_pybytes() == b"bytes"
    finally:
        os.kill(cluster.nodes["c"].pid, signal.SIGCONT)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_a_reader_that_never_lets_go(
    make_cluster: Callable[..., Cluster],
    doctor: Callable[[Node], tuple[str, list[Any]]],
    capsys: pytest.CaptureFixture[str],
    is_stopped: bool,
) -> None:
    """Its object moves and is found; only the old memory waits for the reader."""
    cluster = make_cluster(2)
    a, b = cluster.clients()
    node = cluster.nodes["a"]
    a.put(bytes([1]) * MIB, "held")
    a.put(bytes([2]) * MIB, "free")
    with client_process(_HOLD, node, "held") as reader:
        if is_stopped:
            reader.send_signal(signal.SIGSTOP)
        assert drain(node, "--timeout", "1") == 1
        said = capsys.readouterr().out
        assert "2 objects, 2.00 MiB moved away" in said
        assert "1 objects that moved or were deleted are still read here" in said
        assert f"process {reader.pid} holds 1 objects of this node" in said
        assert "can end" not in said
        assert sorted(b.list()["name"].to_pylist()) == ["free", "held"]
        for client in (a, b):
            assert client.get("held").to_pybytes() == bytes([1]) * MIB
        verdict, found = doctor(node)
        assert verdict == (
            "Node a is being drained: 2 objects, 2.00 MiB have moved, 0 objects, 0 B are left; 1"
            " obstacle is in the way."
        )
        [one] = found
        holds = f"process {reader.pid} holds 1 objects of this node"
        assert one["what"] == (f"{holds}, and is stopped" if is_stopped else holds)
        assert one["command"].startswith(f"kill -CONT {reader.pid}" if is_stopped else "ps -p")
    assert drain(node, "--timeout", "30") == 0


def test_another_command_cancels_a_drain_that_waits(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """The waiting command ended with 0 once its reader had gone, though the node took objects."""
    cluster = make_cluster(2)
    a, b = cluster.clients()
    node = cluster.nodes["a"]
    a.put(b"bytes", "x")
    ended: list[int] = []
    with client_process(_HOLD, node, "x"):
        waiting = threading.Thread(target=lambda: ended.append(drain(node, "--timeout", "600")))
        waiting.start()
        wait_until(lambda: b.list().num_rows == 1, "the object to move")
        assert drain(node, "--cancel") == 0
        waiting.join(30)
        assert not waiting.is_alive()
    assert ended == [1]
    said = capsys.readouterr().out
    assert "cancelled by another command, or by the end of the node: it takes new objects" in said
    assert "can end" not in said
    a.put(bytes(2 * MIB), "new")
    assert b.get("x").to_pybytes() == b"bytes"


@pytest.mark.parametrize("flags", [("--plaintext",), NET], ids=["mapped", "net"])
def test_nodes_that_are_full_take_objects_by_spilling_their_own(
    make_cluster: Callable[..., Cluster], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    check_full_nodes_that_spill(make_cluster(2, *flags, "--spill", str(tmp_path / "spill")))


@pytest.mark.parametrize("flags", [("--plaintext",), NET], ids=["mapped", "net"])
def test_nodes_that_are_full_take_objects_by_spilling_to_a_bucket(
    make_cluster: Callable[..., Cluster], bucket: Bucket, flags: tuple[str, ...]
) -> None:
    check_full_nodes_that_spill(make_cluster(2, *flags, "--spill", bucket.url))


def check_full_nodes_that_spill(cluster: Cluster) -> None:
    """60 of 64 MiB are used at the only other node, and 50 MiB move there."""
    a, b = cluster.clients()
    expected = {}
    for number in range(10):
        for client, of in ((a, "a"), (b, "b")):
            size = (5 if of == "a" else 6) * MIB
            expected[f"{of}{number}"] = bytes([10 * (of == "b") + number]) * size
            client.put(expected[f"{of}{number}"], f"{of}{number}", wait=30)
    wait_until(lambda: b.stats()["objects_spilled"] == 0, "b to have all of its objects in memory")
    assert drain(cluster.nodes["a"], "--timeout", "60") == 0
    assert a.list().num_rows == 0
    assert b.stats()["objects_spilled"] >= 7
    assert sorted(b.list()["name"].to_pylist()) == sorted(expected)
    cluster.nodes["a"].stop()
    for name, value in expected.items():
        assert b.get(name, timeout=30).to_pybytes() == value, name
