"""Waiting for room in a full region, and quotas."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import farrow

CAPACITY = 16 << 20


@pytest.fixture
def socket(make_node: Any) -> str:
    """A node of 16 MiB."""
    return str(make_node("--memory", "16M").socket)


def wait_until_waiting(client: farrow.Client, requests: int) -> None:
    """Until so many requests wait for memory."""
    for _ in range(100_000):
        if client.stats()["waiting"] == requests:
            return
    raise AssertionError(f"{requests} requests should wait: {client.stats()}")


def test_put_and_create_wait_for_room(socket: str) -> None:
    owner = farrow.connect(socket)
    full = owner.put(bytes(15 << 20))
    writer = farrow.connect(socket)
    with ThreadPoolExecutor(2) as threads:
        put = threads.submit(writer.put, bytes(8 << 20), "late", wait=600.0)
        wait_until_waiting(owner, 1)
        made = threads.submit(writer.create, 4 << 20, "later", wait=600.0)
        wait_until_waiting(owner, 2)
        assert owner.stats()["waiting_bytes"] == 12 << 20
        with pytest.raises(farrow.AlreadyExists):
            owner.put(b"", "later")
        owner.delete(full)
        reference = put.result()
        with made.result() as room:
            room.buffer[0] = 1
    assert owner.get(reference).size == 8 << 20
    assert owner.get("later")[0] == 1
    assert owner.stats()["waiting"] == 0


def test_small_objects_wait_too(socket: str) -> None:
    client = farrow.connect(socket)
    full = client.put(bytes(15 << 20))
    rest = []
    with pytest.raises(farrow.OutOfMemory):
        while True:
            rest.append(client.create(60 << 10))
    other = farrow.connect(socket)
    with ThreadPoolExecutor(1) as threads:
        put = threads.submit(other.put, b"x" * (60 << 10), wait=600.0)
        wait_until_waiting(client, 1)
        client.delete(full)
        assert client.get(put.result()).size == 60 << 10


def test_the_wait_ends_at_its_deadline_with_the_numbers(socket: str) -> None:
    client = farrow.connect(socket)
    kept = client.create(15 << 20)
    with pytest.raises(farrow.OutOfMemory) as caught:
        farrow.connect(socket).create(4 << 20, "never", wait=0.05)
    assert caught.value.waited_seconds >= 0.05
    assert (caught.value.asked, caught.value.free < 4 << 20) == (4 << 20, True)
    # Its name is free again.
    client.put(b"", "never")
    with pytest.raises(farrow.TooLarge) as large:
        client.create(CAPACITY + 1, wait=600.0)
    assert large.value.capacity == CAPACITY
    kept.abort()
    with pytest.raises(farrow.InvalidArgument):
        client.put(b"", wait=-1.0)


def test_a_client_has_no_more_than_its_quota(make_node: Any) -> None:
    node = make_node("--memory", "64M", "--client-bytes", "8M", "--client-objects", "5")
    client, other = farrow.connect(node.socket), farrow.connect(node.socket)
    kept = client.put(bytes(6 << 20))
    for wait in (0.0, 600.0):
        with pytest.raises(farrow.QuotaExceeded) as caught:
            client.create(4 << 20, "more", wait=wait)
        error = caught.value
        assert (error.what, error.asked, error.limit) == ("bytes", 4 << 20, 8 << 20)
        assert error.limit >= error.used >= 6 << 20
        assert error.whose in str(error)
    other.put(bytes(6 << 20), "more")
    client.delete(kept)
    kept = client.put(bytes(7 << 20))
    for name in "abcd":
        client.put(b"x", name)
    with pytest.raises(farrow.QuotaExceeded) as caught:
        client.put(b"x", "e")
    assert (caught.value.what, caught.value.used, caught.value.limit) == ("objects", 5, 5)
    assert isinstance(caught.value, farrow.LimitReached)
    client.delete("a")
    client.put(b"x", "e")
