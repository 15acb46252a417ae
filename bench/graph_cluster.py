"""Measure a graph in cluster memory: ``python bench/graph_cluster.py [--quick]``.

The same stream runs through six graphs: one with a list for each account, in one process; one
with days as segments in private memory; one with days in its own node's memory; one with days in
another node's; one with a second process as a worker that shares each batch; and one with a worker
that computes every second batch.  They alternate after some batches.  The
ratios are the result: of each to the first, and of shared memory to private memory.  Prints rates,
bytes an edge and the longest call, and writes the raw samples and the table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
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
from cluster import running  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import Lines  # noqa: E402
from harness.tasks import Sample  # noqa: E402

from farrow._native import GraphEngine  # noqa: E402
from farrow.graph import GraphFeatures, data, generate  # noqa: E402
from farrow.graph._settings import FeaturePlan  # noqa: E402
from farrow.graph.cluster import ClusterGraph  # noqa: E402
from farrow.graph.cluster._objects import Batch, log  # noqa: E402
from farrow.graph.cluster._segments import build, opened  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

DAY = 86_400
BATCH = 2048
# Rows of a call that only adds rows.
CHUNK = 65_536
SETTLE_SECONDS = 120.0
# Edges a second that go into segments at the least.
SETTLED_MIN = 100_000
# Start and end of the measured rows, as shares of all rows.
FILLED, MEASURED = 0.85, 0.95
# Batches of one turn.
TURN = 10
# Batches that are only logged.
LOGGED = 400
PRIVATE = "private segments"
AHEAD = "two processes, batch by batch"
TASKS = {"scatter-gather": 72, "temp-cycle": 72, "fan": 168}


def rows_of(days: int, rows: int, copies: int) -> npt.NDArray[np.float64]:
    """A generated stream, enlarged by copies with separate accounts."""
    # A row a day for each account, as in HI-Small, for any length of the stream.
    accounts = max(16, rows // days)
    stream = data.from_table(generate.transactions(rows, days=days, accounts=accounts, seed=7))
    names = ("edge_id", "source", "target", "timestamp")
    # Do not copy unused columns.
    stream = dataclasses.replace(stream, table=stream.table.select(names))
    table = stream.table if copies == 1 else data.enlarge(stream, copies).table
    return np.column_stack([table[name].to_numpy().astype(np.float64) for name in names])


class PrivateSegments:
    """A transformer with segments in private memory, and without a log."""

    def __init__(self, features: GraphFeatures) -> None:
        plan = FeaturePlan(features.get_params(deep=False), ticks=1)
        self.engine = GraphEngine(**plan.parameters([]), segment=DAY)

    def partial_fit(self, rows: npt.NDArray[np.float64]) -> None:
        """Add rows, and build a segment of each finished day."""
        self.engine.learn(rows)
        while (frozen := self.engine.freeze()) is not None:
            self.engine.attach(opened(build(frozen.plan(), pa.default_memory_pool())))

    def transform(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Rows with their features."""
        return self.engine.transform(rows)

    def settle(self, seconds_max: float) -> None:
        """Remove all sealed edges from the newest part."""
        until = time.perf_counter() + seconds_max
        while self.engine.is_draining():
            self.partial_fit(np.empty((0, 4)))
            if time.perf_counter() > until:
                raise TimeoutError(f"sealed edges are still there after {seconds_max:g} s")

    def stats(self) -> dict[str, Any]:
        """Contents of the graph."""
        return self.engine.stats()


