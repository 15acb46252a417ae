"""A Flight server that stores tables and objects in memory: ``server.py LOCATION``."""

from __future__ import annotations

import signal
import sys
from typing import Any

from pyarrow import flight


class Store(flight.FlightServerBase):  # type: ignore[misc]
    """Tables by ``do_put`` and ``do_get``, small objects by actions."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._tables: dict[bytes, Any] = {}
        self._small: dict[bytes, Any] = {}

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Keep a table."""
        self._tables[descriptor.path[0]] = reader.read_all()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream a table."""
        return flight.RecordBatchStream(self._tables[ticket.ticket])

    def do_action(self, context: Any, action: Any) -> Any:
        """``put``, ``get`` and ``drop``; the body is the name, for put then a NUL and the data."""
        name, _, data = action.body.to_pybytes().partition(b"\0")
        if action.type == "put":
            self._small[name] = data
        elif action.type == "get":
            return [flight.Result(self._small[name])]
        else:
            self._tables.pop(name, None)
            self._small.pop(name, None)
        return []


if __name__ == "__main__":
    with Store(sys.argv[1]) as store:
        signal.signal(signal.SIGTERM, lambda *_: store.shutdown())
        store.serve()
