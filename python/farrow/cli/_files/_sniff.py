"""Detect the kind of a table file from its first bytes and its name.

Contents take precedence over names: Parquet and Arrow IPC have magic bytes.  Other files are text.
Their delimiter, header and text-only columns (numbers with leading zeros) are detected from the
first lines.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import io
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FileKind", "TextShape", "compression_of", "kind_of", "text_shape"]

# Enough lines for detection; a line of a table rarely has more than a kilobyte.
_SAMPLE_BYTES = 256 * 1024
_DELIMITERS = (",", "\t", ";", "|", " ")
# SNAP and KONECT files begin with comment lines.
_REMARKS = ("#", "%")
_NUMBER = re.compile(r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?")
_TIME = re.compile(r"\d{4}[-/]\d\d?[-/]\d\d?([ T]\d\d?:\d\d.*)?")
_LEADING_ZERO = re.compile(r"0\d+")
_INTEGER = re.compile(r"[+-]?\d+")
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


class FileKind(enum.Enum):
    """The kinds of table file that can be read."""

    PARQUET = "Parquet"
    IPC_FILE = "Arrow IPC file"
    IPC_STREAM = "Arrow IPC stream"
    TEXT = "CSV"
    JSON = "JSON lines"


@dataclasses.dataclass(frozen=True)
class TextShape:
    """The layout of a delimited text file.

    ``columns`` are the names, made unique; ``skip_lines`` counts the raw lines before the first
    row: remarks, blank lines and all lines of the header; ``text_columns`` must not be read as
    numbers; ``integer_columns`` have nothing but digits in the first lines.
    """

    delimiter: str
    columns: tuple[str, ...]
    has_header: bool
    skip_lines: int
    text_columns: tuple[str, ...]
    integer_columns: tuple[str, ...]

    def parse_options(self) -> pacsv.ParseOptions:
        """The options of pyarrow.  Without the last one, it cuts a file at any line break, also of
        a field in quotes, and its rows are wrong."""
        return pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)


def compression_of(path: Path) -> str | None:
    """pyarrow's name for the compression of a file, by its first bytes."""
    with path.open("rb") as file:
        start = file.read(4)
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            return name
    # An empty compressed file has no magic; the extension decides.
    return _COMPRESSIONS.get(path.suffix.lower()) if not start else None


def kind_of(path: Path) -> FileKind:
    """Detect the kind of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no known kind of table.
    """
    compression = compression_of(path)
    with pa.input_stream(path, compression=compression) as stream:
        start = stream.read(4096)
    if start.startswith(b"PAR1"):
        kind = FileKind.PARQUET
    elif start.startswith(b"ARROW1"):
        kind = FileKind.IPC_FILE
    elif start.startswith(b"\xff\xff\xff\xff") and len(start) >= 8:
        kind = FileKind.IPC_STREAM
    elif start.startswith(b"PK\x03\x04"):
        raise ValueError(
            f"{path.name} is a spreadsheet or another ZIP archive: save the sheet as CSV or Parquet"
            " (--bytes stores the file as it is)"
        )
    elif b"\0" in start:
        raise ValueError(
            f"{path.name} is no Parquet, Arrow IPC or delimited text file"
            " (--bytes stores it as it is)"
        )
    elif path.suffix.lower() in (".parquet", ".pq", ".arrow", ".arrows", ".feather", ".ipc"):
        raise ValueError(f"{path.name} is not the {path.suffix} file its name promises")
    elif _is_json(path, start):
        kind = FileKind.JSON
    else:
        kind = FileKind.TEXT
    if compression is not None and kind not in (FileKind.TEXT, FileKind.JSON):
        raise ValueError(f"{path.name} is a compressed {kind.value}: unpack it first")
    return kind


def _is_json(path: Path, start: bytes) -> bool:
    """Whether text is JSON, one object a line.

    Raises:
        ValueError: it is JSON, but one array of all rows.
    """
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    name = path.name.lower()
    for packed in _COMPRESSIONS:
        name = name.removesuffix(packed)
    is_named = name.endswith((".json", ".jsonl", ".ndjson"))
    if is_named and text.startswith(b"["):
        raise ValueError(
            f"{path.name} is one JSON array: write one object a line (jq -c '.[]' does so)"
        )
    # A line of delimited text may begin with a brace, but not with a brace and a key in quotes.
    return text.startswith(b"{") and (is_named or re.match(rb'\{\s*("|\})', text) is not None)


