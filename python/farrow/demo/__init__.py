"""The demo: one process loads a real table into shared memory, two others use it in place.

All printed numbers are measured in the same run, on the loaded table: the time of each step,
compared with an Arrow IPC copy and an Arrow Flight transfer of the same table; the memory of all
processes, compared with private copies; and the location of each buffer.

Run it by ``make demo``, ``farrow demo`` or ``python -m farrow.cli demo [--data FILE]``.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

import farrow
from farrow.cli._files._estimate import estimate, pool_for
from farrow.cli._files._read import read_table
from farrow.cli._files._sniff import FileKind, compression_of, kind_of
from farrow.cli._output import console, human_bytes
from farrow.demo import _report, _transport
from farrow.demo._measure import (
    Memory,
    machine_line,
    memory_of,
    table_bytes,
)
from farrow.demo._options import Options
from farrow.demo._questions import Answer, Roles, available_engine, guess_roles
from farrow.demo._report import Holder, Way
from farrow.demo._stage import (
    MEMORY_SHARE_MAX,
    DemoError,
    DemoSetup,
    Process,
    free_memory_bytes,
    on_stage,
)
from farrow.graph import generate

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

__all__ = ["Options", "run"]

# Reading takes memory in addition to the table: blocks of text, growing builders.
_MEMORY_PER_TABLE = 5
_MEMORY_MIN = 512 << 20
_GZIP_RATIO = 8
_NAME = "demo"


def run(options: Options | None = None, *, out: Console | None = None) -> int:
    """Run the demo and remove all that it made, also after Ctrl-C.

    Args:
        options: the data, and the memory of the node; None: generated rows.
        out: console for the output; None: standard output.

    Returns:
        An exit code: 0, or 1 if a step failed (printed as one line), or 130 after Ctrl-C.

    Raises:
        ModuleNotFoundError: a package of ``farrow[demo]`` is missing.

    Examples:
        >>> from farrow import demo
        >>> demo.run(demo.Options(rows=1000, memory_bytes=64 << 20))  # doctest: +SKIP
        0
    """
    given = options or Options()
    where = out or console()
    return on_stage(where, lambda stage: _Demo(stage, where).play(given))


class _Demo:
    """One run; the output follows the order of the methods."""

    def __init__(self, stage: DemoSetup, out: Console) -> None:
        self._stage = stage
        self._out = out
        self._node_pid = 0
        self._client: Any = None
        self._table: Any = None

    def play(self, options: Options) -> None:
        """Run all steps."""
        began = time.perf_counter()
        self._out.print("\n[bold]Farrow: one table, three processes, no copy[/bold]")
        self._out.print(f"  [dim]{machine_line()}[/dim]\n")
        path = options.data or self._generate(options.rows, options.seed)
        if not path.is_file():
            raise DemoError(f"{path}: no such file")
        self._start(options.memory_bytes or _region_bytes(path))
        try:
            self._act(path)
        finally:
            # Buffers first, then the client, then the node.
            self._table = self._client = None
        self._out.print(f"  [dim]in all {time.perf_counter() - began:.1f} s[/dim]\n")

    def _generate(self, rows: int, seed: int) -> Path:
        path = self._stage.directory / "transactions.csv"
        began = time.perf_counter()
        generate.write(path, rows, seed=seed)
        seconds = time.perf_counter() - began
        size = human_bytes(path.stat().st_size)
        _report.step(self._out, f"write {rows:,} generated transactions", seconds, f"{size} of CSV")
        return path

    def _start(self, memory: int) -> None:
        began = time.perf_counter()
        self._node_pid = self._stage.start_node(memory)
        self._stage.wait_for_node()
        self._client = farrow.connect(self._stage.socket)
        seconds = time.perf_counter() - began
        _report.step(self._out, "start a node", seconds, f"a region of {human_bytes(memory)}")

    def _act(self, path: Path) -> None:
        before = [memory_of(self._node_pid), memory_of(os.getpid())]
        self._load(path)
        roles = guess_roles(self._table)
        engine = available_engine()
        readers = [self._stage.worker(f"process {number}") for number in (2, 3)]
        for reader, name in zip(readers, ("pyarrow", engine), strict=True):
            reader.send("ready", engine=name, address=self._stage.socket)
        for reader in readers:
            reader.answer()
        before += [memory_of(reader.pid) for reader in readers]

        put_seconds, opened = self._share(readers)
        passes = [reader.call("read") for reader in readers]
        pids = [self._node_pid, os.getpid(), *(reader.pid for reader in readers)]
        after = [memory_of(pid) for pid in pids]
        labels = ("the node", "process 1 (loaded it)", "process 2", f"process 3 ({engine})")
        holders = [Holder(*row) for row in zip(labels, before, after, strict=True)]

        ours = Way(
            "Farrow: put + get, in place",
            put_seconds + float(opened[0]["seconds"]),
            float(passes[0]["first"]),
            float(passes[0]["second"]),
            _grown(holders[2].before, holders[2].after),
        )
        found = self._ask(readers, engine, roles)
        built = self._client.locate(self._table)
        places = [reader.call("locate")["buffers"] for reader in readers]
        for reader in readers:
            reader.call("drop")
        other_ways = self._other_ways()

        self._out.print()
        _report.ways(self._out, [ours, *other_ways])
        size = table_bytes(self._table)
        _report.memory(self._out, holders, size)
        _report.buffers(self._out, built, places)
        _report.answers(self._out, roles, found)

    def _load(self, path: Path) -> None:
        began = time.perf_counter()
        self._table = read_table(path, pool=pool_for(self._client, estimate(path)))
        seconds = time.perf_counter() - began
        size = table_bytes(self._table)
        label = f"load {path.name} into shared memory"
        note = (
            f"{self._table.num_rows:,} rows, {human_bytes(size)}, {human_bytes(size / seconds)}/s"
        )
        _report.step(self._out, label, seconds, note)

    def _share(self, readers: list[Process]) -> tuple[float, list[dict[str, Any]]]:
        """Seal the table and let both readers open it; returns the put's seconds and answers."""
        built = {(place["offset"], place["bytes"]) for place in self._client.locate(self._table)}
        began = time.perf_counter()
        self._client.put(self._table, _NAME)
        seconds = time.perf_counter() - began
        sealed = self._client.locate(self._client.get(_NAME))
        moved = [
            int(place["bytes"])
            for place in sealed
            if (place["offset"], place["bytes"]) not in built
        ]
        note = "it was built there: no copy"
        if moved:
            count = f"{len(moved)} of {len(sealed)} buffers"
            note = f"built there, but for {count} ({human_bytes(sum(moved))}), copied in"
        _report.step(self._out, "put: seal it under a name", seconds, note)
        opened = []
        for reader in readers:
            answer = reader.call("open", name=_NAME, timeout=5.0)
            _report.step(self._out, f"get: {reader.label} opens it in place", answer["seconds"])
            opened.append(answer)
        return seconds, opened

    def _ask(
        self, readers: list[Process], engine: str, roles: Roles | None
    ) -> list[tuple[str, Answer]]:
        known = dataclasses.asdict(roles) if roles else None
        found = []
        for reader, name in zip(readers, ("pyarrow", engine), strict=True):
            requested = "top accounts and histogram" if roles else "summary of each column"
            result = reader.call("ask", engine=name, roles=known)
            shown = name if roles else "pyarrow"
            _report.step(self._out, f"{reader.label}: {requested} ({shown})", result["seconds"])
            found.append((shown, Answer(**result["answer"])))
        return found

    def _other_ways(self) -> list[Way]:
        """Transfer the same table by other methods, each to its own process, one by one."""
        attempts = (
            ("Arrow IPC file in /dev/shm, mapped", "ipc", _transport.by_mapped_file),
            ("Arrow IPC through a socket, copied", "ipc", _transport.by_socket),
            ("Arrow Flight (gRPC over a Unix socket)", "flight", _transport.by_flight),
        )
        ways: list[Way] = []
        for name, engine, send in attempts:
            receiver = self._stage.worker("receiver")
            receiver.call("ready", engine=engine, address=None)
            before = memory_of(receiver.pid)
            mapped = send is _transport.by_mapped_file
            # The path of a socket has 107 bytes at most, with the folder for temporary files.
            socket = self._stage.directory / f"{len(ways)}.sock"
            path = self._stage.shared_file() if mapped else socket
            seconds = send(self._table, receiver, path)
            passes = receiver.call("read")
            grown = _grown(before, memory_of(receiver.pid))
            if mapped:
                grown += path.stat().st_size
                path.unlink()
            ways.append(Way(name, seconds, float(passes["first"]), float(passes["second"]), grown))
            receiver.end()
        return ways


def _grown(before: Memory, after: Memory) -> int:
    """Private memory and page tables that a process gained."""
    return after.private - before.private + after.page_tables - before.page_tables


def _region_bytes(path: Path) -> int:
    """The size of a region to load a file, estimated from the file."""
    size = path.stat().st_size
    if kind_of(path) is FileKind.PARQUET:
        import pyarrow.parquet as pq

        footer = pq.read_metadata(path)
        size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)) * 2
    elif compression_of(path) is not None:
        size *= _GZIP_RATIO
    wanted = max(_MEMORY_MIN, _MEMORY_PER_TABLE * size)
    limit = int(free_memory_bytes() * MEMORY_SHARE_MAX)
    return min(wanted, limit) >> 21 << 21
