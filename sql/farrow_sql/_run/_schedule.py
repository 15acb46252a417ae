"""Run the stages of a plan: each task at the worker that has its rows, as soon as it can run."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from farrow_sql._plans._plan import exchange_name
from farrow_sql._plans._stages import Scan
from farrow_sql._tables import FIRST_ROW_BITS, Part, Range, column_name, joined
from farrow_sql._worker._task import Inputs, Task
from farrow_sql._worker._workers import WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from farrow_sql._deadline import Deadline
    from farrow_sql._exchange import Output
    from farrow_sql._plans._plan import Plan
    from farrow_sql._plans._stages import Exchange, Stage
    from farrow_sql._worker._task import Done
    from farrow_sql._worker._workers import Worker

__all__ = ["Range", "Schedule", "StageRun", "shares"]

# A task whose workers die each time ends the query.
_ATTEMPTS_MAX = 3
# How soon Ctrl-C and a deadline are seen.
_POLL_SECONDS = 0.1


def shares(parts: Iterable[Part], nodes: list[str]) -> list[list[Range]]:
    """The rows of a table by task: each node's own are divided among its workers.

    Args:
        parts: the parts of the table.
        nodes: the node of each worker, one for each task.
    """
    by_node: dict[str, list[Part]] = {}
    for part in parts:
        # Rows of a node without a worker are divided among all.
        by_node.setdefault(part.node if part.node in nodes else "", []).append(part)
    found: list[list[Range]] = [[] for _ in nodes]
    for node, own in by_node.items():
        tasks = [task for task, name in enumerate(nodes) if name == node] or list(range(len(nodes)))
        for task, ranges in zip(tasks, _divided(own, len(tasks)), strict=True):
            found[task] += joined(ranges)
    return found


def _divided(parts: list[Part], count: int) -> list[list[Range]]:
    total = sum(part.rows for part in parts)
    ends = [total * (number + 1) // count for number in range(count)]
    found: list[list[Range]] = [[] for _ in range(count)]
    at = share = 0
    for part in parts:
        begin = 0
        while begin < part.rows:
            while at >= ends[share]:
                share += 1
            end = min(part.rows, begin + ends[share] - at)
            found[share].append((part.id, part.begin + begin, part.begin + end, part.node))
            at += end - begin
            begin = end
    return found


def _first_rows(parts: list[Part], rows: int | None) -> list[Range]:
    """The first ``rows`` rows of a table, or all."""
    found = []
    left = sum(part.rows for part in parts) if rows is None else rows
    for part in parts:
        end = min(part.rows, left)
        if end > 0:
            found.append((part.id, part.begin, part.begin + end, part.node))
        left -= end
    return joined(found)


@dataclass
class StageRun:
    """What is known of a stage while it runs."""

    outputs: dict[int, list[Output]] = field(default_factory=dict)
    # Of the tasks, where each ran.
    workers: dict[int, Worker] = field(default_factory=dict)
    seconds: float = 0.0
    # Of exchanges.
    bytes_moved: int = 0
    # Of tables.
    rows_read: int = 0
    rows_moved: int = 0
    table_bytes_moved: int = 0


@dataclass
class _Job:
    stage: Stage
    task: int
    attempts: int = 0


class Schedule:
    """One run of a plan.

    Args:
        plan: the plan, for as many tasks as there are workers.
        workers: the connections, which the caller closes.
        deadline: the end of the time of the query.
        progress: called with the number of finished tasks, and of all.
    """

    def __init__(
        self,
        plan: Plan,
        workers: list[Worker],
        deadline: Deadline,
        progress: Callable[[int, int], None],
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._deadline = deadline
        self._progress = progress
        nodes = [worker.node for worker in workers]
        self._shares = [shares(source.parts, nodes) for source in plan.sources]
        self._queues: dict[str, queue.Queue[_Job | None]] = {}
        self._events: queue.Queue[tuple[Worker, _Job, Done | BaseException, float]] = queue.Queue()
        # The names of workers that ended.
        self.lost: set[str] = set()
        # Threads of several workers make plans by one session.
        self._lock = threading.Lock()
        self.runs = [StageRun() for _ in plan.stages]

    def run(self) -> list[Output]:
        """Run all stages; the outputs of the last one, in order.

        Raises:
            Late: the deadline is over.
            WorkerLost: no worker is left.
            QueryFailed, OutOfMemory, ...: what a task raised.
        """
        threads = []
        for worker in self._workers:
            self._queues[worker.name] = queue.Queue()
            threads.append(threading.Thread(target=self._serve, args=(worker,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._loop()
        finally:
            for one in self._queues.values():
                one.put(None)
        return self._outputs(self._plan.stages[-1])

    def _serve(self, worker: Worker) -> None:
        """Run the tasks of one worker, one after another."""
        while (job := self._queues[worker.name].get()) is not None:
            began = time.monotonic()
            result: Done | BaseException
            try:
                with self._lock:
                    task = self._task(job, worker)
                result = worker.run(task)
            except BaseException as error:
                result = error
            self._events.put((worker, job, result, time.monotonic() - began))

    def _loop(self) -> None:
        total = sum(stage.tasks for stage in self._plan.stages)
        started: set[int] = set()
        done = 0
        self._start_ready(started)
        while done < total:
            self._progress(done, total)
            worker, job, result, seconds = self._next_event()
            if isinstance(result, WorkerLost):
                self.lost.add(worker.name)
                job.attempts += 1
                if job.attempts >= _ATTEMPTS_MAX:
                    raise result
                self._assign(job, result)
                continue
            if isinstance(result, BaseException):
                raise result
            run = self.runs[job.stage.number]
            run.outputs[job.task], run.workers[job.task] = result.outputs, worker
            run.table_bytes_moved += result.bytes_moved
            run.seconds += seconds
            done += 1
            self._start_ready(started)
        self._progress(done, total)

    def _next_event(self) -> tuple[Worker, _Job, Done | BaseException, float]:
        while True:
            self._deadline.check()
            try:
                return self._events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue

    def _start_ready(self, started: set[int]) -> None:
        for stage in self._plan.stages:
            if stage.number not in started and all(
                len(self.runs[one.stage.number].outputs) == one.stage.tasks
                for one in stage.exchanges()
            ):
                started.add(stage.number)
                for task in range(stage.tasks):
                    self._assign(_Job(stage, task), None)

    def _assign(self, job: _Job, cause: WorkerLost | None) -> None:
        """Queue a task at the worker that has its rows, or at one that is left."""
        left = [one for one in self._workers if one.name not in self.lost]
        if not left:
            raise cause or WorkerLost("no worker is left")
        preferred = self._preferred(job)
        if preferred not in left:
            near = [one for one in left if one.node == preferred.node]
            preferred = (near or left)[job.task % len(near or left)]
        self._queues[preferred.name].put(job)

    def _preferred(self, job: _Job) -> Worker:
        if job.stage.tasks == len(self._workers) > 1:
            return self._workers[job.task]
        weights: Counter[str] = Counter()
        for one in job.stage.inputs.values():
            if isinstance(one, Scan):
                for part in self._plan.sources[one.table].parts:
                    weights[part.node] += part.nbytes
            else:
                for output in self._outputs(one.stage):
                    weights[output.node] += output.nbytes
        return max(self._workers, key=lambda worker: weights[worker.node])

    def _outputs(self, stage: Stage) -> list[Output]:
        run = self.runs[stage.number]
        return [one for task in range(stage.tasks) for one in run.outputs[task]]

    def _task(self, job: _Job, worker: Worker) -> Task:
        """The plan of a task, with the ranges of rows that it reads."""
        stage, plan = job.stage, self._plan
        inputs: list[Inputs] = []
        leaves: dict[int, bytes] = {}
        scanned: dict[int, range] = {}
        for number, one in enumerate(stage.inputs.values()):
            # Numbers of rows are those of this task: no other task reads other rows by them.
            uid = (stage.number * len(self._workers) + job.task) * 256 + number + 1
            first = uid << FIRST_ROW_BITS
            if isinstance(one, Scan):
                if one.table not in scanned:
                    found = self._scan(job, one.table, first)
                    rows = sum(end - begin for _, begin, end in found.ranges)
                    scanned[one.table] = range(first, first + rows)
                    inputs.append(found)
                leaves[id(one)] = plan.rows_of_table(one, scanned[one.table][: one.rows_max])
            else:
                found, ranges = self._exchange(job, one, first)
                inputs.append(found)
                leaves[id(one)] = plan.rows_of(one.stage, ranges)
        data = stage.assemble(lambda one: leaves[id(one)])
        self._count(job, inputs, worker)
        return Task(data, [self._needed(one, data) for one in inputs])

    @staticmethod
    def _needed(inputs: Inputs, plan: bytes) -> Inputs:
        """Without the columns of a table that the plan does not read."""
        if not inputs.is_table:
            return inputs
        used = [number for number, one in enumerate(inputs.functions) if _calls(plan, one)]
        inputs.functions = [inputs.functions[number] for number in used]
        inputs.schema = pa.schema([inputs.schema.field(number) for number in used])
        return inputs

    def _scan(self, job: _Job, table: int, first: int) -> Inputs:
        source = self._plan.sources[table]
        if job.stage.tasks > 1:
            ranges = self._shares[table][job.task]
        else:
            ranges = _first_rows(source.parts, job.stage.rows_max(table))
        functions = [column_name(table, number) for number in range(len(source.schema))]
        plain = [(id, begin, end) for id, begin, end, _ in ranges]
        return Inputs(first, functions, source.schema, plain, [one[3] for one in ranges])

    def _exchange(self, job: _Job, exchange: Exchange, first: int) -> tuple[Inputs, list[range]]:
        stage = exchange.stage
        runs: dict[tuple[int, int], list[Output]] = {}
        for task in range(stage.tasks):
            for one in self.runs[stage.number].outputs[task]:
                is_own = one.partition == job.task or job.stage.tasks == 1
                if is_own or not exchange.is_partitioned:
                    key = (task, one.partition) if exchange.is_merged else (0, 0)
                    runs.setdefault(key, []).append(one)
        outputs = [one for key in sorted(runs) for one in runs[key]]
        ranges = []
        for key in sorted(runs) or [(0, 0)]:
            rows = sum(one.rows for one in runs.get(key, ()))
            ranges.append(range(first, first + rows))
            first += rows
        functions = [exchange_name(stage, number) for number in range(len(stage.schema))]
        inputs = Inputs(ranges[0].start, functions, stage.schema, outputs=outputs, is_table=False)
        return inputs, ranges

    def _count(self, job: _Job, inputs: list[Inputs], worker: Worker) -> None:
        run = self.runs[job.stage.number]
        for one in inputs:
            for (_, begin, end), node in zip(one.ranges, one.nodes, strict=True):
                run.rows_read += end - begin
                run.rows_moved += (end - begin) * (node != worker.node)
            for output in one.outputs:
                run.bytes_moved += output.nbytes * (output.node != worker.node)


def _calls(plan: bytes, function: str) -> bool:
    """Whether a plan has this name: followed by a field of the message, never by a digit."""
    name = function.encode()
    at = plan.find(name)
    while at >= 0:
        if not plan[at + len(name) : at + len(name) + 1].isdigit():
            return True
        at = plan.find(name, at + 1)
    return False
