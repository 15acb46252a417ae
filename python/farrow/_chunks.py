"""The rows of a table in Farrow as chunks, for engines that read them in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from farrow._native import Client
from farrow.exceptions import InvalidArgument, NotFound
from farrow.huge import Partition

__all__ = ["chunks", "read", "selected_schema"]


def chunks(client: Client, name: str) -> tuple[pa.Schema, list[Partition]]:
    """The schema of a huge table, or of an object that is a table, and its chunks.

    Raises:
        NotFound: there is neither.
        InvalidArgument: the object has no columns.
    """
    try:
        huge = client.huge_table(name)
    except (NotFound, InvalidArgument):
        value = client.get(name)
    else:
        return huge.schema, huge.partitions()
    if not isinstance(value, (pa.Table, pa.RecordBatch)):
        raise InvalidArgument(f"{name!r} is a {type(value).__name__}, not a table")
    listed = client.list(name, all_nodes=True)
    rows = listed.filter(pc.equal(listed["name"], name)).to_pylist()
    if not rows:
        raise NotFound(f"no object named {name!r}")
    one = rows[0]
    whole = Partition(0, value.num_rows, one["node"] or "", one["bytes"], one["id"], 0)
    return value.schema, [whole]


def read(
    client: Client, id: bytes, columns: Sequence[str] | None, filter: pc.Expression | None
) -> pa.Table:
    """Columns and rows of one chunk: in place, except for the rows that a filter selects."""
    needed = None
    if columns is not None and filter is None:
        needed = list(columns)
    value: Any = client.get(id, columns=needed)
    table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
    if filter is not None:
        table = table.filter(filter)
        if columns is not None:
            table = table.select(list(columns))
    return table


def selected_schema(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of some columns.

    Raises:
        InvalidArgument: a column does not exist, or several have its name.
    """
    if columns is None:
        return schema
    for column in columns:
        if len(schema.get_all_field_indices(column)) != 1:
            raise InvalidArgument(f"no column {column!r}, or several, among {schema.names}")
    return pa.schema([schema.field(column) for column in columns], metadata=schema.metadata)
