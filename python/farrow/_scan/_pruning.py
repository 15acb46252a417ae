"""The chunks of a table that can have rows for which a filter is true."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from farrow._scan._ranges import Bounds, ColumnRange, column_ranges, integer
from farrow._scan._statistics import ChunkStatistics, ColumnStatistics, guarantee, plain_schema

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Index", "check_columns", "columns_of", "text_of"]

# Functions that compute no number, in the text of a filter, and references to nested fields.
# Comparisons have no name there.
_NO_NUMBERS = {"invert", "is_null", "is_valid", "is_in", "if_else", "cast", "Nested", "Name"}
_FUNCTION = re.compile(r"(\w+)\(")
# An option of each ``is_null``, whose name is no NaN.
_NULL_OPTION = "nan_is_null=false"
# The type of the values of an ``is_in``.
_SETS = re.compile(r"value_set=(.+?):(?:\[|\d+ nulls)")
_FLOATS = {"halffloat", "float", "double"}
# A reference by number, in the text of a filter.
_BY_NUMBER = "FieldPath"
# Sets of filtered columns whose guarantees are cached; queries of one program name few.
_INDEXES_MAX = 32


def text_of(expression: pc.Expression) -> str | None:
    """An expression as Arrow prints it; None if it shortens a string within a character."""
    try:
        return str(expression)
    except UnicodeDecodeError:
        return None


def columns_of(expression: pc.Expression, schema: pa.Schema) -> list[str] | None:
    """Names of all columns that an expression needs, or of more; None: all of them."""
    text = text_of(expression)
    if text is None or _BY_NUMBER in text:
        return None
    return [name for name in schema.names if name in text]


class Index:
    """Chooses chunks: a dataset of no data whose fragments carry the guarantees of the chunks.

    Arrow itself simplifies a filter by a guarantee, as it does for the row groups of Parquet.
    """

    def __init__(self, schema: pa.Schema, chunks: list[ChunkStatistics | None]) -> None:
        self._schema = schema
        self._plain_schema = plain_schema(schema)
        self._chunks = chunks
        self._has_any = any(chunk is not None and chunk.columns for chunk in chunks)
        self._datasets: dict[tuple[str, ...], ds.FileSystemDataset] = {}
        self._bounds: dict[str, list[Bounds | None]] = {}

    def matching(self, filter: pc.Expression | None) -> tuple[list[int], dict[str, ColumnRange]]:
        """The chunks that can have matching rows; all of them if in doubt.

        Returns:
            Their numbers; and for some columns the range of the values in matching rows.
        """
        numbers = list(range(len(self._chunks)))
        if filter is None or not self._has_any:
            return numbers, {}
        text = text_of(filter)
        ranges = {} if text is None else column_ranges(text, self._schema)
        for name, wanted in ranges.items():
            bounds = self._bounds_of(name)
            numbers = [n for n in numbers if not wanted.misses(bounds[n])]
        named = None if text is None else {one for one in self._schema.names if one in text}
        # A day in a text can be a time of that day: the range of < or > has one more day.
        has_days = (
            text is not None
            and (" < " in text or " > " in text)
            and any(pa.types.is_date32(self._schema.field(name).type) for name in ranges)
        )
        if numbers and (has_days or named != set(ranges)):
            by_guarantee = self._by_guarantee(filter, text)
            numbers = [number for number in numbers if number in by_guarantee]
        return numbers, ranges

    def _bounds_of(self, name: str) -> list[Bounds | None]:
        """Bounds of a column in each chunk as ranges count them; None where they are unknown."""
        if name not in self._bounds:
            bounds: list[Bounds | None] = []
            for chunk in self._chunks:
                column = (chunk.columns or {}).get((name,)) if chunk is not None else None
                bounds.append(None if chunk is None else _integers(column, chunk.partition.rows))
            self._bounds[name] = bounds
        return self._bounds[name]

    def _by_guarantee(self, filter: pc.Expression, text: str | None) -> set[int]:
        try:
            fragments = list(self._dataset(self._usable(text)).get_fragments(filter))
        except (pa.ArrowException, TypeError, ValueError):
            # The scan reports what is wrong with a filter.
            return set(range(len(self._chunks)))
        return {int(fragment.path) for fragment in fragments}

    def _usable(self, text: str | None) -> tuple[str, ...]:
        """The columns whose guarantees may be used: all that the text of a filter names, or more.

        Arrow simplifies a comparison with a NaN of the filter as if NaN had an order, and finds
        that no row matches. So bounds of numbers serve filters without NaN only.

        It compares the values of a set with the bounds before it converts them to the type of the
        column, as the scan does.
        """
        if text is None:
            return ()
        named = [field for field in self._schema if field.name in text]
        is_ordered = _cannot_make_nan(text, named)
        sets = set(_SETS.findall(text))
        return tuple(
            field.name
            for field in named
            if (is_ordered or not _can_meet_nan(field.type)) and not _is_converted(field.type, sets)
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


def _integers(column: ColumnStatistics | None, rows: int) -> Bounds | None:
    """Bounds as ranges count them; None if they are unknown."""
    if column is None:
        return None
    if column.nulls == rows:
        # A comparison with null matches nothing.
        return (math.inf, -math.inf)
    if column.min is None or column.max is None:
        return None
    low, high = integer(column.min), integer(column.max)
    return None if low is None or high is None else (low, high)


def _cannot_make_nan(text: str, named: list[pa.Field]) -> bool:
    """Whether a filter on these columns has neither a NaN nor a function that could return one."""
    if "nan" in text.lower().replace(_NULL_OPTION, ""):
        return False
    functions = set(_FUNCTION.findall(text))
    # A text can be "nan".
    has_texts = any(_is_text(one) for field in named for one in _values(field.type))
    return functions <= _NO_NUMBERS and not (has_texts and "cast" in functions)


def _can_meet_nan(data_type: pa.DataType) -> bool:
    """Whether Arrow compares values of this type with a NaN; integers it compares as floats."""
    return any(
        pa.types.is_floating(one) or pa.types.is_integer(one) or pa.types.is_decimal(one)
        for one in _values(data_type)
    )


def _is_converted(data_type: pa.DataType, sets: set[str]) -> bool:
    """Whether the scan rounds values of sets of these types to values of this type."""
    return any(
        (pa.types.is_floating(one) and any(kind in _FLOATS - {str(one)} for kind in sets))
        or (pa.types.is_date(one) and any(kind.startswith("timestamp") for kind in sets))
        for one in _values(data_type)
    )


def _is_text(data_type: pa.DataType) -> bool:
    return any(name in str(data_type) for name in ("string", "binary"))


def _values(data_type: pa.DataType) -> list[pa.DataType]:
    """The type of the values, of all fields of a struct."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _values(data_type.storage_type)
    if pa.types.is_struct(data_type):
        return [one for field in data_type for one in _values(field.type)]
    return _values(data_type.value_type) if pa.types.is_dictionary(data_type) else [data_type]


def check_columns(filter: pc.Expression, schema: pa.Schema) -> None:
    """Raise ArrowInvalid if a filter has a column that does not exist.

    A scan finds this out too, if it has a chunk to read. Other errors are left to it.
    """
    try:
        list(ds.InMemoryDataset([], schema=plain_schema(schema)).get_fragments(filter))
    except pa.ArrowInvalid as error:
        if "FieldRef" in str(error):
            raise
    except (pa.ArrowException, TypeError, ValueError):
        pass
