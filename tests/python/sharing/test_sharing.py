"""Values that lie in Farrow pass between processes as references: what engines send is short, the
receiver sees the same memory, and what does not lie in Farrow passes as before."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.sharing
from conftest import LIMIT_SECONDS, Cluster, Node
from farrow.sharing import _references

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# A reference has to be shorter, whatever the value.
REFERENCE_BYTES_MAX = 1024
ROWS = 100_000

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _sharing() -> Iterator[None]:
    farrow.sharing.install(lease=20.0, unread=1.0)
    yield
    farrow.sharing.uninstall()
    _references._state.clients.clear()


def table() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "n": numbers,
            "half": pa.array(numbers / 2, mask=numbers % 7 == 0),
            "text": pa.array([f"row {number % 1000}" for number in numbers]),
            "kind": pa.array([f"k{number % 5}" for number in numbers]).dictionary_encode(),
            "parts": pa.array([[number, number + 1] for number in numbers]),
        }
    )


def dumps(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def is_reference(message: bytes) -> bool:
    return len(message) < REFERENCE_BYTES_MAX and b"farrow.sharing" in message


VALUES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda t: t,
    "slice": lambda t: t.slice(1003, 50_001),
    "columns": lambda t: t.select(["text", "n"]),
    "renamed": lambda t: t.rename_columns(list("abcde")),
    "two slices": lambda t: pa.concat_tables([t.slice(5, 30_000), t.slice(40_000, 20_000)]),
    "batch": lambda t: t.combine_chunks().to_batches()[0].slice(1, 90_001),
    "chunked": lambda t: t["text"],
    "numbers": lambda t: t["n"].chunk(0),
    "nulls": lambda t: t["half"].chunk(0).slice(13),
    "strings": lambda t: t["text"].chunk(0).slice(77, 80_000),
    "dictionary": lambda t: t["kind"].chunk(0),
    "lists": lambda t: t["parts"].chunk(0).slice(9),
    "struct": lambda t: pa.StructArray.from_arrays(
        [t["n"].chunk(0), t["half"].chunk(0)], ["a", "b"]
    ),
    "buffer": lambda t: t["n"].chunk(0).buffers()[1].slice(80, 700_000),
}


@pytest.mark.parametrize("kind", VALUES)
def test_what_lies_in_farrow_is_a_reference(shared: farrow.Client, kind: str) -> None:
    value = VALUES[kind](shared.get(shared.put(table())))
    message = dumps(value)
    assert is_reference(message), f"{len(message)} B"
    opened = pickle.loads(message)
    assert type(opened) is type(value)
    assert opened.equals(value)
    assert all(buffer["in_region"] for buffer in shared.locate(opened) if buffer["bytes"] >= 4096)
    if hasattr(opened, "validate"):
        opened.validate(full=True)


ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "whole": lambda a: a,
    "rows": lambda a: a[3:900],
    "columns": lambda a: a[:, 5:60],
    "every third": lambda a: a[::3],
    "backwards": lambda a: a[::-1, ::-2],
    "transposed": lambda a: a.T,
    "other type": lambda a: a.view(np.uint8),
    "diagonal": lambda a: np.lib.stride_tricks.as_strided(a, (20_000,), (8,), writeable=False),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_numpy_are_references(shared: farrow.Client, kind: str) -> None:
    array = ARRAYS[kind](shared.get(shared.put(np.arange(100_000.0).reshape(1000, 100))))
    message = dumps(array)
    assert is_reference(message), f"{len(message)} B"
    opened = pickle.loads(message)
    assert opened.dtype == array.dtype
    assert opened.strides == array.strides
    assert (opened == array).all()
    assert not opened.flags.writeable
    del array
    gc.collect()
    assert opened.sum() == opened.copy().sum()


def test_bytes_and_results_in_a_pool_are_references(shared: farrow.Client) -> None:
    """Plain bytes are handed out without a descriptor, and a pool's buffers are not sealed yet."""
    data = shared.get(shared.put(np.random.default_rng(1).bytes(300_000)))
    computed = pc.add(pa.array(range(ROWS)), 1, memory_pool=shared.memory_pool())
    for value in data, data.slice(1, 200_000), computed, computed.slice(3, 20_000):
        message = dumps(value)
        assert is_reference(message)
        assert pickle.loads(message).equals(value)


