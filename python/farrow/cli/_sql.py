"""``farrow sql``: a query over the tables of a cluster; ``farrow sql-worker``: a process for it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrow._sql import MISSING
from farrow.cli._options import add_command

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parsers", "sql", "worker"]


def add_parsers(commands: Any, objects: argparse.ArgumentParser) -> None:
    """Add ``sql`` and ``sql-worker`` to the subcommands of ``farrow``."""
    query = add_command(
        commands,
        "sql",
        "query the tables of the cluster (pip install farrow-sql)",
        "Each node with farrow sql-worker runs the parts of the query on its own rows.",
        parents=[objects],
    )
    query.add_argument("query", metavar="QUERY", help="one select; - is standard input")
    query.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write instead: .parquet, .csv, .arrow or .arrows",
    )
    plan = query.add_mutually_exclusive_group()
    plan.add_argument("--explain", action="store_true", help="print the stages and where they run")
    plan.add_argument(
        "--analyze", action="store_true", help="run it, and print what each stage read and moved"
    )
    query.add_argument(
        "--query-seconds",
        type=float,
        metavar="S",
        help="maximum seconds of the query (default: no limit)",
    )
    query.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    process = add_command(
        commands,
        "sql-worker",
        "run parts of queries at this node, until Ctrl-C",
        parents=[objects],
    )
    process.add_argument(
        "--listen", default="127.0.0.1", metavar="HOST", help="address for clients (127.0.0.1)"
    )
    process.add_argument(
        "--memory",
        default="1GiB",
        metavar="SIZE",
        help="maximum memory of a task, before it spills (1GiB)",
    )
    process.add_argument(
        "--queries", type=int, default=2, metavar="N", help="queries at a time (2)"
    )


def sql(options: argparse.Namespace) -> int:
    """Run one query and print its rows, or how it runs."""
    from farrow.cli._client import connect
    from farrow.cli._files._write import format_for
    from farrow.cli._objects._get import preview, write_file
    from farrow.cli._output import CommandError, progress_bar

    farrow_sql = _package()
    text = sys.stdin.read() if options.query == "-" else options.query
    target = None if options.output is None else Path(options.output)
    word = None if target is None else format_for(target)
    if target is not None and word not in ("parquet", "csv", "ipc", "ipc-stream"):
        raise CommandError(f"{target}: the name has to end in .parquet, .csv, .arrow or .arrows")
    client = connect(options)
    seconds = options.query_seconds
    if options.explain or options.analyze:
        sys.stdout.write(farrow_sql.explain(text, client, analyze=options.analyze, timeout=seconds))
        return 0
    with progress_bar("tasks", quiet=options.quiet) as progress:
        rows = farrow_sql.sql(text, client, timeout=seconds, progress=progress)
    if target is None or word is None:
        preview("result", rows)
    else:
        write_file(rows, target, word)
    return 0


def worker(options: argparse.Namespace) -> int:
    """Serve queries until a signal."""
    from farrow.cli._client import connect
    from farrow.cli._output import CommandError, parse_bytes

    _package()
    from farrow_sql.worker import Supervisor

    if not 1 <= options.queries <= 64:
        raise CommandError(f"--queries {options.queries}: 1 to 64")
    memory = parse_bytes(options.memory)
    supervisor = Supervisor(
        lambda: connect(options), host=options.listen, memory=memory, queries=options.queries
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    supervisor.serve()
    return 0


def _package() -> Any:
    from farrow.cli._output import CommandError

    try:
        import farrow_sql
    except ImportError as error:
        raise CommandError(f"{MISSING} ({error})") from error
    return farrow_sql
