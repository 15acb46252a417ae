"""Run the 22 queries of TPC-H over a cluster: ``python bench/sql.py [--scale 1] [--quick]``.

The tables lie on two nodes in turn, each of which has less memory than they need, and a worker of
farrow-sql runs on each node.  Beside it: DuckDB with its own tables in the memory of one process,
DataFusion in one process over the same tables of Farrow, and Spark over Parquet in the page cache
and over tables that it has cached, if pyspark and a JVM are there.  All have the same cores, take
turns, and must return the same rows.  tpchgen-cli makes the data.  Writes the raw samples, a table
of ratios, and the bytes that each query moved between the nodes to bench/results/.  These are no
results of TPC: they follow none of its rules for publication.
"""

from __future__ import annotations

import argparse
import contextlib
import decimal
import math
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import datafusion  # noqa: E402
import duckdb  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import NODES, running_pair, wait_until  # noqa: E402
from harness.tasks import Sample  # noqa: E402
from tpch import TABLES, generate, plain, queries  # noqa: E402

import farrow  # noqa: E402
import farrow.datafusion  # noqa: E402
from farrow_sql._run import _query  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    Run = Callable[[str], list[tuple[Any, ...]]]

# Of the bytes of all tables, what each node has: the tables do not fit into one node, and beside
# them two nodes have room for exchanges of almost their size.
NODE_SHARE = 0.9
# Each table but the smallest lies on both nodes.
CHUNKS_MIN, CHUNK_ROWS_MIN, CHUNK_ROWS_MAX = 8, 10_000, 500_000
ROUNDS = 3
QUICK_SCALE = 0.05
START_SECONDS_MAX = 60.0
QUERY_SECONDS_MAX = 600.0
DUCKDB, CLUSTER, DATAFUSION = "DuckDB", "farrow.sql", "DataFusion"
SPARK, CACHED = "Spark", "Spark, cached"


