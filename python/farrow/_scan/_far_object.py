"""A put table or record batch in memory that is not mapped: each scan fetches what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from farrow._scan._put_table import statistics_of
from farrow._values._listed import listed_rows
from farrow.huge import Partition

if TYPE_CHECKING:
    from farrow import Client
    from farrow._scan._statistics import ChunkStatistics

__all__ = ["FarObject", "far_object"]

# Fabrics by which a client reads the memory of a node in place.
_MAPPED = ("shm", "device")


@dataclass
class FarObject:
    """One object, also after it moved to another node.

    Attributes:
        client: the client that fetches.
        name: its name.
        id: its id at its present node.
        seal: its time of creation in nanoseconds and its bytes, which stay as it moves.
        schema: its columns.
        num_rows: number of its rows.
        parts: the statistics of its rows, in order; none if it was put without.
    """

    # As of huge tables in ``farrow.dataset``, whose rows may be in mapped memory.
    is_mapped: ClassVar[bool] = False

    client: Client
    name: str
    id: bytes
    seal: tuple[int, int]
    schema: pa.Schema
    num_rows: int
    parts: list[ChunkStatistics] = field(default_factory=list)

    def fetch(self, columns: list[str] | None, rows: slice) -> pa.Table:
        """These columns of some rows; None: all columns.

        Raises:
            NotFound: the object was deleted, or another one has its name.
            NodeLost: its node was lost.
        """
        from farrow import NotFound

        try:
            return _part(self.client, self.id, columns, rows)
        except NotFound:
            row = _listed(self.client.list(self.name, all_nodes=True), self.name)
            if row is None or row["id"] == self.id or _seal(row) != self.seal:
                text = f"table {self.name!r} was deleted or replaced while it was read by network"
                raise NotFound(text) from None
        self.id = row["id"]
        return _part(self.client, self.id, columns, rows)


def far_object(name: str, client: Client) -> FarObject | None:
    """The table or record batch of this name, of which no row is fetched.

    Args:
        name: its name.
        client: the client that looks for it.

    Returns:
        None if a ``get`` moves no rows, since its memory is mapped; also if there is no such table,
        or its node cannot list it: a ``get`` raises the error.
    """
    from farrow import FarrowError

    far = {one.name for one in client.nodes() if not one.is_own and one.fabric not in _MAPPED}
    if not far:
        return None
    try:
        if _listed(client.list(name), name) is not None:
            return None
        row = _listed(client.list(name, all_nodes=True), name)
        if row is None or row["node"] not in far or row["kind"] not in ("table", "record batch"):
            return None
        schema = client.get(row["id"], rows=slice(0, 0)).schema
        rows = client.get(row["id"], columns=[]).num_rows
        whole = Partition(0, rows, row["node"], row["bytes"], row["id"], 0)
        parts = statistics_of(client, schema, whole)
    except FarrowError:
        return None
    return FarObject(client, name, row["id"], _seal(row), schema, rows, parts)


def _listed(listed: pa.Table, name: str) -> dict[str, Any] | None:
    """The row of the object of this name."""
    rows = listed_rows(listed.filter(pc.equal(listed["name"], name)))
    return rows[0] if rows else None


def _seal(row: dict[str, Any]) -> tuple[int, int]:
    return row["sealed_at"], row["bytes"]


def _part(client: Client, id: bytes, columns: list[str] | None, rows: slice) -> pa.Table:
    part = client.get(id, columns=columns, rows=rows)
    return pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
