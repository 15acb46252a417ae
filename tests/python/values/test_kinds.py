"""What is put comes back as the same kind, or is refused with what to put instead.

``pa.Tensor``, ``array.array``, typed memoryviews and ctypes arrays came back as plain buffers, and
subclasses of numpy's array as plain arrays, without a word.
"""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.lib.recfunctions import repack_fields

import farrow


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


class Units(np.ndarray):
    """As libraries for physical units have it."""


@pytest.fixture(scope="module")
def client(shared_node: Any) -> farrow.Client:
    return farrow.connect(shared_node.socket)


TENSORS = {
    "plain": pa.Tensor.from_numpy(np.arange(6, dtype=np.int32).reshape(2, 3)),
    "named": pa.Tensor.from_numpy(np.ones((2, 3)), dim_names=["x", "y"]),
    "fortran": pa.Tensor.from_numpy(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    "strided": pa.Tensor.from_numpy(np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, ::3]),
    "one": pa.Tensor.from_numpy(np.arange(3, dtype=np.float32)),
    "empty": pa.Tensor.from_numpy(np.zeros((0, 4), dtype=np.int64)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_as_a_tensor(client: farrow.Client, name: str) -> None:
    tensor = TENSORS[name]
    for reference in [client.put(tensor), *client.put_many([tensor])]:
        for got in [client.get(reference), *client.get_many([reference])]:
            assert isinstance(got, pa.Tensor)
            assert got.equals(tensor)
            assert got.type == tensor.type
            assert got.dim_names == tensor.dim_names
            assert not got.is_mutable


# By kind: what is put, and the type that comes back.
SAME = {
    "bytes": (b"abc", pa.Buffer),
    "bytearray": (bytearray(b"abc"), pa.Buffer),
    "memoryview of bytes": (memoryview(b"abc"), pa.Buffer),
    "a cast view": (memoryview(array.array("d", [1.0])).cast("B"), pa.Buffer),
    "a strided view of bytes": (memoryview(b"abcd")[::2], pa.Buffer),
    "pa.Buffer": (pa.py_buffer(b"abc"), pa.Buffer),
    "mmap": (mmap.mmap(-1, 16), pa.Buffer),
    "ctypes bytes": ((ctypes.c_ubyte * 4)(1, 2, 3, 4), pa.Buffer),
    "ctypes characters": (ctypes.create_string_buffer(b"abc"), pa.Buffer),
    "array": (pa.array([1, None]), pa.Array),
    "chunked": (pa.chunked_array([[1], [2]]), pa.ChunkedArray),
    "batch": (pa.record_batch({"x": [1]}), pa.RecordBatch),
    "table": (pa.table({"x": [1]}), pa.Table),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), pa.DictionaryArray),
    "extension": (pa.array([b"x" * 16], pa.uuid()), pa.ExtensionArray),
    "numpy": (np.arange(3), np.ndarray),
    "numpy 0-d": (np.array(7), np.ndarray),
    "numpy datetime": (np.array(["2024-01-01"], "M8[s]"), np.ndarray),
    "numpy structured": (np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]), np.ndarray),
    "numpy text": (np.array(["a", "bc"]), np.ndarray),
    # A kind of Arrow's stands for what speaks the PyCapsule interface.
    "reader": (pa.table({"x": [1]}).to_reader(), pa.Table),
    "polars frame": (pl.DataFrame({"x": [1]}), pa.Table),
    "polars series": (pl.Series("x", [1]), pa.ChunkedArray),
    "pandas frame": (pd.DataFrame({"x": [1]}), pa.Table),
    "pandas series": (pd.Series([1]), pa.ChunkedArray),
}