def test_what_lies_elsewhere_passes_as_before(shared: farrow.Client) -> None:
    small = shared.get(shared.put(pa.table({"n": range(1000)})))
    writable = np.arange(100_000)
    inside = shared.create(1 << 20)
    values = [table(), small, pa.array(range(ROWS)), pa.py_buffer(b"x" * 100_000), writable,
              np.asarray(inside.buffer), np.array(["a", None], dtype=object)]  # fmt: skip
    with_references = [dumps(value) for value in values]
    farrow.sharing.uninstall()
    for value, message in zip(values, with_references, strict=True):
        assert b"farrow.sharing" not in message
        assert len(message) == pytest.approx(len(dumps(value)), rel=0.01, abs=200)
        back = pickle.loads(message)
        if isinstance(value, np.ndarray):
            assert back.tolist() == value.tolist()
            assert back.flags.writeable
        else:
            assert back.equals(value)
    inside.abort()


class Price(pa.ExtensionType):  # type: ignore[misc]
    """A type that a receiver may not have registered."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "test.price")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Price:
        return cls()


def test_types_of_the_program_arrive(shared: farrow.Client) -> None:
    """A receiver that had not registered them got the values that they are stored as."""
    prices = shared.get(shared.put(pa.array(range(ROWS), pa.float64())))
    extended = pa.ExtensionArray.from_storage(Price(), prices)
    nested = pa.StructArray.from_arrays([extended], ["price"])
    for value in extended, pa.table({"n": prices, "price": extended}), nested:
        message = dumps(value)
        opened = pickle.loads(message)
        assert (type(opened), opened.equals(value)) == (type(value), True)
        # Only the buffers are references.
        assert len(message) < value.nbytes / 2
    if hasattr(pa, "uuid"):
        plain = shared.get(shared.put(pa.array([bytes(16)] * ROWS, pa.binary(16))))
        ids = pa.ExtensionArray.from_storage(pa.uuid(), plain)
        message = dumps(ids)
        assert is_reference(message)
        assert pickle.loads(message).equals(ids)


def test_a_reference_has_the_lease_of_the_settings(shared: farrow.Client) -> None:
    """The marker of its message has the same: it ends with the reference if the sender ends."""
    value = shared.get(shared.put(table()))

    def leases() -> list[str]:
        labels = [dict(one) for one in shared.list()["metadata"].to_pylist()]
        return sorted(one["farrow.lease_ms"] for one in labels if "farrow.lease_ms" in one)

    before = leases()
    cuts = [value.slice(1), value.slice(2)]
    farrow.sharing.install()
    messages = [dumps(cuts[0])]
    farrow.sharing.install(lease=21.0)
    messages.append(dumps(cuts[1]))
    added = leases()
    for one in before:
        added.remove(one)
    assert added == ["21000", "21000", "60000", "60000"]
    assert [len(pickle.loads(message)) for message in messages] == [ROWS - 1, ROWS - 2]


def test_only_picklers_between_processes_are_changed(shared: farrow.Client) -> None:
    """A pickle in a file would outlive its lease."""
    value = shared.get(shared.put(table()))
    assert len(pickle.dumps(value)) > value.nbytes / 2
    assert is_reference(dumps(value))
    farrow.sharing.uninstall()
    assert len(dumps(value)) > value.nbytes / 2


def test_a_value_with_a_column_elsewhere_passes_the_others_by_reference(
    shared: farrow.Client,
) -> None:
    far = shared.get(shared.put(pa.table({"n": np.arange(2 * ROWS)})))
    mixed = far.append_column("new", pa.array(np.arange(2 * ROWS) % 251, pa.uint8()))
    message = dumps(mixed)
    assert is_reference(message)
    assert pickle.loads(message).equals(mixed)
    wide = far
    for number in range(3):
        wide = wide.append_column(f"new {number}", pa.array(np.arange(2 * ROWS) + number))
    message = dumps(wide)
    assert 3 * 8 * 2 * ROWS < len(message) < 3.1 * 8 * 2 * ROWS
    assert pickle.loads(message).equals(wide)


def test_the_same_value_has_one_reference(shared: farrow.Client) -> None:
    """Each message has a marker besides, until it is read."""
    value = shared.get(shared.put(table()))
    objects = shared.stats()["objects"]
    messages = [dumps(value) for _ in range(5)]
    references = {_references.reduce(value, is_tracked=False)[1][0]}
    assert all(reference in message for reference in references for message in messages)
    assert shared.stats()["objects"] == objects + 1 + len(messages)
    assert len(set(messages)) == len(messages)
    for message in messages:
        for _ in range(2):
            assert pickle.loads(message).equals(value)
    assert shared.stats()["objects"] == objects + 1
    other = dumps(value.slice(0, 50_000))
    assert not any(reference in other for reference in references)


def test_a_full_node_makes_values_pass_by_copy(make_node: Callable[..., Node]) -> None:
    client = farrow.connect(make_node("--memory", "16MiB").socket)
    value = client.get(client.put(table()))
    with pytest.raises(farrow.TooManyObjects):
        while True:
            client.put(b"x")
    message = dumps(value)
    assert len(message) > value.nbytes / 2
    assert pickle.loads(message).equals(value)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"FRWR", b"FRWR\x01\x00" + bytes(15), b"FRWX\x01\x00" + bytes(16),
        b"FRWR\x02\x00" + bytes(16), b"FRWR\x01\x07" + bytes(16), b"FRWR\x01\x00" + bytes(17),
    ],
)  # fmt: skip
def test_a_forged_reference_is_refused(shared: farrow.Client, message: bytes) -> None:
    with pytest.raises(farrow.InvalidDescriptor):
        farrow._native.open_shared(shared, message)


def test_a_forged_list_of_parts_is_refused(shared: farrow.Client) -> None:
    far = shared.put(pa.array(range(10_000)))
    head = b"FRWL\x01\0\0\0"
    forged = [
        b"", head, head + bytes(24), head + b"\xff" * 24, b"x" * 4096,
        head + (1).to_bytes(8, "little") + bytes(16) + far.id,
        head + (1).to_bytes(8, "little") + (0).to_bytes(8, "little")
        + (40).to_bytes(8, "little") + far.id + bytes(16) + b"FRWD\x01\0\x06\0" + bytes(32),
    ]  # fmt: skip
    for content in forged:
        id = shared.put(content).id
        with pytest.raises(farrow.InvalidDescriptor):
            farrow._native.open_shared(shared, b"FRWR\x01\x01" + id)
    with pytest.raises(farrow.NotFound):
        farrow._native.open_shared(shared, b"FRWR\x01\x00" + far.id[:8] + b"\0\0\xff\xff\xff\0\0\0")
    for layout in [(np.dtype(np.int64), (10_001,), (8,), 0), (np.dtype(np.int64), (5,), (8,), -8),
                   (np.dtype(object), (5,), (8,), 0), ("<i8", (5, 5), (80_000, 8), 0)]:  # fmt: skip
        reference = farrow._native.share(
            _references._bytes_of(shared.get(far).buffers()[1]), 1, 5.0
        )
        assert reference is not None
        with pytest.raises(farrow.InvalidDescriptor):
            _references.open_numpy(
                reference.message, shared.address, _references._state.settings, b"", layout
            )


def test_the_settings_have_limits() -> None:
    for wrong in (
        {"min_bytes": 0},
        {"lease": 0},
        {"lease": 3601},
        {"lease": float("nan")},
        {"unread": 0},
    ):
        with pytest.raises(farrow.InvalidArgument):
            farrow.sharing.install(**wrong)


def test_a_receiver_whose_client_was_closed_connects_again(node: Node) -> None:
    """A reference is opened through a client of the program, which the program may close."""
    value = farrow.connect(node.socket).get(farrow.connect(node.socket).put(table()))
    message = dumps(value)
    gc.collect()
    with farrow.connect(node.socket) as client:
        _references._state.clients[node.socket] = client
        assert pickle.loads(message).equals(value)
    for _ in range(2):
        assert pickle.loads(message).equals(value)


def test_a_client_of_another_namespace_is_not_borrowed(client: farrow.Client) -> None:
    """A program's tables were written to the namespace of some client that it had."""
    client.create_namespace("team")
    address = client.address
    with farrow.connect(address, namespace="team") as other:
        del client
        gc.collect()
        found = _references.checked_client(address)
        assert (other.namespace, found.namespace) == ("team", "")


