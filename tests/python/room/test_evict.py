"""What goes when memory is short, and what stays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import Node, wait_until
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


@pytest.fixture
def small(make_node: Callable[..., Node]) -> Node:
    """A node that is soon full."""
    return make_node("--memory", "32MiB", "--evict", "lru")


def names(client: farrow.Client) -> list[str]:
    return [name for name in client.list()["name"].to_pylist() if name]


def test_a_full_node_makes_room_unless_it_may_not(small: Node) -> None:
    client = farrow.connect(small.socket)
    for i in range(6):
        client.put(bytes([i]) * 4 * MIB, f"o{i}")
    client.pin("o0")
    held = client.get("o1")
    for i in range(6, 20):
        client.put(bytes([i]) * 4 * MIB, f"o{i}")
    left = names(client)
    assert {"o0", "o1", "o19"} <= set(left)
    assert not client.contains("o2")
    assert held.to_pybytes() == b"\1" * 4 * MIB
    stats = client.stats()
    assert stats["eviction"] == "lru"
    assert stats["evicted_total"] == 20 - len(left)
    assert stats["evicted_bytes_total"] == stats["evicted_total"] * 4 * MIB
    assert (stats["pinned"], stats["objects_pinned"]) == (4 * MIB, 1)
    # More than there is without what must stay: an error, and nothing goes for it.
    with pytest.raises(farrow.OutOfMemory):
        client.create(30 * MIB)
    assert names(client) == left
    pinned = dict(zip(left, client.list()["pinned"].to_pylist(), strict=True))
    assert [name for name, is_pinned in pinned.items() if is_pinned] == ["o0"]


def test_a_node_refuses_if_configured_so(make_node: Callable[..., Node]) -> None:
    client = farrow.connect(make_node("--memory", "32MiB", "--evict", "none").socket)
    assert client.stats()["eviction"] == "none"
    client.put(bytes(20 * MIB), "first")
    with pytest.raises(farrow.OutOfMemory):
        client.put(bytes(20 * MIB), "second")
    assert client.stats()["evictable"] == 0, "only a request evicts here"
    assert client.evict(1)["objects"] == 1
    client.put(bytes(20 * MIB), "second")
    assert names(client) == ["second"]


def test_evict_frees_what_was_asked_and_says_what_stays(client: farrow.Client) -> None:
    for i in range(4):
        client.put(bytes(MIB), f"e{i}")
    last_use = client.list("e0")["last_use"][0]
    # Uses within a millisecond count as one.
    wait_until(
        lambda: bool(client.get("e0")) and client.list("e0")["last_use"][0] != last_use,
        "a get to leave its mark",
    )
    free = client.stats()["free"]
    report = client.evict(MIB + 1)
    assert (report["objects"], report["bytes"]) == (2, 2 * MIB)
    assert client.stats()["free"] == free + 2 * MIB
    assert names(client) == ["e0", "e3"]
    client.pin(["e0", "e3"])
    held = client.get("e3")
    report = client.evict(1)
    assert (report["objects"], report["pinned"], report["held"]) == (0, 2 * MIB, MIB)
    client.unpin(["e0", "e3"])
    assert client.evict(10 * MIB)["objects"] == 1
    assert names(client) == ["e3"]
    del held
    assert client.evict(10 * MIB)["bytes"] == MIB
    with pytest.raises(farrow.NotFound, match="e3"):
        client.pin("e3")
    with pytest.raises(farrow.InvalidArgument):
        client.evict(-1)


def test_pins_outlive_the_daemon(small: Node) -> None:
    client = farrow.connect(small.socket)
    client.put(bytes(MIB), "pinned")
    client.put(bytes(MIB), "other")
    client.pin("pinned")
    small.restart()
    assert client.evict(10 * MIB)["objects"] == 1
    assert names(client) == ["pinned"]


def test_ls_shows_pins(small: Node, capsys: pytest.CaptureFixture[str]) -> None:
    client = farrow.connect(small.socket)
    client.put(b"1", "mine")
    client.pin("mine")
    assert main(["ls", "--socket", small.socket]) == 0
    assert "pinned" in capsys.readouterr().out
    assert main(["ls", "--socket", small.socket, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["pinned"] is True
