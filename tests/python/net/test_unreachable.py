"""Nodes that live and cannot map each other's memory, and a node that joins nobody, from Python.

Before, `at` and `get` said that a living node was lost or that its objects were nowhere, `contains`
was False for them, and `farrow nodes` showed a node that could not join as live, alone and content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import Apart, Node, need_process_namespaces, wait_until
from farrow._nodes._ports import free_addresses
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PLAIN = ("--memory", "16MiB", "--plaintext", "--lease-ms", "1000", "--net", "off")


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Node, Node, str]]:
    """Nodes a and b, and the address of b."""
    need_process_namespaces()
    addresses = free_addresses(2)
    made: list[Node] = []
    try:
        for name, kind, own, other in (
            ("a", Node, addresses[0], addresses[1]),
            ("b", Apart, addresses[1], addresses[0]),
        ):
            folder = tmp_path / name
            folder.mkdir()
            flags = ("--name", name, "--listen", own, "--join", other)
            made.append(kind(folder, *_PLAIN, *flags))
        client = farrow.connect(made[0].socket)
        wait_until(
            lambda: [row.reach for row in client.nodes()] == ["live", "live"], "both are live"
        )
        yield made[0], made[1], addresses[1]
    finally:
        for node in made:
            node.close()


def test_calls_say_that_memory_cannot_be_reached(
    apart: tuple[Node, Node, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, address = apart
    a, b = (farrow.connect(node.socket) for node in (one, other))
    b.put(b"there", "on b")
    a.put(b"here", "on a")
    with pytest.raises(farrow.AlreadyExists):
        a.put(b"again", "on b")
    for call in (
        lambda: a.get("on b"),
        lambda: a.get("on b", timeout=1.0),
        lambda: a.get_many(["on a", "on b"]),
        lambda: a.contains("on b"),
        lambda: a.wait(["on b"], timeout=1.0),
        lambda: a.metadata("on b"),
        lambda: a.delete("on b"),
        lambda: a.pin("on b"),
        lambda: a.at("b"),
        lambda: a.put(b"x", "new", node="b"),
        lambda: a.create(8, "new", node="b"),
        lambda: a.subscribe(node="b"),
        lambda: a.list(node="b"),
        lambda: a.list(all_nodes=True),
        lambda: a.stats(node="b"),
    ):
        with pytest.raises(farrow.NodeUnreachable) as caught:
            call()
        assert (caught.value.node, caught.value.address) == ("b", address)
        assert "another machine" in caught.value.reason
    assert a.contains("nowhere") is False
    with pytest.raises(farrow.NotFound):
        a.get("nowhere")
    assert b.get("on b").to_pybytes() == b"there"

    assert main(["ls", "--socket", one.socket, "--all"]) == 0
    out, err = capsys.readouterr()
    assert "on a" in out
    assert "on b" not in out
    assert "cannot be reached: b" in err
    assert main(["nodes", "--socket", one.socket]) == 0
    assert "another machine" in " ".join(capsys.readouterr().out.split())

    b.delete("on b")
    a.put(b"mine now", "on b")
    assert a.get("on b").to_pybytes() == b"mine now"


def test_a_node_says_whom_it_could_not_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, dead = free_addresses(2)
    node = Node(tmp_path, *_PLAIN, "--name", "a", "--listen", own, "--join", dead)
    try:
        client = farrow.connect(node.socket)
        wait_until(
            lambda: any(row.reach == "not joined" for row in client.nodes()), "it is not joined"
        )
        rows = {row.address: row for row in client.nodes()}
        assert "refused" in rows[dead].why_not
        assert (rows[own].reach, rows[own].is_own) == ("live", True)
        wait_until(lambda: dead in node.log() and "WARN" in node.log(), "it says so")
        assert main(["nodes", "--socket", node.socket]) == 0
        out = capsys.readouterr().out
        assert "not" in out
        assert "joined" in out
    finally:
        node.close()
