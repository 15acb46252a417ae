"""Arrow IPC files in /dev/shm: the writer serializes, readers map; readers are not counted."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa


class Peer:
    """See ``interface.PeerProtocol``."""

    def __init__(self) -> None:
        self._folder = ""

    def server(self, directory: str, capacity: int) -> None:
        """No process holds the data."""

    def connect(self, directory: str) -> None:
        """Create a folder in /dev/shm, named like the scratch directory."""
        self._folder = os.path.join("/dev/shm", os.path.basename(directory))
        os.makedirs(self._folder, exist_ok=True)

    def put(self, name: str, table: Any) -> None:
        """Write the IPC file format."""
        with pa.OSFile(self.path(name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table)

    def get(self, name: str) -> Any:
        """Map the file; the table's buffers stay in it."""
        return pa.ipc.open_file(pa.memory_map(self.path(name))).read_all()

    def put_bytes(self, name: str, data: bytes) -> None:
        """A separate file."""
        with open(self.path(name), "wb", buffering=0) as file:
            file.write(data)

    def get_bytes(self, name: str) -> Any:
        """Map the file."""
        return pa.memory_map(self.path(name)).read_buffer()

    def delete(self, name: str) -> None:
        """Unlink; mapped readers keep the pages."""
        os.unlink(self.path(name))

    def path(self, name: str) -> str:
        """Path of an object's file."""
        return os.path.join(self._folder, name)
