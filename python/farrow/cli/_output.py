"""Common output of all commands: sizes, tables, one-line errors."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from farrow.cli._files._read import Progress

__all__ = [
    "CommandError",
    "console",
    "grid",
    "human_bytes",
    "human_ns",
    "human_seconds",
    "parse_bytes",
    "plain",
    "print_grid",
    "print_json",
    "progress_bar",
    "visible",
]

# rich lays out a row in 0.7 ms and wraps its cells; longer tables are only aligned.
_ROWS_LAID_OUT_MAX = 500
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"(\d+(?:[.]\d+)?)\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)


class CommandError(Exception):
    """An error that the user can fix; printed as one line, exit code 1."""


def console(*, stderr: bool = False) -> Console:
    """A console that prints wide tables if the output is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """A table in the common style; a column whose name begins with ``>`` is aligned right.

    Cells are plain text, not markup.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            escape(column.lstrip(">")), justify="right" if right else "left", no_wrap=right
        )
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    return table


def print_grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as :func:`grid` makes it; a long one as aligned text, with whole cells."""
    if len(rows) <= _ROWS_LAID_OUT_MAX:
        console().print(grid(columns, rows))
        return
    titles = [column.lstrip(">") for column in columns]
    lines = [titles, *([visible(cell) for cell in row] for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(titles))]
    aligned = [
        f"{{:{'>' if column.startswith('>') else '<'}{width}}}"
        for column, width in zip(columns, widths, strict=True)
    ]
    text = "  ".join(aligned)
    for line in lines:
        sys.stdout.write(text.format(*line).rstrip() + "\n")


def visible(text: str) -> str:
    """Escape control characters, which names may contain and terminals interpret."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def human_bytes(count: float) -> str:
    """Bytes with a binary unit and three digits: ``1.61 GiB``."""
    size = float(count)
    for unit in _UNITS:
        if abs(size) < 1000 or unit == _UNITS[-1]:
            break
        size /= 1024
    if unit == "B":
        return f"{size:.0f} B"
    return f"{size:.{2 if abs(size) < 10 else 1 if abs(size) < 100 else 0}f} {unit}"


def human_ns(value: float) -> str:
    """Nanoseconds with a suitable unit: ``41 ns``, ``3.1 us``, ``2.05 ms``."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} ns"


def human_seconds(seconds: float) -> str:
    """A time with a suitable unit: ``41 us``, ``3.1 ms``, ``2.05 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 0.9995 or unit == "us":
            break
    value = seconds * scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def parse_bytes(text: str) -> int:
    """A size such as ``4GiB``, ``512M``, ``1.5g`` or ``4096`` in bytes, as ``farrow node`` reads
    it: powers of 1024, and of 1000 for ``4GB``.

    Raises:
        ValueError: the text is no size, or one of 8 EiB or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: write 512MiB, 4G or a number of bytes")
    power = "kmgtp".index(match[2].lower()) + 1 if match[2] else 0
    size = float(match[1]) * (1000 if match[4] and not match[3] else 1024) ** power
    if size >= 1 << 63:
        raise ValueError(f"{text[:40]!r} is too large a size: less than 8 EiB is possible")
    return int(size)


def plain(value: Any) -> Any:
    """The value with types unknown to JSON converted to text or numbers."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, pa.Scalar):
        return plain(value.as_py())
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Progress]:
    """A progress bar on standard error, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, 1))


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(plain(value), sys.stdout, indent=2)
    sys.stdout.write("\n")
