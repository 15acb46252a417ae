"""The commands about transaction graphs: ``farrow graph generate``, ``features``, ``patterns``
and ``report``.

They need no node.  Each command imports its slow modules itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrow.cli._options import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import pyarrow as pa

    from farrow.graph._stream import BatchResult
    from farrow.graph.data import Transactions
    from farrow.graph.report import Distributions, StreamRun

__all__ = ["add_parsers", "graph"]

_INPUT = "file with transactions: CSV, Parquet or Arrow IPC"
_PATTERNS = "fan,degree,scatter-gather,temp-cycle,vertex-stats"
# Causal results do not depend on the batch; large batches keep the search parallel.
_BATCH_CAUSAL, _BATCH_CAUSAL_MIN, _BATCHES = 32_768, 512, 100
_BATCH = 2_048
# Rows of a row group: enough to compress well, few enough to keep in memory.
_GROUP_ROWS = 1 << 17
_FOUND_MAX = 1_000_000
# Nanoseconds in a second: the finest unit of timestamps.
_NANOSECONDS = 10**9


def add_parsers(commands: Any) -> None:
    """Add ``graph`` and its actions to the subcommands of ``farrow``."""
    parser = add_command(
        commands, "graph", "compute features of a graph of transactions", "No node has to run."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_generate(actions)

    features = add_command(actions, "features", "compute features of each transaction")
    features.add_argument("input", metavar="IN", help=_INPUT)
    features.add_argument("output", metavar="OUT", help="file to write: .parquet or .arrow")
    _add_settings(features)

    patterns = add_command(
        actions,
        "patterns",
        "list the patterns with their accounts and transactions",
        "Fans are listed on request: each payment into a fan completes a larger one.",
    )
    patterns.add_argument("input", metavar="IN", help=_INPUT)
    patterns.add_argument("output", metavar="OUT", help="file to write: .parquet, .arrow or .csv")
    patterns.add_argument(
        "--most",
        type=int,
        default=_FOUND_MAX,
        metavar="N",
        help="maximum number of patterns to write (1 M)",
    )
    patterns.add_argument(
        "--size-min", type=int, default=2, metavar="N", help="minimum size of a pattern (2)"
    )
    _add_settings(patterns, "scatter-gather,temp-cycle")

    report = add_command(actions, "report", "write an HTML page: speed, features, largest patterns")
    report.add_argument("input", metavar="IN", help=_INPUT)
    report.add_argument("-o", "--output", metavar="FILE", help="page to write (IN with .html)")
    report.add_argument(
        "--drawings", type=int, default=4, metavar="N", help="drawings of each kind (4)"
    )
    _add_settings(report)


def _add_generate(actions: Any) -> None:
    make = add_command(actions, "generate", "write generated transactions with planted rings")
    make.add_argument(
        "output", metavar="OUT", help="file to write: .csv, .csv.gz, .parquet or .arrow"
    )
    make.add_argument("--edges", type=int, default=5_000_000, metavar="N", help="rows (5 M)")
    make.add_argument(
        "--accounts",
        type=int,
        metavar="N",
        help="number of accounts (default: a tenth of the rows)",
    )
    make.add_argument(
        "--days", type=int, default=10, metavar="N", help="days without stragglers (10)"
    )
    make.add_argument(
        "--seed", type=int, default=7, metavar="N", help="seed of the generated rows (7)"
    )
    make.add_argument(
        "--rings", type=int, metavar="N", help="laundering rings (default: one in 13,700 rows)"
    )
    make.add_argument(
        "--ring-columns", action="store_true", help="also write number and family of the ring"
    )
    _add_quiet(make)


def _add_settings(parser: argparse.ArgumentParser, patterns: str = _PATTERNS) -> None:
    """Add the arguments of all actions that run a stream through the features."""
    layout = parser.add_argument_group("input")
    layout.add_argument(
        "--columns",
        default="",
        metavar="ROLE=NAME,...",
        help="columns by role: source, target, timestamp, source_bank, target_bank, edge_id, "
        "label, amounts (a+b)",
    )
    layout.add_argument("--time-unit", type=int, metavar="S", help="seconds of a unit of time")
    layout.add_argument(
        "--extras", default="", metavar="NAME,...", help="columns to copy to the output"
    )
    what = parser.add_argument_group("features")
    what.add_argument(
        "--patterns",
        default=patterns,
        metavar="NAME,...",
        help=f"patterns to search (default: {patterns})",
    )
    what.add_argument(
        "--window",
        default="24h",
        metavar="TIME",
        help="time window such as 96h, or by pattern: 24h,scatter-gather=6h (default: 24h)",
    )
    what.add_argument("--bins", metavar="N,...", help="upper ends of the bins by size")
    what.add_argument(
        "--statistics", metavar="NAME,...", help="statistics such as fan,degree,mean,median"
    )
    what.add_argument("--cycle-length", type=int, metavar="N", help="edges of an lc-cycle (10)")
    what.add_argument(
        "--mode",
        choices=("causal", "batch"),
        default="causal",
        help="transactions that a row sees: earlier ones, or also those of its batch (causal)",
    )
    how = parser.add_argument_group("resources")
    how.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help=f"rows of a batch (causal: up to {_BATCH_CAUSAL}, batch: {_BATCH})",
    )
    how.add_argument("--threads", type=int, metavar="N", help="threads (default: one a core)")
    how.add_argument("--edges-max", type=int, metavar="N", help="edges that stay in the graph")
    how.add_argument("--work-max", type=int, metavar="N", help="edges that one search may visit")
    _add_quiet(parser)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no summary")


def graph(options: argparse.Namespace) -> int:
    """Run one action."""
    from farrow.cli._output import CommandError

    try:
        return _ACTIONS[options.action](options)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing: pip install 'farrow[graph]'") from error


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
        _say(f"{path}: {_rate(options.edges, time.perf_counter() - began)}, {_size(path)}")
    return 0


def _features(options: argparse.Namespace) -> int:
    from farrow.graph._stream import named

    output = _checked(options.input, options.output, (".parquet", ".arrow"))
    read = _read(options)
    with _TableWriter(output) as writer:
        run = _run(options, read, lambda batch: writer.add(named(read, batch)))
    _summary(options, run, output)
    return 0


def _patterns(options: argparse.Namespace) -> int:
    import pyarrow.compute as pc

    output = _checked(options.input, options.output, (".parquet", ".arrow", ".csv"))
    most: int = options.most
    if most < 1:
        raise ValueError(f"--most is {most}; it must be 1 or more")
    read = _read(options)
    written, dropped = 0, 0
    with _TableWriter(output) as writer:

        def write(batch: BatchResult) -> bool:
            """Whether there is room for more."""
            nonlocal written, dropped
            assert batch.found is not None
            found = batch.found.filter(pc.greater_equal(batch.found["size"], options.size_min))
            fitting = found.slice(0, most - written)
            writer.add(_readable(read, fitting, written, as_text=output.suffix == ".csv"))
            written += fitting.num_rows
            dropped += int((batch.found.schema.metadata or {}).get(b"dropped", 0))
            return bool(written < most)

        run = _run(options, read, write, found=True)
    _summary(options, run, output)
    if not options.quiet:
        notes = f", stopped at --most after row {run.rates[-1][0]:,}"
        more = notes if written >= most else ""
        more += f", {dropped:,} left out in full batches (use a smaller --batch)" if dropped else ""
        _say(f"{written:,} patterns{more}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from farrow.cli._output import progress_bar
    from farrow.graph import _found
    from farrow.graph.report import page

    default = Path(options.input).with_suffix(".html")
    output = _checked(options.input, options.output or default, (".html", ".htm"))
    read = _read(options)
    candidates = _found.Candidates(options.drawings)
    run = _run(options, read, candidates.add)
    if options.drawings > 0:
        settings, batch = _settings(options), _batch(options, read.table.num_rows)
        with progress_bar("patterns", quiet=options.quiet) as report:
            found = _found.largest(
                read, candidates, settings, batch=batch, each=options.drawings, progress=report
            )
        run.drawn = _found.drawn(read, found.all())
    _write_page(output, page(run))
    _summary(options, run, output)
    return 0


def _readable(read: Transactions, found: pa.Table, first: int, *, as_text: bool) -> pa.Table:
    """Patterns for output: numbered, accounts by name."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = found["accounts"].combine_chunks()
    names = read.accounts.of(lists.flatten()).cast(pa.string())
    offsets = pc.subtract(lists.offsets, lists.offsets[0]) if len(lists) else [0]
    accounts = pa.ListArray.from_arrays(offsets, names)
    edges = found["edges"].combine_chunks()
    if as_text:
        accounts = pc.binary_join(accounts, " ")
        edges = pc.binary_join(edges.cast(pa.list_(pa.string())), " ")
    return pa.table(
        {
            "pattern": pa.array(np.arange(first, first + found.num_rows)),
            "kind": found["kind"],
            "size": found["size"],
            "trigger": found["trigger"],
            "accounts": accounts,
            "edges": edges,
        }
    )


