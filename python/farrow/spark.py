"""Spark: read and write tables of Farrow as a data source of Spark 4.

Tasks read chunks of a huge table in the memory of their machine's node, and write there::

    from pyspark.sql import SparkSession
    import farrow.spark

    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(farrow.spark.FarrowDataSource)
    trades = spark.read.format("farrow").option("columns", "day,price").load("trades")
    daily = trades.groupBy("day").sum("price")
    daily.write.format("farrow").mode("append").save("daily")

Spark runs Python beside its JVM: the rows of a task pass a socket as record batches.  So rows are
copied, but never pickled.  Select columns and rows by options: ``load`` says which exist.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

import farrow
from farrow._scan import _blocks, _chunks
from farrow.exceptions import InvalidArgument
from farrow.sharing import _references

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.compute as pc
    from pyspark.sql.types import StructType

__all__ = ["FarrowDataSource"]

# This number keeps all cores at work until the end, though tasks take different times.
_TASKS_PER_CORE = 4
# Rows of one record batch for the JVM, which takes a batch whole.
_BATCH_ROWS = 65_536
# Bytes of one written block: a chunk of the table.
_BLOCK_BYTES = 64 << 20
_OPTIONS = {"path", "columns", "filters", "version", "address", "tasks"}
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


class FarrowDataSource(DataSource):  # type: ignore[misc]
    """The data source ``farrow``.

    ``load`` and ``save`` take the name of a huge table; ``load`` also that of an object that is a
    table.  Rows are read as of the first action on the frame that ``load`` returns.

    Options of a read:

    - ``columns``: names of columns, with commas or as JSON; default: all.
    - ``filters``: rows to read, as JSON: ``[["day", ">", 5], ["k", "in", [1, 2]]]`` joins the
      conditions by "and", a list of such lists by "or".  Chunks that cannot have such rows are left
      out by their statistics.
    - ``version``: a version of a huge table; default: the newest.
    - ``tasks``: about how many tasks; default: four for each core of the driver's machine.  No
      chunk is divided, and one task has at most 256 MiB of chunks.
    - ``address``: path of the socket of a node; default: as ``farrow.connect``.

    Types that Spark does not have become wider ones: ``uint64`` becomes ``decimal(20, 0)``.
    Nanoseconds must be whole microseconds.

    A write appends to the huge table, which is created if it does not exist.  Each task writes to
    the memory of its own node.  When all tasks have ended, their blocks are appended in order,
    without a copy, so a task that Spark repeats adds its rows once, and a job that fails adds none.
    The mode ``overwrite`` is refused.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "farrow"

    def schema(self) -> StructType:
        """The columns of the table, as types of Spark."""
        return _spark_schema(_ReadOptions(self.options).selected)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the table."""
        return _ChunkReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer that appends to the table."""
        if overwrite:
            raise InvalidArgument("the mode overwrite: drop the table first, then append")
        _refuse_unknown(self.options)
        return _ChunkWriter(
            _path(self.options), farrow.connect(self.options.get("address")).address
        )


class _ReadOptions:
    """What the options say about a read."""

    def __init__(self, options: dict[str, str]) -> None:
        _refuse_unknown(options)
        self.client = farrow.connect(options.get("address"))
        self.filter = _filter(options.get("filters"))
        version = options.get("version")
        self.schema, self.chunks = _chunks.chunks(
            self.client, _path(options), self.filter, None if version is None else int(version)
        )
        self.columns = _columns(options.get("columns"))
        self.selected = _chunks.selected_schema(self.schema, self.columns)


@dataclass
class _Part(InputPartition):  # type: ignore[misc]
    """The chunks of one task."""

    ids: tuple[bytes, ...]


class _ChunkReader(DataSourceReader):  # type: ignore[misc]
    """Reads chunks.

    It takes no filters of a query (``pushFilters``): Spark keeps them for later queries of the same
    frame, which would then miss rows.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        table = _ReadOptions(options)
        tasks = options.get("tasks")
        count = _TASKS_PER_CORE * len(os.sched_getaffinity(0)) if tasks is None else int(tasks)
        groups = _chunks.groups(table.chunks, count)
        self._parts = [_Part(tuple(chunk.id for chunk in group)) for group in groups]
        self._address = table.client.address
        names = table.selected.names if schema is None else schema.fieldNames()
        self._selection = _chunks.selection(table.schema, names, table.filter)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """A part for each task; one without chunks if there are none, for which Spark makes one."""
        return self._parts or [_Part(())]

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        """The rows of one part, as Spark's types."""
        wanted = _arrow_schema(self._schema)
        for id in partition.ids:
            rows = _references.read_chunk(self._address, self._selection, id)
            plain = rows.cast(_readable_schema(rows.schema)).cast(wanted)
            yield from plain.to_batches(max_chunksize=_BATCH_ROWS)


