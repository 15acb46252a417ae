"""Many objects for one message, and the labels that objects carry."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_put_many_with_names_is_all_or_none(client: farrow.Client) -> None:
    first, second, third = client.put_many([b"1", pa.array([2]), b"3"], ["a", None, "c"])
    assert (first.name, second.name, third.name) == ("a", None, "c")
    assert client.get("a").to_pybytes() == b"1"
    assert client.get(second).to_pylist() == [2]
    with client.subscribe(kinds=["sealed"], timeout=LIMIT_SECONDS) as events:
        with pytest.raises(farrow.AlreadyExists, match="c"):
            client.put_many([b"4", b"5"], ["d", "c"])
        with pytest.raises(farrow.AlreadyExists, match="twice"):
            client.put_many([b"4", b"5"], ["twice", "twice"])
        assert not client.contains("d")
        assert not client.contains("twice")
        # Nobody saw it even for a moment.
        client.put(b"6", "next")
        assert next(events).name == "next"
    client.delete("next")
    with pytest.raises(farrow.InvalidArgument, match="1 names for 2 objects"):
        client.put_many([b"4", b"5"], ["d"])
    client.delete_many(["a", second, third])
    assert client.list().num_rows == 0
    with pytest.raises(farrow.NotFound):
        client.delete_many(["a"])


def test_what_sends_no_message_and_what_sends_one(client: farrow.Client) -> None:
    """Counted by the node, once the client has memory and pages for holds ahead of need."""

    def requests() -> int:
        return int(client.stats()["requests"])

    def messages(act: Callable[[], object]) -> int:
        own = -requests() + requests()
        before = requests()
        retained = act()
        count = requests() - before - own
        del retained
        return count

    value, many = b"x" * 1000, [b"x" * 1000] * 200
    names = [f"name {number}" for number in range(200)]
    refs = client.put_many(many)
    warm = [client.get_many(refs), [client.put(value) for _ in range(300)]]
    client.create_many([1000] * 200)
    del warm
    assert messages(lambda: [client.get(ref) for ref in refs]) == 0
    assert messages(lambda: client.get_many(refs)) == 0
    assert messages(lambda: [client.contains(ref) for ref in refs]) == 0
    # Where pages of its own are full the client asks for more.
    assert messages(lambda: [client.put(value) for _ in range(50)]) <= 1
    assert messages(lambda: client.put_many(many)) <= 1
    assert messages(lambda: client.put(value, "a name")) == 1
    assert messages(lambda: client.get("a name")) == 0
    assert messages(lambda: client.put_many(many, names)) == 1
    assert messages(lambda: client.get_many(names)) == 0
    assert messages(lambda: client.create_many([1000] * 200)) <= 1
    assert messages(lambda: client.delete_many(names)) == 1


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


def test_get_many_of_all_kinds_keeps_their_order(client: farrow.Client) -> None:
    plain = [bytes([number]) * (number * 7) for number in range(150)]
    references = client.put_many(plain)
    targets: list[farrow.ObjectRef | str] = list(references)
    # Long, of other kinds, under a name, and one twice.
    targets.insert(0, client.put(b"x" * 200_000))
    targets.insert(77, client.put(pa.table({"n": [1, 2]})))
    targets.insert(78, client.put(np.arange(5)))
    client.put(b"named", "name")
    targets += ["name", references[3]]
    values = client.get_many(iter(targets))
    client.delete_many({*references, *targets[:1], *targets[77:79], "name"})

    assert values[0].to_pybytes() == b"x" * 200_000
    assert values[77] == pa.table({"n": [1, 2]})
    assert values[78].tolist() == [0, 1, 2, 3, 4]
    assert [value.to_pybytes() for value in values[-2:]] == [b"named", plain[3]]
    del values[77:79], values[0], values[-2:]
    assert [value.to_pybytes() for value in values] == plain
    assert all(not value.is_mutable for value in values)


def test_what_get_many_holds_is_freed_one_by_one(client: farrow.Client) -> None:
    references = client.put_many([bytes([number]) * 1000 for number in range(100)])
    values = client.get_many(references)
    views = [pa.py_buffer(memoryview(value)[10:20]) for value in values[::10]]
    client.delete_many(references)

    def retiring() -> int:
        return int(client.stats()["retiring"])

    assert retiring() == 100 * 1024
    values.clear()
    wait_until(lambda: retiring() == 10 * 1024, "nine in ten to be freed")
    assert [view.to_pybytes() for view in views] == [bytes([n]) * 10 for n in range(0, 100, 10)]
    other = threading.Thread(target=views.clear)
    other.start()
    other.join()
    wait_until(lambda: retiring() == 0, "all to be freed")


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