def _run(
    options: argparse.Namespace,
    read: Transactions,
    use: Callable[[BatchResult], bool | None],
    *,
    found: bool = False,
) -> StreamRun:
    """Run transactions through the features and pass batches to ``use`` until it returns False."""
    from farrow.cli._output import progress_bar
    from farrow.graph import GraphFeatures, _stream
    from farrow.graph.report import StreamRun

    settings = _settings(options)
    rows = _batch(options, read.table.num_rows)
    features = GraphFeatures(**settings, evidence=found, evidence_max=_FOUND_MAX)
    total = read.table.num_rows
    counts: Distributions | None = None
    rates: list[tuple[int, float]] = []
    with progress_bar("features", quiet=options.quiet) as report:
        for batch in _stream.batches(features, read, rows, found=found):
            counts = _stream.add_to(counts, batch)
            done = batch.begin + batch.rows.num_rows
            rates.append((done, batch.seconds))
            report(done, total)
            if use(batch) is False:
                break
    if counts is None:
        raise ValueError(f"{options.input}: there are no rows")
    shown = {"input": options.input, "batch": rows, **settings}
    return StreamRun(Path(options.input).name, shown, counts, rates, features.stats())


def _batch(options: argparse.Namespace, rows: int) -> int:
    """Rows of a batch, for an input of ``rows`` rows."""
    if options.batch is not None:
        if options.batch < 1:
            raise ValueError(f"--batch is {options.batch}; it must be 1 or more")
        return int(options.batch)
    if options.mode == "batch":
        return _BATCH
    # Enough batches for a progress bar and a curve; causal results do not depend on them.
    return min(_BATCH_CAUSAL, max(_BATCH_CAUSAL_MIN, rows // _BATCHES))


def _read(options: argparse.Namespace) -> Transactions:
    """The transactions of the input file."""
    from farrow.cli._output import progress_bar
    from farrow.graph import GraphFeatures, data
    from farrow.graph._settings import FeaturePlan

    # Invalid arguments fail before a large file is read.
    FeaturePlan(GraphFeatures(**_settings(options)).get_params(deep=False), ticks=_NANOSECONDS)
    path = Path(options.input)
    if not path.is_file():
        raise ValueError(f"{options.input}: {'not a file' if path.exists() else 'no such file'}")
    began = time.perf_counter()
    with progress_bar(f"reading {path.name}", quiet=options.quiet):
        read = data.read(
            path,
            columns=_mapping(options.columns),
            extras=_words(options.extras),
            time_unit=options.time_unit,
        )
    if not options.quiet:
        rate = _rate(read.table.num_rows, time.perf_counter() - began)
        _say(f"{path}: {rate}, {len(read.accounts):,} accounts")
    return read


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The user's options as arguments of ``GraphFeatures``."""
    patterns = _words(options.patterns)
    chosen: dict[str, Any] = {
        "patterns": tuple(patterns),
        "window": _window(options.window, patterns),
        "mode": options.mode,
        "threads": len(os.sched_getaffinity(0)),
    }
    if options.bins is not None:
        chosen["bins"] = [_whole("--bins", word) for word in _words(options.bins)]
    if options.statistics is not None:
        chosen["statistics"] = tuple(_words(options.statistics))
    for name in ("cycle_length", "threads", "edges_max", "work_max"):
        value = getattr(options, name)
        if value is not None:
            chosen[name] = value
    return chosen


def _window(text: str, patterns: list[str]) -> str | dict[str, str]:
    """Parse ``96h`` for all patterns, or windows by pattern; one without a name is the default."""
    by_name: dict[str, str] = {}
    default = "24h"
    for word in _words(text):
        name, equals, value = word.rpartition("=")
        if not equals:
            default = value
        elif name in patterns:
            by_name[name] = value
        else:
            raise ValueError(f"--window: {name!r} is none of the patterns {', '.join(patterns)}")
    if not by_name:
        return default
    return {name: by_name.get(name, default) for name in patterns}


def _mapping(text: str) -> dict[str, object]:
    """``source=payer,amounts=a+b`` as a mapping of roles to columns."""
    mapping: dict[str, object] = {}
    for word in _words(text):
        role, equals, name = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--columns: {word!r} is no ROLE=NAME")
        mapping[role] = [_column(part) for part in name.split("+")]
        if role != "amounts":
            mapping[role] = _column(name)
    return mapping


def _column(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is no integer") from None


def _checked(source: str, output: str | Path, endings: tuple[str, ...]) -> Path:
    """Check the path of the output before the work begins."""
    path = Path(output)
    if path.suffix.lower() not in endings:
        raise ValueError(f"cannot write {path.name!r}: use {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: no such directory")
    if path.exists() and Path(source).exists() and path.samefile(source):
        # The output has only some of its columns.
        raise ValueError(f"{output}: the input and the output are the same file")
    return path


def _write_page(path: Path, text: str) -> None:
    """Write a complete page, or leave the old one."""
    part = _part_of(path)
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        # Removes nothing after the part has become the file.
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    """The file beside another one that is written first and then renamed."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


class _TableWriter:
    """A writer of tables of one schema, some batches at a time: a complete file, or none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = _part_of(path)
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._stack = contextlib.ExitStack()
        self._out: Any = None

    def __enter__(self) -> _TableWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.ExitStack() as cleanup:
            # Removes nothing after the part has become the file.
            cleanup.callback(self._part.unlink, missing_ok=True)
            cleanup.callback(self._stack.close)
            if exception[0] is None:
                self._flush()
                self._stack.close()
                if self._out is not None:
                    self._part.replace(self._path)

    def add(self, table: pa.Table) -> None:
        """Write a table, now or together with later ones."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.concat_tables(self._waiting)
            if self._out is None:
                self._out = self._stack.enter_context(self._open(table.schema))
            self._out.write_table(table)
        self._waiting, self._rows = [], 0

    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow as pa
        import pyarrow.csv as pacsv
        import pyarrow.parquet as pq

        sink = self._stack.enter_context(pa.OSFile(str(self._part), "wb"))
        if self._path.suffix.lower() == ".parquet":
            return pq.ParquetWriter(sink, schema, compression="zstd")
        if self._path.suffix.lower() == ".arrow":
            return pa.ipc.new_file(sink, schema)
        return pacsv.CSVWriter(sink, schema)


def _summary(options: argparse.Namespace, run: StreamRun, output: Path) -> None:
    """Print the results: rows a second, features in use, contents of the graph."""
    if options.quiet:
        return
    from farrow.cli._output import console, grid

    counts = run.distributions
    seconds = sum(time for _, time in run.rates)
    _say(f"{output}: {_rate(counts.rows, seconds)}, {_size(output)}")
    rows = []
    for block, places in counts.blocks().items():
        used = [place for place in places if counts.nonzero[place]]
        share = max((counts.nonzero[place] for place in used), default=0) / counts.rows
        largest = max((counts.largest[place] for place in used), default=0.0)
        rows.append((block, f"{len(used)} of {len(places)}", f"{share:.2%}", f"{largest:,.6g}"))
    out = console(stderr=True)
    out.print(grid(("features", ">not zero", ">rows, at most", ">largest"), rows))
    # The speed is printed above.
    held = {name: value for name, value in run.stats.items() if value and name != "rates"}
    facts = ", ".join(_fact(name, value) for name, value in held.items())
    _say(f"graph: {facts}")


def _fact(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(_fact(key, part) for key, part in value.items() if part)
        return f"{name} ({inside or 'none'})"
    return f"{name} {value:,}" if isinstance(value, (int, float)) else f"{name} {value}"


def _say(text: str) -> None:
    """Print a message on standard error: standard output is for data."""
    from farrow.cli._output import visible

    print(visible(text), file=sys.stderr)


def _rate(rows: int, seconds: float) -> str:
    """Rows, seconds and rows a second."""
    from farrow.cli._output import human_seconds

    return f"{rows:,} rows in {human_seconds(seconds)} ({rows / max(seconds, 1e-9):,.0f} rows/s)"


def _size(path: Path) -> str:
    from farrow.cli._output import human_bytes

    return human_bytes(path.stat().st_size)


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "generate": _generate,
    "features": _features,
    "patterns": _patterns,
    "report": _report,
}
