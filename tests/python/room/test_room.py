"""Waiting for room in a full region, and quotas."""

from __future__ import annotations

import subprocess
import sys
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
    """Wait until this number of requests wait for memory."""
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
    retained = client.create(15 << 20)
    with pytest.raises(farrow.OutOfMemory) as caught:
        farrow.connect(socket).create(4 << 20, "never", wait=0.05)
    assert caught.value.waited_seconds >= 0.05
    assert (caught.value.requested, caught.value.free < 4 << 20) == (4 << 20, True)
    # Its name is free again.
    client.put(b"", "never")
    with pytest.raises(farrow.TooLarge) as large:
        client.create(CAPACITY + 1, wait=600.0)
    assert large.value.capacity == CAPACITY
    retained.abort()
    with pytest.raises(farrow.InvalidArgument):
        client.put(b"", wait=-1.0)


def test_who_does_not_wait_stays_behind_who_does(socket: str) -> None:
    client = farrow.connect(socket)
    retained = client.create(8 << 20)
    other = farrow.connect(socket)
    with ThreadPoolExecutor(1) as threads:
        great = threads.submit(other.create, 12 << 20, wait=600.0)
        wait_until_waiting(client, 1)
        # As much may pass as it asks for, and no more, though there is room.
        passed = 0
        with pytest.raises(farrow.OutOfMemory, match="1 request waits before") as caught:
            while passed <= 12 << 20:
                client.create(3 << 20).abort()
                passed += 3 << 20
        assert passed == 12 << 20
        error = caught.value
        assert (error.waiting, error.waited_seconds, error.largest >= 3 << 20) == (1, 0.0, True)
        retained.abort()
        with great.result() as writer:
            writer.buffer[0] = 1


@pytest.fixture
def limited(make_node: Any) -> Any:
    """A node with a namespace of three objects."""
    node = make_node("--memory", "64M")
    farrow.connect(node.socket).create_namespace("few", objects=3)
    return node


def used(node: Any) -> int:
    """Objects of the namespace, those in creation included, as a refusal tells."""
    with pytest.raises(farrow.QuotaExceeded) as caught:
        farrow.connect(node.socket, namespace="few").create_many([1] * 4)
    assert (caught.value.what, caught.value.requested, caught.value.limit) == ("objects", 4, 3)
    return int(caught.value.used)


def test_create_says_at_once_that_objects_are_limited(limited: Any) -> None:
    client, other = (farrow.connect(limited.socket, namespace="few") for _ in range(2))
    first = client.create(100, "a")
    rest = other.create_many([1000, 2000])
    for wait in (0.0, 0.05):
        with pytest.raises(farrow.QuotaExceeded, match="few") as caught:
            client.create(100, "more", wait=wait)
        error = caught.value
        assert (error.what, error.requested, error.used, error.limit) == ("objects", 1, 3, 3)
        assert error.waited_seconds >= wait
    with pytest.raises(farrow.QuotaExceeded):
        client.put(b"x")
    # What is dropped, and what ends badly, leaves its room to others; so does the name.
    rest[0].abort()
    del rest[1]
    assert used(limited) == 1
    client.put(b"x", "more")
    writer = other.create(8, "b")
    first.seal()
    assert used(limited) == 3
    writer.seal()
    assert used(limited) == 3
    client.delete_many(["a", "b", "more"])
    assert used(limited) == 0


def test_create_and_put_wait_for_room_for_objects(limited: Any) -> None:
    client, other = (farrow.connect(limited.socket, namespace="few") for _ in range(2))
    client.put_many([b"1", b"2", b"3"], ["a", "b", "c"])
    with ThreadPoolExecutor(2) as threads:
        made = threads.submit(other.create, 100, "d", wait=600.0)
        wait_until_queued(client, "few", 1)
        put = threads.submit(other.put, b"5", "e", wait=600.0)
        wait_until_queued(client, "few", 2)
        client.delete("a")
        with made.result() as room:
            room.buffer[0] = 1
        client.delete("b")
        assert client.get(put.result()).size == 1
    assert used(limited) == 3


def wait_until_queued(client: farrow.Client, whose: str, requests: int) -> None:
    """Wait until this number of requests wait for room for objects."""
    for _ in range(100_000):
        with pytest.raises(farrow.QuotaExceeded, match=whose) as caught:
            client.create(1)
        if caught.value.waiting == requests:
            return
    raise AssertionError(f"{requests} requests should wait: {caught.value}")


_CREATE_AND_WAIT = """
import sys, farrow
client = farrow.connect(sys.argv[1], namespace="few")
kept = client.create_many([10, 20, 30])
print("made", flush=True)
sys.stdin.read()
"""


def test_room_for_objects_comes_back_with_the_death_of_a_client(limited: Any) -> None:
    command = [sys.executable, "-c", _CREATE_AND_WAIT, limited.socket]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"made\n"
    assert used(limited) == 3
    client = farrow.connect(limited.socket, namespace="few")
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(client.create, 1, wait=600.0)
        child.kill()
        child.communicate()
        made.result().abort()
    assert used(limited) == 0


def test_room_for_objects_outlives_the_node(limited: Any) -> None:
    client = farrow.connect(limited.socket, namespace="few")
    retained = client.create_many([10, 20])
    limited.restart()
    client.stats()
    assert used(limited) == 2
    retained.pop().abort()
    limited.restart()
    client.stats()
    assert used(limited) == 1
    assert client.get(retained.pop().seal()).size == 10
    assert used(limited) == 1


def test_a_client_has_no_more_than_its_quota(make_node: Any) -> None:
    node = make_node("--memory", "64M", "--client-bytes", "8M", "--client-objects", "5")
    client, other = farrow.connect(node.socket), farrow.connect(node.socket)
    retained = client.put(bytes(6 << 20))
    for wait in (0.0, 600.0):
        with pytest.raises(farrow.QuotaExceeded) as caught:
            client.create(4 << 20, "more", wait=wait)
        error = caught.value
        assert (error.what, error.requested, error.limit) == ("bytes", 4 << 20, 8 << 20)
        assert error.limit >= error.used >= 6 << 20
        assert error.whose in str(error)
    other.put(bytes(6 << 20), "more")
    client.delete(retained)
    retained = client.put(bytes(7 << 20))
    for name in "abcd":
        client.put(b"x", name)
    with pytest.raises(farrow.QuotaExceeded) as caught:
        client.put(b"x", "e")
    assert (caught.value.what, caught.value.used, caught.value.limit) == ("objects", 5, 5)
    assert isinstance(caught.value, farrow.LimitReached)
    client.delete("a")
    client.put(b"x", "e")
