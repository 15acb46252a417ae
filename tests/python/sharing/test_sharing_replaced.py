"""References after their node was replaced by one with new memory.

A value that had been sent once was sent as its old reference, which no process could open: the
worker of a pool ended, and the pool waited forever.  A receiver that had a client of the old memory
looked for new references there, and found nothing."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
import farrow.sharing
from conftest import Node, run_python
from farrow.sharing import _references

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 100_000
# A reference is shorter, a copy of the rows longer.
REFERENCE_BYTES_MAX = 1024

# Ends after its message: the lease of the reference is longer than a test.
SENDER = """
import sys
import numpy as np, pyarrow as pa
import farrow, farrow.sharing
from multiprocessing.reduction import ForkingPickler
farrow.sharing.install(lease=300.0)
client = farrow.connect(sys.argv[1])
value = client.get(client.put(pa.table({"n": np.arange(int(sys.argv[2]))})))
print(bytes(ForkingPickler.dumps(value)).hex())
"""
RECEIVER = """
import pickle, sys
print(pickle.loads(open(sys.argv[1], "rb").read()).num_rows)
"""


@pytest.fixture(autouse=True)
def _sharing() -> Iterator[None]:
    farrow.sharing.install(lease=300.0)
    yield
    farrow.sharing.uninstall()
    _references._state.clients.clear()


def replace(node: Node) -> None:
    """Start a node with new memory in the place of a killed one."""
    node.kill9()
    for path in node.memory_dir.iterdir():
        path.unlink()
    node.start()


def dumps(value: pa.Table) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def sent_value(node: Node) -> tuple[pa.Table, bytes]:
    """A value in the memory of a node, and the reference that was sent for it."""
    client = farrow.connect(node.socket, timeout=1.0)
    value = client.get(client.put(pa.table({"n": np.arange(ROWS)})))
    message = dumps(value)
    assert len(message) < REFERENCE_BYTES_MAX
    return value, message


def check_copy(message: bytes, value: pa.Table, tmp_path: Path) -> None:
    """Whether a message has all rows, for a new process too."""
    assert len(message) > value.nbytes
    assert pickle.loads(message).equals(value)
    path = tmp_path / "message"
    path.write_bytes(message)
    assert run_python(RECEIVER, str(path)) == f"{ROWS}\n"


def test_a_value_of_replaced_memory_is_sent_as_a_copy(node: Node, tmp_path: Path) -> None:
    value, _ = sent_value(node)
    replace(node)
    for _ in range(2):
        check_copy(dumps(value), value, tmp_path)


def test_a_value_of_an_ended_node_is_sent_as_a_copy(node: Node, tmp_path: Path) -> None:
    value, _ = sent_value(node)
    node.kill9()
    check_copy(dumps(value), value, tmp_path)


def test_a_reference_outlives_a_daemon(node: Node, tmp_path: Path) -> None:
    """The next daemon has the same memory."""
    value, message = sent_value(node)
    node.restart()
    again = dumps(value)
    assert len(again) < REFERENCE_BYTES_MAX
    path = tmp_path / "message"
    for one in message, again:
        path.write_bytes(one)
        assert run_python(RECEIVER, str(path)) == f"{ROWS}\n"


def sent_by_another_process(node: Node) -> bytes:
    return bytes.fromhex(run_python(SENDER, node.socket, str(ROWS)))


def test_a_receiver_finds_what_is_in_the_new_memory(node: Node) -> None:
    before = pickle.loads(sent_by_another_process(node))
    replace(node)
    after = pickle.loads(sent_by_another_process(node))
    assert after.equals(before)


def test_a_chunk_in_the_new_memory_is_found(node: Node) -> None:
    """As tasks of Dask, Ray and Spark read it."""
    from farrow._scan import _chunks

    def put() -> tuple[pa.Schema, bytes]:
        client = farrow.connect(node.socket)
        client.put(pa.table({"n": np.arange(ROWS)}), "numbers")
        schema, [chunk] = _chunks.chunks(client, "numbers")
        return schema, chunk.id

    schema, id = put()
    selection = _chunks.selection(schema, None, None)
    assert _references.read_chunk(node.socket, selection, id).num_rows == ROWS
    replace(node)
    _, id = put()
    assert _references.read_chunk(node.socket, selection, id).num_rows == ROWS


def test_what_is_nowhere_is_still_not_found(node: Node) -> None:
    with pytest.raises(farrow.NotFound):
        _references.with_client(node.socket, lambda client: client.get("nowhere"))
