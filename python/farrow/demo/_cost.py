"""The cost of creating a table in the memory of a node, besides the copy of its bytes.

The parts are those measured in the papers (Groet 2023, HCDS 2024).  The papers' figures are from
other machines: they show the distribution of the time, not the faster machine.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farrow.cli._output import grid, human_bytes, human_seconds
from farrow.demo._stage import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from farrow.demo._stage import Process

__all__ = ["Cost", "measure", "show"]

# The first round also allocates retained pages and slots; it is not counted.
_ROUNDS = 5
# Objects retrieved in the papers: 1000 of 1 kB.
_SMALL_OBJECTS = 1000
_SMALL_BYTES = 1000
# Columns of the described table; their length does not matter.
_COLUMNS = 11
_COLUMN_ROWS = 10_000


@dataclasses.dataclass
class Cost:
    """Medians in seconds."""

    allocate: float
    write: float
    publish: float
    describe: float
    find: float
    retrieve: float

    @property
    def not_copy(self) -> float:
        """Time of everything but the copy of the bytes."""
        return self.allocate + self.publish


def measure(client: Any, node: str, third: Process, nbytes: int) -> Cost:
    """Create objects of ``nbytes`` in a node's memory; ``third`` finds them from another node.

    Raises:
        DemoError: a table that was built in the node's memory was copied.
    """
    source = np.full(nbytes, 7, np.uint8)
    parts = [_make_one(client, node, source) for _ in range(1 + _ROUNDS)][1:]
    allocate, write, publish = (statistics.median(times) for times in zip(*parts, strict=True))
    describe, find = _describe(client, node, third)
    return Cost(allocate, write, publish, describe, find, _retrieve(client, node))


def _make_one(client: Any, node: str, source: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Seconds to allocate, to copy, and to publish under a name."""
    name = f"cost at {node}"
    began = time.perf_counter()
    writer = client.create(source.nbytes, name, node=node)
    allocated = time.perf_counter()
    np.copyto(np.frombuffer(writer.buffer, np.uint8), source)
    written = time.perf_counter()
    writer.seal()
    sealed = time.perf_counter()
    client.delete(name)
    return allocated - began, written - allocated, sealed - written


def _describe(client: Any, node: str, third: Process) -> tuple[float, float]:
    """Seconds to describe and seal a table in place, and to find it from another node."""
    table = _table_in(client.memory_pool(node=node))
    place = client.at(node)
    name = f"described at {node}"
    described, found = [], []
    for _ in range(1 + _ROUNDS):
        began = time.perf_counter()
        client.put(table, name, node=node)
        described.append(time.perf_counter() - began)
        if _offsets(place, client.get(name)) != _offsets(place, table):
            raise DemoError(f"a table that was built in the memory of {node} was copied")
        found.append(float(third.call("find", name=name)["seconds"]))
        client.delete(name)
    return statistics.median(described[1:]), statistics.median(found[1:])


def _table_in(pool: pa.MemoryPool) -> pa.Table:
    columns = {}
    for number in range(_COLUMNS):
        buffer = pa.allocate_buffer(8 * _COLUMN_ROWS, memory_pool=pool)
        np.frombuffer(buffer, np.int64)[:] = number
        array = pa.Array.from_buffers(pa.int64(), _COLUMN_ROWS, [None, buffer])
        columns[f"column{number}"] = array
    return pa.table(columns)


def _offsets(place: Any, table: pa.Table) -> list[int | None]:
    return [buffer["offset"] for buffer in place.locate(table)]


def _retrieve(client: Any, node: str) -> float:
    """Seconds to get the small objects of a node, one after another."""
    refs = client.put_many([bytes(_SMALL_BYTES)] * _SMALL_OBJECTS, node=node)
    times = []
    for _ in range(1 + _ROUNDS):
        began = time.perf_counter()
        for ref in refs:
            client.get(ref)
        times.append(time.perf_counter() - began)
    client.delete_many(refs)
    return statistics.median(times[1:])


def show(out: Console, nbytes: int, own: Cost, far: Cost) -> None:
    """Print both costs and those of the papers."""

    def row(what: str, pick: Callable[[Cost], float], theirs: tuple[str, str]) -> tuple[str, ...]:
        return (what, human_seconds(pick(own)), human_seconds(pick(far)), *theirs)

    def share(cost: Cost) -> str:
        whole = cost.not_copy + cost.write
        return f"{human_seconds(cost.not_copy)} of {human_seconds(whole)}"

    size = human_bytes(nbytes)
    rows = [
        row(f"allocate {size}", lambda cost: cost.allocate, ("", "4.99 ms")),
        row("write: the copy itself, by one thread", lambda cost: cost.write, ("", "")),
        row("publish: seal it under a name", lambda cost: cost.publish, ("", "")),
        ("all but the copy, of all", share(own), share(far), "58 of 68 ms", "118 of 300 ms"),
        row("serialize a table's descriptor, and seal", lambda cost: cost.describe, ("", "")),
        row("send it: none is sent, a third node finds it", lambda cost: cost.find, ("", "3.2 ms")),
        row("get 1000 objects of 1 kB", lambda cost: cost.retrieve, ("1.89 ms", "5.05 ms")),
    ]
    titles = (
        "what a table costs before it can be used (medians)",
        ">own memory",
        ">another node's",
        ">papers: own",
        ">papers: another's",
    )
    out.print(grid(titles, rows))
    out.print(
        "  [dim]The papers' figures (Groet 2023, HCDS 2024) are of their machines and of 1 GiB. All"
        " nodes of this run\n  share one machine, and map each other's memory.[/dim]\n",
        soft_wrap=True,
    )
