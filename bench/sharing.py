"""Compare references with the engines' own path: ``python bench/sharing.py [--quick]``.

A table in a node's memory is sent to another process and back in part: ``multiprocessing`` (a
pipe, and a pool of one worker) and, where they are installed, Dask (a task whose input is on the
other worker) and Ray (an argument of an actor, and one that was put into its store before).  The
receiver adds up one column, so that the data is read; the sum of a table that the worker already
has is measured too, and is the least that any path can take.  Ray maps the memory of its own
store, so its time is measured without the sum, too.  Each round measures an engine by reference
and by the engine's own serialization, in turn, so the ratios are of one run.  Of the process at
the other end of the pipe, also the private memory that it has grown by while it holds the table.
Writes the raw samples and a table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import START_SECONDS_MAX, running_node  # noqa: E402
from harness.process import memory_of  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402
import farrow.sharing  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

PATHS = ("reference", "own path")
CASES = (
    ("pipe", "`multiprocessing.Pipe`: the table there, a sum back"),
    ("half", "`multiprocessing.Pool`: half of a table that the worker has, and its sum"),
    ("dask", "Dask: a table from worker to worker, and its sum"),
    ("ray rows", "Ray: a table as the argument of an actor, which counts its rows"),
    ("ray", "Ray: a table as the argument of an actor, and its sum"),
    ("ray put", "Ray: the same, put into its object store once beforehand"),
    ("sum", "the sum alone, in this process"),
)
# A case with one way of its own, and the case whose reference it stands beside.
BESIDE = {"ray put": "ray"}


def table_of(rows: int) -> pa.Table:
    """int64, int32 and float64 in chunks of a million rows."""
    whole = pa.table(
        {
            "ts": np.arange(rows),
            "k": (np.arange(rows) % 1000).astype(np.int32),
            "price": np.arange(rows) / 4,
        }
    )
    return pa.Table.from_batches(whole.to_batches(max_chunksize=1_000_000))


def total(table: pa.Table) -> float:
    """Reads one column."""
    return float(pc.sum(table["price"]).as_py())


def answer(connection: Any) -> None:
    """The process at the other end of the pipe."""
    while (value := connection.recv()) is not None:
        connection.send(total(value))
        # It is held until the sender has looked at this process.
        connection.recv()
        del value


def use(path: str) -> None:
    """Send references, or what the engine makes of a table."""
    if path == "reference":
        farrow.sharing.install(lease=5.0)
    else:
        farrow.sharing.uninstall()


class Run:
    """The seconds of all rounds, by case and path."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}
        # Of the receiver, by path: bytes that it has grown by.
        self.private: dict[str, list[float]] = {path: [] for path in PATHS}

    def measure(self, case: str, path: str, work: Callable[[], Any]) -> Any:
        gc.collect()
        began = time.perf_counter()
        value = work()
        self.seconds.setdefault((case, path), []).append(time.perf_counter() - began)
        return value

    def samples(self, size: dict[str, int]) -> list[Sample]:
        times = [
            Sample(case, path, "", "s", seconds, size[case])
            for (case, path), seconds in self.seconds.items()
        ]
        memory = [
            Sample("private memory of the receiver", path, "", "bytes", grown, size["pipe"])
            for path, grown in self.private.items()
        ]
        return times + memory


def measure_pipe(run: Run, table: pa.Table, rounds: int) -> None:
    """A process for each path for all rounds, warmed up by one message."""
    context = multiprocessing.get_context("spawn")
    ends, processes, before = {}, {}, {}
    wanted = total(table)

    def send(path: str) -> float:
        ends[path].send(table)
        return float(ends[path].recv())

    for path in PATHS:
        use(path)
        ends[path], there = context.Pipe()
        processes[path] = context.Process(target=answer, args=(there,), daemon=True)
        processes[path].start()
        # So that its end ends a wait for its answer.
        there.close()
        assert send(path) == wanted
        ends[path].send("release")
        before[path] = memory_of(processes[path].pid or 0).own
    for _ in range(rounds):
        for path in PATHS:
            use(path)
            assert run.measure("pipe", path, lambda path=path: send(path)) == wanted
            own = memory_of(processes[path].pid or 0).own
            run.private[path].append(float(own - before[path]))
            ends[path].send("release")
    for path in PATHS:
        ends[path].send(None)
        processes[path].join(START_SECONDS_MAX)


# Of a worker of a pool: its table.
_TABLES: list[pa.Table] = []


def begin(path: str, address: str) -> None:
    """A worker of a pool has the table before the clock starts, and sends by one path."""
    use(path)
    _TABLES.append(table_in(address))


