"""Run a query: on the workers of the cluster, or in this process."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import farrow
from farrow.exceptions import InvalidArgument, NodeLost, NotFound, Timeout
from farrow_sql import _plan
from farrow_sql._columns import Column, register
from farrow_sql._errors import CannotDistribute, raised, spoken
from farrow_sql._exchange import open_output
from farrow_sql._schedule import Schedule
from farrow_sql._sessions import session
from farrow_sql._tables import (
    add_views,
    column_name,
    first_row,
    missing,
    prune,
    read_ranges,
    sources,
)
from farrow_sql._task import Drain
from farrow_sql._workers import WorkerLost, workers

if TYPE_CHECKING:
    from collections.abc import Callable

    import datafusion

    from farrow_sql._exchange import Output
    from farrow_sql._plan import Plan
    from farrow_sql._schedule import StageRun
    from farrow_sql._tables import Source
    from farrow_sql._task import Drain
from farrow_sql._workers import Worker

__all__ = ["Prepared", "Query"]

# A query is repeated when a node or worker is lost with what it had produced.
_RUNS_MAX = 3
_POLL_SECONDS = 0.1


@dataclass
class Prepared:
    """How a query will run."""

    sources: list[Source]
    # Rows and parts of each table before filters left some out.
    parts: list[int]
    workers: list[Worker]
    # None: in this process, for this reason.
    plan: Plan | None
    reason: str = ""
    runs: list[StageRun] = field(default_factory=list)

    def close(self) -> None:
        """End the connections: the workers delete what they produced."""
        for worker in self.workers:
            worker.close()


class _Batches:
    """The rows of a stream, in this process."""

    def __init__(self) -> None:
        self.found: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self.found.append(rows)

    def end(self) -> None:
        pass


class Query:
    """A query of one client.

    Args:
        text: one ``select``.
        client: the client.
        timeout: seconds for all of it; None: no limit.
        progress: called with the number of finished tasks, and of all.
    """

    def __init__(
        self,
        text: str,
        client: farrow.Client,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise InvalidArgument(f"a timeout of {timeout} s")
        self._text = text
        self._client = client
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._progress = progress or (lambda done, total: None)

    def prepare(self) -> Prepared:
        """Plan the query, and connect to the workers; the caller closes the result."""
        found, failed = sources(self._client, self._text)
        parts = [len(source.parts) for source in found]
        for source, left in zip(found, prune(self._text, found), strict=True):
            source.parts = left
        connected = workers(self._client)
        prepared = Prepared(found, parts, connected, None)
        try:
            if connected:
                prepared.plan = _plan.make(self._text, found, len(connected))
            else:
                self._used(found)
                prepared.reason = "the cluster has no workers"
        except CannotDistribute as error:
            prepared.reason = str(error)
        except InvalidArgument as error:
            prepared.close()
            raise missing(self._client, error, failed) or error from None
        except BaseException:
            prepared.close()
            raise
        return prepared

    def run(self) -> tuple[pa.Table, Prepared]:
        """The rows, and how they were found.

        Raises:
            InvalidArgument: DataFusion does not accept the query.
            Timeout: it took longer than its limit.
            NodeLost: a node is lost that has rows of its tables.
            OutOfMemory: a node, or the memory of a task, has no room; the message has the numbers.
            QueryFailed: DataFusion reported an error while it ran.
        """
        for attempt in range(1, _RUNS_MAX + 1):
            prepared = self.prepare()
            try:
                return self._run(prepared), prepared
            except (NodeLost, NotFound, WorkerLost) as error:
                # What a lost node or worker produced is computed again. Rows of tables that are
                # lost with a node are an error of the next attempt, which names the node.
                if attempt == _RUNS_MAX:
                    raise
                self._check_time(error)
            except Timeout:
                raise Timeout(
                    f"the query did not end within {self._timeout} s, and was cancelled"
                ) from None
            finally:
                prepared.close()
        raise AssertionError("unreachable")

    def _check_time(self, error: BaseException) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise Timeout(f"the query did not end within {self._timeout} s: {error}") from None

    def _run(self, prepared: Prepared) -> pa.Table:
        if prepared.plan is not None:
            try:
                schedule = Schedule(prepared.plan, prepared.workers, self._deadline, self._progress)
                prepared.runs = schedule.runs
                return self._collect(prepared.plan, schedule.run())
            except CannotDistribute as error:
                prepared.plan, prepared.reason = None, str(error)
        return self._here(prepared.sources)

    def _collect(self, plan: Plan, outputs: list[Output]) -> pa.Table:
        schema = pa.schema([pa.field(one.name, one.type) for one in plan.schema])
        if not outputs:
            return schema.empty_table()
        tables = []
        for output in outputs:
            table = open_output(self._client, output)
            tables.append(table.rename_columns(schema.names))
        return pa.concat_tables(tables)

    def _here(self, found: list[Source]) -> pa.Table:
        """Run the whole query in this process, over the tables of the cluster."""
        used = self._used(found)
        # Views refer to the functions that are registered when they are made.
        context = session(_cores())
        _plan.declare_tables(context, found)
        for table, source in enumerate(found):
            self._read(context, table, source, used)
        add_views(context, found)
        frame = _plan.frame_of(context, self._text)
        schema = pa.schema([pa.field(one.name, one.type) for one in frame.schema()])
        batches = _Batches()
        self._drain(frame.execute_stream(), batches)
        tables = [pa.Table.from_arrays(one.columns, schema=schema) for one in batches.found]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _drain(self, stream: Any, batches: _Batches) -> None:
        """Read a stream in another thread, so that Ctrl-C and the deadline end the wait."""
        drain = Drain([stream], [batches])
        del stream
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def body() -> None:
            try:
                drain.run()
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        # It may outlive the query for a while: an operator ends between batches.
        threading.Thread(target=body, name="farrow-sql query", daemon=True).start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    error = ended.get(timeout=_POLL_SECONDS)
                    break
                if self._is_late():
                    raise Timeout("late")
        except BaseException:
            drain.cancel()
            raise
        if error is not None:
            if self._is_late():
                raise Timeout("late")
            raise raised(*spoken(error)) from None

    def _used(self, found: list[Source]) -> str:
        """The plan of the query, which names the columns that it reads."""
        context = session(1)
        _plan.declare_tables(context, found)
        add_views(context, found)
        frame = _plan.frame_of(context, self._text)
        try:
            return frame.execution_plan().display_indent()
        except Exception as error:
            raise InvalidArgument(f"query not accepted: {error}") from None

    def _read(
        self, context: datafusion.SessionContext, table: int, source: Source, used: str
    ) -> None:
        """Let the session read the columns of a table that the plan names."""
        numbers = [
            number
            for number in range(len(source.schema))
            if re.search(rf"\b{column_name(table, number)}\(", used)
        ]
        if not numbers:
            return
        schema = pa.schema([source.schema.field(number) for number in numbers])
        ranges = [(part.id, 0, part.rows) for part in source.parts]
        rows = read_ranges(self._client, ranges, schema)
        first = first_row(table)
        for position, number in enumerate(numbers):
            column = Column(rows.column(position), first, self._is_late)
            register(context, column_name(table, number), column)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline


def _cores() -> int:
    return len(os.sched_getaffinity(0))
