"""``farrow get``: print an object, or write it to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow.cli._client import connect, parse_target
from farrow.cli._files._write import as_table, format_for, write_object
from farrow.cli._output import (
    CommandError,
    console,
    grid,
    human_bytes,
    print_json,
    visible,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["get", "preview", "write_file"]

_PREVIEW_ROWS = 10
_PREVIEW_COLUMNS = 8


def get(options: argparse.Namespace) -> int:
    client = connect(options)
    value = client.get(parse_target(client, options.name), timeout=options.wait)
    if options.output is None and options.format is None:
        if options.json:
            print_json(_summary(options.name, value))
        else:
            preview(options.name, value)
        return 0
    target = options.output or "-"
    word = options.format or (format_for(Path(target)) if target != "-" else None)
    if word is None:
        word = "ipc-stream" if _is_table(value) else "raw"
        if target != "-":
            raise CommandError(
                f"{target}: the ending is that of no known format: use --format,"
                " or .parquet, .csv, .arrow, .arrows, .npy, .bin"
            )
    if target == "-":
        write_object(value, sys.stdout.buffer, word)
        sys.stdout.buffer.flush()
    else:
        write_file(value, Path(target), word)
        if options.json:
            written = Path(target).stat().st_size
            print_json({"name": options.name, "file": target, "format": word, "bytes": written})
    return 0


def _is_table(value: Any) -> bool:
    try:
        as_table(value)
    except TypeError:
        return False
    return True


def write_file(value: Any, target: Path, word: str) -> None:
    """Write a temporary file and rename it, so that no incomplete file is visible.

    A file behind a symbolic link is written in place.
    """
    import gzip

    if not target.parent.is_dir():
        raise CommandError(f"{target}: there is no directory {target.parent}")
    is_file = target.is_file() and not target.is_symlink()
    # A link, a device or a pipe stays what it is; write into it.
    direct = not is_file and (target.is_symlink() or target.exists())
    place = target if direct else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with place.open("wb") as file:
            if is_file:
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            if target.name.lower().endswith(".gz"):
                with gzip.GzipFile(fileobj=file, mode="wb", filename="") as packed:
                    write_object(value, packed, word)  # type: ignore[arg-type]
            else:
                write_object(value, file, word)
        if not direct:
            place.replace(target)
    except BaseException:
        if not direct:
            place.unlink(missing_ok=True)
        raise


def _summary(name: str, value: Any) -> dict[str, Any]:
    """What ``farrow get --json`` prints of an object: its kind, size and shape."""
    if _is_table(value):
        table = as_table(value)
        columns = [
            {"name": field.name, "type": str(field.type), "nulls": column.null_count}
            for field, column in zip(table.schema, table.columns, strict=True)
        ]
        kind = {"rows": table.num_rows, "columns": columns, "bytes": table.nbytes}
        return {"name": name, "kind": type(value).__name__, **kind}
    kind_of_items, shape, size = _shape(value)
    return {
        "name": name,
        "kind": type(value).__name__,
        "type": kind_of_items,
        "shape": shape,
        "bytes": size,
    }


def _shape(value: Any) -> tuple[str, list[int], int]:
    """Type of the items, shape and bytes of an object that is no table."""
    if isinstance(value, pa.Tensor):
        return str(value.type), list(value.shape), value.to_numpy().nbytes
    if hasattr(value, "shape"):
        return str(value.dtype), list(value.shape), value.nbytes
    return "bytes", [value.size], value.size


def preview(name: str, value: Any) -> None:
    """Print the first rows of a table, or a summary of another object."""
    out = console()
    if not _is_table(value):
        kind, shape, size = _shape(value)
        if isinstance(value, pa.Tensor):
            kind = f"{kind} tensor of shape {tuple(shape)}"
        elif hasattr(value, "shape"):
            kind = f"{kind} array of shape {tuple(shape)}"
        out.print(f"{visible(name)}  {kind}, {human_bytes(size)}", markup=False)
        return
    table = as_table(value)
    out.print(
        f"{visible(name)}  {table.num_rows:,} rows x {table.num_columns} columns", markup=False
    )
    shown = table.slice(0, _PREVIEW_ROWS)
    columns = [f"{visible(field.name)}\n{field.type}" for field in table.schema][:_PREVIEW_COLUMNS]
    cells = [_texts(column) for column in shown.columns[:_PREVIEW_COLUMNS]]
    rows = [[column[i] for column in cells] for i in range(shown.num_rows)]
    out.print(grid(columns, rows))
    hidden = table.num_columns - _PREVIEW_COLUMNS
    if hidden > 0 or table.num_rows > _PREVIEW_ROWS:
        more = f"{max(table.num_rows - _PREVIEW_ROWS, 0):,} more rows"
        more += f", {hidden} more columns" if hidden > 0 else ""
        out.print(f"{more}; -o FILE writes all", style="dim")


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Each value of a column as text; works for every type."""
    if pa.types.is_temporal(column.type):
        with contextlib.suppress(pa.ArrowException):
            column = column.cast(pa.string())
    try:
        return ["" if item is None else str(item) for item in column.to_pylist()]
    except (ValueError, OverflowError, pa.ArrowException):
        return [_text(item) for item in column]


def _text(item: pa.Scalar) -> str:
    """A value that may be none of Python, such as a time after the year 9999."""
    try:
        return str(item)
    except (ValueError, OverflowError, pa.ArrowException):
        return f"<{item.type}>"
