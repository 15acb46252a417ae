"""One array or more of every Arrow type, built in a given pool."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pyarrow.compute as pc

ROWS = 23
# Windows that begin and end inside a byte of a bitmap, and an empty one.
SLICES = ((3, 14), (8, 12), (5, 0))


class Tagged(pa.ExtensionType):
    """An extension type with metadata of its own."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "farrow.test.tagged")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"some metadata"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Tagged:
        assert serialized == b"some metadata"
        return cls()


pa.register_extension_type(Tagged())


class _Maker:
    def __init__(self, pool: pa.MemoryPool | None) -> None:
        self.pool = pool
        self.cases: dict[str, pa.Array] = {}

    def array(self, values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, memory_pool=self.pool)

    def rows(self, value: object, kind: pa.DataType) -> pa.Array:
        """ROWS values of ``value(i)``, every fifth null."""
        assert callable(value)
        return self.array([None if i % 5 == 3 else value(i) for i in range(ROWS)], kind)


def arrays(pool: pa.MemoryPool | None = None) -> dict[str, pa.Array]:
    """Name to array; buffers lie in ``pool`` as far as pyarrow honours it."""
    maker = _Maker(pool)
    for fill in (_flat, _temporal, _text, _lists, _nested, _dictionaries, _unions, _rest):
        fill(maker)
    return maker.cases


def variants(pool: pa.MemoryPool | None = None) -> dict[str, pa.Array]:
    """The arrays and slices of those that are long enough."""
    found = {}
    for name, array in arrays(pool).items():
        found[name] = array
        if len(array) > 17:
            for offset, length in SLICES:
                found[f"{name} [{offset}:{offset + length}]"] = array.slice(offset, length)
    return found


