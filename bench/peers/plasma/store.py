"""Plasma as an object store."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from answer import load

# Up to this size the bytes are sent in one message; for larger objects one copy in place is faster
# (measured with 10 kB to 1 MB).
_INLINE_BYTES_MAX = 20_000
# Threads do not speed up smaller copies.
_THREADED_BYTES_MIN = 1 << 20

_module = load("plasma/peer.py")


class Store:
    """See ``store_interface.StoreProtocol``."""

    # Users choose ids, so an id is a name of 20 bytes.
    can_name = True
    can_unnamed = False
    is_queue = False

    def __init__(self) -> None:
        self._peer = _module.Peer()
        self._client: Any = None
        self._counter = itertools.count()

    def server(self, directory: str, capacity: int) -> list[str]:
        """The store, from the same wheel."""
        command: list[str] = self._peer.server(directory, capacity)
        return command

    def connect(self, directory: str) -> None:
        """Connect, waiting for the store."""
        self._peer.connect(directory)
        self._client = self._peer.client

    def put(self, data: bytes, name: str | None) -> Any:
        """One message if small; else create, copy and seal."""
        key = _module.key_of(name)
        if len(data) <= _INLINE_BYTES_MAX:
            self._client.create_and_seal(key, data)
        elif len(data) < _THREADED_BYTES_MIN:
            self._client.put_raw_buffer(data, key)
        else:
            sink = pa.FixedSizeBufferWriter(self._client.create(key, len(data)))
            sink.set_memcopy_threads(_module.COPY_THREADS)
            sink.write(data)
            sink.close()
            self._client.seal(key)
        return key

    def get(self, token: Any) -> Any:
        """In place."""
        return self._client.get_buffers([token])[0]

    def get_many(self, tokens: list[Any]) -> Any:
        """One message."""
        return self._client.get_buffers(tokens)

    def delete(self, tokens: list[Any]) -> None:
        """In one message; the keys are removed too."""
        self._client.delete(tokens)
        _module.forget()

    def export(self, token: Any) -> str:
        """The id."""
        return str(token.binary().hex())

    def adopt(self, text: str) -> Any:
        """The id."""
        from pyarrow import plasma

        return plasma.ObjectID(bytes.fromhex(text))

    def put_table(self, table: Any) -> Any:
        """An IPC stream, written in place with its threads."""
        name = f"table-{next(self._counter)}"
        self._peer.put(name, table)
        return _module.key_of(name)

    def get_table(self, token: Any) -> Any:
        """The stream, read in place."""
        return pa.ipc.open_stream(self.get(token)).read_all()
