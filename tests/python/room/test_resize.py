"""The memory of a node grows and shrinks while it serves: ``farrow node set --memory``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node

MIB = 1 << 20

#: Random changes under load. A longer run: ``FARROW_RESIZES=1000``.
RESIZES = int(os.environ.get("FARROW_RESIZES", "40"))


def resize(node: Node, size: str) -> int:
    return main(["node", "set", "--socket", node.socket, "--memory", size])


def allocated(node: Node) -> int:
    """Bytes that the kernel has allocated for the data of a node."""
    [path] = [path for path in node.memory_dir.iterdir() if path.name.endswith(".data")]
    return path.stat().st_blocks * 512


@pytest.fixture
def growing(make_node: Callable[..., Node]) -> Node:
    sizes = ("--memory", "32MiB", "--memory-max", "256MiB")
    return make_node(*sizes, "--evict", "lru", "--no-prepare")


def test_memory_grows_and_shrinks_and_the_machine_has_it_back(
    growing: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    client = farrow.connect(growing.socket)
    small = allocated(growing)
    with pytest.raises(farrow.FarrowError):
        client.put(bytes(64 * MIB), "large")
    assert resize(growing, "128MiB") == 0
    client.put(bytes(64 * MIB), "large")
    assert allocated(growing) == small + 96 * MIB
    stats = client.stats()
    assert (stats["capacity"], stats["capacity_max"]) == (128 * MIB, 256 * MIB)
    assert (stats["settings"]["memory"], stats["settings_changed"]) == (128 * MIB, ["memory"])
    capsys.readouterr()
    assert main(["stat", "--socket", growing.socket]) == 0
    assert "(at most 256" in capsys.readouterr().out
    # Held objects stay, and the refusal says how much they are.
    held = client.get("large")
    assert resize(growing, "32MiB") == 1
    assert str(64 * MIB) in capsys.readouterr().err
    assert (client.stats()["capacity"], held.size) == (128 * MIB, 64 * MIB)
    assert resize(growing, "80MiB") == 0
    assert client.contains("large")
    del held
    assert resize(growing, "32MiB") == 0
    assert allocated(growing) == small
    assert not client.contains("large")
    assert resize(growing, "512MiB") == 1
    assert str(256 * MIB) in capsys.readouterr().err


def test_a_node_that_spills_writes_objects_to_files_to_shrink(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    flags = ("--memory", "96MiB", "--no-prepare", "--spill", str(tmp_path / "spilled"))
    node = make_node(*flags)
    client = farrow.connect(node.socket)
    for number in range(10):
        client.put(bytes([number]) * (8 * MIB), f"n{number}")
    assert resize(node, "24MiB") == 0
    stats = client.stats()
    assert stats["capacity"] == 24 * MIB
    assert stats["objects_spilled"] >= 7
    for number in range(10):
        assert client.get(f"n{number}").to_pybytes() == bytes([number]) * (8 * MIB)


def test_a_node_restarts_with_its_memory(growing: Node) -> None:
    """The memory that is not lent is not allocated again by the next daemon, after any end."""
    client = farrow.connect(growing.socket)
    client.put(bytes(MIB), "kept")
    small = allocated(growing)
    assert resize(growing, "64MiB") == 0
    growing.kill9()
    growing.start()
    # A node that is started afresh has the memory of its options.
    wait_until(lambda: allocated(growing) == small, "the memory of the options")
    client = farrow.connect(growing.socket)
    assert client.get("kept").size == MIB
    assert client.stats()["capacity"] == 32 * MIB


def test_changed_memory_outlives_a_kill_of_the_daemon(tmp_path: Path) -> None:
    socket = str(tmp_path / "n.sock")
    words = ["--memory", "16MiB", "--memory-max", "128MiB", "--socket", socket]
    command = [sys.executable, "-m", "farrow.cli", "node", *words]
    env = {key: value for key, value in os.environ.items() if key != "FARROW_MEMORY_DIR"}
    node = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert node.stderr is not None
        assert any("listening on" in line for line in node.stderr)
        client = farrow.connect(socket)
        client._change_settings({"memory": 96 * MIB})
        client.put(bytes(64 * MIB), "large")
        held = client.get("large")
        os.kill(client.stats()["pid"], signal.SIGKILL)
        client = farrow.connect(socket)
        stats = client.stats()
        assert (stats["capacity"], stats["settings_changed"]) == (96 * MIB, ["memory"])
        assert client.get("large").size == held.size == 64 * MIB
    finally:
        node.terminate()
        node.communicate(timeout=60)
    assert node.returncode == 0


def test_other_nodes_see_the_memory(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2, "--no-prepare", "--plaintext", "--memory-max", "256MiB")
    a, b = cluster.clients()
    with pytest.raises(farrow.OutOfMemory):
        b.put(bytes(100 * MIB), "large", node="most-free")
    a._change_settings({"memory": 200 * MIB})

    def seen() -> int:
        [node] = [node for node in b.nodes() if node.name == "a"]
        return node.capacity

    wait_until(lambda: seen() == 200 * MIB, "the memory of the other node")
    b.put(bytes(100 * MIB), "large", node="most-free")
    assert a.get("large").size == 100 * MIB


def test_random_changes_under_load(growing: Node) -> None:
    """No call fails, and no object is lost that is named, pinned or held."""
    seed = int(os.environ.get("FARROW_RESIZES_SEED", str(random.randrange(1 << 32))))
    print(f"FARROW_RESIZES_SEED={seed}")
    chance = random.Random(seed)
    operator = farrow.connect(growing.socket)
    pinned = {f"pinned-{number}": bytes([number]) * 300_000 for number in range(8)}
    for name, content in pinned.items():
        operator.put(content, name)
        operator.pin(name)
    is_over = threading.Event()

    def work(worker: int) -> int:
        client = farrow.connect(growing.socket)
        rounds = 0
        while not is_over.is_set():
            content = bytes([worker, rounds % 256]) * (200 if rounds % 2 else 100_000)
            name = f"{worker}-{rounds}"
            client.put(content, name)
            assert client.get(name).to_pybytes() == content
            for retained, expected in pinned.items():
                assert client.get(retained).to_pybytes() == expected
            client.delete(name)
            rounds += 1
        return rounds

    reached = 0
    with ThreadPoolExecutor(3) as threads:
        workers = [threads.submit(work, worker) for worker in range(3)]
        try:
            for _ in range(RESIZES):
                size = chance.randrange(48, 257) * MIB
                operator._change_settings(
                    {
                        "memory": size,
                        "client_bytes": chance.choice([None, 64 * MIB]),
                        "is_evicting": True,
                    }
                )
                reached += operator.stats()["capacity"] == size
        finally:
            is_over.set()
        assert all(worker.result(LIMIT_SECONDS) > 0 for worker in workers)
    assert reached == RESIZES
    assert json.dumps(operator.stats()["settings"])
