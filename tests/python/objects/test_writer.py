"""client.create(): bytes written in place."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import python_process


def test_write_seal_get(client: farrow.Client) -> None:
    with client.create(11, "greeting") as writer:
        assert isinstance(writer.buffer, memoryview)
        assert not writer.buffer.readonly
        assert writer.nbytes == 11
        assert len(writer.buffer) == 11
        writer.buffer[:] = b"hello world"
        assert not client.contains("greeting")
    assert client.contains("greeting")
    assert client.get("greeting").to_pybytes() == b"hello world"
    reference = writer.seal()
    assert reference.name == "greeting"
    assert client.get(reference).to_pybytes() == b"hello world"
    with pytest.raises(farrow.InvalidArgument, match="sealed"):
        _ = writer.buffer


def test_through_arrow_and_numpy(client: farrow.Client) -> None:
    writer = client.create(8 * 1000)
    np.frombuffer(writer.buffer, np.int64)[:] = np.arange(1000)
    back = np.frombuffer(client.get(writer.seal()), np.int64)
    assert np.array_equal(back, np.arange(1000))
    table = pa.table({"n": list(range(1000))})
    size = pa.ipc.get_record_batch_size(table.to_batches()[0]) + 4096
    writer = client.create(size)
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(writer.buffer))
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    sink.close()
    assert pa.ipc.open_stream(client.get(writer.seal())).read_all().equals(table)


def test_writes_follow_each_other_like_those_to_a_file(client: farrow.Client) -> None:
    rows = np.arange(300_000)
    writer = client.create(rows.nbytes + 100)
    assert writer.write(b"head") == 4
    assert writer.write(rows, at=100) == rows.nbytes
    assert writer.write(memoryview(b"..x..")[2:3], 4) == 1
    writer.write(pa.py_buffer(b"tail"))
    refused = f"2400000 B at 101 of an object of {writer.nbytes}"
    with pytest.raises(farrow.InvalidArgument, match=refused):
        writer.write(rows, 101)
    with pytest.raises(TypeError, match="bytes can be written, not str"):
        writer.write("text")
    back = client.get(writer.seal()).to_pybytes()
    assert back[:9] == b"headxtail"
    assert np.array_equal(np.frombuffer(back[100:], np.int64), rows)
    with pytest.raises(farrow.InvalidArgument, match="sealed"):
        writer.write(b"late")


def test_what_writes_like_a_file_writes_to_it(client: farrow.Client) -> None:
    payload = {"rows": list(range(1000))}
    writer = client.create(len(pickle.dumps(payload)))
    pickle.dump(payload, writer)
    assert pickle.loads(client.get(writer.seal())) == payload


def test_abort(client: farrow.Client) -> None:
    used = client.stats()["used"]
    with pytest.raises(RuntimeError, match="no luck"), client.create(1000, "never") as writer:
        writer.buffer[:5] = b"12345"
        raise RuntimeError("no luck")
    assert not client.contains("never")
    writer.abort()
    with pytest.raises(farrow.InvalidArgument, match="aborted"):
        writer.seal()
    with pytest.raises(farrow.InvalidArgument, match="aborted"):
        _ = writer.buffer
    client.put(b"now", "never")  # the name is free again
    assert client.stats()["used"] >= used


def test_a_dropped_writer_aborts(client: farrow.Client) -> None:
    writer = client.create(1000, "dropped")
    with pytest.raises(farrow.AlreadyExists):
        client.create(1000, "dropped")
    del writer
    gc.collect()
    client.create(1000, "dropped").abort()


def test_views_after_seal(client: farrow.Client) -> None:
    writer = client.create(4)
    view = writer.buffer
    view[:] = b"abcd"
    writer.seal()
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


def test_views_that_others_keep_stay_readable(client: farrow.Client) -> None:
    for end in ("seal", "abort"):
        writer = client.create(1 << 20)
        array = np.frombuffer(writer.buffer, np.uint8)
        array[:4] = 7
        getattr(writer, end)()
        del writer
        gc.collect()
        assert array.shape == (1 << 20,)
        array.sum()  # not a dangling pointer


@pytest.mark.parametrize("end", ["seal", "abort"])
def test_a_late_write(client: farrow.Client, end: str) -> None:
    """After seal it faults; after abort it goes to memory that nobody else has."""
    script = """
import sys, numpy as np, farrow
client = farrow.connect(sys.argv[1])
writer = client.create(1 << 20)
array = np.frombuffer(writer.buffer, np.uint8)
array[:] = 1
getattr(writer, sys.argv[2])()
del writer
kept = [client.put(b"kept" * 300_000) for _ in range(20)]
print(array[5], flush=True)
array[5] = 2
assert all(client.get(one).to_pybytes() == b"kept" * 300_000 for one in kept)
print("not stopped", flush=True)
"""
    done = python_process(script, client.address, end)
    if end == "seal":
        assert done.stdout == "1\n", done.stderr
        assert done.returncode == -11
    else:
        assert done.stdout == "1\nnot stopped\n", done.stderr
        assert done.returncode == 0


def test_sizes(client: farrow.Client) -> None:
    assert client.get(client.create(0).seal()).size == 0
    with client.create(50 << 20) as writer:
        writer.buffer[-1] = 9
    assert client.get(writer.seal())[-1] == 9
    for size in (-1, 1 << 64, "many", 1.5):
        with pytest.raises(farrow.InvalidArgument):
            client.create(size)  # type: ignore[arg-type]
    with pytest.raises(farrow.OutOfMemory) as caught:
        client.create(1 << 40)
    assert caught.value.requested >= 1 << 40
