"""Objects of every kind for backups, and the folder of a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
TABLE = pa.table(
    {
        "n": [1, 2, None],
        "text": pa.array(["a", "b", "a"]).dictionary_encode(),
        "list": [[1.5], None, []],
    },
    metadata={"unit": "metre"},
)
VALUES: dict[str, Any] = {
    "table": TABLE,
    "several chunks": pa.concat_tables([TABLE, TABLE.slice(1)]),
    "no rows": TABLE.slice(0, 0),
    "no columns": TABLE.select([]),
    "batch": TABLE.to_batches()[0],
    "array": pa.array([1, None, 3]),
    "array/of structs": pa.array([{"a": 1}, None]),
    "chunked array": pa.chunked_array([[1], [2, 3]]),
    "chunked array without chunks": pa.chunked_array([], pa.int8()),
    "numpy": np.arange(6).reshape(2, 3),
    "numpy/fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "numpy/scalar": np.array(5.5),
    "numpy/none": np.empty((0, 3), np.float32),
    "numpy/times": np.array(["2026-01-01", "NaT"], "M8[s]"),
    "numpy/records": np.array([(1, "x")], [("größe €", ">i4"), ("b", "U3")]),
    "tensor": pa.Tensor.from_numpy(np.ones((2, 2)), dim_names=["x", "y"]),
    "bytes": b"hello",
    "bytes/none": b"",
    "large": pa.table({"x": np.arange(MIB)}),
}


def same(found: Any, value: Any) -> bool:
    """Whether a value that was restored is the one that was put."""
    if isinstance(value, bytes):
        return bool(found.to_pybytes() == value)
    if isinstance(value, np.ndarray):
        alike = (found.dtype, found.shape) == (value.dtype, value.shape)
        order = found.flags.f_contiguous == value.flags.f_contiguous
        return alike and order and found.tobytes("A") == value.tobytes("A")
    if isinstance(value, pa.Tensor):
        return bool(found.equals(value)) and found.dim_names == value.dim_names
    equal = found.equals(value, check_metadata=True) if hasattr(value, "schema") else found == value
    return type(found) is type(value) and bool(equal)


def put_all(client: farrow.Client) -> None:
    for name, value in VALUES.items():
        client.put(value, name, metadata={"what": name})
    client.pin("table")
    farrow.put_object({"a": [1, np.arange(3)]}, "object", client=client)
    table = client.huge_table("huge", TABLE.schema)
    # Not in the order of the rows, and with a gap.
    for position in (3, 0, 9):
        table.append(TABLE, position=position)
    client.put(b"no name")


def check_all(client: farrow.Client) -> None:
    for name, value in VALUES.items():
        assert same(client.get(name), value), name
        assert client.metadata(name) == {"what": name}
    listed = client.list().to_pylist()
    pinned = {row["name"] for row in listed if row["pinned"] and "huge" not in row["name"]}
    assert pinned == {"table"}
    found = farrow.get_object("object", client=client)
    assert found["a"][1].tolist() == [0, 1, 2]
    table = client.huge_table("huge")
    parts = [(part.position, part.rows, part.version) for part in table.partitions()]
    assert parts == [(0, 3, 2), (3, 3, 1), (9, 3, 3)]
    assert table.table(rows=slice(0, 6)).equals(pa.concat_tables([TABLE, TABLE]))
    with pytest.raises(farrow.RowsMissing):
        table.table()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.*") if path.is_file() and path.name != ".lock")