@dataclass
class _Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written."""

    task: int
    node: str
    blocks: list[_blocks.Block]


class _ChunkWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:
        """Called in each task."""
        client = _references.checked_client(self._address)
        blocks: list[_blocks.Block] = []
        found: list[pa.RecordBatch] = []
        # Spark repeats a task that fails, or gives up: its blocks stay unknown.
        with _blocks.dropped_on_error(client, blocks):
            for batch in iterator:
                found.append(batch)
                if sum(one.nbytes for one in found) >= _BLOCK_BYTES:
                    blocks.append(_block(client, found))
                    found = []
            if sum(one.num_rows for one in found):
                blocks.append(_block(client, found))
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return _Written(task, client.node, blocks)

    def commit(self, messages: list[_Written | None]) -> None:
        """Called on the driver after all tasks."""
        done = sorted((one for one in messages if one is not None), key=lambda one: one.task)
        blocks = [(block, one.node) for one in done for block in one.blocks]
        _blocks.append_blocks(_references.checked_client(self._address), self._name, blocks)

    def abort(self, messages: list[_Written | None]) -> None:
        """Called on the driver after a failed job: the blocks of the other tasks are freed."""
        blocks = [block for one in messages if one is not None for block in one.blocks]
        _blocks.drop_blocks(_references.checked_client(self._address), blocks)


def _block(client: farrow.Client, batches: list[pa.RecordBatch]) -> _blocks.Block:
    # Spark's batches are small: one buffer for each column.
    return _blocks.put_block(client, pa.Table.from_batches(batches).combine_chunks())


def _refuse_unknown(options: dict[str, str]) -> None:
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise InvalidArgument(f"no options {unknown}; there are {sorted(_OPTIONS - {'path'})}")


def _path(options: dict[str, str]) -> str:
    if not options.get("path"):
        raise InvalidArgument("no table: give its name to load() or save()")
    return options["path"]


def _columns(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if text.lstrip().startswith("["):
        return [str(name) for name in json.loads(text)]
    return [name.strip() for name in text.split(",")]


def _filter(text: str | None) -> pc.Expression | None:
    if text is None:
        return None
    from pyarrow.parquet import filters_to_expression

    def plain(value: Any) -> Any:
        is_condition = isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)
        if is_condition:
            return tuple(value)
        if isinstance(value, list):
            return [plain(one) for one in value]
        raise InvalidArgument(f"filters {text!r} are no list of [column, operator, value]")

    try:
        return filters_to_expression(plain(json.loads(text)))
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"filters {text!r}: {error}") from None


def _spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(_readable_schema(schema), prefer_timestamp_ntz=True)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Spark expects them in record batches."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Spark 4.0 and 4.1 always use UTC.
        return to_arrow_schema(schema)


def _readable_schema(schema: pa.Schema) -> pa.Schema:
    """A schema with types of Arrow that Spark reads."""
    return pa.schema([_readable_field(field) for field in schema])


def _readable_field(field: pa.Field) -> pa.Field:
    try:
        return pa.field(field.name, _readable(field.type), field.nullable)
    except InvalidArgument as error:
        raise InvalidArgument(f"column {field.name!r}: {error}") from None


def _readable(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if types.is_dictionary(kind):
        return _readable(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_decimal(kind):
        if kind.precision > 38:
            raise InvalidArgument(f"Spark has no {kind}: 38 digits at most")
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind):
        return pa.struct([_readable_field(kind.field(n)) for n in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_readable(kind.key_type), _readable(kind.item_type))
    return _readable_leaf(kind)


def _readable_leaf(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    text = str(kind)
    if types.is_string(kind) or types.is_large_string(kind) or text == "string_view":
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or text == "binary_view":
        return pa.binary()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_readable_field(kind.value_field))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return kind
    if types.is_date(kind) or types.is_null(kind):
        return kind
    raise InvalidArgument(f"Spark has no {kind}")
