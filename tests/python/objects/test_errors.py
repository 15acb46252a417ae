"""Each failure has a type of its own, says the numbers, and leaves the store usable."""

from __future__ import annotations

import math
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import farrow


def check_usable(client: farrow.Client) -> None:
    reference = client.put(b"still here")
    assert client.get(reference).to_pybytes() == b"still here"
    client.delete(reference)


def test_families() -> None:
    for family in (
        (farrow.NotFound, KeyError),
        (farrow.OutOfMemory, MemoryError),
        (farrow.Timeout, TimeoutError),
        (farrow.Disconnected, ConnectionError),
        (farrow.BarrierBroken, threading.BrokenBarrierError),
        (farrow.NodeLost, ConnectionError),
        (farrow.NodeUnreachable, farrow.NodeLost),
        (farrow.CutOff, ConnectionError),
        (farrow.PermissionDenied, PermissionError),
        (farrow.NotPermitted, PermissionError),
        (farrow.InvalidArgument, ValueError),
        (farrow.UnsupportedType, TypeError),
    ):
        assert issubclass(family[0], family[1])
        assert issubclass(family[0], farrow.FarrowError)
        assert str(family[0]("a text")) == "a text"
        assert str(pickle.loads(pickle.dumps(family[0]("a text")))) == "a text"


def test_errors_are_made_as_other_libraries_unpickle_them() -> None:
    """tblib, which Dask installs for all errors of a process, calls ``__new__`` by name."""
    families = [
        one
        for one in vars(farrow.exceptions).values()
        if isinstance(one, type) and issubclass(one, farrow.FarrowError)
    ]
    assert farrow.OutOfMemory in families
    for family in families:
        error = family.__new__(family, "a text")
        error.__init__("a text")  # type: ignore[misc]
        assert str(error) == "a text"


def test_not_found(client: farrow.Client) -> None:
    removed = client.put(b"x")
    client.delete(removed)
    for target in ("no such name", removed, removed.id):
        with pytest.raises(farrow.NotFound):
            client.get(target)
        with pytest.raises(farrow.NotFound):
            client.delete(target)
        assert not client.contains(target)
    with pytest.raises(farrow.NotFound, match="no such name"):
        client.get("no such name")
    assert not client.contains(bytes(16))
    with pytest.raises(farrow.NotFound):
        client.get(bytes(16))
    check_usable(client)


def test_duplicate_name(client: farrow.Client) -> None:
    client.put(b"one", "same")
    for attempt in (lambda: client.put(b"two", "same"), lambda: client.create(10, "same")):
        with pytest.raises(farrow.AlreadyExists, match="same"):
            attempt()
    assert client.get("same").to_pybytes() == b"one"
    check_usable(client)


@pytest.mark.parametrize("name", ["", "n" * 256, "\u00e9" * 128, "with\0zero"])
def test_names_that_cannot_be(client: farrow.Client, name: str) -> None:
    for attempt in (lambda: client.put(b"x", name), lambda: client.create(1, name)):
        with pytest.raises(farrow.InvalidArgument):
            attempt()
    check_usable(client)


def test_the_longest_names(client: farrow.Client) -> None:
    for name in ("n" * 255, "\u00e9" * 127 + "x", "\U0001f30d" * 63):
        client.put(name.encode(), name)
        assert client.get(name).to_pybytes() == name.encode()
        assert client.list(name)["name"].to_pylist() == [name]
    with pytest.raises(farrow.InvalidArgument, match="256"):
        client.put(b"", "n" * 256)


