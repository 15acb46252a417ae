"""Farrow's tables as ``pyarrow.dataset.Dataset``, which skip chunks by their statistics.

DuckDB, polars, DataFusion, Acero and Ibis push the columns and the filter of a query into a
dataset.  This one compares the filter with the statistics of each chunk, and reads only chunks that
can have matching rows; of a chunk that is sorted by a filtered column it reads only the range.  The
rows stay where they are: nothing is copied to be scanned.  Where a node's memory cannot be mapped,
only the columns of the query travel, of the chunks that remain::

    import pyarrow as pa
    import pyarrow.compute as pc
    import farrow
    import farrow.dataset

    client = farrow.connect()
    trades = client.huge_table("trades", pa.schema({"day": pa.int32(), "price": pa.float64()}))
    for day in range(3):
        trades.append(pa.table({"day": pa.array([day] * 2, pa.int32()), "price": [1.0, 2.0]}))

    found = farrow.dataset.dataset("trades", client)
    monday = pc.field("day") == 1
    found.to_table(columns=["price"], filter=monday)["price"].to_pylist()   # [1.0, 2.0]
    [part.position for part in found.partitions(monday)]                    # [2]
    found.count_rows()                                                      # 6
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from farrow._reserved import HUGE_TABLE
from farrow._scan import _views
from farrow._scan._chunks import divided
from farrow._scan._far_object import FarObject, far_object
from farrow._scan._pruning import Index, check_columns, columns_of
from farrow._scan._put_table import PutTable, put_table
from farrow._scan._ranges import cut
from farrow._scan._statistics import ChunkStatistics, ColumnStatistics, check_gaps, chunk_statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.compute as pc

    from farrow import Client, HugeTable
    from farrow.huge import Partition

__all__ = ["ChunkStatistics", "ColumnStatistics", "FarrowDataset", "dataset", "statistics"]

# Chunks of nodes that are not mapped, fetched by one call: it fetches some of them ahead.
_CHUNKS_AT_A_TIME = 8
# Columns that Arrow makes during a scan.
_MADE_COLUMNS = {"__batch_index", "__fragment_index", "__last_in_fragment", "__filename"}


def dataset(
    source: str | HugeTable | pa.Table | pa.RecordBatch,
    client: Client | None = None,
    *,
    version: int | None = None,
) -> FarrowDataset:
    """Open a table of Farrow as a dataset of its present rows.

    Args:
        source: the name of a huge table or of a put table or record batch; or the table itself.
        client: the client that looks for the name; None: ``farrow.connect()``.
        version: a version of a huge table; None: the newest.

    Returns:
        A dataset whose fragments are the chunks of a huge table, or the parts of a table that was
        put with ``statistics=True``. It keeps the rows of nodes whose memory is mapped in memory
        while it exists; it fetches rows of other nodes when they are read, and these can be dropped
        meanwhile. It does not see later appends.

    Raises:
        NotFound: there is no such name.
        InvalidArgument: the object has no columns, or a version is given for one without.
        RowsMissing: the huge table has gaps.
        NodeLost: a node that has rows of the table is lost.

    Examples:
        >>> import pyarrow.compute as pc
        >>> import farrow.dataset
        >>> schema = pa.schema({"day": pa.int32(), "price": pa.float64()})
        >>> trades = client.huge_table("dataset/dataset", schema)
        >>> for day in range(3):
        ...     rows = pa.table({"day": [day] * 2, "price": [1.0, 2.0]}, schema=schema)
        ...     end = trades.append(rows)
        >>> found = farrow.dataset.dataset("dataset/dataset", client)
        >>> found.to_table(columns=["price"], filter=pc.field("day") == 1)["price"].to_pylist()
        [1.0, 2.0]
    """
    from farrow import HugeTable, InvalidArgument, connect

    if isinstance(source, str):
        source = _named(source, connect() if client is None else client)
    if isinstance(source, HugeTable):
        version = source.version if version is None else version
        return FarrowDataset(source.schema, _chunks_of(source, version))
    if version is not None:
        raise InvalidArgument(f"version {version} of an object that has no versions")
    if isinstance(source, FarObject):
        parts = [_Chunk(one, one.partition.rows, [], source) for one in source.parts]
        return FarrowDataset(source.schema, parts or [_Chunk(None, source.num_rows, [], source)])
    source, known = source if isinstance(source, PutTable) else PutTable(source, [])
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if not isinstance(source, pa.Table):
        raise InvalidArgument(f"a dataset of {type(source).__name__}, which has no columns")
    chunks = [_Chunk(part, part.partition.rows, batches) for part, batches in known]
    chunks = chunks or [_Chunk(None, one.num_rows, [one]) for one in source.to_batches()]
    return FarrowDataset(source.schema, chunks)


def _named(name: str, client: Client) -> Any:
    if HUGE_TABLE in client.metadata(name):
        return client.huge_table(name)
    return far_object(name, client) or put_table(name, client)


def statistics(table: HugeTable, version: int | None = None) -> list[ChunkStatistics]:
    """The statistics of the chunks of a huge table, in the order of their rows.

    Args:
        table: the table.
        version: one of its versions; None: the newest.

    Returns:
        For each chunk its location, and for each field that has statistics their values.

    Raises:
        NodeLost: a node that has rows of the table is lost.

    Examples:
        >>> import farrow.dataset
        >>> schema = pa.schema({"day": pa.int32(), "price": pa.float64()})
        >>> trades = client.huge_table("dataset/statistics", schema)
        >>> for day in range(3):
        ...     rows = pa.table({"day": [day] * 2, "price": [1.0, 2.0]}, schema=schema)
        ...     end = trades.append(rows)
        >>> [chunk.columns[("day",)].max.as_py() for chunk in farrow.dataset.statistics(trades)]
        [0, 1, 2]
    """
    return [chunk for chunk, _ in chunk_statistics(table, version)]


class _HugeRows(NamedTuple):
    """A version of a huge table, whose rows are found when they are read."""

    table: HugeTable
    version: int
    # Whether their memory is mapped: else they are fetched.
    is_mapped: bool

    def fetch(self, columns: list[str] | None, rows: slice) -> pa.Table:
        """These columns of some rows; None: all columns."""
        return self.table.table(self.version, columns=columns, rows=rows)


class _Chunk:
    """The batches of a chunk, and its statistics, if it has some."""

    __slots__ = ("batches", "rows", "source", "statistics")

    def __init__(
        self,
        statistics: ChunkStatistics | None,
        rows: int,
        batches: list[pa.RecordBatch],
        source: _HugeRows | FarObject | None = None,
    ) -> None:
        self.statistics = statistics
        self.rows = rows
        self.batches = batches
        # Where its rows are found when they are read; None: ``batches`` are all of them.
        self.source = source

    @property
    def is_far(self) -> bool:
        """Whether its rows are fetched from a node whose memory is not mapped."""
        return self.source is not None and not self.source.is_mapped

    @property
    def position(self) -> int:
        """Its first row in the table; an object without statistics is one chunk."""
        return 0 if self.statistics is None else self.statistics.partition.position

    def follows(self, other: _Chunk) -> bool:
        """Whether the rows of both are read by one call: both are fetched, or both are mapped, and
        they are contiguous."""
        if self.source is None or other.source is None or self.is_far != other.is_far:
            return False
        return self.position == other.position + other.rows

    def ordered(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Which of these columns are sorted, and how."""
        known = None if self.statistics is None else self.statistics.columns
        orders = [(name, known[(name,)].order) for name in names if known and (name,) in known]
        return [(name, order) for name, order in orders if order in ("ascending", "descending")]


