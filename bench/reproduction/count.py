"""A node with a hundred million objects, by a model of measurements on a node with fewer."""

from __future__ import annotations

import itertools
import math
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from harness.process import memory_of
from harness.tasks import Sample
from restart import BATCH, OBJECT_BYTES, Node

from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    middle,
    short_of_memory,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import farrow

__all__ = ["ManyObjects", "Span", "extrapolated"]

TARGET = 100_000_000
_MILLION = 1_000_000
_RESTARTS = 3
_GETS = 100_000
_GETS_BATCH = 1000
_SEED = 3
_GIB = 1 << 30
# Memory of an object in the node and in this process: references, and the list of all objects.
_OBJECT_MEMORY = 1024
# Quantities of a whole node, which grow with its objects: name, unit, and the model's unit.
_TOTALS = {
    "heap and records": ("B", "GiB"),
    "private memory of the node": ("B", "GiB"),
    "list of all objects": ("s", "s"),
    "restart after a kill": ("s", "s"),
}
# Quantities of one object, which grow with the depth of tables and with misses of caches.
_EACH = {"put_many, each": ("s", "us"), "get_many at random, each": ("s", "us")}


def _us(sample: Sample) -> float:
    return middle(sample) * 1e6


class Span(NamedTuple):
    """The least and the most of a model."""

    least: float
    most: float


def extrapolated(
    counts: Sequence[int], values: Sequence[Sequence[float]], target: int, *, is_total: bool
) -> Span:
    """What a quantity would be for ``target`` objects, from its samples for fewer.

    A total is taken as linear: the slopes between any two counts, by their samples, are the spread.
    A quantity of each object either stays what it is for the largest count, or grows by the
    logarithm of the count; the spread has both, by the least and the most of the samples.

    Raises:
        ValueError: fewer than two counts, or counts that do not increase.
    """
    if len(counts) < 2 or any(one >= other for one, other in itertools.pairwise(counts)):
        raise ValueError(f"counts {list(counts)}: two or more that increase are needed")
    last, ends = counts[-1], (min(values[-1]), max(values[-1]))
    if is_total:
        slopes = [
            (far - near) / (counts[right] - counts[left])
            for left in range(len(counts))
            for right in range(left + 1, len(counts))
            for near in _ends(values[left])
            for far in _ends(values[right])
        ]
        return Span(
            ends[0] + (target - last) * max(0.0, min(slopes)),
            ends[1] + (target - last) * max(0.0, max(slopes)),
        )
    growths = [
        (far - near) / math.log2(last / counts[left])
        for left in range(len(counts) - 1)
        for near in _ends(values[left])
        for far in _ends(values[-1])
    ]
    doublings = math.log2(target / last)
    return Span(ends[0], ends[1] + doublings * max(0.0, max(growths)))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


class ManyObjects(Experiment):
    """Bytes and times of a node by the number of its objects."""

    name = "many-objects"
    title = "100 million objects, by a model"
    about = (
        f"Objects of {OBJECT_BYTES} bytes, half of them with names, in one node of this machine:"
        " bytes in its memory and in private memory of its process, and times of calls, at three"
        " numbers of objects. This machine has too little memory for 100 million, so they are"
        " extrapolated. Bytes, lists and restarts are taken as linear in the objects, with the"
        " slopes between any two measurements as the spread; a call for one object as constant at"
        " the least, and as growing with the logarithm of the objects at the most. No"
        " work has such a figure: their largest number of objects is 1000."
    )
    seconds_max = (60.0, 120.0)
    views = (
        View("bytes", "Memory, an object", "bytes", digits=1),
        View("total", "All objects", "s", digits=3),
        View("each", "One object", "us", _us, digits=2),
        View("model", "100 million objects, extrapolated", "", chart="", digits=1),
    )
    counts_quick = (20_000, 50_000, 100_000)
    counts_full = (_MILLION, 2 * _MILLION, 5 * _MILLION)

    def run(self, room: Room) -> Iterator[Sample]:
        """Three nodes, one after another; then the model."""
        counts = self.counts_quick if room.is_quick else self.counts_full
        done: list[int] = []
        found: dict[str, list[list[float]]] = {}
        failure: BaseException | None = None
        for count in counts:
            case = f"{count / _MILLION:g} M"
            if why := short_of_memory(count * _OBJECT_MEMORY):
                room.note(f"{case}: not run, {why}")
                break
            try:
                measured = _measured(count, room.folder)
            except (Exception, SystemExit) as error:
                # At the time limit, a signal raises SystemExit.
                failure = error
                room.note(f"{case}: failed, {type(error).__name__}: {error}")
                break
            done.append(count)
            for name, values in measured.items():
                found.setdefault(name, []).append(values)
                unit = {**_TOTALS, **_EACH}[name][0]
                if unit == "B":
                    each = [value / count for value in values]
                    yield Sample(case, name, "bytes", "B", each, OBJECT_BYTES)
                else:
                    yield Sample(case, name, "total" if name in _TOTALS else "each", "s", values)
        if len(done) >= 2:
            yield from _model(room, done, found)
        else:
            room.note(f"{len(done)} of {len(counts)} numbers of objects: no model")
        if failure is not None:
            raise failure

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """No work has a figure for it."""
        return {}


