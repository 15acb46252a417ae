"""``farrow node set``: settings of a node that change while it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, RUN_NODE, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Cluster, Node


def change(node: Node, *words: str) -> int:
    return main(["node", "set", "--socket", node.socket, *words])


def test_limits_of_clients_change_and_no_object_is_lost(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    client = farrow.connect(node.socket)
    client.put(bytes(8 << 20), "large")
    assert change(node, "--client-bytes", "4MiB", "--evict", "lru") == 0
    with pytest.raises(farrow.QuotaExceeded) as refused:
        client.put(bytes(1 << 20), "more")
    assert refused.value.limit == 4 << 20
    assert client.get("large").size == 8 << 20
    client.delete("large")
    client.put(bytes(1 << 20), "more")
    settings = client.stats()["settings"]
    assert (settings["client_bytes"], settings["is_evicting"]) == (4 << 20, True)
    capsys.readouterr()
    assert change(node, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["changed"] == ["client_bytes", "is_evicting"]
    assert change(node) == 0
    assert "--client-bytes" in capsys.readouterr().out
    assert change(node, "--client-bytes", "none", "--evict", "none") == 0
    assert client.stats()["settings_changed"] == []


def test_limits_of_a_namespace_change(node: Node) -> None:
    client = farrow.connect(node.socket)
    client.create_namespace("team")
    team = farrow.connect(node.socket, namespace="team")
    assert change(node, "--limit", "team", "--bytes", "1MiB", "--objects", "2") == 0
    row = client.namespaces()[1]
    assert (row["nbytes"], row["objects"]) == (1 << 20, 2)
    team.put(b"a" * 5000, "a")
    team.put(b"b" * 5000, "b")
    with pytest.raises(farrow.QuotaExceeded):
        team.put(b"c" * 5000, "c")
    assert change(node, "--limit", "team", "--objects", "none") == 0
    team.put(b"c" * 5000, "c")
    assert client.namespaces()[1]["nbytes"] == 1 << 20


def test_levels_of_the_log_change(node: Node) -> None:
    client = farrow.connect(node.socket)
    client.create_namespace("quiet")
    assert "a setting is changed" not in node.log()
    assert change(node, "--log", "warn,farrow_cluster=info") == 0
    assert change(node, "--evict", "lru") == 0
    wait_until(lambda: "a setting is changed" in node.log(), "a line of the log")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--cache", "1MiB"), "no objects over the network"),
        (("--log", "farrow=loud"), "log"),
        (("--client-objects", "-1"), "a number below"),
        (("--client-bytes", "much"), "no size"),
        (("--limit", "nobody", "--bytes", "1MiB"), "nobody"),
    ],
)
def test_what_cannot_be_set_is_refused(
    node: Node, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    assert change(node, *words) == 1
    assert reason in capsys.readouterr().err
    assert farrow.connect(node.socket).stats()["settings_changed"] == []


def test_a_limit_is_set_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings of the node were in effect if the limit beside them was refused."""
    with pytest.raises(SystemExit) as ended:
        main(["node", "set", "--limit", "team", "--bytes", "1MiB", "--evict", "lru"])
    assert ended.value.code == 2
    assert "a command of its own" in capsys.readouterr().err


def test_a_smaller_cache_drops_replicas_that_are_not_held(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(2, "--net=only", "--no-prepare", "--plaintext")
    a, b = cluster.clients()
    for number in range(4):
        a.put(bytes(2 << 20), f"n{number}")
    held = b.get("n0")
    for number in range(1, 4):
        assert b.get(f"n{number}").size == 2 << 20
    before = b.stats()["used"]
    b._change_settings({"cache": 3 << 20})
    assert b.stats()["used"] <= before - (4 << 20)
    assert held.size == 2 << 20
    # One that does not fit beside the held one is refused, with the numbers.
    with pytest.raises(farrow.FarrowError, match="--cache"):
        b.get("n1")
    b._change_settings({"cache": None})
    assert b.get("n1").size == 2 << 20


def test_changes_outlive_an_upgrade_but_not_another_value_of_their_option(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--client-bytes", "8MiB")
    assert change(node, "--client-bytes", "3MiB", "--evict", "lru") == 0
    for _ in range(2):
        upgrade(node)
        stats = farrow.connect(node.socket).stats()
        assert stats["settings_changed"] == ["client_bytes", "is_evicting"]
        assert stats["settings"]["client_bytes"] == 3 << 20
        with pytest.raises(farrow.QuotaExceeded):
            farrow.connect(node.socket).put(bytes(4 << 20))
    node.flags[node.flags.index("8MiB")] = "9MiB"
    upgrade(node)
    stats = farrow.connect(node.socket).stats()
    assert stats["settings_changed"] == ["is_evicting"]
    assert stats["settings"]["client_bytes"] == 9 << 20
    # A node that is started afresh begins with its options.
    node.restart()
    assert farrow.connect(node.socket).stats()["settings_changed"] == []


def upgrade(node: Node) -> None:
    """Let another daemon take over."""
    following = subprocess.Popen(
        [*RUN_NODE, *node.flags, "--upgrade"],
        stdin=subprocess.DEVNULL,
        stderr=(node.folder / "node.log").open("ab"),
    )
    assert node._process is not None
    assert node._process.wait(LIMIT_SECONDS) == 0
    node._process = following


def test_changes_outlive_a_kill_of_the_daemon(tmp_path: Path) -> None:
    socket = str(tmp_path / "n.sock")
    command = [sys.executable, "-m", "farrow.cli", "node", "--memory", "16MiB", "--socket", socket]
    env = {key: value for key, value in os.environ.items() if key != "FARROW_MEMORY_DIR"}
    node = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert node.stderr is not None
        assert any("listening on" in line for line in node.stderr)
        client = farrow.connect(socket)
        client._change_settings({"client_bytes": 2 << 20})
        os.kill(client.stats()["pid"], 9)
        with pytest.raises(farrow.QuotaExceeded):
            farrow.connect(socket).put(bytes(3 << 20))
        assert farrow.connect(socket).stats()["settings_changed"] == ["client_bytes"]
    finally:
        node.terminate()
        node.communicate(timeout=60)
    assert node.returncode == 0


def test_under_load_no_call_fails_while_settings_change(node: Node) -> None:
    operator = farrow.connect(node.socket)
    is_over = threading.Event()

    def work(worker: int) -> int:
        client = farrow.connect(node.socket)
        rounds = 0
        while rounds < 20 or not is_over.is_set():
            # Small ones without a message, and large ones.
            content = bytes([worker, rounds % 256]) * (200 if rounds % 2 else 100_000)
            unnamed = client.put(content)
            client.put(content, f"{worker}-{rounds}")
            assert client.get(f"{worker}-{rounds}").to_pybytes() == content
            assert client.get(unnamed).to_pybytes() == content
            client.delete_many([f"{worker}-{rounds}", unnamed])
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as threads:
        workers = [threads.submit(work, worker) for worker in range(3)]
        for number in range(100):
            limits = {"client_bytes": (16 + number % 5) << 20, "client_objects": 100 + number}
            operator._change_settings({**limits, "is_evicting": number % 2 == 0})
            operator._change_settings({"client_bytes": None, "client_objects": None})
        is_over.set()
        assert all(worker.result() >= 20 for worker in workers)
    assert operator.stats()["settings"]["client_objects"] is None
