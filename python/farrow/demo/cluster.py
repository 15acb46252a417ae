"""The demo of a cluster: one table in the memory of three nodes, queried from each of them.

The nodes are processes of this machine, connected over loopback, with temporary certificates.  Each
stores a third of the rows.  A client at each node uses all three parts in place as one table and
runs the same query.  At the end the demo prints the cost of creating a table in a node's memory,
with the figures of the papers.

Run it by ``farrow demo cluster [--data FILE]``.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import farrow
from farrow import _native
from farrow._nodes._ports import free_addresses
from farrow.cli._files._read import read_table
from farrow.cli._output import console, grid, human_bytes, human_seconds
from farrow.demo import _cost, _report
from farrow.demo._measure import machine_line, table_bytes
from farrow.demo._options import Options
from farrow.demo._questions import Answer, guess_roles
from farrow.demo._stage import (
    MEMORY_SHARE_MAX,
    STEP_SECONDS_MAX,
    DemoError,
    DemoSetup,
    free_memory_bytes,
    on_stage,
)
from farrow.graph import generate

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

__all__ = ["run"]

_NAMES = ("a", "b", "c")
# Bytes written in the papers; less if there is less memory.
_COST_BYTES_MAX = 1 << 30
_COST_BYTES_MIN = 1 << 20
# Room in addition to the table's part and one measured object: descriptors, extents, small objects.
_MEMORY_SLACK = 64 << 20
_CERTIFICATE_DAYS = 1


def run(options: Options | None = None, *, out: Console | None = None) -> int:
    """Run the demo of a cluster and remove all that it made, also after Ctrl-C.

    Args:
        options: the data, and the memory of each node; None: generated rows.
        out: console for the output; None: standard output.

    Returns:
        An exit code: 0, or 1 if a step failed (printed as one line), or 130 after Ctrl-C.

    Raises:
        ModuleNotFoundError: a package of ``farrow[demo]`` is missing.

    Examples:
        >>> from farrow import demo
        >>> from farrow.demo import cluster
        >>> cluster.run(demo.Options(rows=1000, memory_bytes=64 << 20))  # doctest: +SKIP
        0
    """
    given = options or Options()
    where = out or console()

    def play(stage: DemoSetup) -> None:
        _Cluster(stage, where).play(given)

    return on_stage(where, play)


class _Cluster:
    """One run; the output follows the order of the methods."""

    def __init__(self, stage: DemoSetup, out: Console) -> None:
        self._stage = stage
        self._out = out

    def play(self, options: Options) -> None:
        """Run all steps."""
        began = time.perf_counter()
        self._out.print("\n[bold]Farrow: one table in the memory of three nodes[/bold]")
        self._out.print(f"  [dim]{machine_line()}[/dim]\n")
        table = self._table(options)
        part_bytes = table_bytes(table) // len(_NAMES)
        memory, cost_bytes = _sizes(part_bytes, options.memory_bytes)
        self._start(memory)
        client = farrow.connect(self._stage.socket_of("a"))
        self._spread(client, table)
        self._ask(table)
        self._costs(client, cost_bytes)
        self._out.print(f"  [dim]in all {time.perf_counter() - began:.1f} s[/dim]\n")

    def _table(self, options: Options) -> pa.Table:
        data = options.data
        began = time.perf_counter()
        if data is not None and not data.is_file():
            raise DemoError(f"{data}: no such file")
        table = (
            generate.transactions(options.rows, seed=options.seed)
            if data is None
            else read_table(data)
        )
        seconds = time.perf_counter() - began
        label = "generate transactions" if data is None else f"load {data.name}"
        note = f"{table.num_rows:,} rows, {human_bytes(table_bytes(table))}"
        _report.step(self._out, label, seconds, note)
        return table

    def _start(self, memory: int) -> None:
        began = time.perf_counter()
        folder = self._stage.directory / "certs"
        _native.certs_init(str(folder), _CERTIFICATE_DAYS)
        for name in _NAMES:
            _native.certs_issue(str(folder), name, ["127.0.0.1"], _CERTIFICATE_DAYS)
        seconds = time.perf_counter() - began
        _report.step(self._out, "make certificates of an authority of their own", seconds)
        began = time.perf_counter()
        addresses = dict(zip(_NAMES, free_addresses(len(_NAMES)), strict=True))
        for name in _NAMES:
            flags = ["--name", name, "--listen", addresses[name], "--certs", str(folder)]
            for other in _NAMES:
                flags += ["--join", addresses[other]] if other != name else []
            # Later objects must not evict parts of the table.
            self._stage.start_node(memory, name, [*flags, "--evict", "none"])
        for name in _NAMES:
            self._stage.wait_for_node(name)
        self._settle()
        seconds = time.perf_counter() - began
        note = f"{human_bytes(memory)} each, TLS over loopback"
        _report.step(self._out, "start three nodes that map each other's memory", seconds, note)

    def _settle(self) -> None:
        """Wait until each node maps the memory of all."""
        limit = time.monotonic() + STEP_SECONDS_MAX
        for name in _NAMES:
            client = farrow.connect(self._stage.socket_of(name))
            while True:
                nodes = client.nodes()
                if sum(node.reach == "live" and node.fabric != "" for node in nodes) == len(_NAMES):
                    break
                if time.monotonic() > limit:
                    why = [f"{node.name}: {node.reach} {node.why_not}" for node in nodes]
                    raise DemoError(f"the nodes did not find each other: {'; '.join(why)}")
                time.sleep(0.01)

    def _spread(self, client: Any, table: pa.Table) -> None:
        """Put a third of the rows into the memory of each node, by a client of the first node."""
        rows = table.num_rows
        edges = [rows * number // len(_NAMES) for number in range(len(_NAMES) + 1)]
        for name, first, end in zip(_NAMES, edges[:-1], edges[1:], strict=True):
            used = client.stats(node=name)["used"]
            began = time.perf_counter()
            client.put(table.slice(first, end - first), name, node=name)
            seconds = time.perf_counter() - began
            grown = human_bytes(client.stats(node=name)["used"] - used)
            label = f"put {end - first:,} rows into the memory of {name}"
            _report.step(self._out, label, seconds, f"{grown} there")

    def _ask(self, table: pa.Table) -> None:
        """Run the same query on all rows, by a client at each node."""
        roles = guess_roles(table)
        known = dataclasses.asdict(roles) if roles else None
        workers = {name: self._stage.worker(f"the client at {name}") for name in _NAMES}
        for name, worker in workers.items():
            worker.send("ready", engine="pyarrow", address=self._stage.socket_of(name))
        for worker in workers.values():
            worker.answer()
        cells, found = [], []
        for name, worker in workers.items():
            opened = worker.call("open_parts", names=_NAMES, timeout=5.0)
            if opened["rows"] != table.num_rows:
                raise DemoError(f"{opened['rows']} of {table.num_rows} rows came to {name}")
            reply = worker.call("ask", engine="pyarrow", roles=known)
            worker.call("drop")
            found.append((f"the client at {name}", Answer(**reply["answer"])))
            is_in_place = "yes" if all(opened["in_place"]) else "NO"
            row = (name, human_seconds(opened["seconds"]), is_in_place, f"{opened['rows']:,}")
            cells.append((*row, human_seconds(reply["seconds"])))
        for worker in workers.values():
            worker.end()
        self._out.print()
        titles = ("asked at", ">get all parts", "all in place", ">rows", ">answer")
        self._out.print(grid(titles, cells))
        _report.answers(self._out, roles, found)

    def _costs(self, client: Any, nbytes: int) -> None:
        third = self._stage.worker("the client at c")
        third.call("ready", engine="pyarrow", address=self._stage.socket_of("c"))
        own, far = (_cost.measure(client, node, third, nbytes) for node in ("a", "b"))
        third.end()
        _cost.show(self._out, nbytes, own, far)


def _sizes(part_bytes: int, memory: int | None) -> tuple[int, int]:
    """Bytes of each region, and of the measured object."""
    share = int(free_memory_bytes() * MEMORY_SHARE_MAX) // len(_NAMES)
    limit = share if memory is None else memory
    # A part is copied in pieces, each of which is aligned.
    needed = part_bytes + part_bytes // 8 + _MEMORY_SLACK // (1 if memory is None else 4)
    cost = _COST_BYTES_MAX
    while cost > _COST_BYTES_MIN and needed + cost > limit:
        cost //= 2
    if needed + cost > limit:
        raise DemoError(
            f"{human_bytes(needed + cost)} are needed of each node,"
            f" {human_bytes(limit)} are available: use fewer rows"
        )
    return (needed + cost if memory is None else memory) >> 21 << 21, cost