def _flat(m: _Maker) -> None:
    integers = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16()]
    integers += [pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
    for kind in integers:
        m.cases[str(kind)] = m.rows(lambda i: i, kind)
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        m.cases[str(kind)] = m.rows(float, kind)
    m.cases["null"] = pa.nulls(ROWS)
    m.cases["bool"] = m.rows(lambda i: i % 3 == 0, pa.bool_())
    m.cases["no nulls"] = m.array(list(range(ROWS)), pa.int64())
    m.cases["all null"] = pa.nulls(ROWS, pa.int32(), memory_pool=m.pool)
    for kind in (pa.int64(), pa.string(), pa.list_(pa.int8()), pa.string_view(), pa.struct([])):
        m.cases[f"empty {kind}"] = m.array([], kind)
    m.cases["fixed_size_binary"] = m.rows(lambda i: b"%05d" % i, pa.binary(5))
    for kind in (
        pa.decimal32(7, 2),
        pa.decimal64(15, 3),
        pa.decimal128(30, 4),
        pa.decimal256(60, 5),
    ):
        m.cases[str(kind)] = m.rows(decimal.Decimal, kind)


def _temporal(m: _Maker) -> None:
    kinds = [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us")]
    kinds += [pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ns"), pa.duration("ms")]
    kinds += [pa.timestamp("us", tz="Europe/Paris"), pa.timestamp("ms", tz="+07:30")]
    for kind in kinds:
        step = 86_400_000 if kind == pa.date64() else 1
        raw = pa.int32() if kind.bit_width == 32 else pa.int64()
        m.cases[str(kind)] = m.rows(lambda i, step=step: i * step, raw).view(kind)
    interval = pa.month_day_nano_interval()
    m.cases["interval"] = m.rows(lambda i: pa.MonthDayNano([i, i + 1, i + 2]), interval)


def _text(m: _Maker) -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        m.cases[str(kind)] = m.rows(lambda i: "\u00e9" * (i * 3), kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        m.cases[str(kind)] = m.rows(lambda i: b"\0v" * i, kind)
    m.cases["view all inline"] = m.array(["a", "bb"] * 10, pa.string_view())
    # 40 kB strings: more than fits one data buffer of the builder.
    m.cases["view of two buffers"] = m.array(
        ["x" * 40000] * 3 + ["y" * 40000] * 3, pa.string_view()
    )
    m.cases["one long string"] = m.array(["z" * 300_000], pa.string())


def _lists(m: _Maker) -> None:
    m.cases["list"] = m.rows(lambda i: list(range(i % 4)), pa.list_(pa.int32()))
    m.cases["large_list"] = m.rows(lambda i: ["q" * i] * (i % 3), pa.large_list(pa.string()))
    deep = pa.list_(pa.list_(pa.list_(pa.string())))
    m.cases["list of list of list"] = m.rows(lambda i: [[["z" * i], []], [None]], deep)
    m.cases["fixed_size_list"] = m.rows(lambda i: [i, None, i], pa.list_(pa.int16(), 3))
    pairs = pa.list_(pa.list_(pa.float32(), 2), 2)
    m.cases["fixed_size_list twice"] = m.rows(lambda i: [[1.0, i], [3.0, None]], pairs)
    m.cases["fixed_size_list of 0"] = m.rows(lambda i: [], pa.list_(pa.int16(), 0))
    m.cases["fixed_size_list of bool"] = m.rows(
        lambda i: [True, i % 2 == 0], pa.list_(pa.bool_(), 2)
    )
    m.cases["list_view"] = m.rows(lambda i: list(range(i % 4)), pa.list_view(pa.int64()))
    m.cases["large_list_view"] = m.rows(
        lambda i: ["w" * i] * (i % 3), pa.large_list_view(pa.string())
    )
    # Views in any order, overlapping.
    m.cases["list_view out of order"] = pa.ListViewArray.from_arrays(
        m.array([4, 0, 2] * 7, pa.int32()),
        m.array([3, 5, 2] * 7, pa.int32()),
        m.array(list(range(9)), pa.int16()),
    )


def _nested(m: _Maker) -> None:
    inner = pa.struct([("d", pa.list_(pa.int8()))])
    kind = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", inner)])
    m.cases["struct"] = m.rows(
        lambda i: {"a": i, "b": "s" * i if i % 2 else None, "c": {"d": [i]}}, kind
    )
    m.cases["struct without fields"] = m.rows(lambda i: {}, pa.struct([]))
    pairs = pa.map_(pa.string(), pa.int32())
    m.cases["map"] = m.rows(lambda i: [(f"k{j}", j) for j in range(i % 3)], pairs)
    ordered = pa.map_(pa.int32(), pa.string(), keys_sorted=True)
    m.cases["map with sorted keys"] = m.rows(lambda i: [(1, "a")], ordered)
    # A struct array that is sliced before it becomes a child.
    m.cases["struct of slices"] = pa.StructArray.from_arrays(
        [m.rows(lambda i: i, pa.int64()).slice(2, 20), m.rows(str, pa.string()).slice(3, 20)],
        ["x", "y"],
    )


def _dictionaries(m: _Maker) -> None:
    encoded = pa.dictionary(pa.int8(), pa.string())
    m.cases["dictionary"] = m.rows(lambda i: f"k{i % 4}", encoded)
    make = pa.DictionaryArray.from_arrays
    words = m.array(["a", "b"], pa.string())
    m.cases["dictionary ordered"] = make(m.array([0, 1, None] * 7, pa.int16()), words, ordered=True)
    flips = m.array([0, 1] * 10, pa.uint32())
    numbers = m.array([decimal.Decimal(1), decimal.Decimal(2)], pa.decimal128(9, 2))
    m.cases["dictionary of decimals"] = make(flips, numbers)
    structs = m.array([{"x": 1}, {"x": None}], pa.struct([("x", pa.int64())]))
    m.cases["dictionary of structs"] = make(flips, structs)
    inner = make(m.array([1, 0], pa.int8()), m.array(["in", "out"], pa.string()))
    m.cases["dictionary of dictionary"] = make(m.array([0, 1] * 10, pa.int8()), inner)
    m.cases["dictionary with null value"] = make(flips, m.array([None, "b"], pa.string()))
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    m.cases["list of dictionary"] = m.rows(lambda i: ["a", "b"][: i % 3], kind)


def _unions(m: _Maker) -> None:
    codes = [0, 1, 0, 1, 1] * 4
    places = [codes[:i].count(code) for i, code in enumerate(codes)]
    numbers = m.array([*range(7), None], pa.int32())
    words = m.array([str(i) for i in range(12)], pa.string())
    m.cases["dense_union"] = pa.UnionArray.from_dense(
        m.array(codes, pa.int8()), m.array(places, pa.int32()), [numbers, words]
    )
    columns = [
        m.array(list(range(20)), pa.int32()),
        m.array([str(i) for i in range(20)], pa.string()),
    ]
    m.cases["sparse_union"] = pa.UnionArray.from_sparse(m.array(codes, pa.int8()), columns)
    m.cases["sparse_union with codes"] = pa.UnionArray.from_sparse(
        m.array([5, 9] * 10, pa.int8()), columns, ["p", "q"], [5, 9]
    )


def _rest(m: _Maker) -> None:
    for kind in (pa.int16(), pa.int32(), pa.int64()):
        m.cases[f"run_end_encoded {kind}"] = pa.RunEndEncodedArray.from_arrays(
            m.array([3, 10, 23], kind), m.array(["a", None, "c"], pa.string())
        )
    runs = m.array([1, 1, 1, 2, 2, None, None, 5] * 3, pa.int64())
    m.cases["run_end_encoded by compute"] = pc.run_end_encode(runs, memory_pool=m.pool)
    extend = pa.ExtensionArray.from_storage
    sixteen = m.rows(lambda i: b"%016d" % i, pa.binary(16))
    m.cases["extension"] = extend(Tagged(), sixteen)
    m.cases["extension uuid"] = extend(pa.uuid(), sixteen)
    four = m.array([[1, 2, 3, 4]] * ROWS, pa.list_(pa.int32(), 4))
    m.cases["extension tensor"] = extend(pa.fixed_shape_tensor(pa.int32(), [2, 2]), four)
    m.cases["extension bool8"] = extend(pa.bool8(), m.rows(lambda i: i % 2, pa.int8()))
    m.cases["extension opaque"] = extend(pa.opaque(pa.int32(), "t", "v"), m.cases["int32"])
    m.cases["extension json"] = extend(pa.json_(), m.rows(lambda i: f"[{i}]", pa.string()))
    m.cases["struct of everything"] = pa.StructArray.from_arrays(
        [m.cases[name] for name in ("dictionary", "list_view", "string_view", "extension", "map")],
        list("abcde"),
    )
    # Legal, but aligned to less than the type's size.
    raw = pa.py_buffer(b"\1\0\0\0\0\0\0\0" * 32)
    for kind, start in ((pa.decimal128(20, 2), 8), (pa.int64(), 4), (pa.int32(), 1)):
        size = 8 * (kind.bit_width // 8)
        m.cases[f"{kind} at {start} modulo 64"] = pa.Array.from_buffers(
            kind, 8, [None, raw.slice(start, size)]
        )
