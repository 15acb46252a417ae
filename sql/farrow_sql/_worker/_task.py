"""Run a task: a part of a plan over shares of tables and exchanges, in this process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import datafusion
import pyarrow as pa

from farrow._scan import _ending
from farrow_sql._columns import Column, register
from farrow_sql._errors import QueryFailed
from farrow_sql._exchange import Output, open_output
from farrow_sql._plans._stages import check_operators, operators
from farrow_sql._sessions import session
from farrow_sql._tables import read_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    import farrow
    from farrow_sql._exchange import Retained

__all__ = ["Done", "Inputs", "Sink", "StreamDrain", "Task", "run"]

# Output is put when a partition has this much, so that memory of the process stays small.
_FLUSH_BYTES = 32 << 20


@dataclass
class Inputs:
    """Rows that the plan reads by functions: their numbers begin at ``first``."""

    first: int
    # That read the columns of the schema, in its order; none if the rows are only counted.
    functions: list[str]
    schema: pa.Schema
    # Of a table: object, first row and end.
    ranges: list[tuple[bytes, int, int]] = field(default_factory=list)
    # The nodes that have these objects.
    nodes: list[str] = field(default_factory=list)
    # Of an exchange, in the order of their rows.
    outputs: list[Output] = field(default_factory=list)
    is_table: bool = True


@dataclass
class Task:
    """A plan, and what it reads."""

    plan: bytes
    inputs: list[Inputs]


@dataclass
class Done:
    """What a task has done."""

    outputs: list[Output]
    # Of tables, from other nodes.
    bytes_moved: int = 0


def run(client: farrow.Client, task: Task, retained: Retained, memory: int) -> Done:
    """Run a task, and put what it produces.

    Args:
        client: the client of this process.
        task: the task.
        retained: holds what the task produces.
        memory: bytes that operators may use before they spill to disk.

    Raises:
        OutOfMemory, QuotaExceeded, ...: the node has no room for what it produces.
        CannotDistribute: the plan has an operator that does more than compute.
        Exception: DataFusion reported an error.
    """
    runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_os().with_fair_spill_pool(memory)
    context = session(1, runtime)
    bytes_moved = sum(_register(context, client, inputs) for inputs in task.inputs)
    plan = datafusion.ExecutionPlan.from_bytes(context, task.plan)
    check_operators(operators(plan))
    outputs: list[list[Output]] = [[] for _ in range(plan.partition_count)]
    sinks = [_Sink(retained, partition, found) for partition, found in enumerate(outputs)]
    # All partitions at once: a repartition fills them side by side.
    streams = [context.execute(plan, number) for number in range(len(sinks))]
    StreamDrain(streams, sinks).run()
    return Done([one for found in outputs for one in found], bytes_moved)


def _register(context: datafusion.SessionContext, client: farrow.Client, inputs: Inputs) -> int:
    """Let the plan read rows; bytes of tables that were read from other nodes."""
    moved = 0
    if not inputs.functions:
        return moved
    if inputs.is_table:
        rows, moved = read_ranges(client, inputs.ranges, inputs.nodes, inputs.schema)
    else:
        # Columns of a join may have the same name: they are told apart by their place.
        names = inputs.schema.names
        tables = [open_output(client, one).rename_columns(names) for one in inputs.outputs]
        rows = pa.concat_tables(tables) if tables else pa.Table.from_batches([], inputs.schema)
    for position, function in enumerate(inputs.functions):
        values = rows.column(position)
        planned = inputs.schema.field(position).type
        if values.type != planned:
            raise QueryFailed(f"a column of {values.type}, planned as {planned}")
        register(context, function, Column(values, inputs.first))
    return moved


class _Sink:
    """Puts the rows of a partition, some MB at a time."""

    def __init__(self, retained: Retained, partition: int, found: list[Output]) -> None:
        self._retained = retained
        self._partition = partition
        self._found = found
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._size += rows.nbytes
        if self._size >= _FLUSH_BYTES:
            self.end()

    def end(self) -> None:
        if sum(rows.num_rows for rows in self._waiting):
            self._found.append(self._retained.put(self._partition, self._waiting))
        self._waiting, self._size = [], 0


class Sink(Protocol):
    """Takes the rows of a stream."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Take a batch."""

    def end(self) -> None:
        """There are no more."""


class StreamDrain:
    """Reads streams of DataFusion to their ends, all at a time.

    Args:
        streams: the streams.
        sinks: for each stream, what takes its rows.
    """

    def __init__(self, streams: Sequence[Any], sinks: Sequence[Sink]) -> None:
        self._pairs = list(zip(streams, sinks, strict=True))
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self) -> None:
        """Read them, in a thread without an event loop. The first error ends it."""
        _ending.opened(self, self.cancel)
        try:
            asyncio.run(self._all())
        finally:
            _ending.closed(self)

    def cancel(self) -> None:
        """End :meth:`run` of another thread; operators end between batches."""
        if self._running is not None:
            loop, task = self._running
            # The loop is closed if it has just ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    async def _all(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        pairs, self._pairs = self._pairs, []
        await asyncio.gather(*(_read(stream, sink) for stream, sink in pairs))


async def _read(stream: Any, sink: Sink) -> None:
    async for batch in stream:
        sink.add(batch.to_pyarrow())
    sink.end()