def _chunks_of(table: HugeTable, version: int, *, hold: bool = True) -> list[_Chunk]:
    """The chunks of a version; with ``hold``, their batches where memory is mapped."""
    known = chunk_statistics(table, version)
    check_gaps(table, version, [chunk.partition for chunk, _ in known])
    chunks: list[_Chunk] = []
    for is_mapped, group in itertools.groupby(known, key=lambda one: one[1]):
        run = [chunk for chunk, _ in group]
        if is_mapped and hold:
            chunks += _in_place(table, version, run)
        else:
            source = _HugeRows(table, version, is_mapped)
            chunks += [_Chunk(one, one.partition.rows, [], source) for one in run]
    return chunks


def without_rows(table: HugeTable, version: int) -> FarrowDataset:
    """A version of a huge table as a dataset that keeps no rows in memory: each scan finds those
    that it reads.  For ``scanner``, ``get_fragments`` and ``count_rows`` only."""
    return FarrowDataset(table.schema, _chunks_of(table, version, hold=False))


def _in_place(table: HugeTable, version: int, run: list[ChunkStatistics]) -> Iterator[_Chunk]:
    """Contiguous chunks with their batches."""
    first, last = run[0].partition, run[-1].partition
    rows = slice(first.position, last.position + last.rows)
    counts = [one.partition.rows for one in run]
    for one, own in zip(run, divided(table.table(version, rows=rows), counts), strict=True):
        yield _Chunk(one, one.partition.rows, own)


