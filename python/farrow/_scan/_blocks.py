"""Blocks that the tasks of a job write, and that its driver appends to a huge table at the end.

A task may end, and its process too, long before the job: each block is an object with a lease.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from farrow import _native
from farrow.exceptions import FarrowError, NotFound

__all__ = ["Block", "append_blocks", "drop_blocks", "dropped_on_error", "put_block"]

# A written block waits for the other blocks of its job: longer than most jobs.
_LEASE_SECONDS = 3600.0
_WAIT_SECONDS = 10.0
# After this time and the lease the memory of a block that no driver appended or dropped returns,
# though its process lives on: longer than jobs, and a job of each night finds the memory free.
_UNUSED_SECONDS = 12 * 3600.0

# A smaller block is sent to the driver by itself: an object costs as much.
_SMALL_BYTES = 4096

# A reference to a block in the memory of a node; or a small block itself.
Block: TypeAlias = bytes | pa.Table

# Leases of blocks that this process has written, and when, in this order; the driver deletes the
# blocks when it has appended them.
_written: dict[bytes, tuple[float, _native.SharedReference]] = {}


def put_block(client: _native.Client, table: pa.Table) -> Block:
    """Put a block into the memory of a client's node, so that it outlives this process."""
    if table.nbytes < _SMALL_BYTES:
        return table
    # One step: if this process is killed before or after it, nothing stays beyond the lease.
    shared = _native.put_shared(client, table, _LEASE_SECONDS, _WAIT_SECONDS)
    _forget_unused()
    _written[shared.message] = time.monotonic(), shared
    return shared.message


def _forget_unused() -> None:
    """Let the leases of old blocks run.  Results of a task that was repeated reach no driver."""
    before = time.monotonic() - _UNUSED_SECONDS
    for message, (written, _) in list(_written.items()):
        if written > before:
            break
        _written.pop(message, None)


def append_blocks(
    client: _native.Client, name: str, blocks: Sequence[tuple[Block, str]]
) -> _native.HugeTable | None:
    """Append blocks to a huge table in their order, without a copy, and drop them.

    If this fails, the blocks are dropped too, and a table that this call has created.  A table that
    existed keeps the blocks before the one that failed.

    Args:
        client: a client.
        name: name of the huge table, which is created if it does not exist.
        blocks: each with the name of its node.

    Returns:
        The table; None if there are no blocks.
    """
    if not blocks:
        return None
    written = [block for block, _ in blocks]
    with dropped_on_error(client, written):
        tables = [_opened(client, block) for block in written]
        schema = pa.unify_schemas([table.schema for table in tables]).remove_metadata()
        is_new = not client.contains(name)
        huge = client.huge_table(name, schema)
        try:
            for table, (_, node) in zip(tables, blocks, strict=True):
                huge.append(table.select(huge.schema.names).cast(huge.schema), node=node)
        except BaseException:
            # Also a column that is missing in a block, and an interrupt.
            if is_new:
                with contextlib.suppress(FarrowError):
                    huge.drop()
            raise
    # The rows belong to the huge table now.
    del tables
    drop_blocks(client, written)
    return huge


@contextlib.contextmanager
def dropped_on_error(client: _native.Client, blocks: Sequence[Block]) -> Iterator[None]:
    """Drop the blocks if the body fails, also by an interrupt.  Its error is raised, whatever
    becomes of them.  The body may add blocks to the list."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(FarrowError):
            drop_blocks(client, blocks)
        raise


def drop_blocks(client: _native.Client, blocks: Sequence[Block]) -> None:
    """Free the memory of blocks.  Blocks that were dropped before are left out."""
    shared = [block for block in blocks if isinstance(block, bytes)]
    for block in shared:
        # If the call fails, the lease runs.
        _written.pop(block, None)
    # Of several, the others are deleted.
    with contextlib.suppress(NotFound):
        client.delete([_object_of(block) for block in shared])


def _opened(client: _native.Client, block: Block) -> pa.Table:
    return _native.open_shared(client, block) if isinstance(block, bytes) else block


def _object_of(message: bytes) -> _native.ObjectRef:
    """The object of a reference: its id is last."""
    return _native.ObjectRef(message[-16:])
