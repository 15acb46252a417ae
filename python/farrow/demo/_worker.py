"""A process of the demo: a reader in place, or a receiver of copies.

Run as ``python -m farrow.demo._worker``; reads one JSON request a line on standard input and
answers each with one line on standard output.  It ends when its input closes, so no worker
outlives the demo.  Times that span two processes use the monotonic clock, which all processes of
a machine share.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import time
from typing import Any


def now() -> float:
    """Seconds of the clock that all processes share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class RequestHandler:
    """A handler of requests; retains the table that it opened or received."""

    def __init__(self) -> None:
        self._client: Any = None
        self._table: Any = None
        self._listener: socket.socket | None = None

    def ready(self, engine: str, address: str | None) -> dict[str, Any]:
        """Import modules and connect, so that later steps do not time that."""
        import pyarrow.ipc  # noqa: F401

        if engine in ("duckdb", "polars"):
            __import__(engine)
        if engine == "flight":
            __import__("pyarrow.flight")
        seconds = 0.0
        if address is not None:
            import farrow

            began = now()
            self._client = farrow.connect(address)
            seconds = now() - began
        return {"pid": os.getpid(), "connect_seconds": seconds}

    def open(self, name: str, timeout: float) -> dict[str, Any]:
        """Find the table in shared memory."""
        began = now()
        self._table = self._client.get(name, timeout=timeout)
        ended = now()
        return {"seconds": ended - began, "ended": ended, "rows": self._table.num_rows}

    def open_parts(self, names: list[str], timeout: float) -> dict[str, Any]:
        """Find the parts of a table on all nodes, and concatenate them."""
        import pyarrow as pa

        began = now()
        parts = [self._client.get(name, timeout=timeout) for name in names]
        self._table = pa.concat_tables(parts)
        ended = now()
        places = []
        for name, part in zip(names, parts, strict=True):
            # A part has the name of the node that should store it.
            buffers = self._client.at(name).locate(part)
            places.append(sum(1 for buffer in buffers if buffer["in_region"]) == len(buffers))
        return {"seconds": ended - began, "rows": self._table.num_rows, "in_place": places}

    def find(self, name: str) -> dict[str, Any]:
        """Seconds until an object can be used; the value is dropped."""
        began = now()
        self._client.get(name)
        return {"seconds": now() - began}

    def read(self) -> dict[str, Any]:
        """Read every byte twice: the first pass includes deferred costs of getting the table."""
        from farrow.demo._measure import full_pass_seconds

        return {"first": full_pass_seconds(self._table), "second": full_pass_seconds(self._table)}

    def locate(self) -> dict[str, Any]:
        """The location of each buffer of the opened table in this process."""
        return {"buffers": self._client.locate(self._table)}

    def ask(self, engine: str, roles: dict[str, Any] | None) -> dict[str, Any]:
        """Run the demo's queries with an engine."""
        from farrow.demo import _questions

        known = _questions.Roles(**roles) if roles else None
        began = now()
        answer = _questions.ask(engine, self._table, known)
        return {"seconds": now() - began, "answer": dataclasses.asdict(answer)}

    def listen(self, path: str) -> dict[str, Any]:
        """Open a socket for ``receive``."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        return {}

    def receive(self) -> dict[str, Any]:
        """Read an Arrow IPC stream from the socket into private memory."""
        import pyarrow as pa

        if self._listener is None:
            raise RuntimeError("receive before listen")
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb", buffering=1 << 20) as file:
            with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as reader:
                self._table = reader.read_all()
            return {"ended": now(), "rows": self._table.num_rows}

    def map_file(self, path: str) -> dict[str, Any]:
        """Map an Arrow IPC file; its buffers stay in the file."""
        import pyarrow as pa

        self._table = pa.ipc.open_file(pa.memory_map(path)).read_all()
        return {"ended": now(), "rows": self._table.num_rows}

    def fetch(self, location: str) -> dict[str, Any]:
        """Get the table from an Arrow Flight server."""
        from pyarrow import flight

        with flight.connect(location) as client:
            self._table = client.do_get(flight.Ticket(b"table")).read_all()
        return {"ended": now(), "rows": self._table.num_rows}

    def drop(self) -> dict[str, Any]:
        """Drop the table."""
        self._table = None
        return {}


def _serve() -> int:
    worker = RequestHandler()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # sent to the demo, which prints it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    # Ctrl-C reaches all processes of the terminal; the demo alone handles it and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(_serve())
