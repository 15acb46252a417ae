"""Many objects for one message, and the labels that objects carry."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import farrow


def test_put_many_with_names_is_all_or_none(client: farrow.Client) -> None:
    first, second, third = client.put_many([b"1", pa.array([2]), b"3"], ["a", None, "c"])
    assert (first.name, second.name, third.name) == ("a", None, "c")
    assert client.get("a").to_pybytes() == b"1"
    assert client.get(second).to_pylist() == [2]
    with pytest.raises(farrow.AlreadyExists, match="c"):
        client.put_many([b"4", b"5"], ["d", "c"])
    assert not client.contains("d")
    with pytest.raises(farrow.InvalidArgument, match="1 names for 2 objects"):
        client.put_many([b"4", b"5"], ["d"])
    client.delete_many(["a", second, third])
    assert client.list().num_rows == 0
    with pytest.raises(farrow.NotFound):
        client.delete_many(["a"])


def test_get_many_waits_for_what_is_missing(client: farrow.Client) -> None:
    client.put(b"1", "a")
    names = ["a", "b", "c"]
    with pytest.raises(farrow.NotFound, match="b"):
        client.get_many(names)
    with pytest.raises(farrow.Timeout):
        client.get_many(names, timeout=0.02)
    later = threading.Timer(0.05, client.put_many, ([b"2", b"3"], ["b", "c"]))
    later.start()
    assert [value.to_pybytes() for value in client.get_many(names, timeout=30)] == [
        b"1",
        b"2",
        b"3",
    ]
    later.join()


def test_create_many_reserves_all_names_or_none(client: farrow.Client) -> None:
    writers = client.create_many([8, 0, 100_000], ["a", "b", None])
    assert [writer.nbytes for writer in writers] == [8, 0, 100_000]
    with pytest.raises(farrow.AlreadyExists):
        client.create_many([8, 8], ["x", "a"])
    client.put(b"free", "x")
    for number, writer in enumerate(writers):
        np.frombuffer(writer.buffer, np.uint8)[:] = number
        reference = writer.seal()
        assert set(client.get(reference).to_pybytes()) <= {number}
    assert client.create_many([]) == []
    with pytest.raises(farrow.InvalidArgument):
        client.create_many([-1])


def test_wait_for_some(client: farrow.Client) -> None:
    client.put(b"1", "a")
    assert client.wait(["a", "b"], num=1, timeout=30) == [True, False]
    assert client.wait(["b", "c"], num=0, timeout=30) == [False, False]
    later = threading.Timer(0.05, client.put, (b"2", "c"))
    later.start()
    assert client.wait(["b", "c"], num=1, timeout=30) == [False, True]
    later.join()
    with pytest.raises(farrow.InvalidArgument, match="3 of 2"):
        client.wait(["a", "b"], num=3)


@pytest.mark.parametrize("size", [0, 5, 8, 60_000, 1 << 20])
def test_metadata_stays_with_the_object(client: farrow.Client, size: int) -> None:
    labels = {"team": "risk", "day": "2026-11-22", "empty": "", "ü": "日"}
    reference = client.put(b"x" * size, "put", metadata=labels)
    with client.create(size, "created", metadata=labels) as writer:
        writer.buffer[:] = b"y" * size
    client.put(pa.table({"n": list(range(size % 1000))}), "table", metadata=labels)
    for target in (reference, "created", "table"):
        assert client.metadata(target) == labels
    assert client.get("put").to_pybytes() == b"x" * size
    assert client.get("created").to_pybytes() == b"y" * size
    assert client.get("table").num_rows == size % 1000
    client.put(b"", "none")
    assert client.metadata("none") == {}


def test_metadata_is_listed_and_filtered(client: farrow.Client) -> None:
    client.put(b"1", "a1", metadata={"kind": "x", "day": "1"})
    client.put(b"2", "a2", metadata={"kind": "x", "day": "2"})
    client.put(b"3", "b1", metadata={"kind": "y"})
    client.put(b"4", "c1")

    def names(prefix: str = "", **where: str) -> list[str]:
        return client.list(prefix, where=where)["name"].to_pylist()

    assert names(kind="x") == ["a1", "a2"]
    assert names(kind="x", day="2") == ["a2"]
    assert names("b", kind="x") == []
    assert names() == ["a1", "a2", "b1", "c1"]
    assert dict(client.list("a1")["metadata"][0].as_py()) == {"kind": "x", "day": "1"}


def test_metadata_has_limits(client: farrow.Client) -> None:
    with pytest.raises(farrow.InvalidArgument, match=r"5003 B.* 4096 B"):
        client.put(b"", metadata={"k" * 100: "v" * 4900})
    with pytest.raises(farrow.InvalidArgument, match="256 B"):
        client.put(b"", metadata={"k" * 256: ""})
    for wrong in ({"k": 1}, {1: "k"}, [("a", "b")], "text"):
        with pytest.raises(farrow.UnsupportedType, match="mapping of str to str"):
            client.put(b"", metadata=wrong)  # type: ignore[arg-type]
    with pytest.raises(farrow.NotFound):
        client.metadata("none")
    assert client.stats()["objects"] == 0
