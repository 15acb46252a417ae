"""Measure queries over a huge table: ``python bench/engines.py [--quick]``.

DuckDB, polars and DataFusion run a group-by of all rows and a range of 0.3 % of the rows over
Farrow, over memory of their own (DuckDB's table, a frame of polars, batches of DataFusion), and
over Parquet in the page cache. Then appends with and without statistics.
Writes the raw samples and a table of ratios to bench/results/.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import datafusion  # noqa: E402
import duckdb  # noqa: E402
import numpy as np  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import running_node  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402
import farrow.datafusion  # noqa: E402
import farrow.polars  # noqa: E402

CHUNKS = 32
ROWS = 1_000_000
QUICK_ROWS = 100_000
ROUNDS = 9
SCHEMA = pa.schema({"ts": pa.int64(), "k": pa.int32(), "price": pa.float64()})
GROUP = "select k, sum(price) from {} group by k"
RANGE = "select sum(price) from {} where ts between {} and {}"

# Of DuckDB's own table: without the hash table that it has for keys of known bounds.
SAME_PLAN = "DuckDB over its own table, with the plan of the rest"

# Medians of one run: case, variant, and the variant that its ratio refers to.
RATIOS = (
    ("group-by", "DuckDB over Farrow", "DuckDB over its own table"),
    ("group-by", "DuckDB over Farrow", SAME_PLAN),
    ("group-by", "DuckDB over Parquet", "DuckDB over its own table"),
    ("group-by", "polars over Farrow", "polars over its own memory"),
    ("group-by", "polars over Farrow", "polars over Parquet"),
    ("group-by", "DataFusion over Farrow", "DataFusion over its own memory"),
    ("group-by", "DataFusion over Farrow", "DataFusion over Parquet"),
    ("range", "DuckDB over Farrow", "DuckDB over its own table"),
    ("range", "DuckDB over Farrow", "DuckDB over a plain table"),
    ("range", "DuckDB over a plain table", "DuckDB over its own table"),
    ("range", "DuckDB over Parquet", "DuckDB over its own table"),
    ("range", "polars over Farrow", "polars over its own memory"),
    ("range", "polars over Farrow", "polars over Parquet"),
    ("range", "DataFusion over Farrow", "DataFusion over its own memory"),
    ("range", "DataFusion over Farrow", "DataFusion over Parquet"),
    ("append", "with statistics", "without statistics"),
    ("append", "with statistics, in place", "without statistics"),
)


class Run:
    """The samples of one run; each is a call, in rounds over all calls of a case."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def measure(self, case: str, calls: dict[str, Callable[[], Any]], size: int) -> None:
        """Measure the calls in turn, so that a noisy moment hits all of them."""
        seconds: dict[str, list[float]] = {variant: [] for variant in calls}
        results: dict[str, Any] = {}
        for turn in range(ROUNDS + 1):
            for variant, call in calls.items():
                began = time.perf_counter()
                results[variant] = call()
                if turn:
                    seconds[variant].append(time.perf_counter() - began)
        first, *others = results.values()
        # Engines add in different orders.
        if not all(np.shape(one) == np.shape(first) and np.allclose(one, first) for one in others):
            raise AssertionError(f"{case}: the results differ: {results}")
        for variant, taken in seconds.items():
            self.samples.append(Sample(case, "farrow", variant, "s", taken, size))

    def median(self, case: str, variant: str) -> float:
        for sample in self.samples:
            if (sample.case, sample.variant) == (case, variant):
                return statistics.median(sample.samples)
        raise KeyError((case, variant))


