"""What must work with every pyarrow: run by tests/matrix.sh, and under an emulator.

    python matrix_smoke.py pool|no-pool

The second run of itself, with FARROW_BRIDGE=off, takes the way that needs no C++ library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import farrow
from farrow import _native

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER = """
import sys, farrow
client = farrow.connect()
table = client.get("shared")
print(table["n"].to_pylist(), client.locate(table)[0]["offset"])
"""


class Exported:
    """An object of another library: it has the Arrow PyCapsule interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__()


def table() -> pa.Table:
    nested = pa.list_(pa.struct([("k", pa.string()), ("n", pa.int16())]))
    return pa.table(
        {
            "n": pa.array([1, None, 3], pa.int64()),
            "s": ["one", None, "three"],
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "l": pa.array([[{"k": "x", "n": 1}], [], None], nested),
            "t": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
        }
    )


def arrow_values() -> list[Any]:
    rows = table()
    return [
        rows,
        rows.slice(1),
        rows.schema.with_metadata({"k": "v"}).empty_table(),
        pa.concat_tables([rows, rows]),
        rows.combine_chunks().to_batches()[0],
        *(column.chunk(0) for column in rows.columns),
        pa.chunked_array([[1, 2], [3]]),
        pa.chunked_array([], pa.string()),
        pa.array([True, None, False]),
        pa.array([], pa.float32()),
    ]


def check_arrow(client: farrow.Client) -> None:
    for value in arrow_values():
        back = client.get(client.put(value))
        assert type(back) is type(value), (type(back), type(value))
        assert back.equals(value), value
        back.validate(full=True)
    rows = table()
    for foreign in (Exported(rows), rows.to_reader()):
        assert client.get(client.put(foreign)).equals(rows)


def check_others(client: farrow.Client) -> None:
    for value in (b"bytes", bytearray(b"array"), memoryview(b"view"), pa.py_buffer(b"buffer"), b""):
        back = client.get(client.put(value))
        assert isinstance(back, pa.Buffer)
        assert not back.is_mutable
        assert back.to_pybytes() == bytes(value)
    many = client.get_many(client.put_many([b"1", b"22", table(), b"333"]))
    assert [bytes(one) for one in (many[0], many[1], many[3])] == [b"1", b"22", b"333"]
    assert many[2].equals(table())
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3)), np.empty((0, 2))):
        back = client.get(client.put(array))
        np.testing.assert_array_equal(back, array)
        assert not back.flags.writeable
    tensor = pa.Tensor.from_numpy(np.arange(4.0).reshape(2, 2), dim_names=["x", "y"])
    assert client.get(client.put(tensor)).equals(tensor)


def check_places(client: farrow.Client) -> None:
    """Two gets are the same memory; another process sees it at the same offset."""
    client.put(table(), "shared")
    first, second = client.get("shared"), client.get("shared")
    places = client.locate(first)
    assert places
    assert all(place["in_region"] for place in places)
    addresses = [place["address"] for place in places]
    assert addresses == [place["address"] for place in client.locate(second)]
    done = subprocess.run(
        [sys.executable, "-c", OTHER], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == f"[1, None, 3] {places[0]['offset']}\n", done
    # The memory outlives the object while a value uses it.
    client.delete("shared")
    assert first.equals(table())


def check_writer(client: farrow.Client) -> None:
    with client.create(8, "written") as writer:
        view = writer.buffer
        view[:4] = b"abcd"
        np.frombuffer(view, np.uint8)[4:] = 7
        writer.seal()
    assert client.get("written").to_pybytes() == b"abcd" + b"\x07" * 4
    client.delete("written")


def check_huge_table(client: farrow.Client) -> None:
    """Its statistics named types that pyarrow 15 does not have."""
    rows = table().select(["n", "s", "d"])
    huge = client.huge_table("huge", rows.schema)
    huge.append(rows)
    huge.append(rows)
    found = huge.dataset().to_table(filter=pc.field("s") == "three")
    assert found["n"].to_pylist() == [3, 3]
    assert huge.table().equals(pa.concat_tables([rows, rows]))
    huge.drop()


def message(error: type[Exception], call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """The text of the error that a call must raise."""
    try:
        call(*arguments, **more)
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__} of {call} with {arguments} {more}")


def check_errors(client: farrow.Client) -> None:
    for wrong in (object(), 3):
        assert "cannot put" in message(farrow.UnsupportedType, client.put, wrong)
    assert "nothing here" in message(farrow.NotFound, client.get, "nothing here")


def check_pool(client: farrow.Client, expected: bool) -> None:
    assert (_native.bridge_series() is not None) == expected, _native.bridge_series()
    if expected:
        assert _native.bridge_series() == pa.cpp_build_info.so_version
        array = pa.array(range(10_000), memory_pool=client.memory_pool())
        back = client.get(client.put(array))
        assert back.buffers()[1].address == array.buffers()[1].address
        return
    for arguments in ({}, {"strict": True}, {"expect": 1000}):
        text = message(ImportError, client.memory_pool, **arguments)
        assert f"no memory pool for pyarrow {pa.__version__}" in text
        assert "nstall" in text


def main(expected: str) -> None:
    client = farrow.connect()
    check_arrow(client)
    check_others(client)
    check_places(client)
    check_writer(client)
    check_huge_table(client)
    check_errors(client)
    check_pool(client, expected == "pool")
    versions = f"Python {sys.version.split()[0]}, pyarrow {pa.__version__}, numpy {np.__version__}"
    print(f"matrix: {versions}, {expected}: passed", flush=True)
    if expected == "pool":
        env = {**os.environ, "FARROW_BRIDGE": "off"}
        subprocess.run([sys.executable, __file__, "no-pool"], env=env, timeout=300, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
