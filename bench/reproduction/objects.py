"""Six classes of objects, in own, mapped and not mapped memory, and over slower networks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import by_net
import numpy as np
from cluster import running
from harness.slow_link import Link, slow_link, why_not
from harness.store_tasks import CLASSES, QUICK_CLASSES, class_title
from harness.tasks import Sample

from farrow import _native
from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    gib_per_s,
    in_ms,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Objects", "Slower"]

OWN, OTHER = "own node", "another node, mapped"
# One-way delays of links, and what they stand for.
_LINKS = {
    "a network, 0 us": (0.0, "the cost of the forwarder alone"),
    "a network, 50 us": (50e-6, "Ethernet within a data centre"),
    "a network, 1.6 ms": (1.6e-3, "an empty call of gRPC as the works measured it, 3.23 ms"),
}
_PORT = 7401
_CERTS_DAYS = 2
# A heartbeat waits behind the bytes of an object in the forwarder.
_LEASE_MS = 10_000
_STOP_SECONDS_MAX = 15.0
# Pieces in which the bytes of a buffer are read: both stay in the second cache.
_PIECE_BYTES = 64 << 10
_SEED = 5
# The second line needs fewer rounds than the compared one: they take minutes.
_ARRAYS_ROUNDS = 3
# Classes 4 to 6 of the paper's table begin here.
_LARGE_BYTES = 1_000_000


def _values(count: int, size: int) -> list[bytes]:
    """Random bytes."""
    random = np.random.default_rng(_SEED)
    return [random.bytes(size) for _ in range(count)]


def _read_buffers(found: Sequence[Any]) -> None:
    """Copy each byte into one buffer that stays in the cache: few calls, and no fresh pages."""
    # pyarrow's buffers are of signed bytes.
    target = memoryview(bytearray(_PIECE_BYTES)).cast("b")
    size = len(found[0])
    if size <= _PIECE_BYTES:
        whole = target[:size]
        for one in found:
            whole[:] = one
        return
    for one in found:
        view = memoryview(one)
        for start in range(0, size, _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            target[: len(piece)] = piece


def _read_arrays(found: Sequence[Any]) -> None:
    for one in found:
        np.add.reduce(one)


def _is_same(got: Any, put: Any) -> bool:
    return np.array_equal(np.frombuffer(got, np.uint64), np.frombuffer(put, np.uint64))


class Kind(NamedTuple):
    """A type of the objects: a suffix of variants, the value of bytes, and the reading."""

    suffix: str
    value: Callable[[bytes], Any]
    read: Callable[[Sequence[Any]], None]


BUFFERS = Kind("", bytes, _read_buffers)
ARRAYS = Kind(", arrays", lambda one: np.frombuffer(one, np.uint64), _read_arrays)


def _turn(
    writer: Any, reader: Any, node: str | None, values: Sequence[Any], name: str, kind: Kind
) -> tuple[float, float, float]:
    """Seconds to get all objects, to get them once more, and to read them.

    Raises:
        ValueError: the bytes that were read differ from those that were put.
    """
    names: list[str | None] = [f"{name} {number}" for number in range(len(values))]
    wanted = [one for one in names if one is not None]
    writer.put_many(values, names, node=node)
    try:
        began = time.perf_counter()
        found = reader.get_many(wanted)
        first = time.perf_counter() - began
        del found
        began = time.perf_counter()
        found = reader.get_many(wanted)
        again = time.perf_counter() - began
        began = time.perf_counter()
        kind.read(found)
        read = time.perf_counter() - began
        if not all(map(_is_same, found, values)):
            raise ValueError(f"{name}: other bytes were read than were put")
        del found
    finally:
        writer.delete_many(wanted)
    return first, again, read


def _classes(
    room: Room, writer: Any, reader: Any, node: str | None, place: str, rounds: int,
    kinds: Sequence[Kind],
) -> Iterator[Sample]:  # fmt: skip
    """All classes at one place; the first round also takes pages and slots, and is left out."""
    for count, size in QUICK_CLASSES if room.is_quick else CLASSES:
        case, total = class_title(count, size), count * size
        values = _values(count, size)
        turns: dict[Kind, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
        for number in range(rounds + 1):
            for kind in kinds if number <= _ARRAYS_ROUNDS else (BUFFERS,):
                name = f"{case}{kind.suffix}, {number}"
                put = [kind.value(one) for one in values]
                turns[kind].append(_turn(writer, reader, node, put, name, kind))
        for kind in kinds:
            first, again, read = (list(one) for one in zip(*turns[kind][1:], strict=True))
            yield Sample(case, place, f"get{kind.suffix}", "s", first, total)
            yield Sample(case, place, f"get again{kind.suffix}", "s", again, total)
            taken = [one + other for one, other in zip(again, read, strict=True)]
            yield Sample(case, place, f"read{kind.suffix}", "s", taken, total)
            yield Sample(case, place, f"read alone{kind.suffix}", "s", read, total)


def _memory(room: Room) -> int:
    sizes = [count * size for count, size in (QUICK_CLASSES if room.is_quick else CLASSES)]
    return max(sizes) * 2 + (256 << 20)


class Objects(Experiment):
    """Retrieval and reading of six classes of objects."""

    name = "objects"
    title = "Objects of six classes, local and remote"
    about = (
        "Abrahamse's store retrieves objects of six classes from the memory of its own node and of"
        " another one, and reads them. Here: one call that gets the buffers of all objects of a"
        " class by name; then one thread copies them, 64 KiB a time, into one buffer that stays in"
        " the cache. Throughput counts the second get with the read. The loop is Python's: an"
        " object of 1 kB takes some hundred nanoseconds of it. In turn with that, the same bytes as"
        " NumPy arrays, which the get has to make, and NumPy's sum of each; their"
        " throughput is compared with nothing."
    )
    seconds_max = (90.0, 420.0)
    views = (
        View("get", "Get all objects of a class", "ms", in_ms, digits=3),
        View("read", "Get and read them", "GiB/s", gib_per_s, digits=2),
        View("read alone", "Read them, without the get", "GiB/s", gib_per_s, digits=2),
        View("get, arrays", "The same as NumPy arrays: get", "ms", in_ms, digits=3),
        View("read, arrays", "NumPy arrays: get, and sum by NumPy", "GiB/s", gib_per_s, digits=2),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Own node, and another one whose memory is mapped."""
        rounds = int(room.pick(3, 10))
        with running(2, _memory(room)) as nodes:
            client = nodes.clients[0]
            for place, node in ((OWN, None), (OTHER, nodes.names[1])):
                kinds = (BUFFERS, ARRAYS)
                yield from _classes(room, client, client, node, place, rounds, kinds)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """By class, and the spread over the large and the small ones."""
        places = (("own", OWN), ("other", OTHER))
        sizes = {class_title(*one): one[1] for one in CLASSES}
        found: dict[str, str | None] = {}
        for word, place in places:
            for case in sizes:
                taken = cells.get("get", case, place, in_ms)
                arrays = cells.get("get, arrays", case, place, in_ms)
                also = "" if arrays is None else f"; as NumPy arrays {significant(arrays)} ms"
                text = None if taken is None else f"{significant(taken)} ms{also}"
                found[f"get {case}, {word}"] = text
            large = [case for case in cells.cases("read") if _size(case) >= _LARGE_BYTES]
            found[f"read {word}"] = _span(cells, large, (place,))
        small = [case for case in cells.cases("read") if _size(case) < _LARGE_BYTES]
        both = (OWN, OTHER)
        with_get, alone = (_span(cells, small, both, one) for one in ("read", "read alone"))
        text = f"{alone}, read by a loop in Python; {with_get} with the get"
        found["read small"] = None if alone is None else text
        shown = [
            f"{case}: {significant(own)} and {significant(other)} ms"
            for case in cells.cases("get")
            if (own := cells.get("get", case, OWN, in_ms)) is not None
            and (other := cells.get("get", case, OTHER, in_ms)) is not None
        ]
        found["get"] = "; ".join(shown) + " (own and another node's)" if shown else None
        found["slower"] = self._slower(cells)
        return found

    @staticmethod
    def _slower(cells: Cells) -> str | None:
        lost = []
        for case in cells.cases("read"):
            if _size(case) < _LARGE_BYTES:
                continue
            own, other = (cells.get("read", case, place, gib_per_s) for place in (OWN, OTHER))
            if own and other:
                lost.append(100 * (1 - other / own))
        return f"{min(lost):.0f} to {max(lost):.0f} %" if lost else None


