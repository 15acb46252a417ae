"""Farrow as an object store, by its public Python surface."""

from __future__ import annotations

import itertools
import os
from typing import Any

from answer import load

# Room for the objects of the memory and rate measurements, independent of the capacity.
_OBJECTS_MAX = 400_000

_Peer = load("farrow/peer.py").Peer


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = True
    can_unnamed = True
    is_queue = False
    accounting = "stats(): used, and records: what of the region's tables the objects take"

    def __init__(self) -> None:
        self._peer = _Peer()
        self._client: Any = None
        self._buffers: Any = None
        self._counter = itertools.count()

    def server(self, directory: str, capacity: int) -> list[str]:
        """A node with default memory: as root it mounts its own tmpfs with huge pages.

        With ``FARROW_BENCH_MEMORY_DIR`` its memory is there, on the pages of the other peers.
        """
        command: list[str] = self._peer.own_server(directory, capacity)
        folder = os.environ.get("FARROW_BENCH_MEMORY_DIR")
        command += ["--memory-dir", folder] if folder else []
        return [*command, "--objects-max", str(_OBJECTS_MAX)]

    def connect(self, directory: str) -> None:
        """Connect to the node, as soon as it listens."""
        self._peer.connect(directory)
        self._client = self._peer.client

    def put(self, data: bytes, name: str | None) -> Any:
        """One call for any size; the token of a named object is its name."""
        reference = self._client.put(data, name)
        return reference if name is None else name

    def get(self, token: Any) -> Any:
        """In place."""
        return self._client.get(token)

    def delete(self, tokens: list[Any]) -> None:
        """In one message if the client supports that."""
        if hasattr(self._client, "delete_many"):
            self._client.delete_many(tokens)
        else:
            self._client.delete(tokens)

    def put_many(self, items: list[bytes], names: list[str] | None) -> Any:
        """One message for all."""
        if names is not None:
            self._client.put_many(items, names)
            return names
        return self._client.put_many(items)

    def get_many(self, tokens: list[Any]) -> Any:
        """All at once."""
        return self._client.get_many(tokens)

    def export(self, token: Any) -> str:
        """The name, or the id."""
        return f"name {token}" if isinstance(token, str) else f"id {token.hex()}"

    def adopt(self, text: str) -> Any:
        """The name, or a reference, as another process receives it."""
        import farrow

        word, _, rest = text.partition(" ")
        return rest if word == "name" else farrow.ObjectRef(bytes.fromhex(rest))

    def used(self) -> int:
        """Bytes of objects in the heap and in the region's tables."""
        stats = self._client.stats()
        return int(stats["used"]) + int(stats["records"])

    def best_copy(self, size: int) -> float:
        """Seconds of a copy between private buffers, with all cores and bypassing the caches."""
        from farrow import _native

        if self._buffers is None or self._buffers[0] != size:
            self._buffers = size, _native.CopyBuffers(size)
        return float(self._buffers[1].copy())

    def stats(self) -> dict[str, Any]:
        """The node's counters."""
        result: dict[str, Any] = self._client.stats()
        return result

    def put_table(self, table: Any) -> Any:
        """Copied in, once, under a name."""
        name = f"table-{next(self._counter)}"
        self._client.put(table, name)
        return name

    def get_table(self, token: Any) -> Any:
        """In place."""
        return self._client.get(token)
