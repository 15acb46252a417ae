"""The parts of a put table or record batch, by its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from farrow import _native
from farrow._reserved import STATISTICS
from farrow._scan._statistics import ChunkStatistics, columns_of_fields
from farrow.huge import Partition

if TYPE_CHECKING:
    from farrow import Client

__all__ = ["PutTable", "put_table", "statistics_of"]


class PutTable(NamedTuple):
    """An object in mapped memory.

    Attributes:
        value: the object.
        parts: the statistics and the batches of its parts, in order; none if it was put without.
    """

    value: Any
    parts: list[tuple[ChunkStatistics, list[pa.RecordBatch]]]


def put_table(name: str, client: Client) -> PutTable:
    """The object of this name, with its own statistics, whichever object has the name later.

    Raises:
        FarrowError: as ``Client.get``.
    """
    value, text, id, node, nbytes = client._get_with_statistics(name)
    if text is None or not isinstance(value, (pa.Table, pa.RecordBatch)):
        return PutTable(value, [])
    table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
    whole = Partition(0, table.num_rows, node, nbytes, id, 0)
    parts = _parts(text, table.schema, whole)
    slices = [table.slice(one.partition.position, one.partition.rows) for one in parts]
    return PutTable(
        table, [(one, own.to_batches()) for one, own in zip(parts, slices, strict=True)]
    )


def statistics_of(client: Client, schema: pa.Schema, whole: Partition) -> list[ChunkStatistics]:
    """The statistics of the parts of an object, which no row is fetched for; none if it was put
    without.

    Args:
        client: the client that finds the object.
        schema: its schema.
        whole: all of its rows.

    Raises:
        FarrowError: as ``Client.metadata``.
    """
    text = client.metadata(whole.id).get(STATISTICS)
    return [] if text is None else _parts(text, schema, whole)


def _parts(text: str, schema: pa.Schema, whole: Partition) -> list[ChunkStatistics]:
    found: list[ChunkStatistics] = []
    names: dict[Any, Any] = {}
    position = 0
    for rows, fields in _native.table_statistics(text, schema, whole.rows) or ():
        nbytes = whole.nbytes * rows // whole.rows
        part = whole._replace(position=position, rows=rows, nbytes=nbytes)
        found.append(ChunkStatistics(part, columns_of_fields(schema, names, fields)))
        position += rows
    return found