@pytest.mark.parametrize("kind", SAME)
def test_these_come_back_as_the_docs_say(client: farrow.Client, kind: str) -> None:
    value, expected = SAME[kind]
    reference = client.put(value)
    got = client.get(reference)
    assert isinstance(got, expected)
    if expected is pa.Buffer:
        assert bytes(got) == (value.tobytes() if hasattr(value, "tobytes") else bytes(value))
    elif expected is np.ndarray:
        assert type(got) is np.ndarray
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        assert np.array_equal(got, value)
    elif isinstance(value, (pa.Array, pa.ChunkedArray, pa.Table, pa.RecordBatch)):
        assert got.equals(value)
        assert got.to_pylist() == value.to_pylist()


# By kind: what is refused, and what the message says to put.
REFUSED = {
    "array.array": (array.array("d", [1.0, 2.0]), "numpy.asarray"),
    "array of bytes that are numbers": (array.array("H", [1]), "cast"),
    "typed memoryview": (memoryview(array.array("i", [1])), "numpy.asarray"),
    "memoryview of rows": (memoryview(bytes(6)).cast("B", (2, 3)), "cast"),
    "memoryview of booleans": (memoryview(np.array([True])), "numpy.asarray"),
    "ctypes integers": ((ctypes.c_int * 3)(1, 2, 3), "numpy.asarray"),
    "ctypes structure": (Pair(1, 2.0), "cast"),
    "scalar": (pa.scalar(1), r"pyarrow\.array\(\[it\]\)"),
    "schema": (pa.schema([("x", pa.int8())]), "empty_table"),
    "sparse": (pa.SparseCOOTensor.from_dense_numpy(np.eye(2)), "to_tensor"),
    "masked": (np.ma.masked_array([1, 2], [0, 1]), "mask"),
    "matrix": (np.matrix([[1]]), "numpy.asarray"),
    "record array": (np.rec.array([(1, 2.0)]), "numpy.asarray"),
    "a subclass": (np.arange(3).view(Units), "numpy.asarray"),
    "objects": (np.array([{}], object), "Python objects"),
    "numpy scalar": (np.float64(1), "numpy.asarray"),
    "pandas index": (pd.Index([1, 2]), r"put its \.to_frame\(\)"),
    "pandas categories": (pd.Categorical(["a"]), "numpy.asarray"),
    "number": (7, "cannot put"),
    "list": ([1, 2], "cannot put"),
    "text": ("text", "cannot put"),
    "none": (None, "cannot put"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_these_are_refused_with_what_helps(client: farrow.Client, kind: str) -> None:
    value, text = REFUSED[kind]
    with pytest.raises(farrow.UnsupportedType, match=text):
        client.put(value)
    with pytest.raises(farrow.UnsupportedType, match=text):
        client.put_many([b"first", value])


@pytest.mark.parametrize(
    "dtype",
    [
        {"names": ["b", "a"], "formats": ["f8", "i4"], "offsets": [4, 0], "itemsize": 12},
        {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2], "itemsize": 4},
    ],
    ids=["out of order", "overlapping"],
)
def test_fields_in_no_order_are_refused_with_what_helps(client: farrow.Client, dtype: Any) -> None:
    """Such arrays are selections of fields; the error was a plain ValueError of numpy."""
    value = np.zeros(3, dtype)
    value["a"] = [1, 2, 3]
    with pytest.raises(farrow.UnsupportedType, match=r"repack_fields\(it\), or use farrow.put_obj"):
        client.put(value)
    assert client.get(client.put(repack_fields(value)))["a"].tolist() == value["a"].tolist()
    reference = farrow.put_object(value, client=client)
    assert np.array_equal(farrow.get_object(reference, client=client), value)


def test_a_torch_tensor_is_refused_with_what_helps(client: farrow.Client) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(farrow.UnsupportedType, match="from_dlpack"):
        client.put(torch.ones(3))


def test_bytes_of_anything_can_be_written_in_place(client: farrow.Client) -> None:
    """A writer is asked for bytes, so nothing is lost without a word."""
    with client.create(16) as writer:
        writer.write(array.array("d", [1.0, 2.0]))
        reference = writer.seal()
    assert np.frombuffer(client.get(reference), np.float64).tolist() == [1.0, 2.0]