def _model(
    room: Room, counts: Sequence[int], found: Mapping[str, Sequence[Sequence[float]]]
) -> Iterator[Sample]:
    """What all quantities would be for the target, from their samples for each count."""
    texts = []
    for name, series in found.items():
        unit = {**_TOTALS, **_EACH}[name][1]
        span = extrapolated(counts, series, TARGET, is_total=name in _TOTALS)
        scale = {"GiB": 1 / _GIB, "us": 1e6}.get(unit, 1.0)
        for peer, value in zip(span._fields, span, strict=True):
            yield Sample(f"{name}, {unit}", peer, "model", unit, [value * scale])
        least, most = (significant(value * scale) for value in span)
        texts.append(f"{name} {least} to {most} {unit}")
    first, last = counts[0] / _MILLION, counts[-1] / _MILLION
    room.note(f"100 M objects, from {first:g} to {last:g} M: {'; '.join(texts)}")


def _measured(count: int, folder: Path) -> dict[str, list[float]]:
    """All quantities of a node with so many objects."""
    node = Node(str(folder), count)
    try:
        before = _sizes(node)
        puts, refs = _filled(node.client, count)
        after = _sizes(node)
        gets = _gotten(node.client, refs)
        del refs
        lists = []
        for _ in range(2):
            began = time.perf_counter()
            found = len(node.client.list())
            lists.append(time.perf_counter() - began)
            if found != count:
                raise ValueError(f"{found} of {count} objects are listed")
        restarts = [node.restart() for _ in range(_RESTARTS)]
        adopted = node.client.stats()["adopted"]
        if adopted != count:
            raise ValueError(f"{adopted} of {count} objects were adopted")
    finally:
        node.close()
    heap, private = (max(0.0, after[at] - before[at]) for at in range(2))
    return {
        "heap and records": [heap],
        "private memory of the node": [private],
        "list of all objects": lists,
        "restart after a kill": restarts,
        "put_many, each": puts,
        "get_many at random, each": gets,
    }


def _sizes(node: Node) -> tuple[float, float]:
    """Bytes in the heap and the tables of records, and private memory of the process."""
    stats = node.client.stats()
    return float(stats["used"] + stats["records"]), float(memory_of(node.pid).own)


def _filled(client: farrow.Client, count: int) -> tuple[list[float], list[Any]]:
    """Put the objects, every other batch with names; the seconds of an object in quarters of all,
    and the references."""
    refs: list[Any] = []
    seconds: list[float] = []
    value = os.urandom(OBJECT_BYTES)
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        names: list[str | None] | None = None
        if first // BATCH % 2:
            names = [f"object-{number}" for number in range(first, first + size)]
        values = [value] * size
        began = time.perf_counter()
        refs += client.put_many(values, names)
        seconds.append((time.perf_counter() - began) / size)
    # Batches with and without names alternate: of each part, the mean of both.
    parts = np.array_split(np.array(seconds), min(4, max(1, len(seconds) // 2)))
    return [float(part.mean()) for part in parts], refs


def _gotten(client: farrow.Client, refs: Sequence[Any]) -> list[float]:
    """Seconds of an object, got at random."""
    random = np.random.default_rng(_SEED)
    seconds: list[float] = []
    for _ in range(5):
        places = random.integers(0, len(refs), _GETS // 5)
        taken = 0.0
        for first in range(0, len(places), _GETS_BATCH):
            chosen = [refs[place] for place in places[first : first + _GETS_BATCH]]
            began = time.perf_counter()
            found = client.get_many(chosen)
            taken += time.perf_counter() - began
            del found
        seconds.append(taken / len(places))
    return seconds
