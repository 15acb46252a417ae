"""Segments as Arrow tables of one row, built in place and read in place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farrow._native import GraphSegment
from farrow.graph.cluster._objects import keep

if TYPE_CHECKING:
    import numpy.typing as npt

    from farrow._native import Client, GraphPlan

# Version 1 did not name accounts: numbers were permanent, and the manifest had the accounts.
VERSION = 2
_BLOCK = 5
KEY = b"farrow.graph.segment"
_LISTS = ("out", "in", "loops")


def _empty() -> pa.Buffer:
    return pa.py_buffer(b"")


def _numbers(kind: pa.DataType, buffer: pa.Buffer) -> pa.Array:
    count = buffer.size // (kind.bit_width // 8)
    return pa.Array.from_buffers(kind, count, [None, buffer])


def _lists(offsets: pa.Buffer, values: pa.Array) -> pa.Array:
    count = offsets.size // 4 - 1
    return pa.Array.from_buffers(pa.list_(values.type), count, [None, offsets], children=[values])


def _one_row(values: pa.Array) -> pa.Array:
    ends = np.array([0, len(values)], np.int64)
    return pa.Array.from_buffers(
        pa.large_list(values.type), 1, [None, pa.py_buffer(ends)], children=[values]
    )


def build(plan: GraphPlan, pool: pa.MemoryPool) -> pa.Table:
    """Build the segment of a plan in memory of ``pool``.

    Raises:
        pyarrow.ArrowMemoryError: there is no room.
    """
    index, accounts, starts, entries, times, ids, values = plan.sizes()

    def room(count: int, kind: Any) -> tuple[pa.Buffer, Any]:
        size = count * np.dtype(kind).itemsize
        buffer = pa.allocate_buffer(size, memory_pool=pool) if size else _empty()
        return buffer, np.frombuffer(buffer, kind) if size else np.zeros(0, kind)

    index_room, accounts_room = room(index, np.uint64), room(accounts, np.int64)
    starts_room = [room(count, np.int32) for count in starts]
    entries_room = [room(count, np.uint64) for count in entries]
    times_room, ids_room = room(times, np.uint64), room(ids, np.int64)
    values_room = room(sum(values), np.float64)
    ends = np.cumsum([0, *values])
    plan.fill(
        index_room[1],
        accounts_room[1],
        [one for _, one in starts_room],
        [one for _, one in entries_room],
        times_room[1],
        ids_room[1],
        [values_room[1][ends[at] : ends[at + 1]] for at in range(len(values))],
    )
    columns = {
        "index": _numbers(pa.uint64(), index_room[0]),
        "accounts": _numbers(pa.int64(), accounts_room[0]),
    }
    for name, (offsets, _), (packed, _) in zip(_LISTS, starts_room, entries_room, strict=True):
        columns[name] = _lists(offsets, _numbers(pa.uint64(), packed))
    columns["times"] = _numbers(pa.uint64(), times_room[0])
    columns["ids"] = _numbers(pa.int64(), ids_room[0])
    columns["values"] = _numbers(pa.float64(), values_room[0])
    about = {"version": VERSION, "columns": len(values), **plan.about()}
    return pa.table({name: _one_row(one) for name, one in columns.items()}).replace_schema_metadata(
        {KEY: json.dumps(about)}
    )


def _sizes(plan: GraphPlan) -> list[int]:
    """Bytes of the buffers of a plan's segment."""
    index, accounts, starts, entries, times, ids, values = plan.sizes()
    longs = [index, accounts, *entries, times, ids, sum(values)]
    sizes = [8 * count for count in longs] + [4 * count for count in starts]
    # Small buffers share extents, one for each size class.
    return [size for size in sizes if size > 2048] + [64 << 10] * 6


def _flat(array: pa.Array, what: str) -> pa.Buffer:
    """The data buffer of an array without an offset."""
    if array.offset:
        raise ValueError(f"{what} of a segment begin at {array.offset}, not at 0")
    buffer = array.buffers()[1]
    if buffer is None:
        return _empty()
    return buffer.slice(0, len(array) * (array.type.bit_width // 8))


def _named(index: pa.Buffer, known: npt.NDArray[np.int64]) -> pa.Buffer:
    """The accounts of a segment that does not name them, from all accounts by internal number.

    Raises:
        ValueError: the segment has more accounts.
    """
    words = np.frombuffer(index, np.uint64).reshape(-1, _BLOCK)
    used = np.ascontiguousarray(np.bitwise_or.reduce(words[:, :3], axis=1), "<u8")
    numbers = np.flatnonzero(np.unpackbits(used.view(np.uint8), bitorder="little"))
    if len(numbers) and numbers[-1] >= len(known):
        raise ValueError(f"a segment has account {numbers[-1]} of {len(known)}")
    return pa.py_buffer(known[numbers])


def opened(table: pa.Table, known: npt.NDArray[np.int64] | None = None) -> GraphSegment:
    """The segment in a table, over the table's memory.

    Args:
        table: the segment.
        known: all accounts by internal number, for segments of version 1.

    Raises:
        ValueError: the table is no segment, or of another version.
    """
    try:
        about = json.loads((table.schema.metadata or {})[KEY])
        version, count = about.pop("version"), about.pop("columns")
    except (KeyError, ValueError) as error:
        raise ValueError(f"the table is no segment of a graph: {error!r}") from None
    if version not in (1, VERSION):
        raise ValueError(f"a segment of version {version}, not {VERSION}")

    def values(name: str) -> pa.Array:
        column = table.column(name)
        if column.num_chunks != 1 or len(column) != 1:
            raise ValueError(f"column {name!r} of a segment has {len(column)} rows, not 1")
        return column.chunk(0).values

    starts, entries = [], []
    for name in _LISTS:
        lists = values(name)
        offsets = lists.buffers()[1]
        starts.append(_empty() if offsets is None else offsets.slice(0, (len(lists) + 1) * 4))
        entries.append(_flat(lists.values, name))
    measured = _flat(values("values"), "values")
    index = _flat(values("index"), "index")
    if version == VERSION:
        accounts = _flat(values("accounts"), "accounts")
    else:
        accounts = _empty() if known is None else _named(index, known)
    size = measured.size // count if count else 0
    return GraphSegment(
        about,
        index,
        accounts,
        starts,
        entries,
        _flat(values("times"), "times"),
        _flat(values("ids"), "ids"),
        [measured.slice(at * size, size) for at in range(count)],
    )


def sealed(client: Client, plan: GraphPlan, name: str, node: str | None) -> None:
    """Build the segment of a plan in the memory of a node (None: the client's) and seal it.

    Raises:
        OutOfMemory: there is no room for all of it.
    """
    pool = client.memory_pool(strict=True, node=node, expect=_sizes(plan))
    keep(client, build(plan, pool), name, node)
