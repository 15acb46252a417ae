"""Tables whose rows are in the memory of many nodes.

Any node appends record batches, at a given row or after the last one, to its own memory or another
node's.  A reader on any node gets one ``pyarrow.Table`` over the chunks in place: nothing is
copied, and compute, Acero, DuckDB and polars use it as any other::

    import pyarrow as pa
    import farrow

    client = farrow.connect()
    trades = client.huge_table("trades", pa.schema({"price": pa.float64()}))
    trades.append(pa.table({"price": [1.5, 2.5]}))
    trades.append(pa.table({"price": [4.5]}), position=3)    # row 2 is still missing
    trades.append(pa.table({"price": [3.5]}), position=2)    # , node="b") in the memory of b
    trades.table()["price"].to_pylist()                      # [1.5, 2.5, 3.5, 4.5]
    trades.table(version=1)["price"].to_pylist()             # [1.5, 2.5], also after later appends
    [(part.node, part.rows) for part in trades.partitions()]

A table created with ``sort_by=`` or ``partition_by=`` keeps that order and these partitions: an
append that breaks them is refused, with the values in the error.  ``farrow.dataset`` and the
engines read only the partitions and the range that a filter leaves::

    ticks = client.huge_table("ticks", pa.schema({"ts": pa.int64()}), sort_by="ts")
    ticks.append(pa.table({"ts": [1, 2, 2]}))
    ticks.sort_by                                            # "ts"

Each append atomically makes the next version; of two appends of the same rows one fails.  A version
never changes, and a reader that sees a version sees all earlier ones.  While a node of a table is
lost, reads raise an error that names the node; they never return a table without its rows.  Chunks
are pinned: a full node does not evict them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Partition"]


class Partition(NamedTuple):
    """Contiguous rows of a huge table in the memory of one node.

    Attributes:
        position: position of the first row.
        rows: number of rows.
        node: name of the node; "" without a cluster.
        nbytes: bytes of the buffers.
        id: id of the object that holds the rows, as ``client.get`` takes it.
        version: the version of the table that added the rows.
    """

    position: int
    rows: int
    node: str
    nbytes: int
    id: bytes
    version: int


class Schema(Protocol):
    """A ``pyarrow.Schema``, or another library's that implements the Arrow PyCapsule interface."""

    def __arrow_c_schema__(self) -> Any: ...
