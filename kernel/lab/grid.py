"""The grid of the thesis: what is measured, and what became of it.

A *cell* is one program run over one mapped size and order, with the samples that the module kept of
it. A *traced* cell is timed by ftrace instead, inside munmap only.
"""

from __future__ import annotations

import csv
import re
import statistics
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .guests import Failure, Laboratory, say

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE_BYTES = 4096
SIZES = tuple(16 * KIB * 4**step for step in range(9))
ORDERS = (0, 2, 4, 6, 8, 10)
# Of table 3.4 of the thesis: median of one call over a block of 2^order pages, in us.
THESIS_MEDIANS_US = {0: 9.8, 2: 13.2, 4: 21.1, 6: 70.4, 8: 303.0, 10: 1141.0}
# What is unmapped at a time in the grid by order: four blocks of the largest.
ORDER_BYTES = 16 * MIB
SAMPLES_MIN = 128
# In a round, where they are quick.
UNMAPS_MIN = 2
# From this size on a cell takes seconds a time.
LARGE = 256 * MIB


@dataclass(frozen=True)
class Schedule:
    """How the samples of a run are spread over time; what depends on a guest's clock.

    ``rounds`` over all cells, those of ``LARGE`` and more in ``large_rounds`` of them, in
    ``guests`` one after the other. What ftrace times is unmapped ``traced`` times in a round, by
    size; others ``SAMPLES_MIN`` in all.
    """

    guests: int
    rounds: int
    large_rounds: int
    traced: Mapping[int, int]
    # All runs in the same guests, cell by cell in turn; else each run has guests of its own.
    in_turn: bool

    def times(self, blocks: int) -> int:
        """Unmaps in a round, for samples enough in all of them."""
        return -(-SAMPLES_MIN // (self.rounds * blocks))


SCHEDULES = {
    # The host has no part in the numbers: what is measured again is the same again.
    "instructions": Schedule(
        guests=1,
        rounds=1,
        large_rounds=1,
        traced={256 * MIB: 100, GIB: 32},
        in_turn=False,
    ),
    # What the host does lasts from milliseconds to minutes, and may halve or double a call: so each
    # cell is measured in many rounds over all cells, each with several unmaps, in several guests.
    "host": Schedule(
        guests=4,
        rounds=8,
        large_rounds=4,
        traced={64 * MIB: 3, 256 * MIB: 2, GIB: 2},
        in_turn=True,
    ),
}
# In the table of samples; figures and medians are made of all that there are.
SAMPLES_RETAINED_MAX = 2000
# In a run's folder: by which clock its guests were timed.
CLOCK = "clock"
# Several times what an idle machine of two cores takes.
SECONDS_MAX = 1800
# As farrow_shmem_ioctl.h lays it out.
SAMPLE = struct.Struct("<QIIIHH")
UNMAP = 0
# An unmap calls these from several places, for ranges of different lengths: a sample is what all
# calls of one unmap take together.
FLUSHES = ("flush_tlb_mm_range", "tlb_flush_mmu")
DURATION = re.compile(r"([\d.]+) us\s+\|\s+(?:\} /\* )?(\w+)")
PERCENTILES = (5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class Cell:
    """One place of the grid. ``kind``: size, order, traced or maintain; the last two by ftrace."""

    kind: str
    program: str
    mapped_bytes: int
    order: int
    invalidate: bool
    # In each of its rounds.
    times: int
    rounds: int

    @property
    def name(self) -> str:
        op = "civac" if self.invalidate else "cvac"
        return f"{self.kind}-{self.program}-{self.mapped_bytes}-{self.order}-{op}"

    @property
    def op(self) -> str:
        return "clean+invalidate" if self.invalidate else "clean"

    @property
    def block_bytes(self) -> int:
        return PAGE_BYTES << self.order

    @property
    def is_traced(self) -> bool:
        return self.kind in ("traced", "maintain")

    @property
    def blocks(self) -> int:
        """Calls of the maintenance in an unmap."""
        return self.mapped_bytes // self.block_bytes

    def turn(self, number: int, schedule: Schedule) -> int | None:
        """Which of its rounds the numbered one of the grid is; None if it rests."""
        every = schedule.rounds // self.rounds
        return None if number % every else number // every

    def plan(self, run: int) -> str:
        """A step of a guest's plan; what it leaves is named after the run and the cell."""
        word = "traced" if self.is_traced else "cell"
        numbers = (self.mapped_bytes, self.times, self.order, int(self.invalidate))
        return f"{word} {run}.{self.name} {self.program} {' '.join(map(str, numbers))}"


@dataclass(frozen=True)
class Series:
    """What one cell gave: durations in ns of ``what``, a function of the kernel."""

    architecture: str
    cell: Cell
    what: str
    durations_ns: Sequence[int] = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.architecture, self.cell.name, self.what

    def percentile(self, percent: float) -> float:
        return _percentile(sorted(self.durations_ns), percent)


def _percentile(ordered: Sequence[int], percent: float) -> float:
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def cells(schedule: Schedule) -> list[Cell]:
    """All of the grid: maintenance by size, by order and kind, and what ftrace times."""
    made = []
    for size in SIZES:
        rounds = schedule.large_rounds if size >= LARGE else schedule.rounds
        times = schedule.times(size // PAGE_BYTES)
        if size <= ORDER_BYTES:
            times = max(times, UNMAPS_MIN)
        for name in ("read_all", "write_all"):
            made.append(Cell("size", name, size, 0, False, times, rounds))
    for order in ORDERS:
        times = max(schedule.times(ORDER_BYTES // (PAGE_BYTES << order)), UNMAPS_MIN)
        for name in ("read_all", "write_all"):
            for op in (False, True):
                made.append(Cell("order", name, ORDER_BYTES, order, op, times, schedule.rounds))
    for size in SIZES:
        # Large blocks make the faults cheap; what unmap takes down is single pages all the same.
        order = 10 if size >= ORDER_BYTES else 0
        times = schedule.traced.get(size, schedule.times(1))
        rounds = schedule.large_rounds if size == GIB else schedule.rounds
        made.append(Cell("traced", "write_all", size, order, False, times, rounds))
    # What ftrace says of the calls that the module times itself.
    made.append(Cell("maintain", "write_all", MIB, 0, False, schedule.times(1), schedule.rounds))
    return made


def quick(chosen: Iterable[Cell]) -> list[Cell]:
    """The same up to 16 MiB: a minute, to see that it works."""
    return [cell for cell in chosen if cell.mapped_bytes <= 16 * MIB]


def plan(chosen: Sequence[Cell], runs: Sequence[int], guest: int, schedule: Schedule) -> list[str]:
    """The steps of one guest: each cell that is due for all its runs, first and last in turn."""
    rounds = schedule.rounds // schedule.guests
    steps = []
    for number in range(guest * rounds, (guest + 1) * rounds):
        for cell in chosen:
            turn = cell.turn(number, schedule)
            if turn is not None:
                order = runs if turn % 2 == 0 else runs[::-1]
                steps += [cell.plan(run) for run in order]
    return steps


def measure(
    laboratory: Laboratory,
    module: Path,
    chosen: Sequence[Cell],
    folders: Mapping[int, Path],
    guest: int,
    clock: str,
) -> None:
    """One guest's part of the runs with these numbers; a run's folder gets what the guest brings
    back of it, as it is, after what earlier ones brought."""
    schedule = SCHEDULES[clock]
    largest = max(cell.mapped_bytes for cell in chosen)
    steps = plan(chosen, list(folders), guest, schedule)
    head = ["load", f'echo {largest} >"$parameters/max_bytes"']
    done = 0

    def on_line(line: str) -> None:
        nonlocal done
        if line.startswith("lab: ok: ") and "kernel" not in line:
            done += 1
            if done % 100 == 0:
                say(f"{laboratory.architecture.name}: {done} of {len(steps)} steps")

    # One CPU: a second would compete with the first for the cores of a small host.
    outcome = laboratory.boot(
        module, "\n".join([*head, *steps]) + "\n", SECONDS_MAX, clock=clock, on_line=on_line
    )
    outcome.check()
    name = laboratory.architecture.name
    for number, folder in folders.items():
        raw = folder / "raw" / name
        raw.mkdir(parents=True, exist_ok=True)
        (folder / CLOCK).write_text(clock + "\n")
        for file, data in outcome.files.items():
            run, _, rest = file.partition(".")
            if run == str(number):
                with (raw / rest).open("ab") as target:
                    target.write(data)
            elif not run.isdigit():
                (raw / f"guest-{guest + 1}-{file}").write_bytes(data)
    runs = " and ".join(map(str, folders))
    say(
        f"{name}: run {runs}, guest {guest + 1} of {schedule.guests}: "
        f"{len(steps)} steps in {outcome.seconds:.0f} s"
    )


def read(architecture: str, cell: Cell, raw: Path) -> list[Series]:
    """The series of a cell out of the files that a guest brought back."""
    if cell.is_traced:
        found: dict[str, list[int]] = {}
        flushes: dict[str, int] = {}
        text = (raw / f"{cell.name}.trace").read_text(errors="replace")
        for match in DURATION.finditer(text):
            what, duration = match[2], round(float(match[1]) * 1000)
            if what in FLUSHES:
                flushes[what] = flushes.get(what, 0) + duration
                continue
            found.setdefault(what, []).append(duration)
            if what == "__vm_munmap":
                for flush, sum_ns in flushes.items():
                    found.setdefault(flush, []).append(sum_ns)
                flushes.clear()
        missing = {"tlb_finish_mmu", "__vm_munmap"} - found.keys()
        if missing:
            raise Failure(f"{architecture}: ftrace says nothing of {', '.join(sorted(missing))}")
        return [Series(architecture, cell, what, values) for what, values in found.items()]
    data = (raw / f"{cell.name}.samples").read_bytes()
    whole = len(data) - len(data) % SAMPLE.size
    values = [
        duration
        for _, duration, size, _, _, cause in SAMPLE.iter_unpack(data[:whole])
        if cause == UNMAP and size == cell.block_bytes
    ]
    expected = cell.rounds * cell.times * cell.blocks
    if len(values) != expected:
        raise Failure(f"{architecture}: {cell.name}: {len(values)} samples, not {expected}")
    return [Series(architecture, cell, "farrow_shmem_maintain", values)]


SUMMARY = (
    *("architecture", "cell", "what", "kind", "program", "op", "order", "block_bytes"),
    *("mapped_bytes", "n", "mean_ns", *(f"p{percent}_ns" for percent in PERCENTILES)),
)


def summary_row(series: Series) -> dict[str, object]:
    cell, ordered = series.cell, sorted(series.durations_ns)
    row: dict[str, object] = {
        "architecture": series.architecture,
        "cell": cell.name,
        "what": series.what,
        "kind": cell.kind,
        "program": cell.program,
        "op": cell.op,
        "order": cell.order,
        "block_bytes": cell.block_bytes,
        "mapped_bytes": cell.mapped_bytes,
        "n": len(ordered),
        "mean_ns": round(statistics.fmean(ordered)),
    }
    return row | {f"p{p}_ns": round(_percentile(ordered, p)) for p in PERCENTILES}


def read_run(folder: Path) -> list[Series]:
    """All that was measured in a run, by its folder: ``raw/<architecture>`` has the files."""
    schedule = SCHEDULES[(folder / CLOCK).read_text().strip()]
    return [
        series
        for raw in sorted((folder / "raw").iterdir(), reverse=True)
        for cell in cells(schedule)
        if any(raw.glob(f"{cell.name}.*"))
        for series in read(raw.name, cell, raw)
    ]


def write(folder: Path, measured: Sequence[Series]) -> None:
    """``summary.csv`` of all samples and ``samples.csv`` of evenly chosen ones."""
    with (folder / "summary.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, SUMMARY, lineterminator="\n")
        table.writeheader()
        table.writerows(summary_row(series) for series in measured)
    with (folder / "samples.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("architecture", "cell", "what", "duration_ns"))
        for series in measured:
            step = -(-len(series.durations_ns) // SAMPLES_RETAINED_MAX)
            rows.writerows((*series.key, value) for value in series.durations_ns[::step])


def compare(first: Path, second: Path) -> tuple[list[tuple[str, float, float]], float]:
    """Medians of two folders of results, in ns, with the series in both; and the largest ratio."""

    def medians(folder: Path) -> dict[str, float]:
        with (folder / "summary.csv").open(newline="") as file:
            return {
                " ".join((row["architecture"], row["cell"], row["what"])): float(row["p50_ns"])
                for row in csv.DictReader(file)
            }

    one, other = medians(first), medians(second)
    rows = [(name, one[name], other[name]) for name in one if name in other]
    if not rows:
        raise Failure(f"{first} and {second} have no cell in common")
    return rows, max(ratio(a, b) for _, a, b in rows)


def ratio(first: float, second: float) -> float:
    """Of the larger to the smaller."""
    return max(first, second) / max(min(first, second), 1.0)
