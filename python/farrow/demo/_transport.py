"""Other ways to transfer a table to a process, measured in the same run as Farrow.

Each returns seconds from "the sender holds the table" to "the receiver holds a usable
table"; imports and connections of the receiver are not included.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow.demo._worker import now

if TYPE_CHECKING:
    from pathlib import Path

    from farrow.demo._stage import Process

__all__ = ["by_flight", "by_mapped_file", "by_socket"]


def by_socket(table: pa.Table, receiver: Process, path: Path) -> float:
    """An Arrow IPC stream through a Unix socket, read into private memory."""
    receiver.call("listen", path=str(path))
    receiver.send("receive")
    began = now()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with connection.makefile("wb", buffering=1 << 20) as file:
            _write_stream(table, pa.PythonFile(file, mode="w"))
    answer = receiver.answer()
    _check(table, answer)
    return float(answer["ended"]) - began


def by_mapped_file(table: pa.Table, receiver: Process, path: Path) -> float:
    """An Arrow IPC file written to /dev/shm and mapped by the receiver."""
    began = now()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    answer = receiver.call("map_file", path=str(path))
    _check(table, answer)
    return float(answer["ended"]) - began


def by_flight(table: pa.Table, receiver: Process, path: Path) -> float:
    """Arrow Flight: gRPC over a Unix socket, from a server in the sender's process."""
    from pyarrow import flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        """A server of one table, for any ticket."""

        def do_get(self, context: Any, ticket: Any) -> Any:
            return flight.RecordBatchStream(table)

    location = f"grpc+unix://{path}"
    with Server(location):
        began = now()
        answer = receiver.call("fetch", location=location)
    _check(table, answer)
    return float(answer["ended"]) - began


def _write_stream(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _check(table: pa.Table, answer: dict[str, Any]) -> None:
    if answer["rows"] != table.num_rows:
        raise RuntimeError(f"sent {table.num_rows} rows, {answer['rows']} came")
