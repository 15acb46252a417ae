"""What the Arrow C interfaces bring in is input, and a panic is no answer.

``put`` of an object whose capsule had been consumed before raised a ``PanicException``: a
``BaseException``, which no ``except Exception`` catches, so that it ended whole servers.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from farrow import _native


def test_a_panic_is_an_ordinary_exception(shared: farrow.Client) -> None:
    with pytest.raises(farrow.InternalError, match="on purpose") as caught:
        _native.panic_on_purpose("on purpose")
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, farrow.FarrowError)
    assert type(caught.value).__module__ == "farrow.exceptions"
    reference = shared.put(b"goes on")
    assert bytes(shared.get(reference)) == b"goes on"


class Exports:
    """Exports the same capsules over and over: after the first time they are consumed."""

    def __init__(self, value: Any) -> None:
        self._array = value.__arrow_c_array__() if hasattr(value, "__arrow_c_array__") else None
        if self._array is None:
            self._stream = value.__arrow_c_stream__()


class ArrayExports(Exports):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._array


class BatchExports(ArrayExports):
    column_names = ("x",)


class StreamExports(Exports):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._stream


class SchemaExports:
    def __init__(self, schema: Any) -> None:
        self.capsule = schema

    def __arrow_c_schema__(self) -> Any:
        return self.capsule


TABLE = pa.table({"x": [1, 2, 3]})
BATCH = TABLE.to_batches()[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArrayExports(pa.array([1, 2, 3])),
        lambda: ArrayExports(BATCH),
        lambda: BatchExports(BATCH),
        lambda: StreamExports(TABLE),
        lambda: StreamExports(TABLE["x"]),
    ],
    ids=["array", "struct", "batch", "table", "column"],
)
def test_a_consumed_capsule_is_an_error(shared: farrow.Client, make: Any) -> None:
    value = make()
    shared.get(shared.put(value))
    for _ in range(2):
        with pytest.raises(farrow.InvalidArgument, match=r"ArrowSchema|ArrowArray|released|NULL"):
            shared.put(value)


def test_a_consumed_schema_is_an_error(client: farrow.Client) -> None:
    schema, array = ArrayExports(BATCH)._array
    exports = SchemaExports(schema)
    assert client.huge_table("first", exports).schema.names == ["x"]
    pa.RecordBatch._import_from_c_capsule(schema, array)
    with pytest.raises(farrow.InvalidArgument, match="ArrowSchema"):
        client.huge_table("second", exports)


def test_capsules_of_other_names_are_an_error(shared: farrow.Client) -> None:
    array = ArrayExports(pa.array([1]))
    array._array = array._array[::-1]
    stream = StreamExports(TABLE)
    stream._stream = array._array[0]
    for value in [array, stream]:
        with pytest.raises(Exception, match=r"capsule|Capsule"):
            shared.put(value)
    for wrong in [None, 7, (), (1,), (1, 2), (1, 2, 3), b"no capsule"]:
        array._array = stream._stream = wrong
        for value in [array, stream]:
            with pytest.raises((TypeError, ValueError, IndexError)):
                shared.put(value)


class CSchema(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class CArray(ctypes.Structure):
    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@RELEASE
def _released(_: int) -> None:
    """What they hold belongs to the test."""


_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Forged:
    """An array of any format, whose buffers are long enough for whatever it says of itself."""

    ROOM = 1 << 16

    def __init__(self, text: bytes, seed: int, children: tuple[Forged, ...] = ()) -> None:
        chance = random.Random(seed)
        self.schema, self.array = CSchema(), CArray()
        self.rooms = [
            np.frombuffer(chance.randbytes(64) * (self.ROOM // 64), np.uint8).copy()
            for _ in range(4)
        ]
        # Offsets that stay inside, whether they are read as 64 bits each or as 32.
        self.rooms[1][:] = np.arange(self.ROOM // 8, dtype=np.int64).view(np.uint8)
        self.pointers = (ctypes.c_void_p * 4)(*(room.ctypes.data for room in self.rooms))
        self.children = children
        self.schemas = (ctypes.c_void_p * 4)(*(ctypes.addressof(c.schema) for c in children))
        self.arrays = (ctypes.c_void_p * 4)(*(ctypes.addressof(c.array) for c in children))
        release = ctypes.cast(_released, ctypes.c_void_p).value
        self.schema.format, self.schema.release = text, release
        self.schema.flags = chance.choice([0, 2, -1, 1 << 40])
        self.schema.n_children = chance.choice([len(children)] * 6 + [0, -1])
        self.schema.children = ctypes.addressof(self.schemas)
        # So many items of 8 bytes are no memory; bits there might be.
        most = (1 << 63) - 1 if text in {b"l", b"L", b"g", b"tsn:UTC", b"U", b"+L"} else 7
        self.array.length = chance.choice([0, 1, 3, 100, -1, -(1 << 63), most])
        self.array.offset = chance.choice([0] * 6 + [1, 5, -1, (1 << 63) - 1])
        self.array.null_count = chance.choice([0, -1, 1, 50, -(1 << 63), (1 << 63) - 1])
        self.array.n_buffers = chance.choice([1, 2, 2, 2, 3, 3, 0, -1])
        self.array.n_children = chance.choice([len(children)] * 6 + [0, -1])
        self.array.buffers = chance.choice([ctypes.addressof(self.pointers)] * 8 + [None])
        self.array.children = ctypes.addressof(self.arrays)
        self.array.release = chance.choice([release] * 9 + [None])

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        schema = _new(ctypes.addressof(self.schema), b"arrow_schema", None)
        return schema, _new(ctypes.addressof(self.array), b"arrow_array", None)


FORMATS = [
    *b"n b c C s S i I l L e f g u U z Z vu vz tdD tdm tts ttm ttu ttn tsn:UTC tiM tiD tin".split(),
    *b"w:4 w:0 w:-1 w:99999999999999999999 d:10,2 d:99,2 d:10,2,256 d: d:a,b +w:3".split(),
    *b"+w: +w:-1 +l +L +vl +vL +s +m +r +ud:0,1 +us:0,1 +ud: +us:-1 +ud:0,0,0 +ud:200".split(),
    *b"x +q : + tt ts tsn tsx: vv d w \xff\xfe".split(),
    b"", b"u" * 300, b"tsn:" + b"\xc3\x28", b"+s" * 50,
]  # fmt: skip


def test_forged_arrays_are_errors_or_values(shared: farrow.Client) -> None:
    """No segmentation fault, no panic: whatever lengths, counts and formats they claim."""
    outcomes = {"taken": 0, "refused": 0}
    for seed in range(3000):
        chance = random.Random(seed)
        leaves = tuple(
            Forged(chance.choice(FORMATS), seed * 10 + number)
            for number in range(chance.choice([0, 0, 1, 1, 2]))
        )
        forged = Forged(chance.choice(FORMATS), seed * 10 + 9, leaves)
        # Values of these claim at most what their buffers hold, or what no check could take.
        try:
            reference = shared.put(forged)
        except farrow.InternalError:
            raise
        except (farrow.FarrowError, ValueError, MemoryError):
            outcomes["refused"] += 1
        else:
            outcomes["taken"] += 1
            shared.delete(reference)
    assert all(outcomes.values()), outcomes


def test_a_stream_that_fails_is_an_error_with_its_words(shared: farrow.Client) -> None:
    def batches() -> Any:
        yield BATCH
        raise RuntimeError("the producer broke")

    reader = pa.RecordBatchReader.from_batches(BATCH.schema, batches())
    with pytest.raises(farrow.InvalidArgument, match="the producer broke"):
        shared.put(reader)
