"""Dask: workers exchange references, and tables of Farrow are Dask dataframes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import farrow
import farrow.sharing
from conftest import LIMIT_SECONDS, Node
from farrow.sharing import _references

distributed = pytest.importorskip("distributed")
dd = pytest.importorskip("dask.dataframe")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import farrow.dask  # noqa: E402

ROWS = 50_000


@pytest.fixture(scope="module")
def cluster(shared_node: Node) -> Iterator[Any]:
    """Two workers, which connect to the shared node by its address."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as local,
        distributed.Client(local) as client,
    ):
        client.register_plugin(farrow.dask.SharingPlugin(lease=20.0))
        yield client
    farrow.sharing.uninstall()
    _references._state.clients.clear()


def table() -> pa.Table:
    return pa.table({"n": np.arange(ROWS), "half": np.arange(ROWS) / 2})


def workers(cluster: Any) -> list[str]:
    return list(cluster.scheduler_info()["workers"])


def slice_of(value: Any) -> Any:
    return value[1000:]


def where(value: Any, address: str) -> tuple[bool, int]:
    """Whether a value is in the memory of the node, and the number of its items."""
    # Other tests of this process may have left clients of other nodes.
    client = _references._state.clients.get(address)
    assert client is not None, "it did not come by reference"
    return all(buffer["in_region"] for buffer in client.locate(value)), len(value)


@pytest.mark.parametrize("kind", ["table", "batch", "chunked", "array", "numpy", "buffer"])
def test_values_move_between_workers_by_reference(
    cluster: Any, shared: farrow.Client, kind: str
) -> None:
    far = shared.get(shared.put(table()))
    value = {
        "table": far,
        "batch": far.to_batches()[0],
        "chunked": far["n"],
        "array": far["n"].chunk(0),
        "numpy": shared.get(shared.put(np.arange(ROWS))),
        "buffer": far["n"].chunk(0).buffers()[1],
    }[kind]
    first, second = workers(cluster)
    (future,) = cluster.scatter([value], workers=[first], hash=False)
    cut = cluster.submit(slice_of, future, workers=[first], pure=False)
    seen = cluster.submit(where, cut, shared.address, workers=[second], pure=False)
    is_inside, length = seen.result(LIMIT_SECONDS)
    assert is_inside
    assert length == len(value) - 1000
    back = cut.result(LIMIT_SECONDS)
    assert where(back, shared.address) == (True, length)
    if kind == "numpy":
        assert (back == value[1000:]).all()
    else:
        assert back.equals(value[1000:])


def test_values_elsewhere_pass_as_before(cluster: Any) -> None:
    for value in table(), table()["n"], pa.array(range(ROWS)), pa.py_buffer(bytes(ROWS)):
        (future,) = cluster.scatter([value], hash=False)
        assert future.result(LIMIT_SECONDS).equals(value)
    array = np.arange(ROWS)
    (future,) = cluster.scatter([array], hash=False)
    back = future.result(LIMIT_SECONDS)
    assert (back == array).all()
    assert back.flags.writeable


def test_a_process_that_uninstalls_still_reads_both_forms(
    cluster: Any, shared: farrow.Client
) -> None:
    import msgpack
    from distributed.protocol import deserialize, serialize

    far = shared.get(shared.put(table()))
    with_reference = serialize(far, context={})
    assert sum(len(frame) for frame in with_reference[1]) == 0
    assert len(msgpack.packb(with_reference[0])) < 1000
    farrow.sharing.uninstall()
    try:
        plain = serialize(far, context={})
        assert sum(memoryview(frame).nbytes for frame in plain[1]) >= far.nbytes
        for header, frames in with_reference, plain:
            assert deserialize(header, frames).equals(far)
    finally:
        farrow.sharing.install(lease=20.0)


def test_a_spilled_value_outlives_every_lease(
    cluster: Any, shared: farrow.Client, tmp_path: Path
) -> None:
    """Only its reference was written, and the worker dropped the value: after the lease it was
    lost."""
    from distributed.spill import SpillBuffer

    far = shared.get(shared.put(table()))
    spilled = SpillBuffer(str(tmp_path), target=1)
    spilled["far"] = far
    assert "far" in spilled.disk
    (written,) = tmp_path.iterdir()
    assert written.stat().st_size >= far.nbytes
    assert spilled["far"].equals(far)