class Run:
    """One kind of graph, filled with all rows before the measured ones."""

    def __init__(
        self,
        name: str,
        pattern: str,
        hours: int,
        where: ClusterGraph | str | None,
        **settings: Any,
    ) -> None:
        self.name, self.pattern = name, pattern
        self.cluster = where if isinstance(where, ClusterGraph) else None
        features = GraphFeatures(
            patterns=(pattern,), window=hours * 3600, cluster=self.cluster, **settings
        )
        is_private = where == PRIVATE
        self.features = PrivateSegments(features) if is_private else features
        self.calls: list[float] = []
        self.sealing: list[float] = []

    def fill(self, rows: npt.NDArray[np.float64]) -> float:
        """Add rows; returns rows a second."""
        began = time.perf_counter()
        for start in range(0, len(rows), CHUNK):
            self.features.partial_fit(rows[start : start + CHUNK])
        rate = len(rows) / (time.perf_counter() - began)
        self.settle(SETTLE_SECONDS + len(rows) / SETTLED_MIN)
        return rate

    def settle(self, seconds_max: float = SETTLE_SECONDS) -> None:
        """Wait until all full days are in segments."""
        private = isinstance(self.features, PrivateSegments)
        one = self.features if private else self.features._stream.engine
        if hasattr(one, "settle"):
            one.settle(seconds_max)

    def measure(
        self, rows: npt.NDArray[np.float64], seconds: float = math.inf
    ) -> list[npt.NDArray[Any]]:
        """Features of rows, batch by batch."""
        if self.name == AHEAD:
            return self._measure_ahead(rows)
        found, until = [], time.perf_counter() + seconds
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            began = time.perf_counter()
            found.append(self.features.transform(batch)[:, 4:])
            self.calls.append(time.perf_counter() - began)
            if time.perf_counter() > until:
                break
        return found

    def _measure_ahead(self, rows: npt.NDArray[np.float64]) -> list[npt.NDArray[Any]]:
        """Features of batches that are taken ahead; each has an equal part of the time."""
        parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        began = time.perf_counter()
        found = [one[:, 4:] for one in self.features.transform_each(parts)]
        self.calls += [(time.perf_counter() - began) / len(parts)] * len(parts)
        return found

    def close(self) -> None:
        """Close the graph; one in the cluster releases its memory."""
        if self.cluster is None:
            return
        if self.features._stream is not None:
            self.features._stream.engine.clear()
        self.features.close()

    def stalls(self, rows: npt.NDArray[np.float64]) -> None:
        """Add rows of more than a day in batches, while segments are built and attached."""
        for start in range(0, len(rows), BATCH):
            began = time.perf_counter()
            self.features.partial_fit(rows[start : start + BATCH])
            self.sealing.append(time.perf_counter() - began)


def same(one: list[npt.NDArray[Any]], other: list[npt.NDArray[Any]]) -> bool:
    """Whether two graphs gave equal results in all common batches."""
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=False))


def ways(
    graph: str, own: str, other: str, segment: int = DAY
) -> dict[str, ClusterGraph | str | None]:
    """The kinds of graphs, by the location of their older part."""

    def at(name: str, placement: str, workers: int = 0) -> ClusterGraph:
        return ClusterGraph(name, own, segment=segment, placement=placement, workers=workers)

    return {
        "one process": None,
        PRIVATE: PRIVATE,
        "own node": at(f"{graph}-own", "local"),
        "other node": at(f"{graph}-other", other),
        "two processes": at(f"{graph}-shared", other, 1),
        AHEAD: at(f"{graph}-ahead", other, 1),
    }


def measured(
    rows: npt.NDArray[np.float64], pattern: str, hours: int, nodes: Any, seconds: float
) -> Iterator[tuple[Run, float, dict[str, Any]]]:
    """All kinds alternately, on the same rows; the features must be equal."""
    times = rows[:, 3]
    # Rings end long after the last day of ordinary payments.
    middle, last = int(len(rows) * FILLED), int(len(rows) * MEASURED)
    first = int(np.searchsorted(times, times[middle] - hours * 3600 - DAY))
    chosen = ways(pattern, nodes.sockets[0], nodes.names[1])
    with contextlib.ExitStack() as stack:
        filled = []
        for name, where in chosen.items():
            run = stack.enter_context(contextlib.closing(Run(name, pattern, hours, where)))
            filled.append((run, run.fill(rows[first:middle])))
        done, until = middle, time.perf_counter() + seconds * len(filled)
        while done < last and time.perf_counter() < until:
            part = rows[done : min(done + TURN * BATCH, last)]
            want: list[npt.NDArray[Any]] = []
            for run, _ in filled:
                found = run.measure(part)
                if not same(found, want):
                    raise SystemExit(f"{pattern}, {run.name}: other features than in one process")
                want = want or found
            done += len(part)
        for run, rate in filled:
            if pattern == "fan":
                run.stalls(rows[done : np.searchsorted(times, times[done] + 1.5 * DAY)])
            yield run, rate, run.features.stats()


def logged(rows: npt.NDArray[np.float64], nodes: Any) -> Iterator[Sample]:
    """The time to log a batch, in the own node's memory and in another's. In a call the graph adds
    the rows concurrently."""
    client = nodes.clients[0]
    ends = list(np.ascontiguousarray(rows[:, :4].T.astype(np.int64)))
    for name, home in (("own node", None), ("other node", nodes.names[1])):
        times = []
        for start in range(0, LOGGED * BATCH, BATCH):
            batch = Batch([one[start : start + BATCH] for one in ends], [])
            began = time.perf_counter()
            entry = log(client, "logged", start, batch, home, epoch=0)
            times.append(time.perf_counter() - began)
            client.delete(entry.name)
        yield Sample(f"log of {BATCH} rows", name, "", "s", times)


