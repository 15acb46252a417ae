"""Statistics of the chunks of a table: their values, and what they guarantee to a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from farrow import HugeTable
    from farrow.huge import Partition

# Of fields, by the numbers of the children that lead to them: names and type.
_Names = dict[tuple[int, ...], tuple[tuple[str, ...], pa.DataType]]

__all__ = [
    "ChunkStatistics",
    "ColumnStatistics",
    "check_gaps",
    "chunk_statistics",
    "columns_of_fields",
    "guarantee",
    "plain_schema",
]


class ColumnStatistics(NamedTuple):
    """Statistics of one column, or of a field nested in it, in one chunk.

    Attributes:
        nulls: number of nulls; None if it is unknown.
        has_nan: whether some values are NaN, which ``min`` and ``max`` leave out.
        order: "ascending", "descending", "constant", or "" if unordered or unknown; an ordered
            column has neither nulls nor NaN.
        min: no value is below it; None if it is unknown or there are no values.
        max: no value is above it; None if it is unknown or there are no values.
        is_min_exact: whether ``min`` is one of the values; a long string is shortened.
        is_max_exact: whether ``max`` is one of the values.
    """

    nulls: int | None
    has_nan: bool
    order: str
    min: Any
    max: Any
    is_min_exact: bool
    is_max_exact: bool


class ChunkStatistics(NamedTuple):
    """Statistics of one chunk of a huge table, or of a part of a put table.

    Attributes:
        partition: the location and the rows of the chunk.
        columns: statistics by the names that lead to a field, ``("price",)`` for a column; None
            if the chunk has none that this version reads.
    """

    partition: Partition
    columns: Mapping[tuple[str, ...], ColumnStatistics] | None


class _Known(NamedTuple):
    """Statistics of the chunks of a huge table that this process has read: they never change."""

    # What the paths of fields lead to.
    names: _Names
    # By the versions of chunks; None for one without statistics.
    columns: dict[int, _Columns | None]


# By the ids of huge tables, the last used one at the end. Each operation on it is one of a dict, so
# it needs no lock, which a fork could inherit.
_known: dict[bytes, _Known] = {}
# Columns of chunks, of all tables in ``_known``: some 50 MB.
_COLUMNS_MAX = 100_000


def chunk_statistics(
    table: HugeTable, version: int | None = None
) -> list[tuple[ChunkStatistics, bool]]:
    """The statistics of all chunks of a version, in the order of their rows, and whether the memory
    of a chunk is mapped."""
    version = table.version if version is None else version
    schema, id = table.schema, table._id
    known = _known.get(id, _Known({}, {}))
    # A thread that reads the same table replaces this by its own.
    columns = dict(known.columns)
    after = max(columns, default=0)
    chunks = []
    for partition, is_mapped, fields in table._statistics(version, after):
        if partition.version > after:
            found = None if fields is None else _Columns(schema, known.names, fields)
            columns[partition.version] = found
        chunks.append((ChunkStatistics(partition, columns.get(partition.version)), is_mapped))
    _known.pop(id, None)
    _known[id] = _Known(known.names, columns)
    if len(columns) > len(known.columns):
        _forget()
    return chunks


def _forget() -> None:
    """Remove the tables that were used longest ago, up to the limit."""
    count = 0
    for id, known in reversed([*_known.items()]):
        count += sum(1 + len(columns or ()) for columns in known.columns.values())
        if count > _COLUMNS_MAX:
            _known.pop(id, None)


class _Columns(Mapping[tuple[str, ...], ColumnStatistics]):
    """Statistics of the fields of a chunk, each decoded when it is first read: a query reads few.

    Args:
        schema: the schema of the table.
        names: for all chunks of the table, what the paths of fields lead to.
        fields: for each field its path and the arguments of :func:`_column`.
    """

    def __init__(self, schema: pa.Schema, names: _Names, fields: Iterable[Any]) -> None:
        self._decoded: dict[tuple[str, ...], ColumnStatistics] = {}
        self._fields = {}
        for path, *rest in fields:
            key = tuple(path)
            if key not in names:
                names[key] = _resolve(schema, path)
            name, data_type = names[key]
            self._fields[name] = (data_type, rest)

    def __getitem__(self, name: tuple[str, ...]) -> ColumnStatistics:
        found = self._decoded.get(name)
        if found is None:
            data_type, rest = self._fields[name]
            found = self._decoded[name] = _column(data_type, *rest)
        return found

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __repr__(self) -> str:
        return repr(dict(self))


def columns_of_fields(
    schema: pa.Schema, names: _Names, fields: Iterable[Any]
) -> Mapping[tuple[str, ...], ColumnStatistics]:
    """The statistics of a part, of the arguments of :class:`_Columns`."""
    return _Columns(schema, names, fields)


def check_gaps(table: HugeTable, version: int, partitions: Iterable[Partition]) -> None:
    """Check that no rows are missing before the last of these partitions, which are in order.

    Raises:
        RowsMissing: some are; the error has the first gap.
    """
    end = 0
    for partition in partitions:
        if partition.position > end:
            table.table(version, rows=slice(0, partition.position))
        end = partition.position + partition.rows


def _resolve(schema: pa.Schema, path: list[int]) -> tuple[tuple[str, ...], pa.DataType]:
    """Names and type of a field, by the numbers of the children that lead to it."""
    field = schema.field(path[0])
    names = [field.name]
    for number in path[1:]:
        above = field.type
        while isinstance(above, pa.BaseExtensionType):
            above = above.storage_type
        if pa.types.is_struct(above):
            field = above.field(number)
        elif pa.types.is_map(above):
            entries = pa.struct([above.key_field, above.item_field])
            field = pa.field("entries", entries, nullable=False)
        else:
            field = above.value_field
        names.append(field.name)
    return tuple(names), _plain_type(field.type)


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values, with the layout that comparisons know: that of the statistics."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _plain_type(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return _plain_type(data_type.value_type)
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in data_type])
    # By its name: pyarrow 15 has no views.
    return {"string_view": pa.string(), "binary_view": pa.binary()}.get(str(data_type), data_type)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with the types of :func:`_plain_type`: filters mean the same there."""
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _column(
    data_type: pa.DataType,
    nulls: int | None,
    has_nan: bool,
    ascending: bool,
    descending: bool,
    low: tuple[bytes, bool] | None,
    high: tuple[bytes, bool] | None,
) -> ColumnStatistics:
    order = "constant" if descending else "ascending"
    if not ascending:
        order = "descending" if descending else ""
    least, most = (None if bound is None else _scalar(data_type, bound[0]) for bound in (low, high))
    return ColumnStatistics(
        nulls=nulls,
        has_nan=has_nan,
        order=order,
        min=least,
        max=most,
        is_min_exact=least is not None and low is not None and low[1],
        is_max_exact=most is not None and high is not None and high[1],
    )