def test_clients_that_were_closed_are_replaced(shared: farrow.Client) -> None:
    """A client of the program was borrowed, and stayed in use after the program had closed it."""
    part = table().to_pandas(types_mapper=pd.ArrowDtype)
    trades = shared.huge_table("dask/closed", table().schema)
    try:
        for number in range(2):
            with farrow.connect(shared.address) as client:
                _references._state.clients[shared.address] = client
            farrow.dask._append(part, shared.address, "dask/closed", trades.schema, number * ROWS)
        with farrow.connect(shared.address) as client:
            _references._state.clients[shared.address] = client
        frame = farrow.dask.read_farrow("dask/closed", address=shared.address)
        assert len(frame.compute(scheduler="sync")) == 2 * ROWS
        none = farrow.dask.read_farrow("dask/closed", [], npartitions=1, address=shared.address)
        assert len(none.compute(scheduler="sync")) == 2 * ROWS
    finally:
        _references._state.clients.clear()
        trades.drop()


def test_a_huge_table_is_a_dataframe(cluster: Any, shared: farrow.Client) -> None:
    name = "dask/read"
    trades = shared.huge_table(name, table().schema)
    for _ in range(3):
        trades.append(table())
    try:
        frame = farrow.dask.read_farrow(name, address=shared.address)
        assert frame.npartitions == 3
        assert int(frame["n"].sum().compute()) == 3 * sum(range(ROWS))
        some = farrow.dask.read_farrow(
            name, columns=["half"], filters=[("n", "<", 10)], address=shared.address
        )
        assert list(some.columns) == ["half"]
        assert some.compute()["half"].tolist() == [n / 2 for n in range(10)] * 3
        whole = frame.compute()
        assert (
            pa.Table.from_pandas(whole, preserve_index=False)
            .replace_schema_metadata()
            .equals(trades.table())
        )
        with pytest.raises(farrow.InvalidArgument, match="no column 'price'"):
            farrow.dask.read_farrow(name, columns=["price"], address=shared.address)
    finally:
        trades.drop()
    with pytest.raises(farrow.NotFound):
        farrow.dask.read_farrow(name, address=shared.address)


def test_a_table_with_gaps_is_no_dataframe(shared: farrow.Client) -> None:
    """Regression test: a failed ``to_farrow`` leaves gaps in a table that existed.  The next
    ``read_farrow`` was a dataframe without the missing rows, and no error."""
    trades = shared.huge_table("dask/gaps", table().schema)
    try:
        trades.append(table(), position=ROWS)
        with pytest.raises(farrow.RowsMissing) as missing:
            farrow.dask.read_farrow("dask/gaps", npartitions=1, address=shared.address)
        assert (missing.value.first, missing.value.last) == (0, ROWS - 1)
        trades.append(table(), position=0)
        trades.append(table(), position=3 * ROWS)
        with pytest.raises(farrow.RowsMissing):
            farrow.dask.read_farrow("dask/gaps", npartitions=1, address=shared.address)
        whole = farrow.dask.read_farrow(
            "dask/gaps", version=2, npartitions=1, address=shared.address
        )
        assert len(whole) == 2 * ROWS
    finally:
        trades.drop()


def test_an_object_is_a_dataframe(cluster: Any, shared: farrow.Client) -> None:
    shared.put(table(), "dask/object")
    try:
        frame = farrow.dask.read_farrow("dask/object", address=shared.address)
        assert float(frame["half"].max().compute()) == (ROWS - 1) / 2
    finally:
        shared.delete("dask/object")
    shared.put(b"bytes", "dask/bytes")
    with pytest.raises(farrow.InvalidArgument, match="not a table"):
        farrow.dask.read_farrow("dask/bytes", address=shared.address)
    shared.delete("dask/bytes")


def test_an_empty_table_is_a_dataframe(cluster: Any, shared: farrow.Client) -> None:
    trades = shared.huge_table("dask/empty", table().schema)
    try:
        frame = farrow.dask.read_farrow("dask/empty", address=shared.address)
        assert len(frame) == 0
        assert list(frame.columns) == ["n", "half"]
    finally:
        trades.drop()


def test_a_dataframe_becomes_a_huge_table(cluster: Any, shared: farrow.Client) -> None:
    source = pd.DataFrame({"n": np.arange(1000), "text": [f"row {n}" for n in range(1000)]})
    frame = dd.from_pandas(source, npartitions=7)
    trades = farrow.dask.to_farrow(frame, "dask/write", address=shared.address)
    try:
        assert trades.rows == 1000
        assert trades.table()["n"].to_pylist() == list(range(1000))
        again = farrow.dask.to_farrow(frame, "dask/write", address=shared.address)
        assert again.table()["text"].to_pylist() == source["text"].tolist() * 2
    finally:
        trades.drop()


