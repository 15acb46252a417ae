"""The lender of memory and its borrower at work at the same time."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from cluster import running
from graph_cluster import DAY, Run, ways
from harness.process import Lines
from harness.tasks import Sample

from farrow.graph.cluster import ClusterGraph
from reproduction.experiment import (
    BATCH,
    SCATTER,
    Cells,
    Experiment,
    Room,
    View,
    gib_per_s,
    middle,
    rate,
    short_of_memory,
)
from reproduction.windows import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    from cluster import Nodes

__all__ = ["SIDES", "Contention"]

MIB = 1 << 20
_HARNESS = Path(__file__).resolve().parent.parent / "harness"
# The lender's node has the memory; the borrower is a client of another node, and maps it.
SIDES = ("lender", "borrower")
_GRAPH = "contended"
_HOURS = 24
_NODE_BYTES = 512 << 20
# Memory of the tables' step, as multiples of a table: both nodes, and three private ones.
_TABLES = 7
# What the lender does, and the borrower meanwhile.
_PAIRS = {
    "both read in order": ("read", "read"),
    "the lender writes, the borrower reads": ("write", "read"),
    "both load at random": ("random", "random"),
}


def _speed(sample: Sample) -> float:
    """Bytes or loads a second, for ratios."""
    return 1 / middle(sample) if sample.unit == "ns" else gib_per_s(sample)


class Contention(Experiment):
    """Two processes on the same memory at the same time."""

    name = "contention"
    title = "Lender and borrower at work at once"
    about = (
        "The works lend memory that the lender leaves alone; Khalili names work of the lender on"
        " it, and contention for the bus, as a measurement for later. Here one process is a client"
        " of the node that lends, the other one of the node that borrows, each alone and both at"
        " once: passes over one table of the lender's, random loads from it, and the lender's"
        " writes beside the borrower's reads. With a thread each, every process has a core of its"
        " own; with two each, the four share all cores. Private memory stands beside it: what two"
        " processes lose there is the machine's part. The graph has its days in the lender's"
        f" memory; both search all batches of {BATCH} (previews, scatter-gather, {_HOURS} h)."
    )
    seconds_max = (60.0, 110.0)
    views = (
        View("bandwidth", "Passes in order, a thread", "GiB/s", gib_per_s, digits=2),
        View("random", "Random loads, a thread", "ns a load", digits=1),
        View("graph", "Scatter-gather, 24 h", "rows a second", rate),
    )

    bytes_quick, bytes_full = 64 * MIB, 512 * MIB
    rows_quick, rows_full = 1_000_000, 5_000_000

    def run(self, room: Room) -> Iterator[Sample]:
        """Each side alone and both, by turns."""
        size = int(room.pick(self.bytes_quick, self.bytes_full))
        rows = self.rows_quick if room.is_quick else self.rows_full
        rounds = int(room.pick(2, 3))
        needs = {"tables": _TABLES * size, "graph": rows * ROW_BYTES}
        steps = []
        for step, need in needs.items():
            if why := short_of_memory(need + 2 * _NODE_BYTES):
                room.note(f"{step}: not run, {why}")
            else:
                steps.append(step)
        if not steps:
            return
        with running(2, (2 * size if "tables" in steps else 0) + _NODE_BYTES) as nodes:
            if "tables" in steps:
                yield from _tables(room, size, nodes, rounds)
            if "graph" in steps:
                yield from _graph(room, room.stream(rows, 10), nodes, rounds + 1)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """What remains of each side's speed beside the other one."""
        found: dict[str, str | None] = {}
        for key, variant, case in (
            ("bus", "bandwidth", "both read in order, a thread each"),
            ("random", "random", "both load at random, a thread each"),
            ("write", "bandwidth", "the lender writes, the borrower reads, a thread each"),
        ):
            own = _remaining(cells, variant, case)
            private = _remaining(cells, variant, f"private memory: {case}")
            beside = f"; in private memory {private}" if private else ""
            found[key] = f"{own} of alone{beside}" if own else None
        alone = [cells.get("graph", "1 at a time", side, rate) for side in SIDES]
        both = [cells.get("graph", "both at once", side, rate) for side in SIDES]
        values = [value for value in (*alone, *both) if value]
        found["graph"] = None
        if len(values) == 4:
            best = max(values[:2])
            found["graph"] = (
                f"{sum(values[2:]) / best:.2f} times one process with both; "
                + ", ".join(
                    f"{side} {beside / one:.2f} of alone"
                    for side, one, beside in zip(SIDES, values[:2], values[2:], strict=True)
                )
            )
        return found


