"""A table that a C program puts with statistics is scanned like one that Python puts: only its
parts that can match are read.  The C API could not count them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow.dataset
from c_cases import needs_compiler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Node

pytest_plugins = ["c_cases"]

ROWS = 400_000
# From farrow.h.
KIND_TABLE = 6
# Words of the C stream interface.
STREAM_BYTES = 5 * 8


class Options(ctypes.Structure):
    """``FarrowPutOptions``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("metadata_count", ctypes.c_size_t),
        ("wait_seconds", ctypes.c_double),
        ("replace", ctypes.c_int),
        ("statistics", ctypes.c_int),
    ]


@pytest.fixture
def library(capi: Path) -> Any:
    loaded = ctypes.CDLL(str(capi / "libfarrow.so"))
    loaded.farrow_connect.argtypes = [ctypes.c_char_p, ctypes.c_double, ctypes.c_void_p]
    loaded.farrow_last_error.restype = ctypes.c_char_p
    return loaded


@pytest.fixture
def handle(library: Any, node: Node) -> Iterator[Any]:
    client = ctypes.c_void_p()
    assert library.farrow_connect(node.socket.encode(), 10.0, ctypes.byref(client)) == 0
    yield client
    library.farrow_close(client)


def put(library: Any, handle: Any, table: pa.Table, options: Options) -> None:
    stream = ctypes.create_string_buffer(STREAM_BYTES)
    table.to_reader()._export_to_c(ctypes.addressof(stream))
    status = library.farrow_put_stream_with(handle, KIND_TABLE, stream, ctypes.byref(options), None)
    assert status == 0, library.farrow_last_error()


@needs_compiler
def test_parts_of_a_table_of_a_c_program_are_skipped(library: Any, handle: Any, node: Node) -> None:
    table = pa.table({"day": pa.array(range(ROWS), pa.int32())})
    client = farrow.connect(node.socket)
    for name, statistics in ("counted", 1), ("plain", 0):
        put(library, handle, table, Options(name=name.encode(), statistics=statistics))
        rows = farrow.dataset.dataset(name, client)
        assert rows.count_rows(filter=pc.field("day") < 100) == 100
        # Without statistics there are no parts: the table is read whole.
        parts = rows.partitions(pc.field("day") < 100)
        read = sum(part.rows for part in parts)
        assert (100 <= read < ROWS / 2) if statistics else not parts, (name, read)
        assert client.get(name).equals(table)
    labels = client.list()["metadata"].to_pylist()
    assert sorted(len(one) for one in labels) == [0, 1]
