"""Names are room: a node with nothing but evictable objects refused every further name, as
``InvalidArgument: name space is full``, and ``wait=`` did not wait.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import farrow
from test_room import wait_until_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

# A node of 16 MiB has 1,024 slots, and for each of them 128 bytes of names.
SLOTS = 1024


def name(number: int, length: int = 250) -> str:
    return f"{number:0{length}}"


def test_names_of_usual_length_are_not_the_first_to_run_out(make_node: Callable[..., Node]) -> None:
    client = farrow.connect(make_node("--memory", "16M", "--evict", "none").socket)
    client.put_many([b"x"] * SLOTS, [name(number, 100) for number in range(SLOTS)])
    with pytest.raises(farrow.TooManyObjects, match="1024"):
        client.put(b"x", "more")


def test_others_leave_for_a_name(make_node: Callable[..., Node]) -> None:
    client = farrow.connect(make_node("--memory", "16M", "--evict", "lru").socket)
    for number in range(2 * SLOTS):
        client.put(b"x", name(number))
    assert client.get(name(2 * SLOTS - 1)).to_pybytes() == b"x"
    assert not client.contains(name(0))


def test_a_name_that_finds_no_room_is_reported_with_the_numbers_or_waits(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "16M", "--evict", "none")
    client = farrow.connect(node.socket)
    client.put_many([b"x"] * (SLOTS // 2), [name(number) for number in range(SLOTS // 2)])
    with pytest.raises(farrow.OutOfMemory, match="for names") as caught:
        client.put(b"x", name(SLOTS))
    error = caught.value
    assert (error.what, error.requested, error.free, error.used) == ("names", 250, 0, SLOTS * 128)
    client.put(b"x")
    with pytest.raises(farrow.OutOfMemory, match="for names") as caught:
        client.put(b"x", name(SLOTS), wait=0.05)
    # The node waits for what is left of the time when the request arrives.
    assert caught.value.waited_seconds > 0
    other = farrow.connect(node.socket)
    with ThreadPoolExecutor(2) as threads:
        put = threads.submit(other.put, b"y", name(SLOTS), wait=600.0)
        wait_until_waiting(client, 1)
        client.delete(name(3))
        assert client.get(put.result()).to_pybytes() == b"y"
        made = threads.submit(other.create, 5, name(SLOTS + 1), wait=600.0)
        wait_until_waiting(client, 1)
        client.delete(name(4))
        with made.result() as writer:
            writer.buffer[0] = 1
    assert client.get(name(SLOTS + 1)).size == 5


def test_slots_are_waited_for_too(make_node: Callable[..., Node]) -> None:
    node = make_node("--memory", "16M", "--evict", "none")
    client = farrow.connect(node.socket)
    client.put_many([b"x"] * SLOTS, [f"{number}" for number in range(SLOTS)])
    with pytest.raises(farrow.TooManyObjects):
        client.put(b"x", "more", wait=0.02)
    with ThreadPoolExecutor(1) as threads:
        put = threads.submit(farrow.connect(node.socket).put, b"y", "more", wait=600.0)
        wait_until_waiting(client, 1)
        client.delete("7")
        assert client.get(put.result()).to_pybytes() == b"y"
