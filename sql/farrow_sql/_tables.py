"""The tables of a query: a version of each, where its rows lie, and which of them matter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

import farrow
from farrow._reserved import HUGE_TABLE
from farrow._scan._attached import table_names
from farrow._scan._chunks import listed_object
from farrow._scan._null_sets import sql_filter
from farrow._scan._pruning import Index
from farrow._scan._put_table import statistics_of
from farrow.dataset import dataset
from farrow.huge import Partition
from farrow_sql._columns import Column, register
from farrow_sql._sessions import frame_of, quoted, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import datafusion
    import pyarrow.compute as pc

__all__ = [
    "Part",
    "Range",
    "Source",
    "add_views",
    "column_name",
    "declare",
    "declare_tables",
    "first_row",
    "joined",
    "missing",
    "prune",
    "read_ranges",
    "sources",
]

# Rows of a table, and tables of all tasks of a query, are counted by the bits below and above.
FIRST_ROW_BITS = 36
# Rows of an object: its id, the first row, the end, and the node.
Range = tuple[bytes, int, int, str]

_NOT_FOUND = re.compile(r"table 'datafusion\.public\.(.+)' not found", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """Contiguous rows of one object, in the memory of one node."""

    id: bytes
    rows: int
    node: str
    nbytes: int
    # In the table.
    position: int
    # In the object: a put table can have several parts.
    begin: int = 0


@dataclass
class Source:
    """A table that does not change during the query: a version of a huge table, or an object."""

    name: str
    schema: pa.Schema
    parts: list[Part]
    is_huge: bool
    # Of a huge table: its statistics.  Keeps the rows of mapped nodes in memory.
    dataset: Any
    # A put table in mapped memory, for the same.
    retained: Any = None
    # Of a put table: the statistics of its parts, if it has some.
    index: Index | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)


def sources(
    client: farrow.Client, query: str
) -> tuple[list[Source], dict[str, farrow.FarrowError]]:
    """The tables whose names are in the text of a query, and why some cannot be read.

    A name may be in the text by chance: its error counts only if the query needs the table.
    """
    lowered = query.lower()
    found: list[Source] = []
    failed: dict[str, farrow.FarrowError] = {}
    context = session(1)
    for name in table_names(client):
        if name in lowered or name.replace('"', '""') in query:
            try:
                source = _source(client, name)
                _check_planned(context, source, len(found))
            except farrow.FarrowError as error:
                failed[name] = error
            else:
                found.append(source)
    return found, failed


def _check_planned(context: datafusion.SessionContext, source: Source, number: int) -> None:
    """Whether DataFusion can plan scans of a table: other clients put what they like.

    Raises:
        UnsupportedType: it cannot.
    """
    name = quoted(source.name)
    try:
        context.register_dataset(name, _Recorder(source.schema))
        context.deregister_table(name)
        _declare_table(context, number, source)
        _add_view(context, number, source)
        context.table(name).execution_plan()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Also a panic of DataFusion.
        raise farrow.UnsupportedType(
            f"table {source.name!r} cannot be queried by SQL: {error}"
        ) from None


def missing(
    client: farrow.Client, error: Exception, failed: dict[str, farrow.FarrowError]
) -> farrow.FarrowError | None:
    """Why a table is not there that DataFusion did not find, if there is a better reason."""
    found = _NOT_FOUND.search(str(error))
    if found is None:
        return None
    if found[1] in failed:
        return failed[found[1]]
    try:
        client.metadata(found[1])
    except farrow.NotFound:
        return None
    except farrow.FarrowError as reason:
        return reason
    return None


def _source(client: farrow.Client, name: str) -> Source:
    if HUGE_TABLE in client.metadata(name):
        table = client.huge_table(name)
        version = table.version
        parts = [
            Part(one.id, one.rows, one.node, one.nbytes, one.position)
            for one in table.partitions(version)
        ]
        return Source(name, table.schema, parts, True, dataset(table, version=version))
    one = listed_object(client, name)
    # Neither brings rows of another node.
    schema = client.get(one["id"], rows=slice(0, 0)).schema
    rows = client.get(one["id"], columns=[]).num_rows
    whole = Partition(0, rows, one["node"] or "", one["bytes"], one["id"], 0)
    known = statistics_of(client, schema, whole)
    parts = [
        Part(whole.id, part.rows, whole.node, part.nbytes, part.position, part.position)
        for part in [found.partition for found in known] or [whole]
    ]
    retained = client.get(whole.id) if _is_mapped(client, whole.node) else None
    return Source(name, schema, parts, False, None, retained, Index(schema, [*known] or [None]))


def _is_mapped(client: farrow.Client, node: str) -> bool:
    """Whether the memory of a node is mapped, so that a get moves no rows."""
    return node in ("", client.node) or any(
        one.name == node and one.fabric in ("shm", "device") for one in client.nodes()
    )


class _Recorder(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset without rows that notes which filters a plan gives it."""

    def __init__(self, schema: pa.Schema) -> None:
        # Not ``empty_table()``, which has no arrays of unions.
        super().__init__(pa.Table.from_batches([], schema))
        self.filters: list[pc.Expression | None] = []

    def get_fragments(self, filter: pc.Expression | pa.Scalar | None = None) -> Iterator[Any]:
        try:
            self.filters.append(sql_filter(filter))
        except ValueError:
            # This version of Arrow stores it in another form: all parts are read.
            self.filters.append(None)
        # A plan over no fragments is not made; this one is never read.
        return iter([None])


