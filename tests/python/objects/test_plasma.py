"""Programs in the style of Plasma's documentation, with their import changed."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
import farrow.compat.plasma as plasma
from conftest import LIMIT_SECONDS, run_python, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def store(node: Any) -> plasma.PlasmaClient:
    return plasma.connect(node.socket)


def test_create_write_seal_get(node: Any, store: plasma.PlasmaClient) -> None:
    object_id = plasma.ObjectID(20 * b"a")
    size = 1000
    buffer = memoryview(store.create(object_id, size))
    for i in range(size):
        buffer[i] = i % 128
    assert not store.contains(object_id)
    with pytest.raises(plasma.PlasmaObjectExists):
        store.create(object_id, 1)
    store.seal(object_id)
    assert store.contains(object_id)

    other = plasma.connect(node.socket)
    [found] = other.get_buffers([object_id])
    view = memoryview(found)
    assert view.readonly
    assert bytes(view) == bytes(i % 128 for i in range(size))
    with pytest.raises(plasma.PlasmaObjectNotFound):
        store.seal(object_id)
    with pytest.raises(plasma.PlasmaObjectExists):
        store.create(object_id, 1)


def test_ids() -> None:
    one, other = plasma.ObjectID.from_random(), plasma.ObjectID.from_random()
    assert one != other
    assert len(one.binary()) == 20
    same = plasma.ObjectID(one.binary())
    assert one == same
    assert hash(one) == hash(same)
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(plasma.ObjectID(b"\x01" * 20)) == f"ObjectID({'01' * 20})"
    with pytest.raises(ValueError, match="20 bytes"):
        plasma.ObjectID(b"short")


def test_put_and_get_python_values(store: plasma.PlasmaClient) -> None:
    values = [
        "hello, world",
        {"a": [1, 2.5, None], "b": (True, b"bytes")},
        np.arange(100_000).reshape(100, 1000),
        [np.ones(3), np.zeros(0)],
    ]
    ids = [store.put(value) for value in values]
    for value, found in zip(values, store.get(ids), strict=True):
        np.testing.assert_equal(found, value)
    array = store.get(ids[2])
    assert not array.flags.writeable
    address, client = array.ctypes.data, store._store
    assert client._offset(address, array.nbytes) is not None, "it is used in place"
    chosen = plasma.ObjectID.from_random()
    assert store.put(7, object_id=chosen) == chosen
    with pytest.raises(plasma.PlasmaObjectExists):
        store.put(8, object_id=chosen)
    with pytest.raises(TypeError):
        store.put(threading.Lock())
    with pytest.raises(NotImplementedError):
        store.put(1, serialization_context=object())  # type: ignore[arg-type]


def test_what_is_not_there_in_time(store: plasma.PlasmaClient) -> None:
    there, missing = store.put(1), plasma.ObjectID.from_random()
    assert store.get([there, missing], timeout_ms=1) == [1, plasma.ObjectNotAvailable]
    assert store.get(missing, timeout_ms=0) is plasma.ObjectNotAvailable
    assert store.get_buffers([missing], timeout_ms=0) == [None]
    assert store.get_buffers([missing], timeout_ms=0, with_meta=True) == [(None, None)]
    assert store.get_metadata([missing], timeout_ms=0) == [None]


def test_metadata(store: plasma.PlasmaClient) -> None:
    object_id = plasma.ObjectID.from_random()
    memoryview(store.create(object_id, 4, b"what it is")).cast("B")[:] = b"data"
    store.seal(object_id)
    [metadata] = store.get_metadata([object_id])
    assert metadata is not None
    assert metadata.to_pybytes() == b"what it is"
    [(metadata, data)] = store.get_buffers([object_id], with_meta=True)
    assert (metadata, data.to_pybytes()) == (b"what it is", b"data")
    raw = store.put_raw_buffer(b"data")
    assert store.get(raw).to_pybytes() == b"data"
    assert [m.to_pybytes() for m in store.get_metadata([raw]) if m is not None] == [b""]
    again = store.put_raw_buffer(b"data", metadata=b"what it is")
    assert store.hash(object_id) == store.hash(again)
    assert store.hash(object_id) != store.hash(raw)
    assert len(store.hash(raw)) == 8
    with pytest.raises(plasma.PlasmaObjectNotFound):
        store.hash(plasma.ObjectID.from_random())


def test_an_arrow_table_as_a_stream_of_batches(store: plasma.PlasmaClient) -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "s": ["a", "b", None]})
    sizes = pa.MockOutputStream()
    with pa.ipc.new_stream(sizes, batch.schema) as writer:
        writer.write_batch(batch)
    object_id = plasma.ObjectID.from_random()
    buffer = store.create(object_id, sizes.size())
    assert isinstance(buffer, plasma.PlasmaBuffer)
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(buffer), batch.schema) as writer:
        writer.write_batch(batch)
    del writer
    store.seal(object_id)
    [data] = store.get_buffers([object_id])
    assert pa.ipc.open_stream(data).read_next_batch().equals(batch)


def test_a_tensor(store: plasma.PlasmaClient) -> None:
    data = np.random.default_rng(7).normal(size=(10, 4))
    tensor = pa.Tensor.from_numpy(data)
    object_id = plasma.ObjectID.from_random()
    buffer = store.create(object_id, pa.ipc.get_tensor_size(tensor))
    pa.ipc.write_tensor(tensor, pa.FixedSizeBufferWriter(buffer))
    del buffer
    store.seal(object_id)
    [buffer] = store.get_buffers([object_id])
    found = pa.ipc.read_tensor(pa.BufferReader(buffer)).to_numpy()
    np.testing.assert_array_equal(found, data)


def test_what_is_created_is_listed_as_such(store: plasma.PlasmaClient) -> None:
    object_id = plasma.ObjectID.from_random()
    np.frombuffer(store.create(object_id, 800, b"of numbers"), np.float64)[:] = 7
    reported = store.list()[object_id]
    assert (reported["state"], reported["data_size"], reported["metadata_size"]) == (
        "created",
        800,
        10,
    )
    assert (reported["ref_count"], reported["construct_duration"]) == (1, -1)
    store.seal(object_id)
    sealed = store.list()[object_id]
    assert sealed["construct_duration"] >= 0
    assert sealed == {
        **reported,
        "state": "sealed",
        "ref_count": 0,
        "construct_duration": sealed["construct_duration"],
    }
    [data] = store.get_buffers([object_id])
    assert store.list()[object_id]["ref_count"] == 1
    del data
    assert store.list()[object_id]["ref_count"] == 0
    store.create(object_id2 := plasma.ObjectID.from_random(), 8)
    store.abort(object_id2)
    assert object_id2 not in store.list()


def test_list_delete_evict(store: plasma.PlasmaClient) -> None:
    one = store.put_raw_buffer(b"x" * 1000)
    two = store.put_raw_buffer(b"y" * 2000, metadata=b"m")
    three = store.put_raw_buffer(b"z" * 3000)
    store._store.put(b"of another program", "other")
    store._store.put(b"", "plasma/not an id")
    listed = store.list()
    assert {key: value["data_size"] for key, value in listed.items()} == {
        one: 1000,
        two: 2000,
        three: 3000,
    }
    assert listed[two]["metadata_size"] == 1
    assert listed[one]["create_time"] <= listed[three]["create_time"]
    store.delete([three, plasma.ObjectID.from_random()])
    assert sorted(map(repr, store.list())) == sorted(map(repr, [one, two]))
    [held] = store.get_buffers([two])
    assert store.evict(1) == 1000, "the bytes of the object, not of its cache lines"
    store.evict(1 << 40)
    assert list(store.list()) == [two], "what is held stays"
    assert held.to_pybytes() == b"y" * 2000
    assert store.evict(1) == 0


# pandas is no dependency of Farrow.
WITHOUT_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import farrow.compat.plasma as plasma
store = plasma.connect(sys.argv[1])
ids = [store.put_raw_buffer(b"x") for _ in range(100)]
listed = store.list()
print(all(listed[one]["construct_duration"] >= 0 for one in ids))
"""


