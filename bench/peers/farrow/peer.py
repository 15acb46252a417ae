"""Farrow itself, by its public Python surface."""

from __future__ import annotations

import sys
import time
from typing import Any

_CONNECT_SECONDS_MAX = 30.0


class Peer:
    """See ``interface.PeerProtocol``."""

    def __init__(self) -> None:
        self.client: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """A node in /dev/shm like the other peers: by default it could mount huge pages."""
        return [*self.own_server(directory, capacity), "--memory-dir", "/dev/shm"]

    def own_server(self, directory: str, capacity: int) -> list[str]:
        """A node that chooses its memory itself. An object that does not fit is an error."""
        command = [sys.executable, "-m", "farrow.cli", "node", "--evict", "none"]
        return [*command, "--socket", f"{directory}/farrow.sock", "--memory", str(capacity)]

    def connect(self, directory: str) -> None:
        """Connect to the node, as soon as it listens."""
        import farrow

        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while True:
            try:
                self.client = farrow.connect(f"{directory}/farrow.sock")
                return
            except farrow.Disconnected:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.01)

    def put(self, name: str, table: Any) -> None:
        """Copies buffers in private memory; buffers of the pool stay in place."""
        self.client.put(table, name)

    def get(self, name: str) -> Any:
        """In place."""
        return self.client.get(name)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Under a name, as the other peers do."""
        self.client.put(data, name)

    def get_bytes(self, name: str) -> Any:
        """In place."""
        return self.client.get(name)

    def delete(self, name: str) -> None:
        """Space is free again when no reader holds the object."""
        self.client.delete(name)

    # What only Farrow has.

    def memory_pool(self) -> Any:
        """The pool that builds tables in the region."""
        return self.client.memory_pool()

    def stats(self) -> dict[str, Any]:
        """The node's counters."""
        result: dict[str, Any] = self.client.stats()
        return result

    def put_unnamed(self, data: bytes) -> Any:
        """A small object without a name; returns the reference."""
        return self.client.put(data)

    def get_target(self, target: Any) -> Any:
        """By reference."""
        return self.client.get(target)

    def put_many(self, items: list[bytes]) -> Any:
        """One message for all."""
        return self.client.put_many(items)

    def get_many(self, targets: Any) -> Any:
        """All at once."""
        return self.client.get_many(targets)