def readers(
    rows: npt.NDArray[np.float64], nodes: Any, folder: Path, quick: bool
) -> Iterator[tuple[Sample, float]]:
    """One reader and two of one graph (``harness/graph_reader.py``), alternately: seconds a batch,
    and private bytes of each."""
    middle = int(len(rows) * FILLED)
    first = int(np.searchsorted(rows[:, 3], rows[middle, 3] - 73 * 3600))
    cluster = ways("readers", nodes.sockets[0], nodes.names[1])["other node"]
    assert isinstance(cluster, ClusterGraph)
    path = folder / "batches.npy"
    np.save(path, rows[middle : middle + 40 * BATCH])
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(
            contextlib.closing(Run("writer", "scatter-gather", 72, cluster))
        )
        writer.fill(rows[first:middle])
        command = (sys.executable, str(HERE / "harness" / "graph_reader.py"), cluster.name)
        both = [
            stack.enter_context(contextlib.closing(Lines(*command, nodes.sockets[at], str(path))))
            for at in (0, 1)
        ]
        # Each reports when it has the graph.
        for one in both:
            one.answer()
        calls: dict[int, list[float]] = {1: [], 2: []}
        own = 0.0
        for turn in range(3 if quick else 8):
            for count in (1, 2):
                # Single turns alternate between the readers.
                asked = both if count == 2 else [both[turn % 2]]
                for one in asked:
                    one.send(1.5)
                for one in asked:
                    found = one.answer()
                    calls[count] += [seconds / count for seconds in found["calls"]]
                    own = max(own, found["own"])
        for count, times in calls.items():
            name = "one reader" if count == 1 else "two readers"
            yield Sample("readers, scatter-gather 72 h", name, "", "s", times), own


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="less time for each")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the stream")
    parser.add_argument("--days", type=int, default=10, help="days that it covers")
    parser.add_argument("--copies", type=int, default=1, help="the stream enlarged so many times")
    parser.add_argument("--memory", type=int, default=3 << 30, help="bytes of each node")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    rows = rows_of(options.days, options.rows, options.copies)
    notes = [f"{len(rows):,} rows of {options.days} days, batches of {BATCH}, causal, one thread"]
    samples = []
    lines = [
        f"| rows a second | window | {' | '.join(ways('', '', ''))} | other node / {PRIVATE} |",
        "| --- " * 9 + "|",
    ]
    with running(2, options.memory) as nodes:
        for pattern, hours in TASKS.items():
            rates: list[float] = []
            cells = []
            seconds = 4.0 if options.quick else 15.0
            for run, ingest, stats in measured(rows, pattern, hours, nodes, seconds):
                samples.append(Sample(f"{pattern} {hours} h", run.name, "", "s", run.calls))
                rates.append(BATCH / statistics.median(run.calls))
                cells.append(f"{rates[-1]:,.0f} ({rates[-1] / rates[0]:.2f})")
                print(f"{pattern} {hours} h, {run.name}: {cells[-1]}", file=sys.stderr)
                note = f"{pattern} {hours} h, {run.name}: rows added at {ingest:,.0f} a second"
                if stats["segments"]:
                    size = stats["sealed_bytes"] / stats["sealed"]
                    note += f", {stats['segments']} segments, {size:.1f} bytes an edge in them"
                if run.sealing:
                    samples.append(Sample("adding rows", run.name, "", "s", run.sealing))
                    worst = max(run.sealing) * 1e3
                    middle = statistics.median(run.sealing) * 1e3
                    note += f"; {BATCH} rows take {middle:.2f} ms, at most {worst:.1f} ms"
                notes.append(note)
            by_way = dict(zip(ways("", "", ""), rates, strict=True))
            shared = by_way["other node"] / by_way[PRIVATE]
            lines.append(f"| {pattern} | {hours} h | {' | '.join(cells)} | {shared:.2f} |")
        for sample in logged(rows, nodes):
            samples.append(sample)
            middle = statistics.median(sample.samples) * 1e3
            notes.append(f"{sample.case} alone, {sample.peer}: {middle:.2f} ms")
        with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
            found = list(readers(rows, nodes, Path(folder), options.quick))
        rates = [BATCH / statistics.median(one.samples) for one, _ in found]
        samples += [one for one, _ in found]
        notes.append(
            f"readers of one graph, scatter-gather 72 h, previews: one {rates[0]:,.0f} rows a"
            f" second, two {rates[1]:,.0f} ({rates[1] / rates[0]:.2f});"
            f" {found[0][1] / 1e6:,.0f} MB of its own each, Python and its libraries among them"
        )
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "graph-cluster", "\n".join(lines) + "\n", Path(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