def test_a_list_needs_no_pandas(store: plasma.PlasmaClient) -> None:
    """Regression test: ``list`` raised a ValueError where pandas is not installed, since a time of
    the node, in nanoseconds, was converted to Python's ``datetime``."""
    assert run_python(WITHOUT_PANDAS, store.store_socket_name) == "True\n"


def test_a_full_store(store: plasma.PlasmaClient) -> None:
    assert store.store_capacity() == 256 << 20
    before = store._store.stats()["free"]
    with pytest.raises(plasma.PlasmaStoreFull):
        store.create(plasma.ObjectID.from_random(), 1 << 40)
    object_id = plasma.ObjectID.from_random()
    store.create(object_id, 100 << 20)
    store.abort(object_id)
    with pytest.raises(plasma.PlasmaObjectNotFound):
        store.abort(object_id)
    wait_until(lambda: store._store.stats()["free"] >= before - (8 << 20), "its space")


def test_notifications(node: Any, store: plasma.PlasmaClient) -> None:
    with pytest.raises(farrow.InvalidArgument):
        store.get_next_notification()
    store.subscribe()
    out = run_python(
        """
import sys
import farrow.compat.plasma as plasma
client = plasma.connect(sys.argv[1])
for length in range(3):
    object_id = plasma.ObjectID(bytes([length]) * 20)
    client.create(object_id, length * 10, metadata=b"m" * length)
    client.seal(object_id)
print(client.contains(plasma.ObjectID(bytes(20))))
""",
        node.socket,
    )
    assert out == "True\n"
    ids = [plasma.ObjectID(bytes([length]) * 20) for length in range(3)]
    reported = [store.get_next_notification() for _ in ids]
    assert reported == [(object_id, n * 10, n) for n, object_id in enumerate(ids)]
    store.delete(ids[:1])
    assert store.get_next_notification() == (ids[0], -1, -1)
    # From here on the socket has the notifications.
    channel = store.get_notification_socket()
    with pytest.raises(farrow.InvalidArgument):
        store.get_next_notification()
    store.create_and_seal(ids[0], b"data", b"m")
    (length,) = struct.unpack("L", channel.recv(8))
    assert store.decode_notifications(channel.recv(length)) == ([ids[0]], [4], [1])
    store.delete(ids[:1])
    (length,) = struct.unpack("L", channel.recv(8))
    assert store.decode_notifications(channel.recv(length)) == ([ids[0]], [-1], [-1])
    with pytest.raises(farrow.InvalidArgument, match="3 bytes are no notification"):
        store.decode_notifications(b"abc")
    store.disconnect()
    assert channel.recv(8) == b""


