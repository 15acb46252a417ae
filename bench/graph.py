"""Measure graph features: ``python bench/graph.py [--quick] [--stream NAME]``.

A generated stream with the statistics of IBM's HI-Small runs through Farrow in batch mode, Farrow
in causal mode and snapml (as installed from the package registry) alternately, on the same batches,
one thread each.  In batch mode all counts must be equal, batch by batch, and the statistics of the
first rows must be close.
Then it compares two threads with one, and a graph after thirty days with a fresh one, and measures
ratios to snapml over streams of two generators and over three days of each: ranges, not one figure.
Prints rates and ratios and writes the raw samples and the table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from harness import second_stream  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import Lines, python_of, set_up  # noqa: E402
from harness.tasks import Sample  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600
DAY_SECONDS = 24 * HOUR
# Turns of each peer at a task.
TURNS = 5
COLUMNS = {"fan": 58, "degree": 58, "scatter-gather": 29, "temp-cycle": 29, "lc-cycle": 9}
# Where the measured rows begin, as a share of all: on a Wednesday, so that windows of up to two
# days hold working days alone. Nearer to the weekend they would hold half as many rows.
FROM = 0.7
# Days, rows and accounts of the stream of an aged graph, and the share before the measured rows.
LIFE_DAYS, LIFE_ROWS, LIFE_ACCOUNTS, LIFE_END = 30, 10_000_000, 500_000, 0.95
# Limit on the edges of one search, for all patterns over long windows.
WORK_MAX = 80_000
# The generators of streams, and the days of each on which ratios are measured, from the first one,
# at noon: three working days in a row.
STREAMS = ("first", "second")
DAYS = {"Tuesday": 5, "Wednesday": 6, "Thursday": 7}
RANGE_TURNS = 2
# Sums of the peers are rounded in different orders.
STATISTICS_NEAR = {"rtol": 1e-6, "atol": 1e-6}
EVERYTHING = ("fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle", "vertex-stats")


@dataclasses.dataclass(frozen=True)
class Task:
    """One set of patterns and windows, its batches, and the goal for the ratio."""

    name: str
    windows: dict[str, int]
    goal: str = ""
    batch: int = 2048
    peers: tuple[str, ...] = ("batch", "causal", "snapml")
    threads: int = 1
    work_max: int | None = None
    start: float = FROM
    # Whether the graph is filled with all earlier rows, or only the last window.
    has_lived: bool = False

    @property
    def counts(self) -> int:
        """Columns of counts."""
        return sum(COLUMNS.get(name, 0) for name in self.windows)


def one(pattern: str, hours: int, goal: str = "") -> Task:
    """One pattern over one window."""
    return Task(f"{pattern}, {hours} h", {pattern: hours * HOUR}, goal)


def whole_day(goal: str, **how: Any) -> Task:
    """All patterns over a day, except scatter-gather, whose searches are the longest."""
    windows = dict.fromkeys(EVERYTHING, 24 * HOUR) | {"scatter-gather": 6 * HOUR}
    return Task("everything, 24 h, scatter-gather 6 h", windows, goal, **how)


def tasks() -> list[Task]:
    """All tasks, in the order of the table."""
    long = dict.fromkeys(EVERYTHING, 96 * HOUR)
    single = {name: 24 * HOUR for name in EVERYTHING if name != "lc-cycle"}
    return [
        one("scatter-gather", 6, "20 x"),
        one("scatter-gather", 24, "60 x"),
        one("scatter-gather", 72, "80 x"),
        one("scatter-gather", 168, "70 x"),
        one("temp-cycle", 24, "40 x"),
        one("temp-cycle", 72, "30 x"),
        one("lc-cycle", 24, "15 x"),
        one("fan", 24, "100 x"),
        one("fan", 168, "250 x"),
        one("degree", 24, "60 x"),
        one("vertex-stats", 24, "3 x"),
        whole_day("20 x"),
        Task("everything, 96 h", long, "10,000 /s", peers=("causal",), work_max=WORK_MAX),
        Task("row by row, 24 h, no lc-cycle", single, "100,000 /s", batch=1),
    ]


def shared_tasks() -> list[Task]:
    """Tasks for two threads. For short searches the serial part, adding and removing rows, is a
    larger share."""
    hours = (("scatter-gather", 24), ("scatter-gather", 72), ("temp-cycle", 72), ("lc-cycle", 24))
    return [one(name, window, "1.6 x") for name, window in hours]


class Driver(Lines):
    """A process of one implementation with a task; its context begins when its graph is full."""

    def __init__(self, peer: str, data: Path, task: Task, python: str | None = None) -> None:
        if python is None:
            python = python_of("snapml") if peer == "snapml" else sys.executable
        if python is None:
            raise SystemExit(f"{peer} has no environment")
        super().__init__(python, str(HERE / "peers" / "graph_driver.py"), peer, str(data))
        fields = ("windows", "counts", "batch", "threads", "work_max", "start", "has_lived")
        self.send({name: getattr(task, name) for name in fields})
        self.times: list[float] = []
        # Of the counts of each batch, and the statistics of the first rows.
        self.digests: list[str] = []
        self.statistics: list[list[float]] = []
        self.stats: dict[str, Any] = {}
        # Bytes an edge at the end of each turn.
        self.sizes: list[float] = []

    def __enter__(self) -> Driver:
        self.answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, rows: int, seconds_max: float) -> None:
        """Begin a turn; ``answer`` must follow."""
        self.send({"rows": rows, "seconds_max": seconds_max})

    def end(self) -> list[float]:
        """Finish a turn; returns the seconds of its batches."""
        answer = self.answer()
        self.times += answer["times"]
        self.digests += answer["digests"]
        self.statistics = answer["statistics"] or []
        self.stats = answer["stats"]
        if "bytes" in self.stats:
            self.sizes.append(self.stats["bytes"] / max(1, self.stats["edges"]))
        times: list[float] = answer["times"]
        return times

    def turn(self, rows: int, seconds_max: float) -> None:
        """Run one turn on the next rows."""
        self.ask(rows, seconds_max)
        self.end()


def differences(name: str, ours: Driver, theirs: Driver) -> list[str]:
    """Notes on counts and statistics that are not snapml's."""
    notes = []
    common = min(len(ours.digests), len(theirs.digests))
    if ours.digests[:common] != theirs.digests[:common]:
        notes.append(f"{name}: counts differ from snapml's")
    one, other = np.array(ours.statistics), np.array(theirs.statistics)
    if one.shape != other.shape:
        notes.append(f"{name}: {one.shape} statistics, snapml's are {other.shape}")
    elif not (close := np.isclose(one, other, **STATISTICS_NEAR, equal_nan=True)).all():
        columns = np.flatnonzero(~close.all(axis=0)).tolist()
        notes.append(
            f"{name}: {(~close).sum()} of {close.size} statistics differ from snapml's, in columns"
            f" {columns} of {close.shape[1]}"
        )
    return notes


