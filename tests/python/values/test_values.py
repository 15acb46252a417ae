"""What put takes besides pyarrow: bytes, numpy arrays, and dataframes of other libraries."""

from __future__ import annotations

import array
import mmap
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from farrow._values import _numpy


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"hello" * 1000, bytearray(b"abc"), memoryview(b"abcdef")[2:], bytes(5_000_000)],
    ids=["empty", "one", "some", "bytearray", "memoryview", "large"],
)
def test_bytes(shared: farrow.Client, value: bytes | bytearray | memoryview) -> None:
    back = shared.get(shared.put(value))
    assert isinstance(back, pa.Buffer)
    assert not back.is_mutable
    assert back.to_pybytes() == bytes(value)
    assert memoryview(back).readonly


def test_other_exporters_of_buffers(shared: farrow.Client) -> None:
    numbers = array.array("d", [1.0, 2.5])
    flat = memoryview(numbers).cast("B")
    assert shared.get(shared.put(flat)).to_pybytes() == numbers.tobytes()
    buffer = pa.py_buffer(b"of arrow")
    assert shared.get(shared.put(buffer)).equals(buffer)
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:4] = b"page"
        assert shared.get(shared.put(mapped)).to_pybytes()[:4] == b"page"


def test_strided_view_in_order_of_its_items(shared: farrow.Client) -> None:
    view = memoryview(b"a-b-c-")[::2]
    assert shared.get(shared.put(view)).to_pybytes() == b"abc"


DTYPES = [
    "bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "longdouble",
    "complex64", "complex128", ">i4", ">f8", "M8[ns]", "M8[D]", "m8[us]", "S7", "U5", "V12",
    [("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "S3")])],
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy(shared: farrow.Client, dtype: Any, shape: tuple[int, ...], order: Any) -> None:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(7).integers(0, 2, count * kind.itemsize, dtype=np.uint8)
    value = np.ndarray(shape, kind, raw.tobytes(), order=order)
    back = shared.get(shared.put(value))
    assert type(back) is np.ndarray
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert back.flags.f_contiguous == value.flags.f_contiguous
    assert back.flags.c_contiguous == value.flags.c_contiguous
    assert not back.flags.writeable
    assert back.tobytes(order="A") == value.tobytes(order="A")


def test_numpy_views_are_copied_in_order(shared: farrow.Client) -> None:
    base = np.arange(60).reshape(5, 12)
    for view in (base[::2], base[:, 3:5], base[::-1], np.broadcast_to(base[0], (4, 12))):
        back = shared.get(shared.put(view))
        assert np.array_equal(back, view)
    assert shared.locate(shared.get(shared.put(base)))[0]["in_region"]


def test_numpy_array_cannot_be_written(shared: farrow.Client) -> None:
    back = shared.get(shared.put(np.arange(5)))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        back.flags.writeable = True


def test_arrays_of_different_types_in_turn(shared: farrow.Client) -> None:
    """The type of the last array is remembered: the next one must not get it."""
    values = [
        np.arange(4, dtype=kind)
        for kind in ("<i4", "<f4", ">i4", "<i4", "m8[s]", "m8[ms]", "m8[s]", "<i4")
    ]
    refs = [shared.put(value) for value in values]
    for ref, value in zip(refs, values, strict=True):
        back = shared.get(ref)
        assert back.dtype == value.dtype
        assert back.tobytes() == value.tobytes()


def test_fields_renamed_in_place_are_those_of_one_array(shared: farrow.Client) -> None:
    """NumPy lets a program rename the fields of an array's type: no other array may change."""
    ref = shared.put(np.zeros(3, [("a", "i4"), ("b", [("c", "f8")])]))
    first = shared.get(ref)
    first.dtype.names = ("x", "y")
    first.dtype["y"].names = ("z",)
    assert shared.get(ref).dtype == np.dtype([("a", "i4"), ("b", [("c", "f8")])])
    value = np.zeros(3, [("a", "i4")])
    before = shared.put(value)
    value.dtype.names = ("renamed",)
    after = shared.put(value)
    assert [shared.get(one).dtype.names for one in (before, after)] == [("a",), ("renamed",)]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, "x", None], dtype=object),
        np.zeros(2, np.dtype([("a", "i4"), ("b", "O")])),
        np.ma.array([1, 2], mask=[True, False]),
        np.float64(1.5),
    ],
    ids=["objects", "objects in a struct", "masked", "scalar"],
)
def test_numpy_refused(shared: farrow.Client, value: object) -> None:
    with pytest.raises(farrow.UnsupportedType):
        shared.put(value)


@pytest.mark.parametrize(
    "text",
    ["", "no type", "O", "[('a', 'O')]", "[('a', ())]", "[('a',", "[]]", "[1]", "[" * 10_000],
    ids=lambda text: text[:12],
)
def test_the_text_of_no_type_is_refused(text: str) -> None:
    """Another program wrote the text: an ``IndexError`` of numpy told its reader nothing."""
    with pytest.raises(farrow.InvalidDescriptor):
        _numpy.type_of_text(text)


@pytest.mark.parametrize(
    "value",
    [None, 1, 1.5, "text", [1, 2], {"a": 1}, object(), int, pa.Table, pa.scalar(1)],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_refused(shared: farrow.Client, value: object) -> None:
    with pytest.raises(farrow.UnsupportedType, match="cannot put") as caught:
        shared.put(value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, farrow.InvalidArgument)


TABLE = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "s": pa.array(["a", "bb", None]),
        "f": pa.array([0.5, 1.5, 2.5]),
        "l": pa.array([[1], [], [2, 3]], pa.list_(pa.int64())),
    }
)


