"""Exchanges: what tasks produce, as objects of Farrow with a lease.

A part of an output is an object at the producer's node.  Consumers read it in place, or fetch it
over the network.  Its lease ends with the query, or some time after the producer's process.  A part
with less than 64 KiB travels in messages instead, as Arrow IPC.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow import ObjectRef, _native
from farrow.exceptions import FarrowError
from farrow.sharing._references import MIN_BYTES
from farrow_sql._errors import QueryFailed

if TYPE_CHECKING:
    import farrow

__all__ = ["LEASE_SECONDS", "Output", "Retained", "delete_leftovers", "open_output"]

# A query whose worker was killed reads what that worker produced within this time, or repeats it.
LEASE_SECONDS = 60.0
# Of an object between its put and its reference.
WORKER_LABEL = "farrow.sql.worker"
PROCESS_LABEL = "farrow.sql.process"
_LABELS = {"worker": WORKER_LABEL, "process": PROCESS_LABEL}
# Where the id of the object is in a reference: docs/formats/reference.md.
_ID = slice(6, 22)


@dataclass
class Output:
    """A part of a partition of a task's output."""

    partition: int
    rows: int
    nbytes: int
    node: str
    is_object: bool
    # A reference, or the rows.
    data: bytes

    def head(self) -> dict[str, Any]:
        """All but the data, for a message."""
        fields = ("partition", "rows", "nbytes", "node", "is_object")
        return {name: getattr(self, name) for name in fields}


class Retained:
    """What this process produced for one query, until the query ends.

    Args:
        client: the client of this process.
        node: its node.
        worker: the name of the worker, by which objects of a killed process are found.
        lease: seconds for which exchanges outlive this process.
    """

    def __init__(self, client: farrow.Client, node: str, worker: str, lease: float) -> None:
        self._client = client
        self._lease = lease
        self._node = node
        self._label = {WORKER_LABEL: worker, PROCESS_LABEL: str(os.getpid())}
        self._references: list[Any] = []
        self._is_closed = False
        # The end of the query, in another thread, waits for a put.
        self._lock = threading.Lock()

    def put(self, partition: int, batches: list[pa.RecordBatch]) -> Output:
        """Make rows available to other processes.  Rows without columns are only counted.

        Raises:
            OutOfMemory, QuotaExceeded, ...: as ``Client.put``.
            QueryFailed: the query has ended.
        """
        rows = pa.Table.from_batches(batches)
        count = sum(batch.num_rows for batch in batches)
        message = self._share(rows) if rows.nbytes >= MIN_BYTES else None
        data = _ipc(rows) if message is None else message
        return Output(partition, count, rows.nbytes, self._node, message is not None, data)

    def _share(self, rows: pa.Table) -> bytes | None:
        with self._lock:
            if self._is_closed:
                raise QueryFailed("the query has ended")
            put = self._client.put(rows, metadata=self._label)
            try:
                stored = self._client.get(put)
                reference = _native.share(stored, MIN_BYTES, self._lease)
            finally:
                # The reference has the memory from here on.
                self._client.delete(put)
            if reference is None:
                return None
            self._references.append(reference)
            return bytes(reference.message)

    def close(self) -> None:
        """Delete the objects: values that were read stay readable."""
        with self._lock:
            self._is_closed = True
            for reference in self._references:
                # Its lease ends anyway.
                with contextlib.suppress(FarrowError):
                    self._client.delete(ObjectRef(reference.message[_ID]))
            self._references.clear()


def delete_leftovers(client: farrow.Client, **labels: str) -> None:
    """Delete what a killed process had put and not yet shared: objects with these labels."""
    with contextlib.suppress(FarrowError):
        listed = client.list(
            where={_LABELS[name]: value for name, value in labels.items()}, all_nodes=True
        )
        client.delete(listed["id"].to_pylist())


def open_output(client: farrow.Client, output: Output) -> pa.Table:
    """The rows of an output.

    Raises:
        NotFound: its lease is over.
        NodeLost: its node is lost.
    """
    if output.is_object:
        return _native.open_shared(client, output.data)
    with pa.ipc.open_stream(output.data) as reader:
        return reader.read_all()


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
