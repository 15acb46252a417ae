"""A process of an execution graph: ``step_worker.py ADDRESS SOURCE``, requests and answers as JSON.

A request has ``step`` (a step of ``examples/execution_graph.py``), ``way`` and, for ``way`` "sent",
the locations of Flight servers by input.  With "in place" the inputs are got from Farrow and the
result is put into the own node; with "sent" this process serves its result by Flight, and fetches
the inputs.  The answer has the times at which the inputs were there, the work ended and the result
was left, on the clock of the machine.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import execution_graph as graph
import pyarrow as pa
import pyarrow.flight as flight

import farrow

WAIT_SECONDS_MAX = 60.0


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """A server of this process's results."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.tables: dict[str, pa.Table] = {}
        self._changed = threading.Condition()

    def add(self, name: str, table: pa.Table) -> None:
        """Serve a table."""
        with self._changed:
            self.tables[name] = table
            self._changed.notify_all()

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """A table, once it is there."""
        name = ticket.ticket.decode()
        with self._changed:
            if not self._changed.wait_for(lambda: name in self.tables, WAIT_SECONDS_MAX):
                raise KeyError(f"no table {name} within {WAIT_SECONDS_MAX:g} s")
            return flight.RecordBatchStream(self.tables[name])


class Worker:
    """Steps in this process."""

    def __init__(self, address: str, source: Path) -> None:
        self._client = farrow.connect(address)
        self._source = source
        self.server = Server()
        self._peers: dict[str, flight.FlightClient] = {}

    def step(self, step: str, way: str, turn: int, places: dict[str, str]) -> dict[str, Any]:
        """Run one step."""
        known = graph.STEPS[step]
        names = [f"{turn}/{one}" for one in known.inputs]
        began = time.perf_counter()
        if way == "in place":
            tables = [self._client.get(name, timeout=WAIT_SECONDS_MAX) for name in names]
        else:
            tables = [
                self._peer(places[one]).do_get(flight.Ticket(name.encode())).read_all()
                for one, name in zip(known.inputs, names, strict=True)
            ]
        ready = time.perf_counter()
        result = known.work(*(tables or [self._source]))
        done = time.perf_counter()
        if way == "in place":
            self._client.put(result, f"{turn}/{step}", wait=WAIT_SECONDS_MAX)
        else:
            self.server.add(f"{turn}/{step}", result)
        ended = time.perf_counter()
        answer = {
            "began": began,
            "ready": ready,
            "done": done,
            "ended": ended,
            "read": sum(table.nbytes for table in tables),
            "wrote": result.nbytes,
            "rows": result.num_rows,
        }
        if step == "train":
            answer["weights"] = result["weight"].to_pylist()
        return answer

    def drop(self, drop: str, way: str, turn: int) -> dict[str, Any]:
        """Drop the result of a step of this process."""
        if way == "in place":
            self._client.delete(f"{turn}/{drop}")
        self.server.tables.clear()
        return {}

    def _peer(self, place: str) -> flight.FlightClient:
        if place not in self._peers:
            self._peers[place] = flight.connect(place)
        return self._peers[place]


def main() -> None:
    """Answer until there are no more lines."""
    os.environ.setdefault("GRPC_VERBOSITY", "error")
    worker = Worker(sys.argv[1], Path(sys.argv[2]))
    place = f"grpc://127.0.0.1:{worker.server.port}"
    print(json.dumps({"place": place}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        call = worker.step if "step" in request else worker.drop
        print(json.dumps(call(**request)), flush=True)


if __name__ == "__main__":
    main()
