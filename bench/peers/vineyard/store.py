"""Vineyard: blobs of one local server, without etcd."""

from __future__ import annotations

import os
import time
from typing import Any

_CONNECT_SECONDS_MAX = 30.0
_COPY_THREADS = max(1, os.cpu_count() or 1)
# Its threaded copy is not faster below this size.
_THREADED_BYTES_MIN = 1 << 20


class Store:
    """See ``store_interface.StoreProtocol``."""

    # Blobs have no names ("blobs cannot have name"); objects built from them may.
    can_name = False
    can_unnamed = True
    is_queue = False

    def __init__(self) -> None:
        self._client: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """The server of vineyard-bdist, with its metadata in its own memory."""
        from vineyard import bdist

        program = os.path.join(os.path.dirname(bdist.__file__), "vineyardd")
        flags = ["-socket", f"{directory}/vineyard.sock", "-size", str(capacity)]
        return [program, *flags, "-meta", "local", "-rpc=false"]

    def connect(self, directory: str) -> None:
        """Connect, waiting for the server."""
        import vineyard

        path = f"{directory}/vineyard.sock"
        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while not os.path.exists(path) and time.monotonic() < limit:
            time.sleep(0.01)
        # The outer client picks one of two inner ones at each call; this is the local one.
        self._client = vineyard.connect(path)
        self._blobs = self._client.ipc_client

    def put(self, data: bytes, name: str | None) -> Any:
        """Create, copy (with threads if large), seal."""
        builder = self._blobs.create_blob(len(data))
        if len(data) < _THREADED_BYTES_MIN:
            builder.copy(0, data)
        else:
            from vineyard import memory_copy

            memory_copy(memoryview(builder), data, concurrency=_COPY_THREADS)
        return builder.seal(self._client).id

    def get(self, token: Any) -> Any:
        """In place."""
        return self._blobs.get_blob(token)

    def get_many(self, tokens: list[Any]) -> Any:
        """One message."""
        return self._blobs.get_blobs(tokens)

    def delete(self, tokens: list[Any]) -> None:
        """In one message."""
        self._blobs.delete(tokens)

    def export(self, token: Any) -> str:
        """The id."""
        return f"{int(token):x}"

    def adopt(self, text: str) -> Any:
        """The id."""
        import vineyard

        return vineyard.ObjectID(int(text, 16))

    def put_table(self, table: Any) -> Any:
        """By its own builders for Arrow."""
        return self._client.put(table)

    def get_table(self, token: Any) -> Any:
        """By its own resolvers for Arrow."""
        return self._client.get(token)
