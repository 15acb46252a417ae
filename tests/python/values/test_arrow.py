"""Every Arrow type goes in and comes back equal, whole, sliced, nested and chunked."""

from __future__ import annotations

import pyarrow as pa
import pytest

import farrow
from arrow_cases import arrays, variants

VARIANTS = variants()


# The one offset of an array without rows is a constant of the process.
OFFSET_BYTES = 8


def check_in_region(client: farrow.Client, value: object) -> None:
    """Every byte of the value lies in the region."""
    places = [place for place in client.locate(value) if not place["in_region"]]
    assert [place for place in places if place["bytes"] > OFFSET_BYTES] == []


def check_same(client: farrow.Client, value: pa.Array, back: pa.Array) -> None:
    back.validate(full=True)
    assert type(back) is type(value)
    assert back.type == value.type
    assert len(back) == len(value)
    assert back.null_count == value.null_count
    # By value: of unions and run-ends, slices keep what they need only.
    assert back.to_pylist() == value.to_pylist()
    if not isinstance(value, (pa.UnionArray, pa.DictionaryArray)):
        assert back.equals(value)
    check_in_region(client, back)


@pytest.mark.parametrize("name", VARIANTS)
def test_array(shared: farrow.Client, name: str) -> None:
    value = VARIANTS[name]
    check_same(shared, value, shared.get(shared.put(value)))


def test_arrays_built_in_the_pool(shared: farrow.Client) -> None:
    for name, value in variants(shared.memory_pool()).items():
        back = shared.get(shared.put(value))
        try:
            check_same(shared, value, back)
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("name", arrays())
def test_chunked_array(shared: farrow.Client, name: str) -> None:
    array = VARIANTS[name]
    half = len(array) // 2
    chunks = [array[:half], array[half:half], array[half:]]
    value = pa.chunked_array(chunks, type=array.type)
    back = shared.get(shared.put(value))
    assert isinstance(back, pa.ChunkedArray)
    assert back.type == value.type
    assert [len(chunk) for chunk in back.chunks] == [len(chunk) for chunk in chunks]
    for before, after in zip(chunks, back.chunks, strict=True):
        check_same(shared, before, after)


def test_chunked_array_without_chunks(shared: farrow.Client) -> None:
    back = shared.get(shared.put(pa.chunked_array([], pa.string())))
    assert back.type == pa.string()
    assert back.num_chunks == 0


def whole_table() -> pa.Table:
    columns = {name: array for name, array in arrays().items() if len(array) == 23}
    fields = [
        pa.field(name, array.type, metadata={b"of": name.encode(), b"raw": b"\xff\xfe"})
        for name, array in columns.items()
    ]
    schema = pa.schema(fields, metadata={b"title": b"everything", b"\xff": b"not text"})
    return pa.table(list(columns.values()), schema=schema)


def test_table_of_every_type(shared: farrow.Client) -> None:
    table = whole_table()
    back = shared.get(shared.put(table))
    assert isinstance(back, pa.Table)
    assert back.schema.equals(table.schema, check_metadata=True)
    back.validate(full=True)
    for name in table.column_names:
        check_same(shared, table[name].chunk(0), back[name].chunk(0))


def test_record_batch_of_every_type(shared: farrow.Client) -> None:
    batch = whole_table().to_batches()[0].slice(3, 11)
    back = shared.get(shared.put(batch))
    assert isinstance(back, pa.RecordBatch)
    assert back.schema.equals(batch.schema, check_metadata=True)
    for before, after in zip(batch.columns, back.columns, strict=True):
        check_same(shared, before, after)


def test_columns_in_different_chunks(shared: farrow.Client) -> None:
    table = pa.table(
        {
            "a": pa.chunked_array([[1, 2], [3, 4, 5], []], pa.int32()),
            "b": pa.chunked_array([["x"], ["y", None, "z"], ["w"]]),
        }
    )
    back = shared.get(shared.put(table))
    assert back.equals(table)
    check_in_region(shared, back)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"a": pa.chunked_array([], pa.list_(pa.int8()))}),
        pa.table({"a": pa.array([], pa.dictionary(pa.int8(), pa.string()))}),
        pa.table({"a": [1, 2, 3]}).select([]),
        pa.table({"": [1], "\u00e9\u00df": ["\u00fc"]}),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["same", "same"]),
    ],
    ids=["nothing", "no chunks", "no rows", "rows but no columns", "odd names", "names twice"],
)
def test_odd_tables(shared: farrow.Client, table: pa.Table) -> None:
    back = shared.get(shared.put(table))
    assert back.schema.equals(table.schema)
    assert back.num_rows == table.num_rows
    assert back.equals(table)
    empty = table.slice(0, 0)
    assert shared.get(shared.put(empty)).equals(empty)


def test_many_chunks(shared: farrow.Client) -> None:
    chunk = pa.RecordBatch.from_pydict({"n": list(range(10)), "s": ["abc"] * 10})
    table = pa.Table.from_batches([chunk] * 1000)
    back = shared.get(shared.put(table))
    assert back["n"].num_chunks == 1000
    assert back.equals(table)


def test_hundred_columns(shared: farrow.Client) -> None:
    table = pa.table({f"c{i}": list(range(i, i + 50)) for i in range(100)})
    assert shared.get(shared.put(table)).equals(table)


def test_a_small_slice_does_not_copy_the_whole(shared: farrow.Client) -> None:
    array = pa.array(["some text of a row"] * 1_000_000)
    used = shared.stats()["used"]
    reference = shared.put(array.slice(500_000, 10))
    assert shared.stats()["used"] - used < 10_000
    assert shared.get(reference).equals(array.slice(500_000, 10))


def test_shared_buffers_are_stored_once(shared: farrow.Client) -> None:
    column = pa.array(range(100_000), pa.int64())
    used = shared.stats()["used"]
    reference = shared.put(pa.table({f"c{i}": column for i in range(10)}))
    assert shared.stats()["used"] - used < 2 * 800_000
    assert shared.get(reference)["c9"].chunk(0).equals(column)