def test_errors_are_those_of_pyarrow(store: plasma.PlasmaClient) -> None:
    """Programs for Plasma catch pyarrow's ``ArrowException``."""
    object_id = store.put(1)
    with pytest.raises(pa.lib.ArrowException):
        store.create(object_id, 1)
    with pytest.raises(pa.lib.ArrowException):
        store.hash(plasma.ObjectID.from_random())
    with pytest.raises(pa.lib.ArrowException) as caught:
        store.create(plasma.ObjectID.from_random(), 1 << 40)
    assert caught.value.requested >= 1 << 40  # type: ignore[attr-defined]


def test_a_store_for_the_time_of_a_block() -> None:
    with plasma.start_plasma_store(plasma_store_memory=10**7) as (name, process):
        for earlier in ((), (0,), ("", 0, 5)):
            assert plasma.connect(name, *earlier).put(1) is not None
        client = plasma.connect(name)
        assert 10**7 <= client.store_capacity() < 10**7 + 4096
    assert process.returncode == 0
    assert not Path(name).parent.exists()


def test_evicted_objects_of_an_external_store_come_back() -> None:
    data = b"x" * (100 << 10)
    with plasma.start_plasma_store(1 << 20, external_store="hashtable://test") as (name, _):
        client = plasma.connect(name)
        ids = [client.put_raw_buffer(data) for _ in range(20)]
        for object_id in ids:
            [found] = client.get_buffers([object_id])
            assert found.to_pybytes() == data


def test_the_command_of_a_store(tmp_path: Path) -> None:
    name = tmp_path / "plasma.sock"
    command = [
        sys.executable,
        "-m",
        "farrow.compat._plasma_store",
        "-s",
        str(name),
        "-m",
        "1000000",
    ]
    process = subprocess.Popen(command)
    try:
        wait_until(name.exists, "the store to serve")
        client = plasma.connect(str(name))
        assert client.get(client.put([1, 2])) == [1, 2]
        client.disconnect()
    finally:
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
    assert subprocess.run([*command[:-1], "0"], stderr=subprocess.PIPE).returncode == 2


def test_disconnect(node: Any, store: plasma.PlasmaClient) -> None:
    object_id, unfinished = store.put("kept"), plasma.ObjectID.from_random()
    [held] = store.get_buffers([object_id])
    store.create(unfinished, 10)
    store.disconnect()
    assert held.size > 0
    with pytest.raises(farrow.Disconnected):
        store.get(object_id)
    other = plasma.connect(node.socket, num_retries=0)
    assert other.get(object_id, timeout_ms=int(LIMIT_SECONDS * 1e3)) == "kept"
    assert other.get(unfinished, timeout_ms=0) is plasma.ObjectNotAvailable
    other.create(unfinished, 10)
    with pytest.raises(farrow.Disconnected):
        plasma.connect(node.socket + ".none", num_retries=1)


