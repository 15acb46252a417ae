"""All of a table sent by a call, and stores that leave nothing in a cache."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import by_net
import numpy as np
import pyarrow as pa
from cluster import measure_memory, running
from harness.machine import available_bytes
from harness.tasks import ROW_BYTES, Sample

from farrow._nodes._ports import free_addresses
from reproduction.experiment import (
    Cells,
    Experiment,
    Room,
    View,
    factor,
    gib_per_s,
    in_ms,
    number,
    of_size,
    short_of_memory,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["SendWhole", "WriteThrough"]

MIB, GIB = 1 << 20, 1 << 30
DESCRIPTOR, PUT, GET = "descriptor", "put(node=)", "get over the network"
_WAIT_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 15.0
# Memory of a step, as multiples of a table: both nodes, and the private tables.
_WHOLE_TABLES = 7
# Of measure_memory: two objects in each of two nodes, and two private copies.
_OBJECTS = 6
_NODE_BYTES = 128 << 20
# Below this size, the caches have all of an object.
_WRITTEN_MIN = 64 << 20
_SEED = 11


def _table(nbytes: int) -> pa.Table:
    """A table of int64, int8 and uint16, as in Groet's Section 5.5."""
    rows = nbytes // ROW_BYTES
    # Bytes that nothing on the way can compress.
    numbers = np.random.default_rng(_SEED).integers(0, 1 << 62, rows)
    return pa.table({"a": numbers, "b": numbers.astype(np.int8), "c": numbers.astype(np.uint16)})


class SendWhole(Experiment):
    """A table with its buffers, by one call."""

    name = "whole"
    title = "Sending all of a table by a call"
    about = (
        "Groet's SendTableFull sends a table with its buffers, beside SendRecordBatchMD, which"
        " sends the descriptor. Farrow's call is client.put(table, node=NAME): it writes a copy of"
        " a table, also of one that was got in place, into the memory of a node. If memory cannot"
        " be mapped, a get transfers all of a table. Here both, beside the descriptor: the put"
        " between nodes that map each other, the get between nodes that do not. The times run from"
        " the sealed table to its last value in a client of the receiving node. The table has"
        " Groet's three columns (11 bytes a row)."
    )
    seconds_max = (40.0, 75.0)
    views = (
        View("time", "Until the last value", "ms", in_ms, "curves", "bytes of the table", 3),
        View("speed", "Bytes of the table", "GiB/s", gib_per_s, "", "", 2),
    )
    sizes_quick: ClassVar[tuple[str, ...]] = ("1 MiB", "16 MiB")
    sizes_full: ClassVar[tuple[str, ...]] = ("1 MiB", "16 MiB", "256 MiB", "1024 MiB")

    def run(self, room: Room) -> Iterator[Sample]:
        """By size: nodes that map each other, then nodes that do not."""
        sizes = []
        for size in self.sizes_quick if room.is_quick else self.sizes_full:
            if why := short_of_memory(_WHOLE_TABLES * number(size) + 2 * _NODE_BYTES):
                room.note(f"{size}: not run, {why}")
            else:
                sizes.append(size)
        if not sizes:
            return
        repeats = int(room.pick(3, 5))
        memory = int(number(sizes[-1])) * 5 // 2 + _NODE_BYTES
        with running(2, memory) as nodes:
            first, second = nodes.clients
            for size in sizes:
                table = _table(int(number(size)))
                first.put(table, "sent")

                def describe(first: Any = first, second: Any = second) -> Any:
                    return second.get("sent")

                def put(first: Any = first, second: Any = second) -> Any:
                    # The sealed table in place, not a private one.
                    first.put(first.get("sent"), "received", node=nodes.names[1])
                    return second.get("received")

                yield from _timed(size, DESCRIPTOR, table, describe, lambda: None, repeats)
                yield from _timed(
                    size, PUT, table, put, lambda second=second: second.delete("received"), repeats
                )
                first.delete("sent")
        with _unmapped(memory) as (home, reader):
            for size in sizes:
                table = _table(int(number(size)))
                # A replica stays at the reader: each turn has a table of its own.
                names = iter([f"sent {turn}" for turn in range(1 + repeats)])
                current: list[str] = []

                def get(current: list[str] = current) -> Any:
                    return reader.get(current[0], timeout=_WAIT_SECONDS_MAX)

                def renew(
                    current: list[str] = current, names: Any = names, table: Any = table
                ) -> None:
                    if current:
                        home.delete(current.pop())
                    if (name := next(names, None)) is not None:
                        home.put(table, name, wait=_WAIT_SECONDS_MAX)
                        current.append(name)

                renew()
                yield from _timed(size, GET, table, get, renew, repeats)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """The largest table, of the descriptor's time."""
        sizes = cells.cases("time")
        if not sizes:
            return {"call": None, "copy": None}
        least = cells.get("time", sizes[-1], DESCRIPTOR, in_ms)
        texts, names = [], []
        for way in (PUT, GET):
            taken = cells.get("time", sizes[-1], way, in_ms)
            speed = cells.get("speed", sizes[-1], way, gib_per_s)
            if taken is None or speed is None:
                continue
            names.append(f"{way}: {significant(taken)} ms at {sizes[-1]}, {speed:.2f} GiB/s")
            if (ratio := factor(taken, least, 0)) is not None:
                texts.append(f"{way} takes {ratio}")
        shown = f"at {sizes[-1]}, of the descriptor's time: {', '.join(texts)}"
        return {"call": "; ".join(names) or None, "copy": shown if texts else None}


