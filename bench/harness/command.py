"""Parts of the commands that compare Farrow with its peers."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness import machine

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["announce", "fitting_rows", "parser_of"]

RESULTS = Path(__file__).resolve().parent.parent / "results"


def parser_of(description: str | None, peers: Iterable[str]) -> argparse.ArgumentParser:
    """The options that all of these commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="less data, few repeats")
    parser.add_argument("--peers", default=",".join(peers), help="comma-separated (default: all)")
    parser.add_argument("--output", default=str(RESULTS), help="folder for results")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


def announce(text: str) -> None:
    """Print a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def fitting_rows(rows: int, row_bytes: float, notes: list[str]) -> int:
    """Rows of a table for which memory and /dev/shm have room; fewer are noted in the report.

    Args:
        rows: the rows that are wanted.
        row_bytes: memory of all processes for a row, in bytes.
        notes: where a smaller table is noted.
    """
    room = min(machine.available_bytes(), 2 * shutil.disk_usage("/dev/shm").free)
    wanted = rows * row_bytes
    if room >= wanted:
        return rows
    fitting = int(rows * room / wanted) // 8 * 8
    notes.append(f"memory for a table of {fitting:,} rows only, instead of {rows:,}")
    return fitting