def main() -> int:
    """Run, print, save."""
    options = _options()
    scale = QUICK_SCALE if options.quick else options.scale
    notes = [f"scale factor {scale:g}", f"{len(os.sched_getaffinity(0))} cores for each"]
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm"))
        )
        paths = generate(folder / "data", scale)
        tables = {name: plain(pq.read_table(path)) for name, path in paths.items()}
        size = sum(table.nbytes for table in tables.values())
        memory = int(NODE_SHARE * size)
        flags = ["--net=only", "--no-prepare"] if options.net else []
        sockets = stack.enter_context(running_pair(folder, memory, *flags))
        clients = [farrow.connect(socket) for socket in sockets]
        for name in list(tables):
            fill(clients[0], name, tables.pop(name))
        notes.append(
            f"{size / 1e6:.0f} MB of tables on two nodes of {memory / 1e6:.0f} MB,"
            f" {'by network' if options.net else 'mapped by both'}, a worker of one core on each"
        )
        stack.enter_context(workers(clients[0], sockets))
        moved: dict[int, _query.Moved] = {}
        runs: dict[str, Run] = {
            DUCKDB: own_tables(paths),
            CLUSTER: lambda text: on_cluster(clients[0], text, moved),
        }
        if options.net:
            notes.append("without DataFusion in one process: its node has no room for all tables")
        else:
            runs[DATAFUSION] = in_one_process(clients[0])
        if options.no_spark or find_spec("pyspark") is None or shutil.which("java") is None:
            notes.append("without Spark: make bench-sql installs pyspark and a JVM")
        else:
            # In processes of their own: Spark's cache is found by what is read, not by its name.
            for name, is_cached in ((SPARK, False), (CACHED, True)):
                runs[name] = stack.enter_context(spark(paths, is_cached))
        samples = measure(runs, 1 if options.quick else ROUNDS, size)
        samples += [
            Sample(f"query {number}", "farrow", f"{CLUSTER}, {what}", "bytes", [float(count)], size)
            for number, one in moved.items()
            for what, count in _counted(one)
        ]
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "sql", table_of(samples, list(runs)), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor (1: about 1 GB)")
    parser.add_argument("--net", action="store_true", help="nodes that map nothing of each other")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")
    parser.add_argument("--quick", action="store_true", help="scale 0.05, once; not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    return parser.parse_args()


# The cluster


@contextlib.contextmanager
def workers(client: farrow.Client, sockets: list[str]) -> Iterator[None]:
    """A worker on each node."""
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--socket"]
    processes = [subprocess.Popen([*command, one], stdin=subprocess.DEVNULL) for one in sockets]
    try:
        wait_until(
            lambda: client.list("farrow.sql/workers/", all_nodes=True).num_rows == len(sockets),
            "all workers",
        )
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(START_SECONDS_MAX)


def fill(client: farrow.Client, name: str, rows: Any) -> None:
    """A table in chunks that lie on the nodes in turn."""
    table = client.huge_table(name, rows.schema)
    step = max(CHUNK_ROWS_MIN, min(CHUNK_ROWS_MAX, -(-rows.num_rows // CHUNKS_MIN)))
    for number, start in enumerate(range(0, rows.num_rows, step)):
        chunk = rows.slice(start, step).combine_chunks()
        table.append(chunk, node=NODES[number % len(NODES)])


# What runs a query


def own_tables(paths: dict[str, Path]) -> Run:
    """DuckDB, with all rows in its own format in the memory of this process."""
    connection = duckdb.connect()
    for name, path in paths.items():
        connection.execute(f"create table {name} as from '{path}'")
    return lambda text: connection.execute(text).fetchall()


def on_cluster(
    client: farrow.Client, text: str, moved: dict[int, _query.Moved]
) -> list[tuple[Any, ...]]:
    """farrow.sql; notes what moved between the nodes."""
    rows, prepared = _query.Query(text, client, QUERY_SECONDS_MAX).run()
    if prepared.plan is None or prepared.moved is None:
        raise AssertionError(f"not divided: {prepared.reason}")
    numbers = {sql: number for number, sql in queries().items()}
    moved[numbers[text]] = prepared.moved
    return _tuples(rows)


def _counted(moved: _query.Moved) -> list[tuple[str, int]]:
    return [
        ("exchanges", moved.exchange_bytes),
        ("tables", moved.table_bytes),
        ("result", moved.result_bytes),
    ]


def in_one_process(client: farrow.Client) -> Run:
    """DataFusion in this process, over the tables of Farrow."""
    context = datafusion.SessionContext()
    farrow.datafusion.attach(context, client, TABLES)
    return lambda text: _tuples(context.sql(text).to_arrow_table())


def _tuples(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@contextlib.contextmanager
def spark(paths: dict[str, Path], is_cached: bool) -> Iterator[Run]:
    """Spark in a process of its own, over Parquet in the page cache or over tables in its own."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    texts = {name: str(path) for name, path in paths.items()}
    process = context.Process(target=_serve_spark, args=(far, texts, is_cached))
    process.start()
    far.close()

    def run(text: str) -> list[tuple[Any, ...]]:
        near.send(text)
        if not near.poll(QUERY_SECONDS_MAX):
            raise TimeoutError(f"Spark: not within {QUERY_SECONDS_MAX:g} s: {text}")
        found = near.recv()
        if isinstance(found, str):
            raise AssertionError(f"Spark: {found}")
        return list(found)

    try:
        yield run
    finally:
        near.close()
        process.join(START_SECONDS_MAX)
        if process.is_alive():
            process.kill()


def _serve_spark(connection: Connection, paths: dict[str, str], is_cached: bool) -> None:
    """Answer queries until the other end is closed."""
    from pyspark.sql import SparkSession

    cores = len(os.sched_getaffinity(0))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Tables that are cached lie in the same heap.
        "spark.driver.memory": "6g" if is_cached else "4g",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("farrow-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for name, path in paths.items():
        session.read.parquet(path).createOrReplaceTempView(name)
        if is_cached:
            session.catalog.cacheTable(name)
            session.table(name).count()
    with contextlib.suppress(EOFError):
        while True:
            text = connection.recv()
            try:
                answer: Any = [tuple(row) for row in session.sql(text.rstrip(";")).collect()]
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            connection.send(answer)
    session.stop()


# Measuring


def measure(runs: dict[str, Run], rounds: int, size: int) -> list[Sample]:
    """Each query by each engine, in turn."""
    samples = []
    for number, text in queries().items():
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            answers = {}
            for name, run in runs.items():
                began = time.perf_counter()
                answers[name] = run(text)
                if turn:
                    seconds[name].append(time.perf_counter() - began)
            for name, rows in answers.items():
                if not same(rows, answers[DUCKDB]):
                    raise AssertionError(f"query {number} by {name} returns other rows")
        for name, taken in seconds.items():
            samples.append(Sample(f"query {number}", "farrow", name, "s", taken, size))
        print(f"query {number}: {_shown(seconds)}", file=sys.stderr, flush=True)
    return samples


def _shown(seconds: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(one):.3f} s" for name, one in seconds.items())


def same(rows: list[Any], others: list[Any]) -> bool:
    """Whether two answers are equal; averages of decimals have six digits in some engines."""
    if len(rows) != len(others):
        return False
    both = zip(rows, others, strict=True)
    return all(_equal(*pair) for row, other in both for pair in zip(row, other, strict=True))


def _equal(one: Any, other: Any) -> bool:
    numbers = (float, decimal.Decimal)
    if not isinstance(one, numbers) and not isinstance(other, numbers):
        return bool(one == other)
    if one is None or other is None:
        return one is other
    return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=1.0001e-6)


def table_of(samples: list[Sample], names: list[str]) -> str:
    """Medians and their ratios to DuckDB's, and what farrow.sql moved."""
    found = {(one.case, one.variant): statistics.median(one.samples) for one in samples}
    others = [name for name in names if name != DUCKDB]
    titles = ["query", DUCKDB, *(word for name in others for word in (name, "ratio")), "moved"]
    lines = [f"| {' | '.join(titles)} |", f"| --- {'| ---: ' * (len(titles) - 1)}|"]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for case in dict.fromkeys(one.case for one in samples):
        own = found[case, DUCKDB]
        cells = [case, f"{own * 1e3:.0f} ms"]
        for name in others:
            ratios[name].append(found[case, name] / own)
            cells += [f"{found[case, name] * 1e3:.0f} ms", f"{ratios[name][-1]:.2f}"]
        parts = [found[case, f"{CLUSTER}, {what}"] for what in ("exchanges", "tables", "result")]
        cells.append(f"{sum(parts) / 1e6:.2f} MB")
        lines.append(f"| {' | '.join(cells)} |")
    cells = ["geometric mean", ""]
    for name in others:
        cells += ["", f"{statistics.geometric_mean(ratios[name]):.2f}"]
    lines.append(f"| {' | '.join([*cells, ''])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
