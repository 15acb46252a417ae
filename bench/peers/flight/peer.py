"""Arrow Flight: gRPC over a Unix socket to a server that holds the tables."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from pyarrow import flight

_CONNECT_SECONDS_MAX = 30.0


class Peer:
    """See ``interface.PeerProtocol``."""

    def __init__(self) -> None:
        self._client: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """The server beside this file."""
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
        return [sys.executable, program, f"grpc+unix://{directory}/flight.sock"]

    def connect(self, directory: str) -> None:
        """Connect, and wait for the first answer."""
        self._client = flight.connect(f"grpc+unix://{directory}/flight.sock")
        self._client.wait_for_available(timeout=_CONNECT_SECONDS_MAX)

    def put(self, name: str, table: Any) -> None:
        """Stream the table; ends when the server has all of it."""
        descriptor = flight.FlightDescriptor.for_path(name)
        writer, reader = self._client.do_put(descriptor, table.schema)
        with writer:
            writer.write_table(table)
            writer.done_writing()
            while reader.read() is not None:
                time.sleep(0)

    def get(self, name: str) -> Any:
        """Stream the table into private memory."""
        return self._client.do_get(flight.Ticket(name.encode())).read_all()

    def put_bytes(self, name: str, data: bytes) -> None:
        """One action."""
        list(self._client.do_action(flight.Action("put", name.encode() + b"\0" + data)))

    def get_bytes(self, name: str) -> Any:
        """One action."""
        (result,) = self._client.do_action(flight.Action("get", name.encode()))
        return result.body

    def delete(self, name: str) -> None:
        """One action."""
        list(self._client.do_action(flight.Action("drop", name.encode())))
