"""A node in a process namespace of its own, as in a container, whose clients run outside of it.

Such a node has no process numbers of its clients. Before, the next daemon after a kill took all of
them for dead: each call raised PermissionDenied, and unfinished objects were lost.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Apart, need_process_namespaces, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HOLD = """
import sys, farrow
client = farrow.connect(sys.argv[1])
table = client.get("held")
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def unseeing(tmp_path: Path) -> Iterator[Apart]:
    need_process_namespaces()
    node = Apart(tmp_path, "--memory", "32MiB")
    try:
        yield node
    finally:
        node.close()


def test_a_client_that_the_node_cannot_see_outlives_a_kill_of_the_daemon(unseeing: Apart) -> None:
    client = farrow.connect(unseeing.socket)
    client.put(pa.table({"n": range(500_000)}), "held")
    table = client.get("held")
    writer = client.create(5, "written")
    for _ in range(2):
        unseeing.restart()
        other = farrow.connect(unseeing.socket)
        assert other.contains("held")
        # The client is back in its place: what it began can be finished, what it holds is its own.
        assert client.get("held").equals(table)
    writer.write(b"hello")
    writer.seal()
    assert client.get("written").to_pybytes() == b"hello"
    # What it holds is not given to others after a delete.
    client.delete("held")
    other.put(bytes(20 << 20), "more")
    assert table["n"].to_pylist() == list(range(500_000))


def test_a_dead_client_that_the_node_cannot_see_leaves_nothing(unseeing: Apart) -> None:
    client = farrow.connect(unseeing.socket)
    client.put(pa.table({"n": range(500_000)}), "held")
    reader = subprocess.Popen(
        [sys.executable, "-c", _HOLD, unseeing.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "holds\n"
        unseeing.restart()
        client.delete("held")
        assert client.stats()["retiring"] > 4_000_000, "the reader lives"
    finally:
        reader.kill()
        reader.communicate(timeout=LIMIT_SECONDS)
    wait_until(lambda: client.stats()["retiring"] == 0, "the memory is back")