def half() -> pa.Table:
    """For a worker of a pool: a result of half the size."""
    (table,) = _TABLES
    return table.slice(0, table.num_rows // 2)


def measure_pool(run: Run, address: str, table: pa.Table, rounds: int) -> None:
    """A worker for each path for all rounds; the sum reads what it returned."""
    context = multiprocessing.get_context("spawn")
    wanted = total(table.slice(0, table.num_rows // 2))
    with contextlib.ExitStack() as stack:
        pools = {path: stack.enter_context(context.Pool(1, begin, (path, address)))
                 for path in PATHS}  # fmt: skip
        for number in range(rounds + 1):
            for path, pool in pools.items():
                work = lambda pool=pool: total(pool.apply(half))  # noqa: E731
                found = work() if number == 0 else run.measure("half", path, work)
                assert found == wanted


def table_in(address: str) -> pa.Table:
    """For a worker of Dask: the table in place."""
    return farrow.connect(address).get("table")


def measure_dask(run: Run, address: str, wanted: float, rounds: int) -> None:
    """A cluster for each path for all rounds, and a new input each round: Dask keeps what it has
    received."""
    import distributed

    import farrow.dask

    def began() -> Any:
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
            )
        )
        return stack.enter_context(distributed.Client(cluster, set_as_default=False))

    with contextlib.ExitStack() as stack:
        clients = {path: began() for path in PATHS}
        clients["reference"].register_plugin(farrow.dask.SharingPlugin(lease=5.0))
        workers = {path: list(client.scheduler_info()["workers"])
                   for path, client in clients.items()}  # fmt: skip
        for number in range(rounds + 1):
            for path, client in clients.items():
                first, second = workers[path]
                source = client.submit(table_in, address, workers=[first], pure=False)
                with client.as_current():
                    distributed.wait(source)

                def move(client: Any = client, source: Any = source, second: str = second) -> float:
                    task = client.submit(total, source, workers=[second], pure=False)
                    return float(task.result())

                found = move() if number == 0 else run.measure("dask", path, move)
                assert found == wanted
                del source
    farrow.sharing.uninstall()


def measure_ray(run: Run, table: pa.Table, rounds: int) -> None:
    """An actor of its own for each way, on the same two cores.  Ray's own path puts the table at
    each call, or once, before the clock starts."""
    import ray

    class Receiver:
        def total(self, value: pa.Table) -> float:
            return total(value)

        def rows(self, value: pa.Table) -> int:
            return value.num_rows

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    paths = os.pathsep.join([str(HERE), *sys.path])
    ray.init(
        num_cpus=2,
        object_store_memory=max(3 * table.nbytes, 128 << 20),
        include_dashboard=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    try:
        use("own path")
        ways = {(case, path): table for case in ("ray rows", "ray") for path in PATHS}
        ways["ray put", "own path"] = ray.put(table)
        actors = {way: ray.remote(Receiver).remote() for way in ways}
        wanted = total(table)
        for number in range(rounds + 1):
            for way, argument in ways.items():
                case, path = way
                use(path)
                is_counted = case == "ray rows"
                method = actors[way].rows if is_counted else actors[way].total

                def send(method: Any = method, argument: Any = argument) -> float:
                    return float(ray.get(method.remote(argument)))

                found = send() if number == 0 else run.measure(case, path, send)
                assert found == (table.num_rows if is_counted else wanted)
    finally:
        farrow.sharing.uninstall()
        ray.shutdown()


def measure(rows: int, rounds: int) -> tuple[Run, dict[str, int], list[str]]:
    """All cases."""
    run = Run()
    source = table_of(rows)
    memory = source.nbytes * 2 + (256 << 20)
    with (
        tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder,
        running_node(Path(folder), memory) as address,
    ):
        client = farrow.connect(address)
        client.put(source, "table")
        table = client.get("table")
        size = {case: table.nbytes for case, _ in CASES}
        size["half"] //= 2
        size["sum"] = 8 * rows
        for _ in range(rounds):
            run.measure("sum", "here", lambda: total(table))
        measure_pipe(run, table, rounds)
        measure_pool(run, address, table, rounds)
        notes = []
        if importlib.util.find_spec("distributed") is None:
            notes.append("Dask is not installed.")
        else:
            measure_dask(run, address, total(table), rounds)
        if importlib.util.find_spec("ray") is None:
            notes.append("Ray is not installed.")
        else:
            measure_ray(run, table, rounds)
        use("reference")
        notes.append(f"The reference has {len(ForkingPickler.dumps(table))} B.")
        farrow.sharing.uninstall()
    return run, size, notes


def report(run: Run, size: dict[str, int], notes: list[str]) -> str:
    """Markdown: medians, and the spread."""
    lines = [
        f"A table of {size['pipe'] / 2**30:.3g} GiB; medians of seconds, with the least and the"
        " greatest.",
        "",
        "| case | reference, ms | own path, ms | times faster |",
        "| --- | --- | --- | --- |",
    ]
    for case, title in CASES:
        # What is put once has the same way by reference.
        found = [
            run.seconds.get((case, path)) or run.seconds.get((BESIDE.get(case, ""), path))
            for path in PATHS
        ]
        if case == "sum":
            lines.append(f"| {title} | {_milliseconds(run.seconds[case, 'here'])} | | |")
        elif found[0] and found[1]:
            ratio = statistics.median(found[1]) / statistics.median(found[0])
            cells = [_milliseconds(seconds) for seconds in found if seconds]
            lines.append(f"| {title} | " + " | ".join(cells) + f" | {ratio:.3g} |")
    grown = ", ".join(
        f"{statistics.median(run.private[path]) / 1e6:.3g} MB by {path}" for path in PATHS
    )
    lines += ["", f"Private memory of the process at the pipe grows by {grown}."]
    return "\n".join([*lines, "", *notes])


def _milliseconds(seconds: list[float]) -> str:
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{middle * 1e3:.3g} ({least * 1e3:.3g} to {most * 1e3:.3g})"


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a small table, few rounds")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    rows, rounds = (1_000_000, 3) if options.quick else (48_000_000, 7)
    run, size, notes = measure(rows, rounds)
    document = document_of(HERE.parent, run.samples(size), notes, options.quick)
    leave(document, "sharing", report(run, size, notes), Path(options.output))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
