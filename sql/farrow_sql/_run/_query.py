"""Run a query: on the workers of the cluster, or in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

import farrow
from farrow.exceptions import InvalidArgument, NodeLost, NodeUnreachable, NotFound, Timeout
from farrow_sql._deadline import Deadline
from farrow_sql._errors import CannotDistribute, Late, QueryFailed
from farrow_sql._exchange import open_output
from farrow_sql._plans import _plan
from farrow_sql._run._local import LocalQuery, Moved, check
from farrow_sql._run._running import announced
from farrow_sql._run._schedule import Schedule
from farrow_sql._tables import missing, prune, sources
from farrow_sql._worker._workers import WorkerLost, workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from farrow_sql._exchange import Output
    from farrow_sql._plans._plan import Plan
    from farrow_sql._run._schedule import StageRun
    from farrow_sql._tables import Source
    from farrow_sql._worker._workers import Worker

__all__ = ["Moved", "Prepared", "Query"]

# A query is repeated when a node or worker is lost with what it had produced.
_RUNS_MAX = 3


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
    # Why workers are not used.
    unused: list[str] = field(default_factory=list)
    # Of a query that has run.
    runs: list[StageRun] = field(default_factory=list)
    moved: Moved | None = None

    def close(self) -> None:
        """End the connections: the workers delete what they produced."""
        for worker in self.workers:
            worker.close()


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
        self._deadline = Deadline(timeout)
        self._progress = progress or (lambda done, total: None)
        # Workers that ended in an earlier run, or whose node did.
        self._lost: set[str] = set()

    def prepare(self) -> Prepared:
        """Plan the query, and connect to the workers; the caller closes the result.

        Raises:
            InvalidArgument: DataFusion does not accept the query.
            Timeout: it took longer than the limit of the query.
            NodeLost, ...: a table cannot be read.
        """
        try:
            return self._prepare()
        except Late:
            raise self._late() from None

    def _late(self) -> Timeout:
        return Timeout(f"the query did not end within {self._timeout} s, and was cancelled")

    def _prepare(self) -> Prepared:
        found, failed = self._deadline.read(lambda: sources(self._client, self._text))
        parts = [len(source.parts) for source in found]
        for source, left in zip(found, prune(self._text, found), strict=True):
            source.parts = left
        connected = workers(self._client, self._lost, self._deadline)
        prepared = Prepared(found, parts, connected.workers, None, unused=connected.unused)
        try:
            self._deadline.check()
            if prepared.workers:
                prepared.plan = _plan.make(self._text, found, len(prepared.workers))
            else:
                check(self._text, found)
                prepared.reason = "the cluster has no workers"
                if prepared.unused:
                    prepared.reason += f" that can be used, {len(prepared.unused)} that cannot"
        except CannotDistribute as error:
            # The processes of the workers serve other queries while this one runs here.
            prepared.close()
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
            QueryFailed: DataFusion reported an error while it ran, or workers ended in each run.
        """
        for attempt in range(1, _RUNS_MAX + 1):
            prepared = self.prepare()
            try:
                return self._run(prepared), prepared
            except (NodeLost, NodeUnreachable, NotFound, WorkerLost) as error:
                # What a lost node or worker produced is computed again. Rows of tables that are
                # lost with a node are an error of the next attempt, which names the node.
                if attempt == _RUNS_MAX:
                    if isinstance(error, WorkerLost):
                        raise QueryFailed(str(error)) from None
                    raise
                self._check_time(error)
            except Late:
                raise self._late() from None
            finally:
                prepared.close()
        raise AssertionError("unreachable")

    def _check_time(self, error: BaseException) -> None:
        if self._deadline.is_over:
            raise Timeout(f"the query did not end within {self._timeout} s: {error}") from None

    def _run(self, prepared: Prepared) -> pa.Table:
        if prepared.plan is not None:
            try:
                schedule = Schedule(prepared.plan, prepared.workers, self._deadline, self._progress)
                prepared.runs = schedule.runs
                plan = prepared.plan
                with announced(self._client, self._text, len(prepared.workers)):
                    try:
                        outputs = schedule.run()
                    finally:
                        self._lost |= schedule.lost
                    found = self._deadline.read(lambda: self._collect(plan, outputs))
                prepared.moved = self._moved(schedule.runs, outputs)
                return found
            except CannotDistribute as error:
                prepared.close()
                prepared.plan, prepared.reason, prepared.runs = None, str(error), []
        local = LocalQuery(self._client, self._text, self._deadline)
        found = local.run(prepared.sources)
        prepared.moved = local.moved
        return found

    def _moved(self, runs: list[StageRun], outputs: list[Output]) -> Moved:
        own = self._client.node or ""
        return Moved(
            sum(run.bytes_moved for run in runs),
            sum(run.rows_moved for run in runs),
            sum(run.table_bytes_moved for run in runs),
            sum(one.nbytes for one in outputs if one.node != own),
        )

    def _collect(self, plan: Plan, outputs: list[Output]) -> pa.Table:
        schema = pa.schema([pa.field(one.name, one.type) for one in plan.schema])
        tables = [pa.Table.from_batches([], schema)]
        for output in outputs:
            self._deadline.check()
            columns = open_output(self._client, output).columns
            # Tasks exchange the storage of extension types.
            typed = [
                column if column.type == kind else column.cast(kind)
                for column, kind in zip(columns, schema.types, strict=True)
            ]
            tables.append(pa.Table.from_arrays(typed, schema=schema))
        return pa.concat_tables(tables)