def stream(rows: int, path: Path, generator: str = "first", **how: Any) -> None:
    """Write a generated stream in the format of the drivers; ``STREAMS`` names the generators."""
    if generator == "second":
        second_stream.transfers(rows, **how).tofile(path)
        return
    from farrow.graph import data, generate

    table = data.from_table(generate.transactions(rows, seed=7, **how)).table
    names = ("edge_id", "source", "target", "timestamp")
    np.stack([table[name].to_numpy().astype(np.int64) for name in names]).tofile(path)


def measure(
    chosen: list[str], path: Path, quick: bool, notes: list[str]
) -> Iterator[tuple[Task, dict[str, Sample]]]:
    """All tasks, each with all peers alternately, because the speed of the machine varies."""
    for task in tasks():
        batches, seconds = (20, 3.0) if quick else (100, 12.0)
        rows = 20_000 if task.batch == 1 else batches * task.batch
        with contextlib.ExitStack() as stack:
            drivers: dict[str, Driver] = {}
            for peer in (name for name in task.peers if name in chosen):
                drivers[peer] = stack.enter_context(Driver(peer, path, task))
            for _ in range(TURNS):
                for driver in drivers.values():
                    driver.turn(rows, seconds / TURNS)
        samples = {
            peer: Sample(task.name, peer, "", "s", driver.times) for peer, driver in drivers.items()
        }
        for peer, driver in drivers.items():
            stats = driver.stats
            cut = {kind: count for kind, count in stats.get("cut_short", {}).items() if count}
            if cut:
                notes.append(f"{task.name}, {peer}: searches that ended at work_max: {cut}")
            if driver.sizes:
                least, most = min(driver.sizes), max(driver.sizes)
                notes.append(f"{task.name}, {peer}: {least:.0f} to {most:.0f} bytes an edge")
            print(f"{task.name}, {peer}: {rate(task, samples[peer]):,.0f} /s", file=sys.stderr)
        if {"batch", "snapml"} <= drivers.keys():
            notes += differences(task.name, drivers["batch"], drivers["snapml"])
        yield task, samples


def range_tasks() -> list[Task]:
    """Tasks whose ratio to snapml is measured over streams and days."""
    singles = (
        ("scatter-gather", 6), ("scatter-gather", 24), ("temp-cycle", 24), ("temp-cycle", 72),
        ("vertex-stats", 24),
    )  # fmt: skip
    return [*(one(name, hours) for name, hours in singles), whole_day("")]