def _timed(
    size: str,
    way: str,
    want: pa.Table,
    take: Callable[[], Any],
    after: Callable[[], Any],
    repeats: int,
) -> Iterator[Sample]:
    """Seconds until the last value is there; the first turn is not counted.

    Raises:
        ValueError: a value differs from what was put.
    """
    rows = want.num_rows
    wanted = want["a"][rows - 1].as_py()
    seconds = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        table = take()
        last = table["a"][rows - 1].as_py()
        seconds.append(time.perf_counter() - began)
        if table.num_rows != rows or last != wanted:
            raise ValueError(
                f"{way}: {table.num_rows} rows up to {last}, not {rows} up to {wanted}"
            )
        del table
        after()
    for variant in ("time", "speed"):
        yield Sample(size, way, variant, "s", seconds[1:], rows * ROW_BYTES)


@contextlib.contextmanager
def _unmapped(memory: int) -> Iterator[tuple[Any, Any]]:
    """Clients of two nodes, neither of which maps the other's memory."""
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as name:
        folder = Path(name)
        first, second = free_addresses(2)
        started = [by_net.node(folder, "home", first, None, memory)]
        try:
            started.append(by_net.node(folder, "reader", second, first, memory))
            yield by_net.connected(folder / "home.sock"), by_net.connected(folder / "reader.sock")
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(_STOP_SECONDS_MAX)
                except Exception:
                    process.kill()
                    process.wait()


STORED, PASSED = "stores, then a flush", "stores past the cache"
_PARTS = {"stored": STORED, "copied": PASSED}


class WriteThrough(Experiment):
    """Stores that reach memory while they are made."""

    name = "write-through"
    title = "Stores past the cache, in place of a flush"
    about = (
        "Groet proposes pages that are written through, so that nothing has to be flushed after a"
        " write to remote memory, and did not try them. A process cannot choose such pages: Linux"
        " gives them to a kernel's driver alone. What they are for, stores that reach memory while"
        " they are made, x86-64 has as non-temporal stores, and Farrow's copies use them where a"
        " region is not coherent (node-local). Here both ways to write a large object into own and"
        " another node's memory of that kind: ordinary stores and a flush of all lines, or"
        " non-temporal stores and the publish of a seal."
    )
    seconds_max = (40.0, 60.0)
    views = (
        View("own node", "Own node's memory, node-local", "ms", in_ms, digits=1),
        View("another node", "Another node's memory, node-local", "ms", in_ms, digits=1),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """The parts of both ways; all of them is their sum in each turn."""
        if why := short_of_memory(_OBJECTS * _WRITTEN_MIN + 2 * _NODE_BYTES):
            room.note(f"not run, {why}")
            return
        wanted = int(room.pick(_WRITTEN_MIN, GIB))
        fitting = (available_bytes() - 2 * _NODE_BYTES) // _OBJECTS // MIB * MIB
        size = max(_WRITTEN_MIN, min(wanted, fitting))
        limited = f", instead of {wanted // MIB}: memory is short" if size < wanted else ""
        room.note(f"objects of {size // MIB} MiB{limited}; medians")
        parts: dict[tuple[str, str], dict[str, list[float]]] = {}
        with running(2, 2 * size + _NODE_BYTES, is_node_local=True) as nodes:
            for sample in measure_memory(nodes, size, int(room.pick(3, 5))):
                way, _, part = sample.case.partition(" ")
                if way in _PARTS and part in ("write", "publish"):
                    place = "own node" if sample.variant == "own" else "another node"
                    title = "the stores" if part == "write" else "the flush"
                    yield dataclasses.replace(sample, case=title, peer=_PARTS[way], variant=place)
                    parts.setdefault((place, _PARTS[way]), {})[part] = sample.samples
        for (place, way), both in parts.items():
            all_of_it = [one + other for one, other in zip(*both.values(), strict=True)]
            yield Sample("both", way, place, "s", all_of_it, size)

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Stores past the cache over stores with a flush."""
        texts = []
        for place in ("another node", "own node"):
            flushed, passed = (cells.get(place, "both", way, in_ms) for way in (STORED, PASSED))
            if flushed and passed:
                size = of_size(cells.get(place, "both", PASSED, lambda one: one.bytes), GIB)
                texts.append(
                    f"{significant(passed)} in place of {significant(flushed)} ms"
                    f" ({place}'s memory, non-temporal stores){size}"
                )
        return {"written": "; ".join(texts) or None}