def text_shape(
    path: Path, *, delimiter: str | None = None, has_header: bool | None = None
) -> TextShape:
    """Detect the layout of a delimited text file from its first lines.

    Args:
        path: the file; may be compressed.
        delimiter: one character; None: detect one of comma, tab, semicolon, bar, space.
        has_header: whether the first line holds names; None: detect: it does unless one of its
            fields is a number or a time.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no line, or its first lines are no delimited text.
    """
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        raw = stream.read(_SAMPLE_BYTES)
    # The same line ends as pyarrow, which counts raw lines to skip.
    text = io.StringIO(raw.decode("utf-8-sig", errors="replace"), newline="")
    lines = text.readlines()
    if len(raw) == _SAMPLE_BYTES and len(lines) > 1:
        lines.pop()  # cut in the middle
    # A field may be as long as the sample.
    csv.field_size_limit(max(csv.field_size_limit(), _SAMPLE_BYTES))
    try:
        start = _remarks(lines, delimiter)
        if start == len(lines):
            raise ValueError(f"{path.name} holds no rows")
        return _shape(lines[start:], start, delimiter, has_header)
    except csv.Error as error:
        raise ValueError(f"{path.name} is no delimited text: {error}") from error


def _shape(
    lines: Sequence[str], skipped: int, delimiter: str | None, has_header: bool | None
) -> TextShape:
    """The layout of lines, of which the first is a header or a row."""
    if delimiter is None:
        delimiter = _guess_delimiter([line for line in lines if line.strip()])
    reader = csv.reader(lines, delimiter=delimiter)
    first = next(reader)
    header_lines = reader.line_num
    rest = list(reader)
    if has_header is None:
        has_header = not any(_is_value(field) for field in first)
    if has_header:
        columns = _unique([name.strip() or f"column{i}" for i, name in enumerate(first)])
    else:
        columns = tuple(f"column{i}" for i in range(len(first)))
        rest.insert(0, first)
    text_columns = tuple(
        name
        for i, name in enumerate(columns)
        if any(len(row) > i and _LEADING_ZERO.fullmatch(row[i].strip()) for row in rest)
    )
    integer_columns = tuple(name for i, name in enumerate(columns) if _are_integers(rest, i))
    skip_lines = skipped + (header_lines if has_header else 0)
    return TextShape(delimiter, columns, has_header, skip_lines, text_columns, integer_columns)


def _are_integers(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column has integers, and nothing else but empty fields."""
    fields = [row[column].strip() for row in rows if len(row) > column]
    return any(fields) and all(_INTEGER.fullmatch(field) for field in fields if field)


def _remarks(lines: Sequence[str], delimiter: str | None) -> int:
    """The number of lines before the header or the first row: remarks and blank ones.

    The last remark may be the header: its first name may begin with the sign, or be it.
    """
    start = last = 0
    while start < len(lines) and (lines[start].startswith(_REMARKS) or not lines[start].strip()):
        if lines[start].strip():
            last = start
        start += 1
    is_next = start == last + 1 and start < len(lines) and lines[last].startswith(_REMARKS)
    if is_next and _is_header(lines[last], lines[start:], delimiter):
        return last
    return start


def _is_header(line: str, rows: Sequence[str], delimiter: str | None) -> bool:
    """Whether a line that begins like a remark has as many fields as the rows below it."""
    if delimiter is None:
        delimiter = _guess_delimiter([row for row in rows if row.strip()])
    if line[1:2].isspace() and line[1:2] != delimiter:
        return False
    fields, first = (
        next(csv.reader([line], delimiter=delimiter)),
        next(csv.reader(rows, delimiter=delimiter)),
    )
    return len(fields) == len(first) > 1


def _guess_delimiter(lines: Sequence[str]) -> str:
    """The delimiter that splits the first lines into the same, largest number of fields."""
    best, best_fields = ",", 1
    for candidate in _DELIMITERS:
        widths = {len(row) for row in csv.reader(lines[:100], delimiter=candidate)}
        # A space inside times and names never beats a real delimiter that fits.
        may_win = len(widths) == 1 and (candidate != " " or best_fields == 1)
        if may_win and (fields := widths.pop()) > best_fields:
            best, best_fields = candidate, fields
    return best


def _is_value(field: str) -> bool:
    """Whether a field is a number or a time, so its line is data, not names."""
    text = field.strip()
    return bool(_NUMBER.fullmatch(text) or _TIME.fullmatch(text))


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with ``.1``, ``.2`` appended to repeated ones (Account in IBM's files)."""
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in taken:
            number += 1
            candidate = f"{name}.{number}"
        taken.add(candidate)
        result.append(candidate)
    return tuple(result)
