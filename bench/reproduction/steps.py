"""An execution graph: steps in processes of their own, at nodes of their own."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cluster import running
from harness.process import REPOSITORY, Lines
from harness.tasks import Sample

from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    factor,
    in_ms,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["EDGES", "ExecutionGraph"]

sys.path.insert(0, str(REPOSITORY / "examples"))

import execution_graph as example

_WORKER = Path(__file__).resolve().parent.parent / "harness" / "step_worker.py"
IN_PLACE, SENT, ONE = "in place", "sent by Flight", "one process"
_WAYS = {IN_PLACE: "in place", SENT: "sent"}
# (producer, consumer)
EDGES = tuple((one, name) for name, step in example.STEPS.items() for one in step.inputs)
_NODE_BYTES_MIN = 64 << 20


class ExecutionGraph(Experiment):
    """Six steps on three nodes."""

    name = "execution-graph"
    title = "An execution graph over nodes"
    about = (
        "Groet names steps of a plan that run across a cluster, and share Arrow data in place, as"
        " work for later. Here the six steps of the example (docs/how-to/execution-graph.md) run in"
        " six processes at three nodes, from text to a model: each waits for its inputs, uses them"
        " in place, and puts its result into the memory of its own node. Beside it the same"
        " processes send tables by Flight over loopback, and one process calls the steps one after"
        " another. A hand-over is the time from the end of the work of a step (of the last one, for"
        " several inputs) until the next step has its inputs. All ways must find the same weights."
    )
    seconds_max = (45.0, 75.0)
    views = (
        View("whole", "From the text to the model", "ms", in_ms, digits=0),
        View("hand-over", "Hand-overs", "ms", in_ms, digits=2),
        View("work", "Work of the steps", "ms", in_ms, digits=1),
        View("bytes", "Tables that are handed over", "MB", chart="", digits=1),
    )

    rows_quick, rows_full = 50_000, 400_000

    def run(self, room: Room) -> Iterator[Sample]:
        """Turns of each way."""
        rows = int(room.pick(self.rows_quick, self.rows_full))
        turns = int(room.pick(3, 9))
        room.note(f"{rows:,} rows of text; three nodes of this machine, six processes")
        source = room.folder / f"rows-{rows}.csv"
        example.write_source(source, rows)
        memory = _NODE_BYTES_MIN + rows * example.NODE_BYTES_PER_ROW
        found = _Found()
        with running(len(example.NODES), memory) as nodes, contextlib.ExitStack() as stack:
            sockets = dict(zip(example.NODES, nodes.sockets, strict=True))
            command = (sys.executable, str(_WORKER))
            workers = {
                name: stack.enter_context(
                    contextlib.closing(Lines(*command, sockets[step.node], str(source)))
                )
                for name, step in example.STEPS.items()
            }
            places = {name: worker.answer()["place"] for name, worker in workers.items()}
            # The first turn loads code and makes connections.
            for turn in range(turns + 1):
                for title, way in _WAYS.items():
                    answers = _turn(workers, places, way, turn)
                    found.add(title, answers, is_counted=turn > 0)
                found.alone(source, is_counted=turn > 0)
        yield from found.samples()

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The hand-overs and the whole, beside Flight and one process."""
        whole = {way: cells.get("whole", "all steps", way, in_ms) for way in (*_WAYS, ONE)}
        hand = {way: cells.get("hand-over", "all", way, in_ms) for way in _WAYS}
        if None in (*whole.values(), *hand.values()):
            return {"steps": None}
        return {
            "steps": (
                f"{whole[IN_PLACE]:,.0f} ms ({whole[ONE]:,.0f} in one process), of which hand-overs"
                f" {significant(hand[IN_PLACE] or 0.0, 2)} ms; Flight's take"
                f" {factor(hand[SENT], hand[IN_PLACE], 1)} as long"
            )
        }


def _turn(
    workers: dict[str, Lines], places: dict[str, str], way: str, turn: int
) -> dict[str, dict[str, Any]]:
    """Start all steps at once; their answers."""
    for name, worker in workers.items():
        worker.send({"step": name, "way": way, "turn": turn, "places": places})
    answers = {name: worker.answer() for name, worker in workers.items()}
    for name, worker in workers.items():
        worker.send({"drop": name, "way": way, "turn": turn})
    for worker in workers.values():
        worker.answer()
    return answers


class _Found:
    """Times of all turns.

    Raises:
        ValueError: a way found other weights than the first one.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, str], list[float]] = {}
        self._bytes: dict[str, float] = {}
        self._weights: list[float] = []

    def add(self, way: str, answers: dict[str, dict[str, Any]], *, is_counted: bool) -> None:
        """The answers of one turn."""
        self._compare(way, answers["train"]["weights"])
        if not is_counted:
            return
        began = min(one["began"] for one in answers.values())
        self._note("whole", "all steps", way, answers["train"]["done"] - began)
        total = 0.0
        for name, step in example.STEPS.items():
            answer = answers[name]
            self._note("work", name, way, answer["done"] - answer["ready"])
            if step.inputs:
                left = max(answers[one]["done"] for one in step.inputs)
                self._note("hand-over", f"to {name}", way, answer["ready"] - left)
                total += answer["ready"] - left
                self._bytes[f"to {name}"] = answer["read"] / 1e6
        self._note("hand-over", "all", way, total)

    def alone(self, source: Path, *, is_counted: bool) -> None:
        """All steps one after another in this process."""
        results: dict[str, Any] = {}
        began = time.perf_counter()
        for name, step in example.STEPS.items():
            started = time.perf_counter()
            results[name] = step.work(*([results[one] for one in step.inputs] or [source]))
            if is_counted:
                self._note("work", name, ONE, time.perf_counter() - started)
        if is_counted:
            self._note("whole", "all steps", ONE, time.perf_counter() - began)
        self._compare(ONE, results["train"]["weight"].to_pylist())

    def samples(self) -> Iterator[Sample]:
        """All of them."""
        for (variant, case, way), taken in self._times.items():
            yield Sample(case, way, variant, "s", taken)
        for case, size in self._bytes.items():
            yield Sample(case, "tables", "bytes", "MB", [size])

    def _note(self, variant: str, case: str, way: str, seconds: float) -> None:
        self._times.setdefault((variant, case, way), []).append(seconds)

    def _compare(self, way: str, weights: list[float]) -> None:
        self._weights = self._weights or weights
        # A sum depends on the alignment of what it reads, in its last digits.
        if not np.allclose(weights, self._weights, rtol=1e-9, atol=0.0):
            raise ValueError(f"{way}: weights {weights}, not {self._weights}")