def _fetched(
    run: list[_Chunk], columns: list[str] | None
) -> Iterator[tuple[_Chunk, list[pa.RecordBatch]]]:
    """Contiguous chunks without batches, with these columns of their rows."""
    if not run or run[0].source is None:
        return
    first = run[0].position
    rows = slice(first, first + sum(chunk.rows for chunk in run))
    found = run[0].source.fetch(columns, rows)
    yield from zip(run, divided(found, [chunk.rows for chunk in run]), strict=True)


def _with_batches(
    chunks: Iterable[_Chunk], columns: list[str] | None
) -> Iterator[tuple[_Chunk, list[pa.RecordBatch]]]:
    """Chunks and their rows, with at least these columns; some chunks are fetched at a time."""
    run: list[_Chunk] = []
    for chunk in chunks:
        is_full = len(run) >= _CHUNKS_AT_A_TIME and run[-1].is_far
        if run and (is_full or not chunk.follows(run[-1])):
            yield from _fetched(run, columns)
            run = []
        if chunk.source is None:
            yield chunk, chunk.batches
        else:
            run.append(chunk)
    yield from _fetched(run, columns)


def _first(chunks: Iterable[_Chunk], rows: int) -> list[_Chunk]:
    """The chunks, or parts of them, that have the first rows."""
    found = []
    for chunk in chunks:
        if rows <= 0:
            break
        count = min(rows, chunk.rows)
        batches = chunk.batches
        if batches:
            batches = pa.Table.from_batches(batches).slice(0, count).to_batches()
        found.append(_Chunk(chunk.statistics, count, batches, chunk.source))
        rows -= count
    return found


