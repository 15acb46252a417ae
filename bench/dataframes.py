"""Group-bys of Dask and Ray Data over two nodes: ``python bench/dataframes.py [--quick]``.

Half of the rows lie on each of two nodes of a cluster that map each other.  The same rows are in
Parquet files in the page cache.  Each engine adds up one column by the values of another, over
Farrow and over Parquet in turn, with two workers of one core; ``farrow.ray.aggregate`` does the
same by a task for each node.  All sums are compared.  Engines that are not installed are left out.
Writes the raw samples and a table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import NODES, running_pair  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    # A way to compute the sums.
    Way = Callable[[], np.ndarray]

CHUNK_ROWS, KEYS = 1_000_000, 1000
# Before each way: Ray ends workers and gives blocks back for a while after a shuffle, and the way
# that comes next is not to pay for it.
PAUSE_SECONDS = 5.0
FARROW, PARQUET, AGGREGATE = "Farrow", "Parquet", "farrow.ray.aggregate"
# The first call after a shuffle waits for Ray, which starts workers; the next one does not.
AGAIN = "farrow.ray.aggregate, again"
DASK, RAY = "Dask", "Ray Data"
SCHEMA = pa.schema({"ts": pa.int64(), "k": pa.int32(), "price": pa.float64()})


def chunk(number: int) -> pa.Table:
    """A million rows. Sums of these prices are exact."""
    rows = np.arange(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS)
    keys = (rows % KEYS).astype(np.int32)
    return pa.table([rows, keys, (rows % 4096) / 4], schema=SCHEMA)


def fill(client: farrow.Client, files: Path, chunks: int) -> np.ndarray:
    """Store all rows in both forms; the sums by key."""
    table = client.huge_table("rows", SCHEMA)
    sums = np.zeros(KEYS)
    files.mkdir()
    for number in range(chunks):
        rows = chunk(number)
        table.append(rows, node=NODES[number % len(NODES)])
        pq.write_table(rows, files / f"{number:04}.parquet")
        sums += np.bincount(rows["k"], weights=rows["price"], minlength=KEYS)
    return sums


def in_order(keys: Any, sums: Any) -> np.ndarray:
    """The sums, by key."""
    values = np.zeros(KEYS)
    values[np.asarray(keys)] = np.asarray(sums)
    return values


class Run:
    """The seconds of all rounds, by engine and source."""

    def __init__(self, wanted: np.ndarray, rounds: int) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}
        self._wanted, self._rounds = wanted, rounds

    def measure(self, engine: str, ways: dict[str, Way]) -> None:
        """All ways of an engine in turn; the first round does not count."""
        for number in range(self._rounds + 1):
            for source, way in ways.items():
                gc.collect()
                if source != AGAIN:
                    time.sleep(PAUSE_SECONDS)
                began = time.perf_counter()
                sums = way()
                seconds = time.perf_counter() - began
                if not np.array_equal(sums, self._wanted):
                    raise AssertionError(f"{engine} over {source}: other sums")
                if number > 0:
                    self.seconds.setdefault((engine, source), []).append(seconds)


def measure_dask(run: Run, address: str, files: Path) -> None:
    """Two worker processes of one thread."""
    import dask.dataframe as dd
    import distributed

    import farrow.dask

    def grouped(frame: Any) -> np.ndarray:
        sums = frame.groupby("k")["price"].sum().compute()
        return in_order(sums.index, sums)

    columns = ["k", "price"]
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(farrow.dask.SharingPlugin(lease=5.0))
        run.measure(
            DASK,
            {
                FARROW: lambda: grouped(
                    farrow.dask.read_farrow("rows", columns=columns, address=address)
                ),
                PARQUET: lambda: grouped(dd.read_parquet(str(files), columns=columns)),
            },
        )
    farrow.sharing.uninstall()


def measure_ray(run: Run, address: str, files: Path, bytes_all: int) -> None:
    """Two cores."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    paths = os.pathsep.join([str(HERE), *sys.path])
    ray.init(
        num_cpus=2,
        object_store_memory=bytes_all + (256 << 20),
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    import farrow.ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False

    def grouped(data: Any) -> np.ndarray:
        sums = data.groupby("k").sum("price").to_pandas()
        return in_order(sums["k"], sums["sum(price)"])

    def aggregated() -> np.ndarray:
        sums = farrow.ray.aggregate("rows", ["k"], [("price", "sum")], address=address)
        return in_order(sums["k"], sums["price_sum"])

    columns = ["k", "price"]
    try:
        run.measure(
            RAY,
            {
                FARROW: lambda: grouped(
                    farrow.ray.read_farrow("rows", columns=columns, address=address)
                ),
                PARQUET: lambda: grouped(ray.data.read_parquet(str(files), columns=columns)),
                AGGREGATE: aggregated,
                AGAIN: aggregated,
            },
        )
    finally:
        ray.shutdown()


def measure(chunks: int, rounds: int) -> tuple[Run, int, list[str]]:
    """All engines; also the bytes of the table."""
    size = chunk(0).nbytes * chunks
    notes = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farrow-bench-")))
        memory = size // len(NODES) + (256 << 20)
        sockets = stack.enter_context(running_pair(folder, memory))
        run = Run(fill(farrow.connect(sockets[0]), folder / "files", chunks), rounds)
        for package, work in (
            ("distributed", lambda: measure_dask(run, sockets[0], folder / "files")),
            ("ray", lambda: measure_ray(run, sockets[0], folder / "files", size)),
        ):
            if importlib.util.find_spec(package) is None:
                notes.append(f"{package} is not installed.")
            else:
                work()
    return run, size, notes


def report(run: Run, size: int) -> str:
    """Markdown: medians with the spread, and ratios."""
    lines = [
        f"Sums of {size // chunk(0).nbytes} million rows by {KEYS} keys; medians of seconds, with"
        " the least and the greatest.",
        "",
        "| engine | source | seconds | time over Parquet's |",
        "| --- | --- | --- | --- |",
    ]
    for (engine, source), seconds in run.seconds.items():
        middle = statistics.median(seconds)
        ratio = middle / statistics.median(run.seconds[engine, PARQUET])
        spread = f"{middle:.3g} ({min(seconds):.3g} to {max(seconds):.3g})"
        lines.append(f"| {engine} | {source} | {spread} | {ratio:.2g} |")
    return "\n".join(lines)


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="four million rows, one round")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    run, size, notes = measure(*((4, 1) if options.quick else (100, 3)))
    samples = [
        Sample(f"group-by, {engine}", source, "", "s", seconds, size)
        for (engine, source), seconds in run.seconds.items()
    ]
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "dataframes", report(run, size), Path(options.output))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
