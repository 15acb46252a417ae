"""Worker processes that do shares of each batch's work, and their parent's side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import farrow
from farrow._nodes._modules import module_command
from farrow.graph.cluster._objects import LogEntry, add_share, drop_shares, share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from farrow._native import Client
    from farrow.graph.cluster._config import ClusterGraph


class GraphWorkerLost(RuntimeError):
    """A worker ended, or took too long."""


class Workers:
    """Processes of this machine, each a reader of the graph through a given node."""

    def __init__(self, config: ClusterGraph) -> None:
        self._timeout = config.timeout
        addresses = config.addresses()
        self.count = len(addresses)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._left = [b""] * self.count
        self._done: list[str] = []
        # Answers that were read before they were taken.
        self._early: list[deque[dict[str, Any]]] = [deque() for _ in addresses]
        try:
            for number, address in enumerate(addresses):
                share = [number + 1, self.count + 1]
                task = {
                    "graph": config.name,
                    "address": address,
                    "share": share,
                    "without_lost": config.without_lost,
                }
                self._processes.append(self._start(task))
            for number in range(self.count):
                self._answer(number, self._timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, task: dict[str, Any]) -> subprocess.Popen[bytes]:
        command = module_command("farrow.graph.cluster._workers", json.dumps(task))
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, entry: LogEntry) -> None:
        """Make every worker compute its share of a log entry."""
        for number in range(self.count):
            self._send(number, "share", entry.name)

    def ask_one(self, owner: int, entry: LogEntry) -> None:
        """Make one worker compute all features of a log entry, and the others add its rows.  None
        computes it if ``owner`` is negative."""
        for number in range(self.count):
            self._send(number, "whole" if number == owner else "learn", entry.name)

    def attach(self, manifest: str) -> None:
        """Make every worker attach the new segments of a manifest, an object with this name."""
        for number in range(self.count):
            # The next entry has the error of a worker that ended.
            with contextlib.suppress(GraphWorkerLost):
                self._send(number, "attach", manifest)

    def refresh(self) -> None:
        """Wait until every worker has all rows of the graph."""
        for number in range(self.count):
            self._send(number, "refresh")
        for number in range(self.count):
            while not (answer := self._answer(number, self._timeout)).get("refreshed"):
                # Of an entry before; an error is that of the call that takes it.
                self._early[number].append(answer)
            if "error" in answer:
                raise GraphWorkerLost(f"worker {number}: {answer['error']}")

    def _send(self, number: int, task: str, entry: str = "") -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        try:
            stdin.write(f"{task} {entry}\n".encode())
            stdin.flush()
        except OSError as error:
            raise GraphWorkerLost(f"worker {number} has ended: {error}") from None

    def gather(self, client: Client, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add the workers' results to this process's share."""
        drop_shares(client, self._done)
        self._done = []
        for number in range(self.count):
            self._add(client, number, own)
        return own

    def take(self, client: Client, owner: int, features: npt.NDArray[np.float64]) -> None:
        """Add the result of the earliest ``ask_one`` of a worker that is not taken yet."""
        drop_shares(client, self._done)
        self._done = []
        self._add(client, owner, features)

    def _add(self, client: Client, number: int, features: npt.NDArray[np.float64]) -> None:
        early = self._early[number]
        answer = early.popleft() if early else self._answer(number, self._timeout)
        if "error" in answer:
            raise GraphWorkerLost(f"worker {number}: {answer['error']}")
        add_share(client, answer["name"], features)
        self._done.append(answer["name"])

    def _answer(self, number: int, timeout: float) -> dict[str, Any]:
        """Read one line from a worker."""
        process, end = self._processes[number], time.monotonic() + timeout
        assert process.stdout is not None
        while b"\n" not in self._left[number]:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise GraphWorkerLost(f"worker {number}: no answer within {timeout} s")
            more = os.read(process.stdout.fileno(), 1 << 16)
            if not more:
                raise GraphWorkerLost(f"worker {number} ended with {process.wait(timeout)}")
            self._left[number] += more
        line, self._left[number] = self._left[number].split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                # The worker has ended already.
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []


def main(task: dict[str, Any]) -> None:
    """Run a worker: read tasks with names of entries, write names of results, until the input
    ends.  The task "refresh" has no entry and no result, and "attach" the name of a manifest.  An
    entry whose rows cannot be added makes the next result an error, unless a refresh is before
    it."""
    from farrow.graph.cluster._reader import GraphReader

    lost = task["without_lost"]
    reader = GraphReader(task["graph"], task["address"], without_lost=lost)
    client = farrow.connect(task["address"])
    part = (task["share"][0], task["share"][1])
    print(json.dumps({"ready": True}), flush=True)
    missed: str | None = None
    for line in sys.stdin:
        # The name of a graph may have spaces.
        wanted, _, name = line.rstrip("\n").partition(" ")
        try:
            if wanted == "refresh":
                reader.refresh()
                missed = None
                print(json.dumps({"refreshed": True}), flush=True)
                continue
            if wanted == "attach":
                reader.attach_of(name)
                continue
            entry = LogEntry.of(name)
            if wanted == "learn":
                reader.learn(entry)
                continue
            _, features = reader.compute(entry, part if wanted == "share" else (0, 1))
            answer: dict[str, Any] = {
                "name": share(client, task["graph"], entry, part[0], features)
            }
        except Exception as error:
            answer = {"error": missed or f"{type(error).__name__}: {error}"}
            if wanted in ("learn", "attach"):
                missed = answer["error"]
                continue
            answer["refreshed"] = wanted == "refresh"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