def test_full_region(client: farrow.Client) -> None:
    stats = client.stats()
    with pytest.raises(farrow.TooLarge) as large:
        client.put(bytes(stats["capacity"] + 1))
    assert large.value.requested > stats["capacity"] == large.value.capacity
    assert str(large.value.requested) in str(large.value)
    # Filled to the brim, in pieces.
    retained = []
    with pytest.raises(farrow.OutOfMemory) as caught:
        for _ in range(stats["capacity"] // (1 << 20) + 1):
            retained.append(client.put(bytes(1 << 20)))
    assert len(retained) > stats["capacity"] // (1 << 20) * 0.9
    error = caught.value
    assert stats["capacity"] > error.requested > error.largest
    assert error.free >= error.largest
    assert str(error.requested) in str(error)
    client.delete(retained)
    check_usable(client)
    assert client.get(client.put(bytes(200 << 20))).size == 200 << 20


def test_too_many_objects(make_node: Any) -> None:
    client = farrow.connect(make_node("--objects-max", "64").socket)
    retained = []
    with pytest.raises(farrow.TooManyObjects) as caught:
        for i in range(65):
            retained.append(client.put(b"%d" % i, f"n{i}"))
    assert caught.value.limit == 64
    assert "64" in str(caught.value)
    assert len(retained) == 64
    with pytest.raises(farrow.TooManyObjects):
        client.put_many([b"a", b"b"], ["a", "b"])
    # Those without a name have entries of their own: two pages of 42 here.
    own = client.put_many([b"x"] * 84)
    with pytest.raises(farrow.TooManyObjects):
        client.put(b"x")
    assert client.stats()["client_objects"] == 84
    client.delete(own)
    client.delete(retained.pop())
    check_usable(client)
    assert client.get(retained[7]).to_pybytes() == b"7"


def test_put_many_is_all_or_nothing(client: farrow.Client) -> None:
    objects = client.stats()["objects"]
    with pytest.raises(farrow.TooLarge):
        client.put_many([b"small", bytes(300 << 20), b"small too"])
    assert client.stats()["objects"] == objects
    with pytest.raises(farrow.UnsupportedType):
        client.put_many([b"small", object()])
    assert client.stats()["objects"] == objects


def test_dead_socket(tmp_path: Path, node: Any) -> None:
    with pytest.raises(farrow.Disconnected, match=r"nobody\.sock"):
        farrow.connect(tmp_path / "nobody.sock")
    (tmp_path / "file.sock").write_text("no socket")
    with pytest.raises(farrow.FarrowError):
        farrow.connect(tmp_path / "file.sock")
    client = farrow.connect(node.socket, timeout=2)
    reference = client.put(pa.table({"n": [1, 2, 3]}), "kept")
    table = client.get("kept")
    node.kill9()
    with pytest.raises(farrow.FarrowError) as caught:
        client.put(b"x")
    assert isinstance(caught.value, (farrow.Disconnected, farrow.Timeout))
    # Readers go on: lookup is by loads alone.
    assert table["n"].to_pylist() == [1, 2, 3]
    assert client.get(reference)["n"].to_pylist() == [1, 2, 3]


def test_wrong_types_of_targets(client: farrow.Client) -> None:
    for target in (None, 5, b"short", b"x" * 17, 1.5, object()):
        with pytest.raises(farrow.InvalidArgument):
            client.get(target)  # type: ignore[arg-type]
    with pytest.raises(farrow.UnsupportedType):
        client.get_many("a name")
    with pytest.raises(farrow.InvalidArgument, match="17"):
        client.get(b"x" * 17)


@pytest.mark.parametrize("query", [None, 5, b"select 1", ["select 1"]])
def test_wrong_types_of_a_query(client: farrow.Client, query: Any) -> None:
    """Each was an AttributeError from inside of farrow-sql."""
    with pytest.raises(TypeError, match=f"not {type(query).__name__} and Client"):
        farrow.sql(query, client)
    with pytest.raises(TypeError, match="not str and str"):
        farrow.sql("select 1", client.address)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
def test_timeouts_that_cannot_be(client: farrow.Client, timeout: float) -> None:
    with pytest.raises(farrow.InvalidArgument, match="timeout"):
        client.get("x", timeout=timeout)
    with pytest.raises(farrow.InvalidArgument, match="timeout"):
        client.wait(["x"], timeout=timeout)


def test_timeout(client: farrow.Client) -> None:
    with pytest.raises(farrow.Timeout) as caught:
        client.get("never", timeout=0.05)
    assert caught.value.waited_seconds >= 0.05
    assert "never" in str(caught.value)
    assert client.wait(["never"], timeout=0.01) == [False]
    check_usable(client)


def test_surrogates_are_no_names(client: farrow.Client) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        client.put(b"x", "\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        client.get("\ud800")