def ranges(paths: dict[str, Path], quick: bool, notes: list[str]) -> Iterator[tuple[Task, Sample]]:
    """Farrow in batch mode and snapml alternately, on each day of each stream.

    Counts that differ are a note.  Variants of the samples are stream and day.
    """
    batches, seconds = (8, 0.8) if quick else (40, 2.0)
    for generator, path in paths.items():
        times = np.fromfile(path, dtype=np.int64).reshape(4, -1)[3]
        for name, day in DAYS.items():
            noon = times[0] - times[0] % DAY_SECONDS + day * DAY_SECONDS + DAY_SECONDS // 2
            start = float(np.searchsorted(times, noon) / len(times))
            for task in range_tasks():
                wanted = dataclasses.replace(task, start=start)
                with contextlib.ExitStack() as stack:
                    drivers = {
                        peer: stack.enter_context(Driver(peer, path, wanted))
                        for peer in ("batch", "snapml")
                    }
                    for _ in range(RANGE_TURNS):
                        for driver in drivers.values():
                            driver.turn(batches * task.batch, seconds)
                notes += differences(f"{task.name}, {generator}, {name}", *drivers.values())
                for peer, driver in drivers.items():
                    yield (
                        task,
                        Sample(task.name, peer, f"{generator} stream, {name}", "s", driver.times),
                    )