def _size(case: str) -> int:
    """Bytes of an object of a class, by its title."""
    known = {class_title(*one): one[1] for one in (*CLASSES, *QUICK_CLASSES)}
    return known.get(case, 0)


def _span(
    cells: Cells, cases: Sequence[str], places: Sequence[str], work: str = "read"
) -> str | None:
    speeds = [
        found
        for case in cases
        for place in places
        if (found := cells.get(work, case, place, gib_per_s)) is not None
    ]
    return f"{min(speeds):.2f} to {max(speeds):.2f} GiB/s" if speeds else None


class Slower(Experiment):
    """Objects of a node that shares no memory, over links that hold packets back."""

    name = "slower"
    title = "A medium that is truly slower: objects over delayed links"
    about = (
        "Nodes of one machine share memory that is as fast as their own. Here two nodes share none:"
        " they run in network namespaces and speak TLS, and a forwarder between them holds each"
        " packet back. The first get brings the objects over the link, once for all processes of"
        " the node; the second finds the copy in own memory. A delay stands for a network, not for"
        " slower loads: what those cost is predicted above."
    )
    seconds_max = (120.0, 420.0)
    views = (
        View("get", "First get of all objects of a class", "ms", in_ms, digits=2),
        View("get again", "Second get", "ms", in_ms, digits=3),
        View("read", "Second get, and read", "GiB/s", gib_per_s, digits=2),
        View("round trip", "A byte and back over TCP", "ms", in_ms, digits=3),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """All classes over each link."""
        reason = why_not()
        if reason is not None:
            room.note(f"left out: {reason}")
            return
        for place, (seconds, stands_for) in _LINKS.items():
            with slow_link(seconds) as link:
                yield Sample("1 B", place, "round trip", "s", [link.round_trip()])
                with _nodes(link, _memory(room), room.folder) as (home, reader):
                    rounds = int(room.pick(2, 5))
                    yield from _classes(room, home, reader, None, place, rounds, (BUFFERS,))
            room.note(f"{place} each way stands for {stands_for}")

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The round trip of a link, and the first get of the smallest class over it."""
        texts = []
        for place in _LINKS:
            trip = cells.get("round trip", "1 B", place, in_ms)
            taken = cells.get("get", class_title(*CLASSES[0]), place, in_ms)
            if trip is not None and taken is not None:
                texts.append(
                    f"{place}: {significant(taken)} ms (round trip {significant(trip)} ms)"
                )
        shown = f"no call; {class_title(*CLASSES[0])} brought over {'; '.join(texts)}"
        return {"call": shown if texts else None}


@contextlib.contextmanager
def _nodes(link: Link, memory: int, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Clients of two nodes that share no memory, one on each side of the link."""
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=folder) as name:
        started = []
        sockets = [Path(name) / f"{one}.sock" for one in ("home", "reader")]
        # Off loopback nodes speak TLS alone.
        certs = Path(name) / "certs"
        _native.certs_init(str(certs), _CERTS_DAYS)
        for socket, address in zip(sockets, link.addresses, strict=True):
            _native.certs_issue(str(certs), socket.stem, [address], _CERTS_DAYS)
        first = f"{link.addresses[0]}:{_PORT}"
        try:
            for side, socket in enumerate(sockets):
                joins = ["--join", first] if side else []
                command = [
                    sys.executable, "-m", "farrow.cli", "node", "--unsupervised",
                    "--socket", str(socket), "--name", socket.stem, "--net", "only",
                    "--listen", f"{link.addresses[side]}:{_PORT}", "--certs", str(certs),
                    "--memory", str(memory), "--evict", "none", *joins,
                    "--lease-ms", str(_LEASE_MS),
                ]  # fmt: skip
                started.append(
                    subprocess.Popen(link.command(side, command), stderr=subprocess.DEVNULL)
                )
            yield by_net.connected(sockets[0]), by_net.connected(sockets[1])
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                try:
                    process.wait(_STOP_SECONDS_MAX)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
