"""A process that measures one peer: ``driver.py PEER``, JSON requests in, answers out.

It runs under the peer's own Python, so it uses only the standard library, NumPy and a pyarrow of
any version since 11.  All times are measured here, by the same code for all peers.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from answer import hide_folders, load, serve
from data import checksum, make_table

_SMALL_BYTES = 1000


def read_all_bytes(table: Any) -> float:
    """Read every byte once, as 64-bit words; seconds."""
    began = time.perf_counter()
    for column in table.columns:
        for chunk in column.chunks:
            buffer = chunk.buffers()[1]
            words = np.frombuffer(buffer, dtype=np.uint64, count=buffer.size // 8)
            np.bitwise_xor.reduce(words)
    return time.perf_counter() - began


def sum_all(table: Any) -> float:
    """Sum every column with pyarrow; seconds."""
    began = time.perf_counter()
    for column in table.columns:
        pc.sum(column)
    return time.perf_counter() - began


class Driver:
    """A handler of requests for one peer."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._table: Any = None
        self._held: Any = None

    def server(self, directory: str, capacity: int) -> Any:
        """The command that runs the peer's server."""
        return self._peer.server(directory, capacity)

    def connect(self, directory: str) -> Any:
        """Connect to it."""
        began = time.perf_counter()
        self._peer.connect(directory)
        return {"pid": os.getpid(), "seconds": time.perf_counter() - began}

    def build(self, rows: int) -> Any:
        """Make the table in private memory."""
        self._table = make_table(rows)
        return {"bytes": self._table.nbytes, "checksum": checksum(self._table)}

    def put(self, name: str, times: int, keep: bool) -> Any:
        """Put the table ``times`` times, deleting in between; the last stays if ``keep``."""
        samples = []
        for turn in range(times):
            gc.collect()
            began = time.perf_counter()
            self._peer.put(name, self._table)
            samples.append(time.perf_counter() - began)
            if turn + 1 < times or not keep:
                self._peer.delete(name)
        return samples

    def put_built(self, rows: int, times: int) -> Any:
        """Put tables whose buffers were built through the peer's memory pool."""
        samples = []
        for turn in range(times):
            table = make_table(rows, self._peer.memory_pool())
            began = time.perf_counter()
            self._peer.put(f"built-{turn}", table)
            samples.append(time.perf_counter() - began)
            del table
            self._peer.delete(f"built-{turn}")
        return samples

    def get(self, name: str, times: int) -> Any:
        """Get a table and release it, ``times`` times.  The first sample is cold."""
        samples = []
        for _ in range(times):
            began = time.perf_counter()
            table = self._peer.get(name)
            samples.append(time.perf_counter() - began)
            del table
        return samples

    def hold(self, name: str) -> Any:
        """Get a table and keep it; returns its rows and checksum."""
        self._held = self._peer.get(name)
        return {"rows": self._held.num_rows, "checksum": checksum(self._held)}

    def release(self) -> Any:
        """Release the table."""
        self._held = None
        return {}

    def first_pass(self, name: str, how: str) -> Any:
        """Get the table; time the first pass and later ones, then passes over a private copy."""
        run = {"bytes": read_all_bytes, "sum": sum_all}[how]
        table = self._peer.get(name)
        first = run(table)
        later = [run(table) for _ in range(3)]
        copies = [
            pa.Array.from_buffers(
                column.type, len(column), [None, pa.py_buffer(_copied(column.chunk(0)))]
            )
            for column in table.columns
        ]
        private = pa.table(copies, names=table.column_names)
        return {"first": first, "later": later, "private": [run(private) for _ in range(4)]}

    def small(self, count: int, gets: int, bulk: int) -> Any:
        """Put ``count`` named objects of 1 kB, get them in turn, delete them."""
        payload = bytes(range(250)) * (_SMALL_BYTES // 250)
        names = [f"small-{os.getpid()}-{i}" for i in range(count)]
        clock = time.perf_counter
        puts, got = [], []
        for name in names:
            began = clock()
            self._peer.put_bytes(name, payload)
            puts.append(clock() - began)
        for turn in range(gets):
            name = names[turn % count]
            began = clock()
            value = self._peer.get_bytes(name)
            got.append(clock() - began)
            if turn == 0 and bytes(memoryview(value)) != payload:
                raise RuntimeError("other bytes came back")
            del value
        answer = {"put": puts, "get": got}
        if bulk and hasattr(self._peer, "put_many"):
            answer.update(self._small_by_reference(payload, count, gets, bulk))
        for name in names:
            self._peer.delete(name)
        return answer

    def _small_by_reference(self, payload: bytes, count: int, gets: int, bulk: int) -> Any:
        """Without names, and many in one call; seconds per object."""
        clock = time.perf_counter
        puts, got, many_put, many_got, refs = [], [], [], [], []
        for _ in range(count):
            began = clock()
            refs.append(self._peer.put_unnamed(payload))
            puts.append(clock() - began)
        for turn in range(gets):
            ref = refs[turn % count]
            began = clock()
            value = self._peer.get_target(ref)
            got.append(clock() - began)
            del value
        for _ in range(max(1, count // bulk)):
            began = clock()
            group = self._peer.put_many([payload] * bulk)
            many_put.append((clock() - began) / bulk)
            began = clock()
            values = self._peer.get_many(group)
            many_got.append((clock() - began) / bulk)
            del values
            refs.extend(group)
        for ref in refs:
            self._peer.delete(ref)
        return {"put_ref": puts, "get_ref": got, "put_many": many_put, "get_many": many_got}

    def delete(self, name: str) -> Any:
        """Delete an object."""
        self._peer.delete(name)
        return {}

    def stats(self) -> Any:
        """The peer's counters, if it has any."""
        return self._peer.stats() if hasattr(self._peer, "stats") else {}


def _copied(array: Any) -> Any:
    """A private copy of an array's values, touched."""
    return np.frombuffer(array.buffers()[1], dtype=np.uint8).copy()


if __name__ == "__main__":
    hide_folders()
    serve(lambda: Driver(load(f"{sys.argv[1]}/peer.py").Peer()))
