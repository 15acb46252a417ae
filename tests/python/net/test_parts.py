"""``get`` with ``columns=`` and ``rows=``: what pyarrow would take; by network only its bytes."""

from __future__ import annotations

import concurrent.futures
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
from arrow_cases import arrays
from conftest import Cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KB = 1 << 10
MB = 1 << 20
ONLY = ("--plaintext", "--net=only", "--no-prepare")
ROW_SLICES = [slice(5, 9), slice(None, 7), slice(-4, None), slice(8, 8), slice(100, 200)]


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other."""
    return make_cluster(2, *ONLY)


def wide(columns: int = 20, rows: int = 100_000) -> pa.Table:
    """A table of 8 B a value in three chunks."""
    whole = {f"c{number}": np.arange(rows) * number for number in range(columns)}
    table = pa.table(whole)
    return pa.concat_tables([table[:1000], table[1000:50_001], table[50_001:]])


def nested(rows: int = 30_000) -> pa.Table:
    """Columns of 0.5 to 3 MB, in two chunks: each type whose values have no fixed place."""
    numbers = pa.array(np.arange(rows), mask=np.arange(rows) % 7 == 2)
    text = pc.binary_join_element_wise(numbers.cast("string"), "a text of some length", " is ")
    three = pa.array(np.arange(0, 3 * rows + 1, 3, np.int32))
    many = pa.concat_arrays([numbers, numbers, numbers])
    codes = pa.array(np.arange(rows) % 2, pa.int8())
    halves = pa.array(np.arange(rows) // 2, pa.int32())
    ends = pa.array(np.arange(2, rows + 1, 2, np.int32))
    columns = {
        "text": text,
        "large": text.cast("large_string"),
        "view": text.cast(pa.string_view()),
        "binary": text.cast("binary"),
        "list": pa.ListArray.from_arrays(three, many),
        "texts": pa.ListArray.from_arrays(three, pa.concat_arrays([text, text, text])),
        "map": pa.MapArray.from_arrays(three, pa.array(np.arange(3 * rows)), many),
        "struct": pa.StructArray.from_arrays([text, numbers], ["t", "n"]),
        "fixed": pa.FixedSizeListArray.from_arrays(many, 3),
        "dense": pa.UnionArray.from_dense(codes, halves, [text, numbers]),
        "sparse": pa.UnionArray.from_sparse(codes, [text, numbers]),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, text[: rows // 2]),
        "keys": pa.DictionaryArray.from_arrays(codes, ["a", "b"]),
    }
    whole = pa.table(columns)
    return pa.concat_tables([whole[: rows // 3], whole[rows // 3 :]])


def python_slice(value: Any, rows: slice) -> Any:
    """What pyarrow itself returns for a slice."""
    start, stop, _ = rows.indices(len(value))
    return value.slice(start, max(stop - start, 0))


def cases() -> dict[str, Any]:
    """A value of each kind, and a table and a batch of every type of column."""
    every = {name: array for name, array in arrays().items() if len(array) == 23}
    batch = pa.record_batch(list(every.values()), list(every))
    twice = pa.Table.from_batches([batch, batch.slice(3, 14)])
    return {
        "table": twice,
        "batch": batch,
        "array": pa.array([None if n % 7 == 2 else n for n in range(1000)]),
        "chunked": pa.chunked_array([["a", "b"], [], ["c", None, "ddd"]]),
    }


def check_parts(client: farrow.Client, name: str, value: Any) -> None:
    for rows in ROW_SLICES:
        part = client.get(name, rows=rows)
        assert type(part) is type(value)
        part.validate(full=True)
        assert part.equals(python_slice(value, rows)), (name, rows)
    if isinstance(value, pa.Table | pa.RecordBatch):
        for names in (value.schema.names[:3], value.schema.names[::-5], []):
            part = client.get(name, columns=names)
            part.validate(full=True)
            assert part.schema.equals(value.select(names).schema, check_metadata=True)
            assert part.equals(value.select(names)), (name, names)
            assert part.num_rows == value.num_rows
            both = client.get(name, columns=names, rows=slice(2, 11))
            assert both.equals(value.select(names).slice(2, 9)), (name, names)


@pytest.mark.parametrize("kind", ["table", "batch", "array", "chunked"])
def test_a_part_is_what_pyarrow_would_take(shared: farrow.Client, kind: str) -> None:
    value = cases()[kind]
    reference = shared.put(value)
    check_parts(shared, reference, value)
    shared.delete(reference)


def test_what_has_no_such_part_is_an_error(shared: farrow.Client) -> None:
    table = shared.put(pa.table({"a": [1], "b": [2]}))
    array = shared.put(pa.array([1, 2]))
    numpy = shared.put(np.zeros(3))
    plain = shared.put(b"bytes")
    with pytest.raises(farrow.InvalidArgument, match=r'no column "c"; the columns are "a", "b"'):
        shared.get(table, columns=["a", "c"])
    with pytest.raises(farrow.InvalidArgument, match="columns are selected of tables"):
        shared.get(array, columns=["a"])
    for reference in (numpy, plain):
        with pytest.raises(farrow.InvalidArgument, match="no columns or Arrow rows"):
            shared.get(reference, rows=slice(1))
    with pytest.raises(TypeError, match="not the string 'a'"):
        shared.get(table, columns="a")
    with pytest.raises(TypeError, match="list of names"):
        shared.get(table, columns=[1])
    with pytest.raises(TypeError, match="a slice, not int"):
        shared.get(table, rows=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step 1"):
        shared.get(table, rows=slice(0, 10, 2))
    with pytest.raises(farrow.NotFound):
        shared.get("nothing", columns=["a"])
    with pytest.raises(farrow.Timeout):
        shared.get("nothing", columns=["a"], timeout=0.05)
    shared.delete([table, array, numpy, plain])


def test_parts_of_every_kind_are_read_in_mapped_memory(
    make_cluster: Callable[..., Cluster],
) -> None:
    a, b = make_cluster(2).clients()
    for name, value in cases().items():
        b.put(value, name)
        check_parts(a, name, value)
    assert a.stats()["used"] == 0


def test_parts_of_every_kind_arrive_by_network(two: Cluster) -> None:
    a, b = two.clients()
    for name, value in cases().items():
        b.put(value, name)
        check_parts(a, name, value)
        # A part does not stand for the whole.
        assert a.get(name).equals(value)
        check_parts(a, name, value)


def test_errors_of_parts_by_network_name_the_columns(two: Cluster) -> None:
    a, b = two.clients()
    b.put(wide(2, 10), "two")
    b.put(b"bytes" * 1000, "bytes")
    b.put(np.zeros(3), "numpy")
    with pytest.raises(farrow.InvalidArgument, match=r'no column "x"; the columns are "c0", "c1"'):
        a.get("two", columns=["x"])
    for name in ("bytes", "numpy"):
        with pytest.raises(farrow.InvalidArgument):
            a.get(name, columns=["x"])
    with pytest.raises(farrow.LimitReached, match="8192"):
        a.get("two", columns=["c0"] * 8193)
    with pytest.raises(farrow.NotFound):
        a.get("nothing", columns=["x"])
    # Nothing stays behind of what failed.
    wait_until(lambda: a.stats()["used"] == 0, f"{a.stats()}")


def test_only_the_bytes_of_the_part_are_transferred(two: Cluster) -> None:
    a, b = two.clients()
    table = wide()
    b.put(table, "wide")
    part = a.get("wide", columns=["c3", "c17"])
    assert part.equals(table.select(["c3", "c17"]))
    two_columns = 2 * 8 * 100_000
    used = a.stats()["used"]
    assert two_columns <= used < two_columns + 64 * KB
    rows = a.get("wide", columns=["c5"], rows=slice(70_000, 70_100))
    assert rows.equals(table.select(["c5"]).slice(70_000, 100))
    assert a.stats()["used"] < used + 16 * KB
    # A second process finds both, also while their home is stopped.
    os.kill(two.nodes["b"].pid, signal.SIGSTOP)
    try:
        other = two.client("a")
        assert other.get("wide", columns=["c3", "c17"]).equals(part)
        assert other.get("wide", columns=["c5"], rows=slice(70_000, 70_100)).equals(rows)
    finally:
        os.kill(two.nodes["b"].pid, signal.SIGCONT)
    assert a.stats()["used"] < used + 16 * KB


def test_of_strings_and_nested_values_only_those_of_the_rows_are_transferred(two: Cluster) -> None:
    a, b = two.clients()
    table = nested()
    b.put(table, "nested")
    assert b.stats()["used"] > 6 * MB
    chance = random.Random(5)
    for _ in range(20):
        start = chance.randrange(30_000)
        rows = slice(start, start + chance.randrange(1, 200))
        names = chance.sample(table.schema.names, 4)
        before = a.stats()["used"]
        part = a.get("nested", columns=names, rows=rows)
        part.validate(full=True)
        assert part.equals(python_slice(table.select(names), rows)), (names, rows)
        assert a.stats()["used"] - before < 160 * KB, (names, rows)
        del part
    # All columns, within a chunk and across both.
    for rows in (slice(50, 60), slice(9_990, 10_010), slice(-10, None), slice(7, 7)):
        part = a.get("nested", rows=rows)
        part.validate(full=True)
        assert part.equals(python_slice(table, rows)), rows
    # Each column alone, many rows.
    for name in table.schema.names:
        rows = slice(3_001, 22_222)
        part = a.get("nested", columns=[name], rows=rows)
        part.validate(full=True)
        assert part.equals(python_slice(table.select([name]), rows)), name
        # A part is a table like any other.
        again = b.get(b.put(part))
        assert again.equals(part), name


def test_rows_of_strings_in_chunks_of_a_huge_table(two: Cluster) -> None:
    a, b = two.clients()
    table = nested()
    writer = b.huge_table("t", table.schema)
    for _ in range(2):
        writer.append(table)
    reader = a.huge_table("t")
    whole = pa.concat_tables([table, table])
    before = a.stats()["used"]
    for rows in (slice(12_345, 12_445), slice(29_950, 30_050)):
        part = reader.table(rows=rows)
        part.validate(full=True)
        assert part.equals(python_slice(whole, rows)), rows
    assert a.stats()["used"] - before < MB
    writer.drop()


def test_parts_go_with_their_object(two: Cluster) -> None:
    a, b = two.clients()
    for turn in range(10):
        table = wide(4, 20_000 + turn)
        b.put(table, "thing")
        held = a.get("thing", columns=["c1"])
        rows = a.get("thing", rows=slice(turn, turn + 50))
        (a, b)[turn % 2].delete("thing")
        for client in (a, b):
            with pytest.raises(farrow.NotFound):
                client.get("thing", columns=["c1"])
            with pytest.raises(farrow.NotFound):
                client.get("thing", rows=slice(turn, turn + 50))
        assert held.equals(table.select(["c1"]))
        assert rows.equals(table.slice(turn, 50))
        del held, rows
    for client in (a, b):
        wait_until(lambda client=client: client.stats()["used"] == 0, f"{client.stats()}")


def test_many_parts_at_once(two: Cluster) -> None:
    """Of one object, by several clients, some of which want all of it."""
    a, b = two.clients()
    table = wide(8, 30_000)
    b.put(table, "wide")
    clients = [two.client("a") for _ in range(6)]

    def read(number: int) -> bool:
        chance = random.Random(number)
        client = clients[number % len(clients)]
        if chance.random() < 0.1:
            return client.get("wide").equals(table)
        names = chance.sample(table.schema.names, chance.randrange(1, 4))
        start = chance.randrange(30_000)
        rows = slice(start, start + chance.randrange(1, 5000))
        part = client.get("wide", columns=names, rows=rows)
        return part.equals(python_slice(table.select(names), rows))

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(200)))
    assert a.contains("wide")
    b.delete("wide")
    wait_until(lambda: a.stats()["used"] == 0, f"{a.stats()}")


def test_parts_are_evicted_before_what_was_put(two: Cluster) -> None:
    a, b = two.clients()
    table = wide(4, 1_000_000)
    b.put(table, "big")
    mine = a.put(np.zeros(20 * MB, np.uint8))
    for turn in range(40):
        part = a.get("big", columns=["c2"], rows=slice(turn, 400_000 + turn))
        assert part["c2"][0].as_py() == 2 * turn
        del part
    assert a.contains(mine)
    assert a.stats()["used"] <= 64 * MB


def test_a_part_of_a_spilled_object(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    nodes = make_cluster(2, *ONLY, "--spill", str(tmp_path))
    a, b = nodes.clients()
    table = wide(8, 100_000)
    b.put(table, "first")
    for number in range(12):
        b.put(np.full(6 * MB, number, np.uint8), f"filler {number}")
    assert b.stats()["spilled_total"] > 0
    assert a.get("first", columns=["c7"]).equals(table.select(["c7"]))


def test_a_part_waits_for_its_object(two: Cluster) -> None:
    a, b = two.clients()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        part = pool.submit(a.get, "later", columns=["c1"], timeout=20)
        b.put(wide(3, 1000), "later")
        assert part.result().equals(wide(3, 1000).select(["c1"]))