def main() -> int:
    """Run, print, save."""
    options = _options()
    rows = QUICK_ROWS if options.quick else ROWS
    run = Run()
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm") as folder:
        memory = CHUNKS * rows * 20 * 3 + (64 << 20)
        flags = ("--memory-dir", "/dev/shm", "--evict", "none")
        with running_node(Path(folder), memory, *flags) as socket:
            _run(run, farrow.connect(socket), rows, Path(folder))
    document = document_of(HERE.parent, run.samples, [], options.quick)
    leave(document, "engines", _table(run), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer rows, not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    return parser.parse_args()


def _run(run: Run, client: farrow.Client, rows: int, folder: Path) -> None:
    table = client.huge_table("trades", SCHEMA)
    for number in range(CHUNKS):
        table.append(_chunk(number, rows))
    plain, trades = table.table(), table.dataset()
    path = str(folder / "trades.parquet")
    pq.write_table(plain, path, row_group_size=rows, compression="zstd")
    connection = duckdb.connect()
    connection.register("farrow", trades)
    connection.register("plain", plain)
    connection.execute("create table own as select * from plain")
    session = datafusion.SessionContext()
    farrow.datafusion.attach(session, client, ["trades"])
    session.register_parquet("parquet", path)
    # Copies in private memory, for DataFusion in a part for each core.
    private = pq.read_table(path)
    session.register_record_batches("memory", _parts(private.to_batches()))
    frames = {
        "polars over Farrow": farrow.polars.scan(trades),
        "polars over its own memory": pl.DataFrame(private).rechunk().lazy(),
        "polars over Parquet": pl.scan_parquet(path),
    }
    _queries(run, Sources(connection, session, frames, path), rows)
    _appends(run, client, rows)


def _parts(batches: list[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    cores = len(os.sched_getaffinity(0))
    return [part for first in range(cores) if (part := batches[first::cores])]


def _chunk(number: int, rows: int) -> pa.RecordBatch:
    rng = np.random.default_rng(number)
    first = number * rows
    columns = [
        pa.array(np.arange(first, first + rows)),
        pa.array(rng.integers(0, 1000, rows, dtype=np.int32)),
        pa.array(rng.random(rows)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclasses.dataclass
class Sources:
    """What the engines read: a connection of DuckDB, a session of DataFusion, frames of polars, and
    a file of Parquet."""

    connection: Any
    session: Any
    frames: dict[str, pl.LazyFrame]
    path: str


def _queries(run: Run, all_of: Sources, rows: int) -> None:
    low = 20 * rows
    high = low + CHUNKS * rows * 3 // 1000
    sources = {
        "DuckDB over its own table": "own",
        "DuckDB over Farrow": "farrow",
        "DuckDB over a plain table": "plain",
        "DuckDB over Parquet": f"'{all_of.path}'",
    }

    def ask(query: str) -> list[Any]:
        return sorted(all_of.connection.execute(query).fetchall())

    # DuckDB takes a faster hash table where it knows the least and the greatest value of a key, and
    # of Arrow's data it never does: its own table is read in both ways.
    plain_plan = all_of.connection.cursor()
    plain_plan.execute("set perfect_ht_threshold = 0")

    def collected(query: str) -> list[Any]:
        columns = all_of.session.sql(query).to_arrow_table().columns
        return sorted(zip(*(column.to_pylist() for column in columns), strict=True))

    def grouped(frame: pl.LazyFrame) -> list[Any]:
        return sorted(frame.group_by("k").agg(pl.col("price").sum()).collect().rows())

    def ranged(frame: pl.LazyFrame) -> list[Any]:
        chosen = frame.filter(pl.col("ts").is_between(low, high))
        return list(chosen.select(pl.col("price").sum()).collect().rows())

    groups: dict[str, Callable[[], Any]] = {}
    ranges: dict[str, Callable[[], Any]] = {}
    for variant, source in sources.items():
        groups[variant] = lambda source=source: ask(GROUP.format(source))
        ranges[variant] = lambda source=source: ask(RANGE.format(source, low, high))
    groups[SAME_PLAN] = lambda: sorted(plain_plan.execute(GROUP.format("own")).fetchall())
    tables = {"Farrow": "trades", "its own memory": "memory", "Parquet": "parquet"}
    for variant, name in tables.items():
        title = f"DataFusion over {variant}"
        groups[title] = lambda name=name: collected(GROUP.format(name))
        ranges[title] = lambda name=name: collected(RANGE.format(name, low, high))
    for variant, frame in all_of.frames.items():
        groups[variant] = lambda frame=frame: grouped(frame)
        ranges[variant] = lambda frame=frame: ranged(frame)
    size = CHUNKS * rows * 20
    run.measure("group-by", groups, size)
    run.measure("range", ranges, size)


def _appends(run: Run, client: farrow.Client, rows: int) -> None:
    """One chunk of 160 MB, or a tenth of it; dropped after each append, outside of the time."""
    columns = [pa.array(np.random.default_rng(0).random(rows * 5)) for _ in range(4)]
    names = [f"c{number}" for number in range(4)]
    copied = pa.table(columns, names=names)
    size = copied.nbytes

    def append(is_counted: bool, is_in_place: bool) -> float:
        data = copied
        if is_in_place:
            pool = client.memory_pool()
            data = pa.table(
                [pc.add(column, 0.0, memory_pool=pool) for column in copied.columns],
                names=names,
            )
        table = client.huge_table("appended", data.schema)
        began = time.perf_counter()
        table.append(data, statistics=is_counted)
        taken = time.perf_counter() - began
        table.drop()
        return taken

    variants = {
        "without statistics": (False, False),
        "with statistics": (True, False),
        "with statistics, in place": (True, True),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(ROUNDS + 1):
        for variant, (is_counted, is_in_place) in variants.items():
            taken = append(is_counted, is_in_place)
            if turn:
                seconds[variant].append(taken)
    for variant, times in seconds.items():
        run.samples.append(Sample("append", "farrow", variant, "s", times, size))


def _table(run: Run) -> str:
    lines = [
        "| case | variant | median | ratio | to |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for case, variant, base in RATIOS:
        own, other = run.median(case, variant), run.median(case, base)
        lines.append(f"| {case} | {variant} | {own * 1e3:.2f} ms | {own / other:.2f} | {base} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
