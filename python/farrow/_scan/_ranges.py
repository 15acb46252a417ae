"""Ranges of rows in sorted chunks: what a filter leaves of a column of integers or times.

Most filters of engines are conjunctions of comparisons with constants.  For these a chunk is
compared by two numbers, and a sorted chunk is cut by binary search.  The result only narrows what
a scan reads: the scan applies the whole filter, and what is not understood here narrows nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bounds", "ColumnRange", "column_ranges", "cut", "integer"]

# A shorter chunk is filtered in the time that the search takes.
ROWS_MIN = 4096

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NANOSECONDS = 86_400 * 10**9

# What Arrow prints for a filter.  Only texts that consist of nothing else are used: a string
# constant can have any text, and its quotes match nothing here.
_TERM = re.compile(
    r"\((?P<name>[A-Za-z_]\w*) (?P<operator>==|!=|<=|>=|<|>) (?P<value>[-+.:\w ]+?)\)"
    r"|is_valid\([A-Za-z_]\w*\)"
)
_CONJUNCTION = re.compile(rf"(?:\(| and |\)|{_TERM.pattern})+".replace("?P<", "?P<_"))
# Names that make a text ambiguous.
_UNCLEAR = re.compile(r"[()<>=!\"]")
_INTEGER = re.compile(r"-?\d+")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z?))?")


# The least and the greatest value; numbers, since those of no values are infinite.
Bounds = tuple[float, float]


class ColumnRange(NamedTuple):
    """Bounds, both included, of the rows that can match; None: unbounded.

    Times are nanoseconds since 1970 in UTC, whatever the unit of the column.
    """

    low: int | None
    high: int | None

    def misses(self, bounds: Bounds | None) -> bool:
        """Whether no value between these bounds is in the range; False if they are unknown."""
        if bounds is None:
            return False
        least, most = bounds
        return (self.low is not None and most < self.low) or (
            self.high is not None and least > self.high
        )


def column_ranges(text: str, schema: pa.Schema) -> dict[str, ColumnRange]:
    """For some columns the range outside of which no row matches a filter.

    Args:
        text: the filter, as Arrow prints it.
        schema: the columns.
    """
    found: dict[str, ColumnRange] = {}
    names = schema.names
    if _CONJUNCTION.fullmatch(text) is None or any(_UNCLEAR.search(name) for name in names):
        return found
    for term in _TERM.finditer(text):
        name, operator = term["name"], term["operator"]
        if name is None or operator == "!=" or len(schema.get_all_field_indices(name)) != 1:
            continue
        # A column may have a name that looks like a constant.
        is_column = term["value"] in names
        value = None if is_column else _constant(term["value"], schema.field(name).type)
        if value is None:
            continue
        least, most = value
        low = {">=": least, "==": least, ">": least + 1}.get(operator)
        high = {"<=": most, "==": most, "<": most - 1}.get(operator)
        before = found.get(name, ColumnRange(None, None))
        lows = [one for one in (low, before.low) if one is not None]
        highs = [one for one in (high, before.high) if one is not None]
        found[name] = ColumnRange(max(lows, default=None), min(highs, default=None))
    return found


def _constant(text: str, data_type: pa.DataType) -> tuple[int, int] | None:
    """The least and the greatest value of a printed constant, in the numbers of a column; None if
    it is none of them."""
    if pa.types.is_integer(data_type):
        return (int(text), int(text)) if _INTEGER.fullmatch(text) else None
    is_time = pa.types.is_timestamp(data_type)
    found = _TIME.fullmatch(text)
    if found is None or not (is_time or pa.types.is_date(data_type)):
        return None
    day, time, fraction, zone = found.groups()
    # Arrow refuses to compare times with and without a zone.
    if time is not None and is_time and (data_type.tz is not None) != (zone == "Z"):
        return None
    try:
        moment = datetime.fromisoformat(f"{day} {time or '00:00:00'}")
    except ValueError:
        return None
    seconds = int(moment.replace(tzinfo=timezone.utc).timestamp())
    value = seconds * 10**9 + int((fraction or "").ljust(9, "0"))
    if time is not None:
        return value, value
    # Of a date64, which is milliseconds, Arrow prints a day only, rounded towards 1970.
    rest = _DAY_NANOSECONDS - 1
    return value - rest if value <= 0 else value, value + rest if value >= 0 else value


def _scale(data_type: pa.DataType) -> int | None:
    """What the stored numbers of a type are multiplied by; None for types without ranges."""
    if pa.types.is_integer(data_type):
        return 1
    if pa.types.is_timestamp(data_type):
        return _NANOSECONDS[data_type.unit]
    if pa.types.is_date32(data_type):
        return _DAY_NANOSECONDS
    return _NANOSECONDS["ms"] if pa.types.is_date64(data_type) else None


def integer(value: Any) -> int | None:
    """A scalar of Arrow as ranges count it; None for other types and nulls."""
    scale = _scale(value.type)
    if scale is None or not value.is_valid:
        return None
    return int(value.as_py() if pa.types.is_integer(value.type) else value.value) * scale


class _Numbers:
    """A column as a sequence of integers, read one by one."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: int) -> int:
        value = integer(self._column[row])
        if value is None:
            raise ValueError(f"row {row} of an ordered column is null")
        return value


class _Negated(_Numbers):
    """The same with the opposite sign: ascending if the column is descending."""

    def __getitem__(self, row: int) -> int:
        return -super().__getitem__(row)


def cut(
    batches: list[pa.RecordBatch], ordered: Sequence[tuple[str, str]], ranges: dict[str, Any]
) -> list[pa.RecordBatch]:
    """The rows of a chunk that can match.

    Args:
        batches: the rows of the chunk, with the columns of ``ranges``.
        ordered: names of columns in order, and the order, ``"ascending"`` or ``"descending"``.
        ranges: from :func:`column_ranges`.
    """
    start, stop = 0, sum(batch.num_rows for batch in batches)
    if stop < ROWS_MIN:
        return batches
    for name, order in ordered:
        column = pa.chunked_array([batch.column(name) for batch in batches])
        low, high = ranges[name]
        try:
            if order == "descending":
                low, high = None if high is None else -high, None if low is None else -low
                numbers: _Numbers = _Negated(column)
            else:
                numbers = _Numbers(column)
            if low is not None:
                start = max(start, bisect_left(numbers, low))
            if high is not None:
                stop = min(stop, bisect_right(numbers, high))
        except ValueError:
            # The statistics are not those of the rows: read all of them.
            return batches
    return list(_sliced(batches, start, stop))


def _sliced(batches: list[pa.RecordBatch], start: int, stop: int) -> Any:
    first = 0
    for batch in batches:
        low, high = max(start - first, 0), min(stop - first, batch.num_rows)
        if low < high:
            yield batch if (low, high) == (0, batch.num_rows) else batch.slice(low, high - low)
        first += batch.num_rows