def range_table(found: list[tuple[Task, Sample]]) -> str:
    """Markdown: the ratio on each day of each stream, and its range."""
    by_task: dict[str, dict[str, dict[str, Sample]]] = {}
    tasks_of = {}
    for task, sample in found:
        tasks_of[task.name] = task
        by_task.setdefault(task.name, {}).setdefault(sample.variant, {})[sample.peer] = sample
    variants = list(dict.fromkeys(sample.variant for _, sample in found))
    heads = ["batch / snapml", *variants, "range"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, by_variant in by_task.items():
        ratios = [
            faster(tasks_of[name], by_variant[one]["batch"], by_variant[one]["snapml"])
            for one in variants
        ]
        cells = [name, *(f"{ratio:.1f}" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} | {min(ratios):.1f} to {max(ratios):.1f} |")
    return "\n".join(lines) + "\n"


def in_two(path: Path, quick: bool) -> Iterator[tuple[Task, dict[str, Sample]]]:
    """One thread, two, and two processes with a thread and a graph each, alternately. The two
    processes are the upper bound for two threads, less than twice on a shared machine."""
    rows, seconds = 2048 * (12 if quick else 60), 1.2 if quick else 4.0
    for task in shared_tasks():
        ways = {"one thread": (1, 1), "two threads": (1, 2), "two processes": (2, 1)}
        samples = {way: Sample(task.name, way, "", "s", []) for way in ways}
        with contextlib.ExitStack() as stack:
            drivers: dict[str, list[Driver]] = {}
            for way, (processes, threads) in ways.items():
                wanted = dataclasses.replace(task, threads=threads)
                drivers[way] = [
                    stack.enter_context(Driver("causal", path, wanted)) for _ in range(processes)
                ]
            for _ in range(TURNS):
                for way, some in drivers.items():
                    for driver in some:
                        driver.ask(rows, seconds)
                    # Half the time of each batch that both did.
                    both = zip(*(driver.end() for driver in some), strict=False)
                    samples[way].samples.extend(statistics.fmean(one) / len(some) for one in both)
        found = ", ".join(f"{way} {rate(task, one):,.0f} /s" for way, one in samples.items())
        print(f"{task.name}: {found}", file=sys.stderr)
        yield task, samples


def aged(path: Path, quick: bool) -> tuple[Task, dict[str, Sample], float]:
    """A graph after thirty days and one with the last window only, alternately, and the ratio of
    their sizes."""
    fresh = whole_day("1.05 x", start=LIFE_END)
    tasks = {"fresh": fresh, "thirty days": dataclasses.replace(fresh, has_lived=True)}
    with contextlib.ExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for word, task in tasks.items():
            drivers[word] = stack.enter_context(Driver("causal", path, task))
        for _ in range(TURNS):
            for driver in drivers.values():
                driver.turn(2048 * (8 if quick else 24), 60.0)
    samples = {word: Sample(fresh.name, word, "", "s", one.times) for word, one in drivers.items()}
    young, old = drivers.values()
    if young.digests != old.digests:
        raise SystemExit("a graph that has lived through thirty days finds other patterns")
    return fresh, samples, old.sizes[-1] / young.sizes[-1]


def life(task: Task, samples: dict[str, Sample], size: float) -> str:
    """Markdown: the cost of age."""
    fresh, old = (statistics.median(sample.samples) for sample in samples.values())
    cells = [f"{fresh:.5f}", f"{old:.5f}", f"{old / fresh:.2f}", f"{size:.2f}"]
    lines = [
        "| causal, seconds a batch | fresh | thirty days | ratio | bytes an edge, ratio | goal |",
        "| --- " * 6 + "|",
        f"| {task.name} | {' | '.join(cells)} | {task.goal} |",
    ]
    return "\n".join(lines) + "\n"


def scaling(results: list[tuple[Task, dict[str, Sample]]]) -> str:
    """Markdown: the gain of a second thread."""
    lines = [
        "| causal, rows/s | one thread | two threads | ratio | two processes | ratio | goal |",
        "| --- " * 7 + "|",
    ]
    for task, samples in results:
        alone, threads, processes = samples.values()
        cells = [f"{rate(task, alone):,.0f}"]
        for way in (threads, processes):
            cells += [f"{rate(task, way):,.0f}", f"{faster(task, way, alone):.2f}"]
        lines.append(f"| {task.name} | {' | '.join(cells)} | {task.goal} |")
    return "\n".join(lines) + "\n"


def faster(task: Task, one: Sample, other: Sample) -> float:
    """The speed of one over another: the median over common batches, which differ; row by row,
    over all of them together."""
    pairs = list(zip(one.samples, other.samples, strict=False))
    if task.batch == 1:
        return sum(theirs for _, theirs in pairs) / sum(ours for ours, _ in pairs)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def rate(task: Task, sample: Sample) -> float:
    """Rows a second of the median batch; row by row, of the mean."""
    middle = statistics.fmean if task.batch == 1 else statistics.median
    return task.batch / middle(sample.samples)


def table(results: list[tuple[Task, dict[str, Sample]]]) -> str:
    """Markdown."""
    lines = [
        "| rows a second | Farrow, batch | Farrow, causal | causal / batch | snapml "
        "| batch / snapml | goal |",
        "| --- " * 7 + "|",
    ]
    for task, samples in results:
        batch, causal, snapml = (samples.get(peer) for peer in ("batch", "causal", "snapml"))
        rates = [f"{rate(task, one):,.0f}" if one else "" for one in (batch, causal, snapml)]
        ratios = [
            f"{faster(task, one, other):{form}}" if one and other else ""
            for one, other, form in ((causal, batch, ".2f"), (batch, snapml, ".1f"))
        ]
        cells = [*rates[:2], ratios[0], rates[2], ratios[1]]
        lines.append(f"| {task.name} | {' | '.join(cells)} | {task.goal} |")
    lines += ["", "| row by row | p50 | p99 | max |", "| --- " * 4 + "|"]
    for task, samples in results:
        for peer, sample in samples.items() if task.batch == 1 else ():
            found = np.percentile(sample.samples, [50, 99, 100]) * 1e3
            lines.append(f"| {peer} | {' | '.join(f'{value:.3g} ms' for value in found)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows and less time")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the stream")
    parser.add_argument(
        "--stream", choices=(*STREAMS, "both"), default="both",
        help="generators; the tasks run on the first one chosen, ranges over all chosen",
    )  # fmt: skip
    parser.add_argument("--ranges-only", action="store_true", help="only ranges of ratios")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    notes: list[str] = []
    generators = STREAMS if options.stream == "both" else (options.stream,)
    chosen = ["batch", "causal", *set_up(["snapml"], notes, lambda text: print(text, flush=True))]
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        paths = {}
        for generator in generators:
            paths[generator] = Path(folder) / f"{generator}.bin"
            began = time.perf_counter()
            stream(options.rows, paths[generator], generator)
            seconds = time.perf_counter() - began
            notes.append(f"{generator} stream: {options.rows} rows made in {seconds:.1f} s")
        path = paths[generators[0]]
        has_peer = "snapml" in chosen
        over = list(ranges(paths, options.quick, notes)) if has_peer else []
        samples = [sample for _, sample in over]
        texts = [range_table(over)] if over else []
        if not options.ranges_only:
            results = list(measure(chosen, path, options.quick, notes))
            shared = list(in_two(path, options.quick))
            stream(LIFE_ROWS, path, generators[0], days=LIFE_DAYS, accounts=LIFE_ACCOUNTS)
            old = aged(path, options.quick)
            samples += [sample for _, each in results + shared for sample in each.values()]
            samples += old[1].values()
            texts = [table(results), *texts, scaling(shared), life(*old)]
    document = document_of(HERE.parent, samples, notes, options.quick)
    kind = "graph-ranges" if options.ranges_only else "graph"
    leave(document, kind, "\n".join(texts), Path(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
