"""The commands about transaction graphs: ``farrow graph generate``.

They need no node.  What takes long to import is imported by the command that runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["add_parsers", "graph"]


def add_parsers(commands: Any) -> None:
    """Add ``graph`` and its actions to the subcommands of ``farrow``."""
    parser = commands.add_parser("graph", help="features of a graph of transactions")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_generate(actions)


def _add_generate(actions: Any) -> None:
    make = actions.add_parser("generate", help="write made-up transactions with planted rings")
    make.add_argument("output", metavar="OUT", help="file: .csv, .csv.gz, .parquet or .arrow")
    make.add_argument("--edges", type=int, default=5_000_000, metavar="N", help="rows (5 M)")
    make.add_argument("--accounts", type=int, metavar="N", help="(default: a tenth of the rows)")
    make.add_argument("--days", type=int, default=10, metavar="N", help="without stragglers (10)")
    make.add_argument("--seed", type=int, default=7, metavar="N", help="of the generator (7)")
    make.add_argument(
        "--rings", type=int, metavar="N", help="laundering rings (default: one in 13,700 rows)"
    )
    make.add_argument(
        "--ring-columns", action="store_true", help="also write number and family of the ring"
    )
    _add_quiet(make)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no summary")


def graph(options: argparse.Namespace) -> int:
    """Run one action."""
    return _ACTIONS[options.action](options)


def _generate(options: argparse.Namespace) -> int:
    from farrow.cli._output import progress_bar
    from farrow.graph import generate

    began = time.perf_counter()
    with progress_bar(Path(options.output).name, quiet=options.quiet) as report:
        path = generate.write(
            options.output,
            options.edges,
            seed=options.seed,
            accounts=options.accounts,
            days=options.days,
            rings=options.rings,
            ring_columns=options.ring_columns,
            progress=report,
        )
    if not options.quiet:
        _say(f"{path}: {_rate(options.edges, began)}, {_size(path)}")
    return 0


def _say(text: str) -> None:
    """One line for people, on standard error: standard output is for data."""
    from farrow.cli._output import visible

    print(visible(text), file=sys.stderr)


def _rate(rows: int, began: float) -> str:
    """Rows, seconds and rows a second since ``began``."""
    from farrow.cli._output import human_seconds

    seconds = time.perf_counter() - began
    return f"{rows:,} rows in {human_seconds(seconds)} ({rows / max(seconds, 1e-9):,.0f} rows/s)"


def _size(path: Path) -> str:
    from farrow.cli._output import human_bytes

    return human_bytes(path.stat().st_size)


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {"generate": _generate}
