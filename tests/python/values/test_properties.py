"""Random tables of random types: what comes back is what went in."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import farrow

# Each example is a round trip through the node: enough of them to meet every pair of types.
EXAMPLES = 150

YEAR_MIN, YEAR_MAX = datetime.datetime(1700, 1, 1), datetime.datetime(2300, 1, 1)
MILLISECOND = datetime.timedelta(milliseconds=1)

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 65535)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    (pa.string(), st.text(max_size=20)),
    (pa.large_string(), st.text(max_size=20)),
    (pa.string_view(), st.text(max_size=30)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary_view(), st.binary(max_size=30)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal32(7, 2), st.decimals(-9999, 9999, places=2)),
    (pa.decimal128(20, 3), st.decimals(-(10**12), 10**12, places=3)),
    (pa.decimal256(50, 0), st.integers(-(10**40), 10**40).map(decimal.Decimal)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes(YEAR_MIN, YEAR_MAX)),
    (pa.duration("ms"), st.integers(-(10**9), 10**9).map(lambda ms: MILLISECOND * ms)),
    (pa.dictionary(pa.int16(), pa.string()), st.text("abc", max_size=2)),
]  # fmt: skip

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def listed(typed: Typed) -> list[Typed]:
    kind, values = typed
    rows = st.lists(nullable(values), max_size=5)
    fixed = st.lists(nullable(values), min_size=2, max_size=2)
    pairs = st.tuples(st.text(max_size=3), nullable(values))
    return [
        (pa.list_(kind), rows),
        (pa.large_list(kind), rows),
        (pa.list_view(kind), rows),
        (pa.large_list_view(kind), rows),
        (pa.list_(kind, 2), fixed),
        (pa.map_(pa.string(), kind), st.lists(pairs, max_size=3)),
    ]  # fmt: skip


def structs(fields: list[Typed]) -> Typed:
    names = [f"f{i}" for i in range(len(fields))]
    kind = pa.struct([pa.field(name, field[0]) for name, field in zip(names, fields, strict=True)])
    members = {name: nullable(f[1]) for name, f in zip(names, fields, strict=True)}
    return kind, st.fixed_dictionaries(members)


def deeper(below: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = below.flatmap(lambda typed: st.sampled_from(listed(typed)))
    return lists | st.lists(below, max_size=3).map(structs)


TYPED = st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=4)


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pa.Array:
    kind, values = draw(TYPED)
    wanted = draw(st.lists(nullable(values), min_size=rows, max_size=rows))
    return pa.array(wanted, kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 30))
    arrays = draw(st.lists(columns(rows), min_size=1, max_size=4))
    names = draw(st.lists(st.text(max_size=8), min_size=len(arrays), max_size=len(arrays)))
    metadata = draw(st.none() | st.dictionaries(st.binary(max_size=5), st.binary(max_size=5)))
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata or None))
    # Cut in pieces, each a slice, in another order than they came.
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=3)))
    pieces = [
        table.slice(start, stop - start)
        for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)
    ]
    return pa.concat_tables(draw(st.permutations(pieces)))


# Names reach C strings: a zero byte cannot be in one, nor a lone surrogate.
def has_c_names(kind: pa.DataType | pa.Schema) -> bool:
    names = [field.name for field in kind]
    return all("\0" not in name for name in names)


COMMON = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


def is_sound(table: pa.Table) -> bool:
    """pyarrow's builders make dictionaries without values, and indices into them, under nulls."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check(client: farrow.Client, table: pa.Table) -> None:
    reference = client.put(table)
    back = client.get(reference)
    back.validate(full=True)
    assert back.schema.equals(table.schema, check_metadata=True)
    assert back.num_rows == table.num_rows
    assert back.to_pylist() == table.to_pylist()
    assert back.equals(table)
    outside = [place for place in client.locate(back) if not place["in_region"]]
    assert [place for place in outside if place["bytes"] > 8] == []
    # What lies in the region goes into a second object, and there it is equal too.
    again = client.put(back.slice(1))
    assert client.get(again).equals(table.slice(1))
    client.delete([reference, again])


class Liar:
    """A client that loses the last row of everything."""

    def __init__(self, client: farrow.Client) -> None:
        self.client = client

    def get(self, reference: farrow.ObjectRef) -> pa.Table:
        table = self.client.get(reference)
        return table.slice(0, table.num_rows - 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def test_canary(shared: farrow.Client) -> None:
    """The check of the properties below finds a store that is wrong."""
    with pytest.raises(AssertionError):
        check(Liar(shared), pa.table({"n": [1, 2, 3]}))  # type: ignore[arg-type]


@COMMON
@given(tables().filter(lambda table: has_c_names(table.schema)))
def test_tables(shared: farrow.Client, table: pa.Table) -> None:
    assume(is_sound(table))
    check(shared, table)


@COMMON
@given(st.data())
def test_tables_built_in_the_pool(shared: farrow.Client, data: st.DataObject) -> None:
    before = pa.default_memory_pool()
    pa.set_memory_pool(shared.memory_pool())
    try:
        table = data.draw(tables().filter(lambda table: has_c_names(table.schema)))
        assume(is_sound(table))
        check(shared, table)
    finally:
        pa.set_memory_pool(before)


@COMMON
@given(st.binary(max_size=300), st.text(min_size=1, max_size=60).filter(lambda n: "\0" not in n))
def test_bytes_under_any_name(shared: farrow.Client, value: bytes, name: str) -> None:
    if len(name.encode()) > 255:
        with pytest.raises(farrow.InvalidArgument):
            shared.put(value, name)
        return
    reference = shared.put(value, name)
    assert shared.get(name).to_pybytes() == value
    assert shared.list(name)["name"].to_pylist()[0] == name
    shared.delete(reference)
    assert not shared.contains(name)