def test_damaged_values_are_errors(store: plasma.PlasmaClient) -> None:
    for damaged in [b"", b"\xff" * 8, b"\xff" * 64, b"\1" + bytes(7) + b"\xff" * 8]:
        object_id = store.put_raw_buffer(damaged, metadata=plasma._PICKLED)
        with pytest.raises(farrow.InvalidDescriptor):
            store.get(object_id)


class ChangedMeanwhile:
    """The client of a store, whose objects change before their labels are read."""

    def __init__(self, client: farrow.Client, change: Callable[[], None]) -> None:
        self._client = client
        self._change = change

    def metadata(self, target: Any) -> dict[str, str]:
        self._change()
        return self._client.metadata(target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_the_sizes_of_an_object_that_is_deleted_at_once(store: plasma.PlasmaClient) -> None:
    """The thread of the notifications reads labels for the sizes.  It found none after a delete,
    and the metadata counted as data, at random."""
    store.subscribe()
    is_deleted = threading.Event()
    store._client = ChangedMeanwhile(  # type: ignore[assignment]
        store._store, lambda: is_deleted.wait(LIMIT_SECONDS) and None
    )
    object_id = store.put_raw_buffer(b"abc", metadata=b"m")
    store.delete([object_id])
    is_deleted.set()
    assert store.get_next_notification() == (object_id, 3, 1)
    assert store.get_next_notification() == (object_id, -1, -1)
    store.disconnect()


def test_each_object_of_an_id_has_its_own_sizes(
    store: plasma.PlasmaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are deleted before the thread of the notifications handles the first of them."""
    sealed, may_go_on = [(3, 1), (5, 1), (2, 4)], threading.Event()
    handle = plasma.PlasmaClient._data_bytes

    def later(self: plasma.PlasmaClient, *arguments: Any) -> int:
        assert may_go_on.wait(LIMIT_SECONDS)
        return handle(self, *arguments)

    monkeypatch.setattr(plasma.PlasmaClient, "_data_bytes", later)
    store.subscribe()
    object_id = plasma.ObjectID.from_random()
    for data_bytes, metadata_bytes in sealed:
        store.create(object_id, data_bytes, b"m" * metadata_bytes)
        store.seal(object_id)
        store.delete([object_id])
    may_go_on.set()
    for sizes in sealed:
        assert store.get_next_notification() == (object_id, *sizes)
        assert store.get_next_notification() == (object_id, -1, -1)
    store.disconnect()


def test_an_object_that_is_replaced_while_it_is_read(store: plasma.PlasmaClient) -> None:
    """Data of one object were cut by the labels of the next one with its id."""
    object_id = store.put_raw_buffer(b"first", metadata=b"m")
    changes = [
        lambda: store.delete([object_id]),
        lambda: store.put_raw_buffer(b"2nd", object_id, b"more"),
    ]

    def change() -> None:
        for one in changes:
            one()
        changes.clear()

    store._client = ChangedMeanwhile(store._store, change)  # type: ignore[assignment]
    found = store.get_buffers([object_id], with_meta=True)
    assert [(meta, data.to_pybytes()) for meta, data in found] == [(b"more", b"2nd")]
    store.disconnect()


@pytest.mark.parametrize("label", ["three", "", "-1", "9" * 30, "1e3", "\u0663"])
def test_labels_of_other_programs_end_no_call(
    node: Any, store: plasma.PlasmaClient, label: str
) -> None:
    """A label without a number ended the thread of the notifications: their reader waited without
    an end, and ``list`` was a ValueError."""
    client = farrow.connect(node.socket)
    object_id = plasma.ObjectID(b"\xab" * 20)
    store.subscribe()
    labels = {"plasma-data-bytes": label, "plasma-created-at": label}
    client.put(b"abc", f"plasma/{'ab' * 20}", metadata=labels)
    client.put(b"capital digits", f"plasma/{'AB' * 20}")
    client.put(pa.table({"n": [1]}), f"plasma/{'cd' * 20}")
    assert store.get_next_notification() == (object_id, 3, 0)
    assert store.get_buffers([object_id])[0].to_pybytes() == b"abc"
    assert set(store.list()) == {object_id, plasma.ObjectID(b"\xcd" * 20)}
    with pytest.raises(farrow.UnsupportedType, match=r"is a Table .*get\(\"plasma/cdcd"):
        store.get(plasma.ObjectID(b"\xcd" * 20))
    store.disconnect()