def _scalar(data_type: pa.DataType, value: bytes) -> pa.Scalar | None:
    """A bound as a scalar; None for bytes that are no value of the type, and for other types.

    Statistics are hints: whatever is in them, the rows can be read.
    """
    if pa.types.is_boolean(data_type):
        return pa.scalar(value != b"\0")
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        try:
            return pa.scalar(value.decode(), data_type)
        except UnicodeDecodeError:
            return None
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return pa.scalar(value, data_type)
    if pa.types.is_fixed_size_binary(data_type):
        return pa.scalar(value, data_type) if len(value) == data_type.byte_width else None
    is_number = pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type)
    # Arrow ends the process for some other types.
    if not is_number or 8 * len(value) != data_type.bit_width:
        return None
    try:
        return pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(value)])[0]
    except (pa.ArrowException, ValueError):
        return None


def guarantee(
    schema: pa.Schema, chunk: ChunkStatistics, columns: Iterable[str]
) -> pc.Expression | None:
    """What is true for all rows of a chunk, of some columns; None if nothing is known.

    A null makes each comparison null, so each bound names it as the other possibility.
    """
    if chunk.columns is None:
        return None
    wanted, times = set(columns), Counter(schema.names)
    parts = []
    for path in chunk.columns:
        # A field of a repeated name is ambiguous, and the elements of a list are no rows.
        if path[0] not in wanted or times[path[0]] > 1 or not _is_nested_in_structs(schema, path):
            continue
        parts += _column_guarantee(pc.field(*path), chunk.columns[path], chunk.partition.rows)
    whole = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def _is_nested_in_structs(schema: pa.Schema, path: tuple[str, ...]) -> bool:
    field = schema.field(path[0])
    for name in path[1:]:
        if not pa.types.is_struct(field.type) or len(field.type.get_all_field_indices(name)) != 1:
            return False
        field = field.type.field(name)
    return True


def _column_guarantee(
    field: pc.Expression, found: ColumnStatistics, rows: int
) -> list[pc.Expression]:
    if found.nulls == rows:
        return [field.is_null()]
    parts = [] if found.nulls != 0 else [field.is_valid()]
    # Comparisons with NaN are false in both directions, so no bound holds for it.
    if found.has_nan:
        return parts
    if found.nulls == 0 and _is_one_value(found):
        return [*parts, field == found.min]
    for bound, compare in ((found.min, pc.Expression.__ge__), (found.max, pc.Expression.__le__)):
        if bound is None or not _is_comparable(bound):
            continue
        part = compare(field, bound)
        parts.append(part if found.nulls == 0 else part | field.is_null())
    return parts


def _is_one_value(found: ColumnStatistics) -> bool:
    """Whether all rows have one value.  The two zeros of a float are equal, and two values."""
    if not (found.is_min_exact and found.is_max_exact) or pa.types.is_floating(found.min.type):
        return False
    return bool(found.min.equals(found.max)) and _is_comparable(found.min)


def _is_comparable(bound: pa.Scalar) -> bool:
    """Whether Arrow compares values of this type."""
    try:
        return pc.less_equal(bound, bound).as_py() is True
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
