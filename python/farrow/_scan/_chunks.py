"""The rows of a table in Farrow as chunks, for engines that read them in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from farrow._native import Client
from farrow._reserved import HUGE_TABLE
from farrow._scan._pruning import Index, check_columns, columns_of
from farrow._scan._put_table import statistics_of
from farrow._scan._statistics import check_gaps, chunk_statistics
from farrow._scan._views import check_selectable, schema_without_views, without_views
from farrow._values._listed import listed_rows
from farrow.exceptions import InvalidArgument, NotFound
from farrow.huge import Partition

__all__ = [
    "Selection",
    "chunks",
    "divided",
    "groups",
    "listed_object",
    "selected_schema",
    "selection",
]


# More chunks in one task would leave workers without work at the end of a job.
_BYTES_PER_TASK_MAX = 256 << 20


def chunks(
    client: Client,
    name: str,
    filter: pc.Expression | None = None,
    version: int | None = None,
) -> tuple[pa.Schema, list[Partition]]:
    """The schema of a huge table, or of an object that is a table, and its chunks: those that can
    have rows for which the filter is true.  The schema is that of ``Selection.read``.

    Raises:
        NotFound: there is neither.
        RowsMissing: the huge table has gaps.
        InvalidArgument: the object has no columns, the filter has one that does not exist, or a
            version is given for an object without.
    """
    huge = None
    # To open another object as a huge table would bring its rows.
    if HUGE_TABLE in client.metadata(name):
        with contextlib.suppress(NotFound, InvalidArgument):
            huge = client.huge_table(name)
    if huge is not None:
        version = huge.version if version is None else version
        known = [chunk for chunk, _ in chunk_statistics(huge, version)]
        check_gaps(huge, version, [chunk.partition for chunk in known])
        _check_columns(filter, huge.schema)
        numbers, _ = Index(huge.schema, [*known]).matching(filter)
        return schema_without_views(huge.schema), [known[number].partition for number in numbers]
    if version is not None:
        raise InvalidArgument(f"version {version} of {name!r}, which has no versions")
    one = listed_object(client, name)
    if one["kind"] not in ("table", "record batch"):
        raise InvalidArgument(f"{name!r} is not a table, its kind is {one['kind']}")
    # By its id: another object may take the name.  Neither get brings rows of another node.
    schema = client.get(one["id"], rows=slice(0, 0)).schema
    _check_columns(filter, schema)
    rows = client.get(one["id"], columns=[]).num_rows
    whole = Partition(0, rows, one["node"] or "", one["bytes"], one["id"], 0)
    if filter is not None:
        # A task reads whole objects: this one is read if any of its parts can have rows.
        parts = statistics_of(client, schema, whole)
        if parts and not Index(schema, [*parts]).matching(filter)[0]:
            return schema_without_views(schema), []
    return schema_without_views(schema), [whole]


def listed_object(client: Client, name: str) -> dict[str, Any]:
    """The row of the object of this name in the list of all nodes.

    Raises:
        NotFound: there is none.
    """
    listed = client.list(name, all_nodes=True)
    rows = listed_rows(listed.filter(pc.equal(listed["name"], name)))
    if not rows:
        raise NotFound(f"no object named {name!r}")
    return rows[0]


def _check_columns(filter: pc.Expression | None, schema: pa.Schema) -> None:
    if filter is not None:
        try:
            check_columns(filter, schema)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"a filter on columns {schema.names}: {error}") from None


def groups(chunks: Sequence[Partition], count: int) -> list[list[Partition]]:
    """Chunks that follow each other on one node, in about this number of groups.

    A group has as many bytes as the others, and 256 MiB at most: chunks are not divided.
    """
    total = sum(chunk.nbytes for chunk in chunks)
    share = min(_BYTES_PER_TASK_MAX, total / max(1, count))
    found: list[list[Partition]] = []
    size = 0.0
    for chunk in chunks:
        is_with_last = bool(found) and found[-1][-1].node == chunk.node
        if not is_with_last or size + chunk.nbytes / 2 > share:
            found.append([])
            size = 0.0
        found[-1].append(chunk)
        size += chunk.nbytes
    return found


class Selection(NamedTuple):
    """What is read of each chunk; it can be pickled.

    Attributes:
        columns: names of the columns of the result; None: all.
        filter: the rows; None: all.
        needed: names of the columns of both; None: all.
    """

    columns: list[str] | None
    filter: pc.Expression | None
    needed: list[str] | None

    def read(self, client: Client, id: bytes) -> pa.Table:
        """Columns and rows of one chunk: in place, except for rows that a filter selects, and for
        views, which engines that select rows cannot use."""
        value: Any = client.get(id, columns=self.needed)
        table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
        table = without_views(table)
        if self.filter is not None:
            check_selectable(table.schema)
            table = table.filter(self.filter)
        return table if self.columns is None else table.select(self.columns)


def selection(
    schema: pa.Schema, columns: Sequence[str] | None, filter: pc.Expression | None
) -> Selection:
    """The selection of columns and rows of a table with this schema."""
    names = None if columns is None else list(columns)
    if names is None or filter is None:
        return Selection(names, filter, names)
    filtered = columns_of(filter, schema)
    needed = None if filtered is None else list(dict.fromkeys([*names, *filtered]))
    return Selection(names, filter, needed)


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


def divided(found: pa.Table, counts: list[int]) -> Iterator[list[pa.RecordBatch]]:
    """The batches of each chunk, of the rows of some that follow each other. A batch of a put table
    can have rows of several, and is divided."""
    if not found.schema.names:
        # No arrays divide the rows.
        for count in counts:
            yield found.slice(0, count).to_batches()
        return
    left = iter(found.to_batches())
    rest: pa.RecordBatch | None = None
    for count in counts:
        own: list[pa.RecordBatch] = []
        while count > 0:
            batch = next(left) if rest is None else rest
            rest = batch.slice(count) if batch.num_rows > count else None
            own.append(batch.slice(0, count))
            count -= own[-1].num_rows
        yield own
