"""Read the columns of a delimited transaction file, and find its first faulty line.

Called by ``data``.  pyarrow reads blocks in parallel and does not always know the line of an error;
after a failure the file is read again, line by line.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from farrow.cli._files._sniff import compression_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from farrow.cli._files._sniff import TextShape
    from farrow.graph._columns import ColumnNames

__all__ = ["LABELS", "Fault", "first_fault", "parsed_times", "read_columns"]

# Several blocks per core, but few dictionaries to merge.
_BLOCK_BYTES = 16 << 20
# A line longer than this is no transaction.
_LINE_BYTES_MAX = 1 << 20
_TIME_FORMATS = (
    "%Y/%m/%d %H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y/%m/%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
    "%Y/%m/%d",
)
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
_INTEGER = re.compile(r"[+-]?\d+")
# A few texts repeat in millions of rows: dictionary encoding stores each once.
_WORDS = pa.dictionary(pa.int32(), pa.string())


class Fault(NamedTuple):
    """The location of a fault in a file."""

    line: int
    column: str
    problem: str


def read_columns(
    path: Path, shape: TextShape, layout: ColumnNames, extras: Sequence[str]
) -> pa.Table:
    """Read the columns with a role and the extra columns.

    Returns:
        Accounts and banks as strings, numeric times as float64 or int64 and others as words
        (dictionary-encoded strings), amounts as float64, labels as words.

    Raises:
        pyarrow.ArrowInvalid: a field has the wrong type for its column, or a line is incomplete.
        OSError: the file cannot be read.
    """
    types: dict[str, pa.DataType] = dict.fromkeys(extras, _WORDS)
    ends = (layout.source, layout.target, layout.source_bank, layout.target_bank)
    types.update(dict.fromkeys(filter(None, ends), pa.string()))
    types.update(dict.fromkeys(layout.amounts, pa.float64()))
    types[layout.timestamp] = _time_type(path, shape, layout.timestamp)
    if layout.label is not None:
        types[layout.label] = _WORDS
    if layout.edge_id is not None:
        types[layout.edge_id] = pa.int64()
    wanted = list(dict.fromkeys([*layout.columns, *extras]))
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        return pacsv.read_csv(
            stream,
            read_options=pacsv.ReadOptions(
                block_size=_BLOCK_BYTES,
                column_names=list(shape.columns),
                skip_rows=shape.skip_lines,
            ),
            parse_options=pacsv.ParseOptions(delimiter=shape.delimiter),
            convert_options=pacsv.ConvertOptions(column_types=types, include_columns=wanted),
        )


def first_fault(path: Path, shape: TextShape, layout: ColumnNames) -> Fault | None:
    """The first unreadable line and column, or None."""
    checks: dict[int, tuple[str, Callable[[str], str | None]]] = {}
    places = {name: place for place, name in enumerate(shape.columns)}
    for name in (layout.source, layout.target, layout.source_bank, layout.target_bank):
        if name is not None:
            checks[places[name]] = (name, _no_text)
    for name in layout.amounts:
        checks[places[name]] = (name, _no_number)
    checks[places[layout.timestamp]] = (layout.timestamp, _no_time)
    if layout.edge_id is not None:
        checks[places[layout.edge_id]] = (layout.edge_id, _no_integer)
    if layout.label is not None:
        checks[places[layout.label]] = (layout.label, _no_label)
    width = len(shape.columns)
    line = shape.skip_lines
    try:
        for line, row in _lines(path, shape):
            if len(row) != width:
                return Fault(line, "", f"{len(row)} fields where {width} belong")
            for place, (name, check) in checks.items():
                problem = check(row[place])
                if problem is not None:
                    return Fault(line, name, f"{row[place][:40]!r} {problem}")
    except csv.Error as error:
        return Fault(line + 1, "", str(error))
    return None


def _lines(path: Path, shape: TextShape) -> Iterator[tuple[int, list[str]]]:
    """Numbers (from 1) and fields of the lines that hold rows."""
    csv.field_size_limit(_LINE_BYTES_MAX)
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        for _ in range(shape.skip_lines):
            text.readline()
        reader = csv.reader(text, delimiter=shape.delimiter)
        for row in reader:
            if row:
                yield shape.skip_lines + reader.line_num, row


def _time_type(path: Path, shape: TextShape, name: str) -> pa.DataType:
    """The type to read times as: numeric if the first one is a number."""
    place = shape.columns.index(name)
    with contextlib.suppress(csv.Error):
        for _, row in _lines(path, shape):
            field = row[place].strip() if place < len(row) else ""
            if _INTEGER.fullmatch(field):
                return pa.int64()
            return pa.float64() if _no_number(field) is None else _WORDS
    return pa.int64()


def parsed_times(texts: pa.StringArray) -> tuple[pa.TimestampArray, str | None]:
    """Times in one of the known formats, timestamp[s], and the first text in no known format."""
    texts = pc.utf8_trim_whitespace(texts)
    times = pa.nulls(len(texts), pa.timestamp("s"))
    for form in _TIME_FORMATS:
        if times.null_count:
            times = pc.coalesce(
                times, pc.strptime(texts, format=form, unit="s", error_is_null=True)
            )
    if times.null_count:
        return times, texts[pc.index(pc.is_null(times), True).as_py()].as_py()
    return times, None


def _no_text(field: str) -> str | None:
    return None if field else "where an account or bank belongs"


def _no_integer(field: str) -> str | None:
    return None if _INTEGER.fullmatch(field.strip()) else "is no integer"


def _no_number(field: str) -> str | None:
    try:
        return None if math.isfinite(float(field)) else "is not finite"
    except ValueError:
        return "is no number"


def _no_time(field: str) -> str | None:
    if _no_number(field) is None or parsed_times(pa.array([field]))[1] is None:
        return None
    return "is no time"


def _no_label(field: str) -> str | None:
    return None if field.strip().lower() in LABELS else "is no label (0 or 1)"
