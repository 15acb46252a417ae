"""What leaves memory for files, and comes back."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spill"


@pytest.fixture
def spilling(make_node: Callable[..., Node], folder: Path) -> Node:
    """A node that is soon full and loses nothing."""
    return make_node("--memory", "32MiB", "--spill", str(folder))


def test_more_than_fits_is_retained(spilling: Node) -> None:
    client = farrow.connect(spilling.socket)
    for i in range(20):
        client.put(bytes([i]) * 4 * MIB, f"o{i}")
    stats = client.stats()
    assert stats["objects"] + stats["objects_spilled"] == 20
    assert (stats["eviction"], stats["evicted_total"]) == ("spill", 0)
    assert stats["spilled"] == stats["objects_spilled"] * 4 * MIB
    for i in range(20):
        assert client.get(f"o{i}").to_pybytes() == bytes([i]) * 4 * MIB
    assert client.stats()["restored_total"] >= 13


def test_a_table_survives_spill_and_restart(spilling: Node) -> None:
    client = farrow.connect(spilling.socket)
    table = pa.table({"n": range(1000), "s": [str(n) for n in range(1000)]})
    events = client.subscribe("t")
    client.put(table, "t", metadata={"k": "v"})
    client.evict(10 * MIB)
    assert client.list("t")["spilled"].to_pylist() == [True]
    assert client.contains("t")
    spilling.restart()
    assert client.get("t").equals(table)
    assert client.metadata("t") == {"k": "v"}
    kinds = [type(events.next(timeout=30)).__name__ for _ in range(3)]
    assert kinds == ["Sealed", "Spilled", "Restored"]


def test_other_threads_run_while_metadata_is_asked_for(spilling: Node) -> None:
    """``metadata`` of a spilled object asks the daemon, and held the GIL until the answer: with a
    slow daemon all threads of the process stood still."""
    client = farrow.connect(spilling.socket, timeout=60)
    client.put(b"bytes", "x", metadata={"k": "v"})
    client.evict(1)
    found = []
    asking = threading.Thread(target=lambda: found.append(client.metadata("x")))
    os.kill(spilling.pid, signal.SIGSTOP)
    try:
        asking.start()
        # Runs only if the other thread has let go of the GIL.
        asking.join(0.2)
        assert asking.is_alive()
    finally:
        os.kill(spilling.pid, signal.SIGCONT)
    asking.join(30)
    assert found == [{"k": "v"}]


def test_a_missing_file_is_named(spilling: Node, folder: Path) -> None:
    client = farrow.connect(spilling.socket)
    client.put(b"bytes", "x")
    client.evict(1)
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    file.unlink()
    with pytest.raises(farrow.NotRestored, match=file.name) as caught:
        client.get("x")
    assert caught.value.file == str(file)
    assert isinstance(caught.value, OSError)
    client.delete("x")
    assert not client.contains("x")


def test_a_copy_that_was_removed_is_written_again(spilling: Node, folder: Path) -> None:
    """Regression test: a cleaner of temporary files removed the file of an object in memory.
    The node then dropped the object from memory, and it was nowhere."""
    client = farrow.connect(spilling.socket)
    client.put(b"bytes", "x")
    client.evict(1)
    assert client.get("x").to_pybytes() == b"bytes"
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    before = file.stat().st_mtime_ns
    assert client.evict(1)["objects"] == 1
    assert file.stat().st_mtime_ns == before  # It was there, so it was not written.
    assert client.get("x").to_pybytes() == b"bytes"
    file.unlink()
    assert client.evict(1)["objects"] == 1
    assert client.get("x").to_pybytes() == b"bytes"


@pytest.mark.parametrize("is_url", [False, True])
def test_spilled_objects_are_for_the_owner_of_the_node_alone(
    make_node: Callable[..., Node], folder: Path, is_url: bool
) -> None:
    """Regression test: in a folder that existed, all users of the machine could read them."""
    folder.mkdir(mode=0o755)
    node = make_node("--memory", "32MiB", "--spill", f"file://{folder}" if is_url else str(folder))
    client = farrow.connect(node.socket)
    client.put(b"secret", "x")
    client.evict(1)
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o755
    node.stop()
    assert not [*folder.iterdir()]


def test_spilled_objects_count_for_the_quota_of_their_client(
    make_node: Callable[..., Node], folder: Path
) -> None:
    node = make_node("--memory", "32MiB", "--spill", str(folder), "--client-objects", "10")
    client = farrow.connect(node.socket)
    for number in range(10):
        client.put(b"bytes", f"o{number}")
    assert client.evict(1 << 30)["objects"] == 10
    with pytest.raises(farrow.QuotaExceeded, match="10 of 10 in use"):
        client.put(b"one more")
    client.delete("o3")
    client.put(b"one more")
    farrow.connect(node.socket).put(b"of another client")


def test_ls_shows_what_is_spilled(spilling: Node, capsys: pytest.CaptureFixture[str]) -> None:
    client = farrow.connect(spilling.socket)
    client.put(b"1", "mine")
    client.evict(1)
    assert main(["ls", "--socket", spilling.socket]) == 0
    assert "spilled" in capsys.readouterr().out