def test_numbers_can_name_the_columns_of_a_dataframe(shared: farrow.Client) -> None:
    """pyarrow made text of them for the schema, and then missed its columns in the frame."""
    frame = dd.from_pandas(pd.DataFrame(np.arange(20).reshape(10, 2)), npartitions=2)
    table = farrow.dask.to_farrow(frame, "dask/numbered", address=shared.address)
    try:
        columns = {"0": list(range(0, 20, 2)), "1": list(range(1, 20, 2))}
        assert table.table().to_pydict() == columns
    finally:
        table.drop()


def fails_late(part: Any) -> Any:
    if len(part) and part["n"].iloc[0] >= 500:
        raise ValueError("this partition fails")
    return part


def test_a_failed_write_leaves_no_new_table(cluster: Any, shared: farrow.Client) -> None:
    frame = dd.from_pandas(pd.DataFrame({"n": np.arange(1000)}), npartitions=4)
    with pytest.raises(ValueError, match="this partition fails"):
        farrow.dask.to_farrow(
            frame.map_partitions(fails_late, meta=frame._meta), "dask/failed",
            address=shared.address,
        )  # fmt: skip
    assert not shared.contains("dask/failed")


@pytest.mark.parametrize("kind", ["int64", "double"])
def test_a_partition_may_be_appended_twice(shared: farrow.Client, kind: str) -> None:
    """Dask runs a task again if its worker ended before the answer.  Rows with NaN were taken for
    others, and the table was dropped."""
    schema = pa.schema({"n": pa.type_for_alias(kind)})
    rows = pa.table({"n": [1, 2, 3] if kind == "int64" else [1.5, math.nan, None]}, schema=schema)
    part = rows.to_pandas(types_mapper=pd.ArrowDtype)
    trades = shared.huge_table("dask/twice", schema)
    try:
        for _ in range(2):
            farrow.dask._append(part, shared.address, "dask/twice", schema, 0)
        assert trades.rows == 3
        with pytest.raises(farrow.RowsTaken):
            farrow.dask._append(part + 1, shared.address, "dask/twice", schema, 0)
    finally:
        trades.drop()


def test_a_dataframe_reads_only_chunks_that_can_match(
    cluster: Any, shared: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk was once a task, and each task read all columns of its chunk for a filter."""
    huge = shared.huge_table("dask/pruned", table().schema)
    try:
        for number in range(40):
            n = np.arange(number * 1000, (number + 1) * 1000)
            huge.append(pa.table({"n": n, "half": n / 2}))

        def read(**options: Any) -> Any:
            return farrow.dask.read_farrow("dask/pruned", address=shared.address, **options)

        # Two workers of one thread each, and four partitions for each.
        assert read().npartitions == 8
        assert read(npartitions=40).npartitions == 40
        assert read(npartitions=1).npartitions == 1
        assert read(npartitions=3)["n"].sum().compute() == sum(range(40_000))
        some = read(columns=["half"], filters=[("n", ">=", 38_500), ("n", "<", 39_500)])
        assert some.npartitions == 2
        assert some["half"].compute().tolist() == [n / 2 for n in range(38_500, 39_500)]
        none = read(filters=[("n", "<", 0)])
        assert none.npartitions == 1
        assert none.compute().empty
        assert read(version=2)["n"].max().compute() == 1999
        # A partition has at most this number of bytes of chunks.
        monkeypatch.setattr(farrow._scan._chunks, "_BYTES_PER_TASK_MAX", 32_000)
        assert read(npartitions=1).npartitions == 20
    finally:
        huge.drop()


def test_filters_that_differ_in_a_long_string_are_two(cluster: Any, shared: farrow.Client) -> None:
    """Arrow's text of a filter shortens strings, and Dask took two filters for one."""
    words = ["x" * 200 + letter + "y" * 200 for letter in "ab"]
    shared.put(pa.table({"word": words}), "dask/words")
    try:
        read = [
            farrow.dask.read_farrow(
                "dask/words", filters=[("word", "==", word)], address=shared.address
            )
            for word in words
        ]
        assert read[0]._name != read[1]._name
        assert [frame["word"].compute().tolist() for frame in read] == [[word] for word in words]
    finally:
        shared.delete("dask/words")
