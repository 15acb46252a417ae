"""Six classes of objects, in own, mapped and not mapped memory, and over slower networks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import by_net
import numpy as np
from cluster import running
from harness.slow_link import Link, slow_link, why_not
from harness.store_tasks import CLASSES, QUICK_CLASSES, class_title
from harness.tasks import Sample

from farrow import _native
from reproduction.experiment import Cells, Experiment, Room, View, middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

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
_STOP_SECONDS_MAX = 30.0
_GIB = 1 << 30
# Classes 4 to 6 of the paper's table begin here.
_LARGE_BYTES = 1_000_000


def _ms(sample: Sample) -> float:
    return middle(sample) * 1e3


def _gib_per_s(sample: Sample) -> float:
    return sample.bytes / middle(sample) / _GIB


def _values(count: int, size: int) -> list[npt.NDArray[np.uint64]]:
    """Arrays with contents that differ."""
    plain = np.arange(size // 8, dtype=np.uint64)
    return [plain + np.uint64(number) for number in range(count)]


def _turn(
    writer: Any, reader: Any, node: str | None, values: Sequence[Any], name: str
) -> tuple[float, float, float]:
    """Seconds to get all objects, to get them once more, and to read them.

    Raises:
        ValueError: other bytes came than were put.
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
        sums = [int(np.add.reduce(one)) for one in found]
        read = time.perf_counter() - began
        if any(got != int(np.add.reduce(one)) for got, one in zip(sums, values, strict=True)):
            raise ValueError(f"{name}: other bytes were read than were put")
        del found
    finally:
        writer.delete_many(wanted)
    return first, again, read


def _classes(
    room: Room, writer: Any, reader: Any, node: str | None, place: str, rounds: int
) -> Iterator[Sample]:
    """All classes at one place; the first round also takes pages and slots, and is left out."""
    for count, size in QUICK_CLASSES if room.is_quick else CLASSES:
        case, total = class_title(count, size), count * (size // 8) * 8
        values = _values(count, size)
        turns = [
            _turn(writer, reader, node, values, f"{case}, {number}") for number in range(rounds + 1)
        ][1:]
        first, again, read = (list(one) for one in zip(*turns, strict=True))
        yield Sample(case, place, "get", "s", first, total)
        yield Sample(case, place, "get again", "s", again, total)
        taken = [one + other for one, other in zip(again, read, strict=True)]
        yield Sample(case, place, "read", "s", taken, total)


def _memory(room: Room) -> int:
    sizes = [count * size for count, size in (QUICK_CLASSES if room.is_quick else CLASSES)]
    return max(sizes) * 2 + (256 << 20)


class Objects(Experiment):
    """Retrieval and reading of six classes of objects."""

    name = "objects"
    title = "Objects of six classes, local and remote"
    about = (
        "Abrahamse's store retrieves objects of six classes from the memory of its own node and of"
        " another one, and reads them. Here: one call that gets all of a class by name, then a sum"
        " of each by NumPy; throughput counts the second get with the read, by one thread. A small"
        " object takes one call of NumPy, some microseconds by itself."
    )
    seconds_max = (90.0, 300.0)
    views = (
        View("get", "Get all objects of a class", "ms", _ms, digits=3),
        View("read", "Get and read them", "GiB/s", _gib_per_s, digits=2),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Own node, and another one whose memory is mapped."""
        rounds = int(room.pick(3, 20))
        with running(2, _memory(room)) as nodes:
            client = nodes.clients[0]
            for place, node in ((OWN, None), (OTHER, nodes.names[1])):
                yield from _classes(room, client, client, node, place, rounds)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """By class, and the spread over the large and the small ones."""
        places = (("own", OWN), ("other", OTHER))
        sizes = {class_title(*one): one[1] for one in CLASSES}
        found: dict[str, str | None] = {}
        for word, place in places:
            for case in sizes:
                taken = cells.get("get", case, place, _ms)
                found[f"get {case}, {word}"] = None if taken is None else f"{taken:.3g} ms"
            large = [case for case in cells.cases("read") if _size(case) >= _LARGE_BYTES]
            found[f"read {word}"] = _span(cells, large, (place,))
        small = [case for case in cells.cases("read") if _size(case) < _LARGE_BYTES]
        found["read small"] = _span(cells, small, (OWN, OTHER))
        shown = [
            f"{case}: {own:.3g} and {other:.3g} ms"
            for case in cells.cases("get")
            if (own := cells.get("get", case, OWN, _ms)) is not None
            and (other := cells.get("get", case, OTHER, _ms)) is not None
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
            own, other = (cells.get("read", case, place, _gib_per_s) for place in (OWN, OTHER))
            if own and other:
                lost.append(100 * (1 - other / own))
        return f"{min(lost):.0f} to {max(lost):.0f} %" if lost else None


def _size(case: str) -> int:
    """Bytes of an object of a class, by its title."""
    known = {class_title(*one): one[1] for one in (*CLASSES, *QUICK_CLASSES)}
    return known.get(case, 0)


def _span(cells: Cells, cases: Sequence[str], places: Sequence[str]) -> str | None:
    speeds = [
        found
        for case in cases
        for place in places
        if (found := cells.get("read", case, place, _gib_per_s)) is not None
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
        View("get", "First get of all objects of a class", "ms", _ms, digits=2),
        View("get again", "Second get", "ms", _ms, digits=3),
        View("read", "Second get, and read", "GiB/s", _gib_per_s, digits=2),
        View("round trip", "A byte and back over TCP", "ms", _ms, digits=3),
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
                    yield from _classes(room, home, reader, None, place, rounds)
            room.note(f"{place} each way stands for {stands_for}")

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The round trip of a link, and the first get of the smallest class over it."""
        texts = []
        for place in _LINKS:
            trip = cells.get("round trip", "1 B", place, _ms)
            taken = cells.get("get", class_title(*CLASSES[0]), place, _ms)
            if trip is not None and taken is not None:
                texts.append(f"{place}: {taken:.3g} ms (round trip {trip:.3g} ms)")
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