def test_polars(shared: farrow.Client) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.from_arrow(TABLE)
    back = shared.get(shared.put(frame))
    assert isinstance(back, pa.Table)
    assert back.to_pydict() == TABLE.to_pydict()
    assert pl.from_arrow(back).equals(frame)
    series = frame["s"]
    back = shared.get(shared.put(series))
    assert isinstance(back, pa.ChunkedArray)
    assert back.to_pylist() == ["a", "bb", None]
    structs = frame.select(pl.struct("n", "s").alias("both"))["both"]
    back = shared.get(shared.put(structs))
    assert isinstance(back, pa.ChunkedArray)
    assert back.to_pylist() == structs.to_list()


def test_polars_exports_objects_as_addresses(shared: farrow.Client) -> None:
    """``put`` stored the addresses of Python objects, and ``get`` returned them as binary."""
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.DataFrame(
        {"n": [1], "thing": [object()]}, schema={"n": pl.Int64, "thing": pl.Object}
    )
    for value in (frame, frame["thing"]):
        with pytest.raises(farrow.UnsupportedType, match="holds Python objects"):
            shared.put(value)
    assert shared.get(shared.put(frame.drop("thing"))).to_pydict() == {"n": [1]}


def test_pandas(shared: farrow.Client) -> None:
    pd = pytest.importorskip("pandas", minversion="2.2", reason="pandas 2.2 is not installed")
    frame = pd.DataFrame({"n": [1, 2, 3], "s": ["x", None, "z"], "f": [0.5, float("nan"), 1.0]})
    back = shared.get(shared.put(frame))
    assert isinstance(back, pa.Table)
    pd.testing.assert_frame_equal(back.to_pandas(), pa.table(frame).to_pandas())
    if hasattr(pd.Series, "__arrow_c_stream__"):
        back = shared.get(shared.put(frame["n"]))
        assert isinstance(back, pa.ChunkedArray)
        assert back.to_pylist() == [1, 2, 3]


def test_duckdb(shared: farrow.Client) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    relation = duckdb.sql("select i, i::varchar as s from range(5000) t(i)")
    back = shared.get(shared.put(relation))
    assert isinstance(back, pa.Table)
    assert back["i"].to_pylist() == list(range(5000))
    assert back["s"][4999].as_py() == "4999"
    # And the other way: a query over shared memory.
    assert duckdb.sql("select sum(i) from back").fetchall() == [(12_497_500,)]
    awkward = duckdb.sql("select 1 as dtype, 2 as columns")
    assert shared.get(shared.put(awkward)).to_pylist() == [{"dtype": 1, "columns": 2}]


class Capsules:
    """A producer that offers nothing but the capsules of another object."""

    def __init__(self, source: Any) -> None:
        self.source = source


class OfArray(Capsules):
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.source.__arrow_c_array__(requested_schema)


class OfBatch(OfArray):
    column_names = ("a", "b")


class OfStream(Capsules):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.source.__arrow_c_stream__(requested_schema)


def test_capsules(shared: farrow.Client) -> None:
    numbers = pa.array([1, 2, None])
    back = shared.get(shared.put(OfArray(numbers)))
    assert back.equals(numbers)
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    back = shared.get(shared.put(OfBatch(batch)))
    assert isinstance(back, pa.RecordBatch)
    assert back.equals(batch)
    back = shared.get(shared.put(OfArray(batch.to_struct_array())))
    assert isinstance(back, pa.StructArray)
    back = shared.get(shared.put(OfStream(TABLE)))
    assert back.equals(TABLE)
    chunked = pa.chunked_array([[1], [2, 3]])
    back = shared.get(shared.put(OfStream(chunked)))
    assert isinstance(back, pa.ChunkedArray)
    assert back.equals(chunked)


def test_reader_is_read_to_its_end(shared: farrow.Client) -> None:
    batches = TABLE.to_batches(max_chunksize=1)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches)
    back = shared.get(shared.put(reader))
    assert back.equals(TABLE)


def test_a_producer_that_fails(shared: farrow.Client) -> None:
    def batches() -> Any:
        yield from TABLE.to_batches(max_chunksize=1)[:1]
        raise RuntimeError("the source broke")

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
    with pytest.raises(farrow.FarrowError, match="the source broke"):
        shared.put(reader)


def test_put_many_and_get_many(shared: farrow.Client) -> None:
    values = [b"bytes", TABLE, np.arange(3), pa.array([1]), b""]
    references = shared.put_many(values)
    assert len(set(references)) == len(values)
    back = shared.get_many(references)
    assert back[0].to_pybytes() == b"bytes"
    assert back[1].equals(TABLE)
    assert list(back[2]) == [0, 1, 2]
    assert back[3].to_pylist() == [1]
    assert back[4].size == 0
    assert shared.put_many([]) == []
    assert shared.get_many([]) == []
    assert shared.get_many(iter(references[:1]))[0].to_pybytes() == b"bytes"


def test_the_same_bytes_for_both_ends(shared: farrow.Client) -> None:
    packed = struct.pack("<qd", -5, 2.5)
    back = shared.get(shared.put(packed))
    assert struct.unpack("<qd", back) == (-5, 2.5)
