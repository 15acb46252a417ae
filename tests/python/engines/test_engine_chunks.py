"""A put table as chunks for Dask, Ray and Spark: schema, rows and id are those of one object.

Its name may be taken by another object meanwhile: the schema and the number of rows were of the old
one, the id of the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from farrow._scan import _chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Cluster

OLD = pa.table({"a": [1, 2, 3]})
NEW = pa.table({"a": ["x", "y"], "b": [1.0, 2.0]})


class Replacing:
    """A client after one of whose calls the table is replaced.

    Args:
        client: the client.
        calls: the number of calls until then.
    """

    def __init__(self, client: farrow.Client, calls: int) -> None:
        self._client = client
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            finally:
                self._calls -= 1
                if self._calls == 0:
                    self._client.put(NEW, "table", replace=True)

        return call


@pytest.mark.parametrize("calls", range(1, 6))
def test_a_table_is_replaced_while_its_chunks_are_found(client: farrow.Client, calls: int) -> None:
    client.put(OLD, "table")
    replacing: Any = Replacing(client, calls)
    try:
        schema, [chunk] = _chunks.chunks(replacing, "table")
        found = _chunks.selection(schema, None, None).read(client, chunk.id)
    except farrow.NotFound:
        # A job that began with the old one fails, as one whose table is deleted.
        return
    assert found.schema == schema
    assert found.num_rows == chunk.rows
    assert found in (OLD, NEW)


def test_no_rows_are_brought_to_find_the_chunks(make_cluster: Callable[..., Cluster]) -> None:
    """The driver of a job needs no room for the table."""
    a, b = make_cluster(2, "--plaintext", "--net=only", "--no-prepare").clients()
    table = pa.table({"n": list(range(500_000))})
    b.put(table, "table")
    before = a.stats()["used"]
    schema, [chunk] = _chunks.chunks(a, "table")
    assert a.stats()["used"] - before < 64 << 10
    assert (schema, chunk.rows, chunk.node) == (table.schema, table.num_rows, "b")
    assert _chunks.selection(schema, None, None).read(a, chunk.id).equals(table)


def test_what_is_no_table_is_an_error(client: farrow.Client) -> None:
    client.put(b"bytes", "bytes")
    with pytest.raises(farrow.InvalidArgument, match="'bytes' is not a table"):
        _chunks.chunks(client, "bytes")
    with pytest.raises(farrow.NotFound, match="nothing"):
        _chunks.chunks(client, "nothing")
    batch = OLD.to_batches()[0]
    client.put(batch, "batch")
    schema, [chunk] = _chunks.chunks(client, "batch")
    assert (schema, chunk.rows) == (batch.schema, 3)
