"""Farrow's tables as ``pyarrow.dataset.Dataset``, which skip chunks by their statistics.

DuckDB, polars, DataFusion, Acero and Ibis push the columns and the filter of a query into a
dataset.  This one compares the filter with the statistics of each chunk, and reads only chunks that
can have matching rows.  The rows stay where they are: nothing is copied to be scanned::

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

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from farrow._statistics import (
    ChunkStatistics,
    ColumnStatistics,
    chunk_statistics,
    guarantee,
    plain_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.compute as pc

    from farrow import Client, HugeTable
    from farrow.huge import Partition

__all__ = ["ChunkStatistics", "ColumnStatistics", "FarrowDataset", "dataset", "statistics"]

# Metadata key of the root of a huge table.
_HUGE_TABLE_KEY = "farrow.huge_table"
# Functions that compute no number, in the text of a filter, and references to nested fields.
# Comparisons have no name there.
_NO_NUMBERS = {"invert", "is_null", "is_valid", "is_in", "cast", "Nested", "Name"}
_FUNCTION = re.compile(r"(\w+)\(")
# Sets of filtered columns whose guarantees are kept; queries of one program name few.
_INDEXES_MAX = 32


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
        A dataset whose fragments are the chunks of a huge table. It keeps the rows in memory while
        it exists, and does not see later appends.

    Raises:
        NotFound: there is no such name.
        InvalidArgument: the object has no columns, or a version is given for one without.
        RowsMissing: the huge table has gaps.
        NodeLost: a node that has rows of the table is lost.
    """
    from farrow import HugeTable, InvalidArgument, connect

    if isinstance(source, str):
        source = _named(source, connect() if client is None else client)
    if isinstance(source, HugeTable):
        version = source.version if version is None else version
        chunks = chunk_statistics(source, version)
        return FarrowDataset(source.table(version), chunks)
    if version is not None:
        raise InvalidArgument(f"version {version} of an object that has no versions")
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if not isinstance(source, pa.Table):
        raise InvalidArgument(f"a dataset of {type(source).__name__}, which has no columns")
    return FarrowDataset(source, [])


def _named(name: str, client: Client) -> Any:
    if _HUGE_TABLE_KEY in client.metadata(name):
        return client.huge_table(name)
    return client.get(name)


def statistics(table: HugeTable, version: int | None = None) -> list[ChunkStatistics]:
    """The statistics of the chunks of a huge table, in the order of their rows.

    Args:
        table: the table.
        version: one of its versions; None: the newest.

    Returns:
        For each chunk its location, and for each field that has statistics their values.
    """
    return chunk_statistics(table, version)