def _tables(room: Room, size: int, nodes: Nodes, rounds: int) -> Iterator[Sample]:
    """Passes over a table of the lender's, and over private memory."""
    seconds, cores = room.pick(0.2, 0.5), sorted(os.sched_getaffinity(0))
    room.note(f"a table of {size // MIB} MiB; {len(cores)} cores")
    values = np.arange(size // 8, dtype=np.int64)
    nodes.clients[1].put(pa.table({"n": values}), "shared")
    command = (sys.executable, str(_HARNESS / "side.py"))
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(contextlib.closing(Lines(*command, nodes.sockets[node], str(size))))
            for node in (1, 0)
        ]
        for one in sides:
            one.answer()
        for memory in ("shared", "private"):
            for title, works in _PAIRS.items():
                if memory == "private" and "write" in works:
                    continue
                for threads in (1, 2):
                    place = "private memory: " if memory == "private" else ""
                    each = "a thread each" if threads == 1 else "two threads each"
                    requests = [
                        {
                            "work": work, "memory": memory, "threads": threads,
                            "seconds": seconds, "cores": _cores(cores, side, threads),
                        }
                        for side, work in enumerate(works)
                    ]  # fmt: skip
                    yield from _taken(sides, requests, rounds, f"{place}{title}, {each}")
    nodes.clients[1].delete("shared")


def _cores(cores: list[int], side: int, threads: int) -> list[int]:
    """A core for each side if there are enough; all for several threads."""
    return [cores[side]] if threads == 1 and len(cores) > 1 else cores


def _remaining(cells: Cells, variant: str, case: str) -> str | None:
    """Speed beside the other side as a share of that alone, of each side."""
    texts = []
    for side in SIDES:
        alone, beside = (
            cells.get(variant, case, f"{side} {how}", _speed) for how in ("alone", "beside")
        )
        if not alone or not beside:
            return None
        texts.append(f"{side} {beside / alone:.2f}")
    return ", ".join(texts)


def _taken(
    sides: list[Lines], requests: list[dict[str, Any]], rounds: int, case: str
) -> Iterator[Sample]:
    """Each side alone, then both at once; passes of all rounds."""
    found: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for active in ((0,), (1,), (0, 1)):
            for side in active:
                sides[side].send(requests[side])
            for side in active:
                answer = sides[side].answer()
                peer = f"{SIDES[side]} {'alone' if len(active) == 1 else 'beside'}"
                # The first pass may begin before the other side does.
                taken = answer["seconds"]
                found.setdefault(peer, []).extend(taken[1:] if len(taken) > 2 else taken)
                sizes[peer] = answer["size"]
    for peer, taken in found.items():
        if requests[0]["work"] == "random":
            each = [seconds * 1e9 / sizes[peer] for seconds in taken]
            yield Sample(case, peer, "random", "ns", each)
        else:
            yield Sample(case, peer, "bandwidth", "s", taken, sizes[peer])


def _graph(
    room: Room, stream: npt.NDArray[np.float64], nodes: Nodes, rounds: int
) -> Iterator[Sample]:
    """Two readers of one graph, whose days are in the lender's memory: alone, and at once."""
    first = int(len(stream) * 0.85)
    path = room.folder / "contended.npy"
    np.save(path, np.asarray(stream[first : first + 40 * BATCH]))
    reader = str(_HARNESS / "graph_reader.py")
    seconds = room.pick(0.6, 1.5)
    with contextlib.ExitStack() as stack:
        name = _writer(stream, first, nodes, stack)
        sides = [
            stack.enter_context(
                contextlib.closing(
                    Lines(sys.executable, reader, name, nodes.sockets[node], str(path))
                )
            )
            for node in (1, 0)
        ]
        for one in sides:
            one.answer()
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for active in ((0,), (1,), (0, 1)):
                for side in active:
                    sides[side].send(seconds)
                case = "both at once" if len(active) == 2 else "1 at a time"
                for side in active:
                    found.setdefault((case, SIDES[side]), []).extend(sides[side].answer()["calls"])
    for (case, side_name), calls in found.items():
        yield Sample(case, side_name, "graph", "s", calls)


def _writer(
    stream: npt.NDArray[np.float64], first: int, nodes: Nodes, stack: contextlib.ExitStack
) -> str:
    """Fill a graph with a full window, its older days in the lender's memory; its name."""
    cluster = ways(_GRAPH, nodes.sockets[0], nodes.names[1])["other node"]
    assert isinstance(cluster, ClusterGraph)
    writer = stack.enter_context(contextlib.closing(Run("writer", SCATTER, _HOURS, cluster)))
    oldest = int(np.searchsorted(stream[:, 3], stream[first, 3] - _HOURS * 3600 - DAY))
    writer.fill(stream[oldest:first])
    return cluster.name