class FarrowDataset(ds.UnionDataset):  # type: ignore[misc]
    """A dataset that reads only the chunks that can have matching rows; made by :func:`dataset`.

    Methods that are not named here are those of ``pyarrow.dataset.Dataset``, and the arguments of
    all are: ``columns``, a list of names or a dict of expressions by name (None: all); ``filter``,
    an expression over the columns (None: all rows); ``options``, those of
    ``pyarrow.dataset.Scanner.from_dataset``.

    Raises:
        pyarrow.ArrowInvalid: a filter or a list has a column that does not exist, or types do not
            match; by each method with these arguments.
        NotFound, NodeLost, OutOfMemory: rows of another node cannot be fetched, since their table
            was replaced, its node cannot be reached, or the own node has no room for them; by each
            method that reads rows.
    """

    _chunks: list[_Chunk]
    _index: Index
    _is_far: bool
    # Whether all rows are in the batches of the chunks.
    _has_all: bool

    def __init__(self, schema: pa.Schema, chunks: list[_Chunk]) -> None:
        has_all = all(chunk.source is None for chunk in chunks)
        batches = [batch for chunk in chunks for batch in chunk.batches]
        # Rows that Arrow reads without these methods.
        rows = ds.InMemoryDataset(batches, schema=schema) if has_all else _unreadable(schema)
        super().__init__(schema, [rows])
        self._chunks = chunks
        self._index = Index(schema, [chunk.statistics for chunk in chunks])
        self._is_far = any(chunk.is_far for chunk in chunks)
        self._has_all = has_all

    def __reduce__(self) -> Any:
        raise TypeError("a dataset over shared memory cannot be pickled; open it by its name there")

    def filter(self, expression: pc.Expression) -> FarrowDataset:
        """The same dataset, of which each scan reads only rows that match this filter too."""
        filtered: FarrowDataset = super().filter(expression)
        filtered._chunks, filtered._index = self._chunks, self._index
        filtered._is_far, filtered._has_all = self._is_far, self._has_all
        return filtered

    def partitions(self, filter: pc.Expression | None = None) -> list[Partition]:
        """The chunks of the huge table, or parts of the put table, that a scan with a filter reads.

        Args:
            filter: the filter of the scan; None: that of the dataset, or none.

        Returns:
            The chunks that can have matching rows, in order.  Parts of a put table have the id of
            their object, version 0, and a share of its bytes.  None for one without statistics.

        Raises:
            pyarrow.ArrowInvalid: the filter has a column that does not exist.

        Examples:
            >>> import pyarrow.compute as pc
            >>> import farrow.dataset
            >>> schema = pa.schema({"day": pa.int32(), "price": pa.float64()})
            >>> trades = client.huge_table("dataset/partitions", schema)
            >>> for day in range(3):
            ...     rows = pa.table({"day": [day] * 2, "price": [1.0, 2.0]}, schema=schema)
            ...     end = trades.append(rows)
            >>> found = farrow.dataset.dataset("dataset/partitions", client)
            >>> [chunk.position for chunk in found.partitions(pc.field("day") == 1)]
            [2]
        """
        wanted = self._with_filter(filter)
        if wanted is not None:
            check_columns(wanted, self.schema)
        numbers, _ = self._index.matching(wanted)
        found = [self._chunks[number].statistics for number in numbers]
        return [one.partition for one in found if one is not None]

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        """The fragments of each chunk that can have matching rows: one, unless several batches were
        appended at once.

        Of a node whose memory is not mapped, and of a table with views of strings, a chunk is a
        :class:`FarFragment`.

        Args:
            filter: excludes chunks; rows that do not match can remain in the fragments.

        Raises:
            ValueError: the dataset is filtered.
        """
        if self._with_filter(None) is not None:
            raise ValueError("a filtered dataset has no fragments; ask the dataset without filter")
        if filter is not None:
            check_columns(filter, self.schema)
        return self._fragments(filter)

    def _fragments(self, filter: pc.Expression | None) -> Iterator[Any]:
        numbers, ranges = self._index.matching(filter)
        has_views = _views.has_views(self.schema)
        for number in numbers:
            chunk = self._chunks[number]
            if chunk.is_far or has_views:
                yield FarFragment(FarrowDataset(self.schema, [chunk]))
                continue
            for _, found in _with_batches([chunk], None):
                batches = cut(found, chunk.ordered(ranges), ranges)
                yield from ds.InMemoryDataset(batches, schema=self.schema).get_fragments()

    def scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """A scanner of the matching rows, which it reads when it is used."""
        options = self._scanner_options({"filter": filter, **options})
        schema, found = self._read(options["filter"], columns)
        batches = [batch for some in found for batch in some]
        return _views.scanner(batches, schema, {"columns": columns, **options})

    def to_batches(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """The matching rows, in order; those that are fetched, some chunks at a time."""
        if not self._is_far:
            found: Iterator[pa.RecordBatch] = self.scanner(columns, filter, **options).to_batches()
            return found
        options = self._scanner_options({"filter": filter, **options})
        schema, fetched = self._read(options["filter"], columns)

        def matching() -> Iterator[pa.RecordBatch]:
            for batches in fetched:
                rows = _views.scanner(batches, schema, {"columns": columns, **options})
                yield from rows.to_batches()

        return matching()

    def head(
        self,
        num_rows: int,
        columns: Any = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pa.Table:
        """The first rows, or the first matching rows; without a filter only these are fetched."""
        if not self._has_all and num_rows >= 0 and self._with_filter(filter) is None:
            rows = FarrowDataset(self.schema, _first(self._chunks, num_rows))
            return rows.scanner(columns, **options).head(num_rows)
        return super().head(num_rows, columns=columns, filter=filter, **options)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Number of rows, or of matching rows; without a filter nothing is read."""
        filter = self._with_filter(filter)
        if filter is None:
            return sum(chunk.rows for chunk in self._chunks)
        return int(self.scanner(filter=filter, columns=[], **options).count_rows())

    def sort_by(self, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """As ``pyarrow.dataset.Dataset.sort_by``: copies the whole table into this process."""
        return self._whole().sort_by(*arguments, **options)

    def join(self, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """As ``pyarrow.dataset.Dataset.join``: the result is a copy in this process."""
        return self._whole().join(*arguments, **options)

    def join_asof(self, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """As ``pyarrow.dataset.Dataset.join_asof``: the result is a copy in this process."""
        return self._whole().join_asof(*arguments, **options)

    def replace_schema(self, schema: pa.Schema) -> ds.Dataset:
        """As ``pyarrow.dataset.Dataset.replace_schema``: rows of other nodes are fetched now."""
        return self._whole().replace_schema(schema)

    def _with_filter(self, filter: pc.Expression | None) -> pc.Expression | None:
        """The filter of the dataset and this one; None: neither."""
        found: pc.Expression | None = self._scanner_options({"filter": filter})["filter"]
        return found

    def _share_read(self, filter: pc.Expression) -> float:
        """The share of the rows that a scan with this filter reads, to compare each of them."""
        numbers, ranges = self._index.matching(self._with_filter(filter))
        chunks = [self._chunks[number] for number in numbers]
        read, sorted_chunks = 0, []
        for chunk in chunks:
            if chunk.ordered(ranges) and not chunk.is_far:
                sorted_chunks.append(chunk)
            else:
                read += chunk.rows
        for chunk, batches in _with_batches(sorted_chunks, [*ranges]):
            read += sum(one.num_rows for one in cut(batches, chunk.ordered(ranges), ranges))
        return read / max(1, sum(chunk.rows for chunk in self._chunks))

    def _whole(self) -> ds.Dataset:
        """All rows, for methods that Arrow has no other source for."""
        schema, found = self._read(None, None)
        rows = ds.InMemoryDataset([batch for some in found for batch in some], schema=schema)
        filter = self._with_filter(None)
        return rows if filter is None else rows.filter(filter)

    def _read(
        self, filter: pc.Expression | None, columns: Any
    ) -> tuple[pa.Schema, Iterator[list[pa.RecordBatch]]]:
        """The batches of each chunk that can have matching rows, and their schema.

        It has at least the columns of the filter, and these: names, or expressions by name.
        """
        schema = self.schema
        # Views are copied to be filtered: as few of them as possible.
        is_narrow = not self._has_all or (filter is not None and _views.has_views(schema))
        needed = self._needed(filter, columns) if is_narrow else None
        if needed is not None:
            fields = [schema.field(name) for name in needed]
            schema = pa.schema(fields, metadata=schema.metadata)
        numbers, ranges = self._index.matching(filter)
        chunks = [self._chunks[number] for number in numbers]

        def batches() -> Iterator[list[pa.RecordBatch]]:
            for chunk, found in _with_batches(chunks, needed):
                rows = cut(found, chunk.ordered(ranges), ranges)
                if needed is not None and chunk.source is None:
                    rows = [batch.select(needed) for batch in rows]
                yield rows

        return schema, batches()

    def _needed(self, filter: pc.Expression | None, columns: Any) -> list[str] | None:
        """Names of the columns that a scan needs; None: all, also if in doubt."""
        names = self.schema.names
        if columns is None or len(set(names)) < len(names):
            return None
        found: set[str] = set()
        expressions = list(columns.values()) if isinstance(columns, dict) else []
        if filter is not None:
            expressions.append(filter)
        for expression in expressions:
            used = columns_of(expression, self.schema)
            if used is None:
                return None
            found.update(used)
        if not isinstance(columns, dict):
            found.update(columns)
        if not found <= {*names, *_MADE_COLUMNS}:
            # The scan reports what is wrong with them.
            return None
        return [name for name in names if name in found]


class FarFragment:
    """The rows of a chunk that Arrow alone cannot scan, with methods of
    ``pyarrow.dataset.Fragment``.

    A method fetches the columns that it needs, and raises the errors of :class:`FarrowDataset`.
    """

    def __init__(self, rows: FarrowDataset) -> None:
        self._rows = rows

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._rows.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """True for all rows."""
        return self._rows.partition_expression

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> ds.Scanner:
        """A scanner of the rows.

        Args:
            schema: None, or the schema of the rows.
            options: as for :class:`FarrowDataset`.

        Raises:
            InvalidArgument: another schema.
        """
        from farrow import InvalidArgument

        if schema is not None and not schema.equals(self.physical_schema):
            raise InvalidArgument(f"rows of {self.physical_schema.names}, not {schema.names}")
        return self._rows.scanner(**options)

    def to_batches(self, schema: pa.Schema | None = None, **options: Any) -> Any:
        """The rows as record batches; arguments as for ``scanner``."""
        return self.scanner(schema, **options).to_batches()

    def to_table(self, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """The rows as a table."""
        return self.scanner(schema, **options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """The first rows."""
        return self._rows.head(num_rows, **options)

    def take(self, indices: Any, **options: Any) -> pa.Table:
        """Rows by their numbers."""
        return self.scanner(**options).take(indices)

    def count_rows(self, **options: Any) -> int:
        """Number of rows, or of matching rows."""
        return int(self._rows.count_rows(**options))


def _unreadable(schema: pa.Schema) -> ds.Dataset:
    """Rows that only methods in Python fetch: a read past them is an error, and never no rows."""
    path = "rows-of-other-nodes, read them by the methods of farrow.dataset.FarrowDataset"
    file_format, files = ds.IpcFileFormat(), fs.LocalFileSystem()
    fragment = file_format.make_fragment(path, files)
    return ds.FileSystemDataset([fragment], schema, file_format, files)