def prune(query: str, found: list[Source]) -> list[list[Part]]:
    """The parts of each table that can have rows for a filter of the query.

    DataFusion plans the query over datasets, and gives each its filter.  A query has the same
    result over the rows that any of the filters of a table leaves.
    """
    context = session(1)
    recorders = []
    for source in found:
        recorders.append(_Recorder(source.schema))
        context.register_dataset(quoted(source.name), recorders[-1])
    try:
        # Other statements would be executed here.
        frame_of(context, query).execution_plan()
    except Exception:
        # The plan of the query itself reports what is wrong.
        return [source.parts for source in found]
    return [_left(source, one.filters) for source, one in zip(found, recorders, strict=True)]


def _left(source: Source, filters: list[pc.Expression | None]) -> list[Part]:
    if not filters or not (source.is_huge or source.index):
        return source.parts
    positions: set[int] = set()
    for one in filters:
        if one is None:
            return source.parts
        if source.is_huge:
            positions.update(chunk.position for chunk in source.dataset.partitions(one))
        elif source.index is not None:
            numbers, _ = source.index.matching(one)
            positions.update(source.parts[number].position for number in numbers)
    return [part for part in source.parts if part.position in positions]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same rows, contiguous ones of an object as one range, which one call reads."""
    found: list[Range] = []
    for id, begin, end, node in ranges:
        if found and found[-1][0] == id and found[-1][2] == begin:
            found[-1] = (id, found[-1][1], end, node)
        else:
            found.append((id, begin, end, node))
    return found


def first_row(table: int) -> int:
    """The number of the first row of a table in a plan that is not divided."""
    return (table + 1) << FIRST_ROW_BITS


def column_name(table: int, column: int) -> str:
    """The function that reads a column of a table."""
    return f"farrow_{table}_{column}"


def add_views(
    context: datafusion.SessionContext, found: list[Source]
) -> dict[tuple[int, int], int]:
    """A view for each table, whose functions are registered; the ranges that stand for them."""
    return {_add_view(context, number, source): number for number, source in enumerate(found)}


def _add_view(context: datafusion.SessionContext, number: int, source: Source) -> tuple[int, int]:
    first = first_row(number)
    columns = ", ".join(
        f"{quoted(column_name(number, column))}(value) as {quoted(name)}"
        for column, name in enumerate(source.schema.names)
    )
    end = first + source.rows
    rows = f"select {columns} from range({first}, {end})"
    context.sql(f"create view {quoted(source.name)} as {rows}").collect()
    return first, end


def declare(context: datafusion.SessionContext, name: str, kind: pa.DataType) -> None:
    """Let a session plan a column that another process reads."""
    register(context, name, Column(pa.chunked_array([], kind), 0))


def declare_tables(context: datafusion.SessionContext, found: list[Source]) -> None:
    """Let a session plan the columns of tables."""
    for table, source in enumerate(found):
        _declare_table(context, table, source)


def _declare_table(context: datafusion.SessionContext, table: int, source: Source) -> None:
    for number, kind in enumerate(source.schema.types):
        declare(context, column_name(table, number), kind)


def read_ranges(
    client: farrow.Client,
    ranges: list[tuple[bytes, int, int]],
    nodes: list[str],
    schema: pa.Schema,
) -> tuple[pa.Table, int]:
    """Rows of objects, one range after another: of each only these columns, in place or fetched.

    Args:
        client: the client that reads.
        ranges: object, first row and end.
        nodes: the node that has the object of each range.
        schema: the columns.

    Returns:
        The rows, and the bytes of those that other nodes have.
    """
    names, own = schema.names, client.node or ""
    parts, moved = [], 0
    for (id, begin, end), node in zip(ranges, nodes, strict=True):
        part = client.get(id, columns=names, rows=slice(begin, end))
        if isinstance(part, pa.RecordBatch):
            part = pa.Table.from_batches([part])
        parts.append(part.replace_schema_metadata())
        moved += part.nbytes * (node != own)
    return pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema), moved
