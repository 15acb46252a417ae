"""Blocks of the tasks of Ray and Spark: failures leave nothing in the memory of a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import wait_until
from farrow._scan import _blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Node

ROWS = 100_000


def rows(kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(range(ROWS), kind)})


def is_empty(client: farrow.Client) -> bool:
    stats = client.stats()
    return (stats["objects"], stats["holds"], stats["used"]) == (0, 0, 0) and not _blocks._written


def test_blocks_become_a_huge_table(client: farrow.Client) -> None:
    blocks = [(_blocks.put_block(client, rows()), client.node) for _ in range(2)]
    assert all(isinstance(block, bytes) for block, _ in blocks)
    table = _blocks.append_blocks(client, "written", blocks)
    assert table is not None
    assert table.rows == 2 * ROWS
    table.drop()
    del table
    assert is_empty(client)


def test_dropped_blocks_leave_nothing(client: farrow.Client) -> None:
    """Their leases stayed with this process until its end."""
    blocks = [_blocks.put_block(client, rows()) for _ in range(2)]
    assert client.stats()["used"] > 2 * ROWS * 8
    _blocks.drop_blocks(client, blocks)
    assert is_empty(client)
    # As Spark does after a commit that failed.
    _blocks.drop_blocks(client, blocks)


def test_deleted_blocks_are_not_held_by_the_process_that_wrote_them(
    client: farrow.Client, node: Node
) -> None:
    """The worker of a task lives on, and the driver deletes its blocks."""
    block = _blocks.put_block(client, rows())
    assert isinstance(block, bytes)
    try:
        farrow.connect(node.socket).delete(_blocks._object_of(block))
        stats = client.stats()
        assert (stats["objects"], stats["holds"], stats["used"]) == (0, 0, 0)
    finally:
        _blocks._written.clear()


def test_a_block_exists_with_its_lease_only(client: farrow.Client) -> None:
    """A block was put, then shared with a lease, and the first object deleted. A task that was
    killed in between left an object that nothing deleted."""
    totals = ("sealed_total", "deleted_total", "objects_pinned")
    before = client.stats()
    block = _blocks.put_block(client, rows())
    after = client.stats()
    assert [after[name] - before[name] for name in totals] == [1, 0, 1]
    assert isinstance(block, bytes)
    assert _blocks._opened(client, block).equals(rows())
    _blocks.drop_blocks(client, [block])
    assert is_empty(client)


def test_a_small_block_travels_by_itself(client: farrow.Client) -> None:
    small = rows().slice(0, 10)
    assert _blocks.put_block(client, small) is small
    assert is_empty(client)


def test_a_block_that_does_not_fit_leaves_nothing(client: farrow.Client) -> None:
    large = pa.table({"x": np.zeros(client.stats()["capacity"] // 8 + 1)})
    with pytest.raises(farrow.OutOfMemory):
        _blocks.put_block(client, large)
    assert is_empty(client)


def test_blocks_of_different_schemas_leave_nothing(client: farrow.Client) -> None:
    blocks = [(_blocks.put_block(client, rows(kind)), client.node) for kind in (None, pa.date64())]
    with pytest.raises(pa.ArrowTypeError):
        _blocks.append_blocks(client, "written", blocks)
    assert not client.contains("written")
    assert is_empty(client)


def test_blocks_that_do_not_fit_a_table_leave_nothing(client: farrow.Client) -> None:
    """The table existed: it stays."""
    table = client.huge_table("written", pa.schema({"y": pa.int64()}))
    used = client.stats()["used"]
    block = _blocks.put_block(client, rows())
    with pytest.raises((farrow.InvalidArgument, KeyError)):
        _blocks.append_blocks(client, "written", [(block, client.node)])
    assert client.stats()["used"] == used
    assert table.rows == 0


def test_a_failed_task_of_ray_leaves_nothing(client: farrow.Client, node: Node) -> None:
    """Ray repeats a task that fails, and each attempt left its blocks."""
    pytest.importorskip("ray")
    from farrow.ray import FarrowDatasink

    def blocks() -> Iterator[pa.Table]:
        yield rows()
        yield rows()
        raise OSError("the source of the rows")

    sink = FarrowDatasink("written", address=node.socket)
    context = SimpleNamespace(task_idx=0)
    for _ in range(3):
        with pytest.raises(OSError, match="the source"):
            sink.write(blocks(), context)
    assert is_empty(client)
    returned = [sink.write([rows(), rows().slice(0, 0)], context)]
    sink.on_write_complete(SimpleNamespace(write_returns=returned))
    assert client.huge_table("written").rows == ROWS


def test_blocks_of_which_no_driver_knows_are_freed(
    client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of a task that lost to its repetition: their blocks stayed while their process, which
    Spark reuses, went on."""
    monkeypatch.setattr(_blocks, "_LEASE_SECONDS", 0.1)
    lost = _blocks.put_block(client, rows())
    # Newer blocks wait for their job.
    used = _blocks.put_block(client, rows())
    assert isinstance(lost, bytes)
    assert isinstance(used, bytes)
    assert [*_blocks._written] == [lost, used]
    written = _blocks._written[lost]
    _blocks._written[lost] = (written[0] - _blocks._UNUSED_SECONDS, written[1])
    del written
    newest = _blocks.put_block(client, rows())
    assert [*_blocks._written] == [used, newest]
    wait_until(lambda: not client.contains(_blocks._object_of(lost)), "the lease is over")
    assert client.contains(_blocks._object_of(used))
    _blocks.drop_blocks(client, [used, newest])
    wait_until(lambda: is_empty(client), "all blocks are freed")
