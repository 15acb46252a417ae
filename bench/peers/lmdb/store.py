"""LMDB in /dev/shm, one transaction an object; nothing is written to a disk."""

from __future__ import annotations

import itertools
import os
from typing import Any

_MAP_SHARE = 1.5  # pages are not filled to the last byte, and a put writes new ones


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = True
    can_unnamed = False
    is_queue = False
    accounting = "pages of the tree"
    remarks = "a value stays valid until the next get only, which takes a new snapshot"

    def __init__(self) -> None:
        self._environment: Any = None
        self._reader: Any = None
        self._counter = itertools.count()

    def server(self, directory: str, capacity: int) -> None:
        """No server process; the size of the map is saved for clients."""
        with open(os.path.join(directory, "capacity"), "w") as file:
            file.write(str(capacity))

    def connect(self, directory: str) -> None:
        """A file in /dev/shm, mapped writable, never synchronised."""
        import lmdb

        with open(os.path.join(directory, "capacity")) as file:
            size = int(int(file.read()) * _MAP_SHARE) >> 12 << 12
        folder = os.path.join("/dev/shm", os.path.basename(directory))
        os.makedirs(folder, exist_ok=True)
        self._environment = lmdb.open(
            folder, map_size=size, sync=False, metasync=False, writemap=True, readahead=False
        )

    def put(self, data: bytes, name: str | None) -> Any:
        """A separate transaction."""
        assert name is not None
        key = name.encode()
        with self._environment.begin(write=True) as transaction:
            transaction.put(key, data)
        return key

    def get(self, token: Any) -> Any:
        """In place; a new snapshot each time, as a reader of new objects needs."""
        self._reader = self._environment.begin(buffers=True)
        return self._reader.get(token)

    def put_many(self, items: list[bytes], names: list[str] | None) -> Any:
        """One transaction."""
        assert names is not None
        keys = [name.encode() for name in names]
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(zip(keys, items, strict=True))
        return keys

    def get_many(self, tokens: list[Any]) -> Any:
        """One snapshot."""
        self._reader = self._environment.begin(buffers=True)
        get = self._reader.get
        return [get(token) for token in tokens]

    def delete(self, tokens: list[Any]) -> None:
        """One transaction; an old snapshot would prevent the reuse of pages."""
        self._reader = None
        with self._environment.begin(write=True) as transaction:
            for token in tokens:
                transaction.delete(token)

    def export(self, token: Any) -> str:
        """The key."""
        return str(token.decode())

    def adopt(self, text: str) -> Any:
        """The key."""
        return text.encode()

    def used(self) -> int:
        """Pages of the tree."""
        with self._environment.begin() as transaction:
            stat = transaction.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return int(pages * stat["psize"])

    def put_table(self, table: Any) -> Any:
        """An IPC stream, built in private memory first: the binding cannot reserve space."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        key = f"table-{next(self._counter)}".encode()
        with self._environment.begin(write=True) as transaction:
            transaction.put(key, sink.getvalue())
        return key

    def get_table(self, token: Any) -> Any:
        """The stream, read in place."""
        import pyarrow as pa

        return pa.ipc.open_stream(pa.py_buffer(self.get(token))).read_all()