class FarrowDataset(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that reads only the chunks that can have matching rows; made by :func:`dataset`.

    Methods that are not named here are those of ``pyarrow.dataset.Dataset``.
    """

    _chunks: list[_Chunk]
    _index: _Index

    def __init__(self, table: pa.Table, statistics: list[ChunkStatistics]) -> None:
        super().__init__(table)
        batches = table.to_batches()
        if statistics:
            self._chunks = _divide(batches, statistics)
        else:
            self._chunks = [_Chunk(None, batch.num_rows, [batch]) for batch in batches]
        self._index = _Index(table.schema, [chunk.statistics for chunk in self._chunks])

    def __reduce__(self) -> Any:
        raise TypeError("a dataset over shared memory cannot be pickled; open it by its name there")

    def filter(self, expression: pc.Expression) -> FarrowDataset:
        """The same dataset, of which each scan reads only matching rows."""
        filtered: FarrowDataset = super().filter(expression)
        filtered._chunks, filtered._index = self._chunks, self._index
        return filtered

    def partitions(self, filter: pc.Expression | None = None) -> list[Partition]:
        """The chunks of the huge table that a scan with this filter reads."""
        filter = self._scanner_options({"filter": filter})["filter"]
        found = [chunk.statistics for chunk in self._matching(filter)]
        return [one.partition for one in found if one is not None]

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ds.Fragment]:
        """The fragments of each chunk that can have matching rows: one, unless several batches were
        appended at once."""
        if self._scan_options.get("filter") is not None:
            raise ValueError("a filtered dataset has no fragments; ask the dataset without filter")
        for chunk in self._matching(filter):
            yield from ds.InMemoryDataset(chunk.batches, schema=self.schema).get_fragments()

    def scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """A scanner of the chunks that can have matching rows."""
        options = self._scanner_options({"filter": filter, **options})
        filter = options.pop("filter")
        chunks = self._matching(filter)
        if len(chunks) == len(self._chunks) and self._scan_options.get("filter") is None:
            return super().scanner(columns=columns, filter=filter, **options)
        batches = [batch for chunk in chunks for batch in chunk.batches]
        chosen = ds.InMemoryDataset(batches, schema=self.schema)
        return chosen.scanner(columns=columns, filter=filter, **options)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Number of rows, or of matching rows; without a filter nothing is read."""
        filter = self._scanner_options({"filter": filter})["filter"]
        if filter is None:
            return sum(chunk.rows for chunk in self._chunks)
        return int(self.scanner(filter=filter, columns=[], **options).count_rows())

    def _tables(self, filter: pc.Expression | None) -> Iterator[pa.Table]:
        """All rows of each chunk that can have matching rows."""
        for chunk in self._matching(filter):
            yield pa.Table.from_batches(chunk.batches, self.schema)

    def _matching(self, filter: pc.Expression | None) -> list[_Chunk]:
        if filter is None:
            return self._chunks
        return [self._chunks[number] for number in self._index.matching(filter)]


class _Chunk:
    """The batches of a chunk, and its statistics, if it has some."""

    __slots__ = ("batches", "rows", "statistics")

    def __init__(
        self, statistics: ChunkStatistics | None, rows: int, batches: list[pa.RecordBatch]
    ) -> None:
        self.statistics = statistics
        self.rows = rows
        self.batches = batches


def _divide(batches: list[pa.RecordBatch], statistics: list[ChunkStatistics]) -> list[_Chunk]:
    """The batches of each chunk: they follow each other, and no batch has rows of two."""
    left = iter(batches)
    chunks = []
    for one in statistics:
        own: list[pa.RecordBatch] = []
        rows = 0
        while rows < one.partition.rows:
            own.append(next(left))
            rows += own[-1].num_rows
        chunks.append(_Chunk(one, rows, own))
    return chunks


class _Index:
    """Chooses chunks: a dataset of no data whose fragments carry the guarantees of the chunks.

    Arrow itself simplifies a filter by a guarantee, as it does for the row groups of Parquet.
    """

    def __init__(self, schema: pa.Schema, chunks: list[ChunkStatistics | None]) -> None:
        self._schema = schema
        self._plain_schema = plain_schema(schema)
        self._chunks = chunks
        self._has_any = any(chunk is not None and chunk.columns for chunk in chunks)
        self._datasets: dict[tuple[str, ...], ds.FileSystemDataset] = {}

    def matching(self, filter: pc.Expression) -> list[int]:
        """Numbers of the chunks that can have matching rows; all of them if in doubt."""
        if not self._has_any:
            return list(range(len(self._chunks)))
        try:
            text = str(filter)
        except UnicodeDecodeError:
            # Arrow shortens long strings within a character.
            columns = self._named(None)
        else:
            columns = self._named(text)
        try:
            fragments = list(self._dataset(columns).get_fragments(filter))
        except (pa.ArrowException, TypeError, ValueError):
            # The scan reports what is wrong with a filter.
            return list(range(len(self._chunks)))
        return [int(fragment.path) for fragment in fragments]

    def _named(self, text: str | None) -> tuple[str, ...]:
        """The columns whose guarantees may be used: all that the text of a filter names, or more.

        Arrow simplifies a comparison with a NaN of the filter as if NaN had an order, and finds
        that no row matches. So bounds of floating-point columns serve filters without NaN only.
        """
        is_ordered = text is not None and _cannot_make_nan(text)
        return tuple(
            field.name
            for field in self._schema
            if (text is None or field.name in text) and (is_ordered or not _has_nan(field.type))
        )

    def _dataset(self, columns: tuple[str, ...]) -> ds.FileSystemDataset:
        known = self._datasets.get(columns)
        if known is None:
            if len(self._datasets) >= _INDEXES_MAX:
                self._datasets = {}
            known = self._datasets[columns] = self._build(columns)
        return known

    def _build(self, columns: tuple[str, ...]) -> ds.FileSystemDataset:
        # No file is ever opened: the paths are the numbers of the chunks.
        file_format, files = ds.IpcFileFormat(), fs.LocalFileSystem()
        fragments = []
        for number, chunk in enumerate(self._chunks):
            known = None if chunk is None else guarantee(self._schema, chunk, columns)
            options = {} if known is None else {"partition_expression": known}
            fragments.append(file_format.make_fragment(str(number), files, **options))
        return ds.FileSystemDataset(fragments, self._plain_schema, file_format, files)


def _cannot_make_nan(text: str) -> bool:
    """Whether a filter has neither a NaN nor a function that could return one."""
    return "nan" not in text.lower() and set(_FUNCTION.findall(text)) <= _NO_NUMBERS


def _has_nan(data_type: pa.DataType) -> bool:
    """Whether values of this type, or of a field of a struct, can be NaN."""
    if pa.types.is_struct(data_type):
        return any(_has_nan(field.type) for field in data_type)
    if pa.types.is_dictionary(data_type):
        return _has_nan(data_type.value_type)
    return bool(pa.types.is_floating(data_type))