# ------------------------------------------------------------------------------ other processes


def half_of(value: pa.Table) -> tuple[int, pa.Table, bool]:
    """The sum of a column, half of the table, and whether the table came by reference."""
    return (
        pc.sum(value["n"]).as_py(),
        value.slice(0, len(value) // 2),
        bool(_references._state.clients),
    )


def answer(connection: Any) -> None:
    while (value := connection.recv()) is not None:
        connection.send(half_of(value))


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> Any:
    return multiprocessing.get_context(request.param)


def check_answer(client: farrow.Client, value: pa.Table, found: tuple[int, pa.Table, bool]) -> None:
    total, half, was_reference = found
    assert total == sum(range(ROWS))
    assert half.equals(value.slice(0, ROWS // 2))
    assert was_reference
    buffers = [buffer for buffer in client.locate(half) if buffer["bytes"] >= 4096]
    assert buffers
    assert all(buffer["in_region"] for buffer in buffers), "the result was copied"


def test_pipes(shared: farrow.Client, context: Any) -> None:
    value = shared.get(shared.put(table()))
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there,))
    process.start()
    for _ in range(2):
        here.send(value)
        assert here.poll(LIMIT_SECONDS)
        check_answer(shared, value, here.recv())
    here.send(None)
    process.join(LIMIT_SECONDS)
    assert process.exitcode == 0


def test_pools_and_executors(shared: farrow.Client, context: Any) -> None:
    value = shared.get(shared.put(table()))
    with context.Pool(2) as pool:
        for found in pool.map(half_of, [value] * 4, chunksize=1):
            check_answer(shared, value, found)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        check_answer(shared, value, executor.submit(half_of, value).result(LIMIT_SECONDS))


def put_into(queue: Any, value: pa.Table) -> None:
    queue.put(half_of(value))


def test_queues_and_arguments(shared: farrow.Client, context: Any) -> None:
    value = shared.get(shared.put(table()))
    queue = context.Queue()
    process = context.Process(target=put_into, args=(queue, value))
    process.start()
    total, half, was_reference = queue.get(timeout=LIMIT_SECONDS)
    process.join(LIMIT_SECONDS)
    # A forked child has its arguments without a message, and connects for nothing else.
    is_fork = context.get_start_method() == "fork"
    assert (total, was_reference) == (sum(range(ROWS)), not is_fork)
    assert half.equals(value.slice(0, ROWS // 2))


def test_loky(shared: farrow.Client) -> None:
    joblib = pytest.importorskip("joblib")
    farrow.sharing.install(lease=20.0)  # once more: joblib is imported by now
    value = shared.get(shared.put(table()))
    array = shared.get(shared.put(np.arange(400_000.0)))
    with joblib.Parallel(n_jobs=2) as parallel:
        for found in parallel(joblib.delayed(half_of)(value) for _ in range(3)):
            check_answer(shared, value, found)
        for found in parallel(joblib.delayed(second_half)(array) for _ in range(2)):
            assert (found == array[200_000:]).all()
            assert shared.locate(found)[0]["in_region"]


def second_half(array: np.ndarray) -> np.ndarray:
    assert type(array) is np.ndarray, "joblib wrote it to a file"
    return array[200_000:]


def mapped(path: str) -> np.ndarray:
    return np.memmap(path, dtype=np.int64, mode="r")


def test_a_file_that_a_worker_of_joblib_maps_stays_a_file(tmp_path: Path) -> None:
    """The worker has not called install, and looked for what had been there before."""
    joblib = pytest.importorskip("joblib")
    farrow.sharing.install(lease=20.0)
    path = tmp_path / "numbers"
    np.arange(1000).tofile(path)
    with joblib.Parallel(n_jobs=2) as parallel:
        (found,) = parallel([joblib.delayed(mapped)(str(path))])
    assert str(found.filename) == str(path), "the worker sent the bytes"
    assert found.sum() == sum(range(1000))


def test_data_loader(shared: farrow.Client) -> None:
    data = pytest.importorskip("torch.utils.data")
    value = shared.get(shared.put(table()))
    parts = [value.slice(start, 25_000) for start in range(0, ROWS, 25_000)]
    loader = data.DataLoader(parts, batch_size=None, num_workers=2, collate_fn=lambda part: part)
    assert pa.concat_tables(list(loader)).equals(value)


def test_several_nodes_are_listed_and_nothing_is_copied(three: Cluster) -> None:
    """A put copied the part of a table that lies on the other node, and so did a reference."""
    client = three.client("a")
    name = "sharing/two nodes"
    trades = client.huge_table(name, table().schema)
    for node in "a", "b", "c":
        trades.append(table(), node=node)
    value = trades.table().slice(50_000, 200_000)
    used = [client.stats(node=node)["used"] for node in three.names]
    message = dumps(value)
    assert is_reference(message), f"{len(message)} B"
    more = [client.stats(node=node)["used"] - was for node, was in zip("abc", used, strict=True)]
    # Copied: a list, a descriptor and the buffers of less than a page; and what a client takes
    # ahead of its need.
    assert all(bytes < value.nbytes / 20 for bytes in more), more
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        total, half, _ = pool.apply(half_of, (value,))
    assert total == pc.sum(value["n"]).as_py()
    assert half.equals(value.slice(0, 100_000))
    trades.drop()
