"""What a node tells of itself, and a node that follows another."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import _RUN_NODE, LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node


def scrape(node: Node) -> str:
    """The numbers, asked as Prometheus asks."""
    connection = http.client.HTTPConnection("localhost", timeout=LIMIT_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(LIMIT_SECONDS)
    connection.sock.connect(node.socket + ".metrics")
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def test_numbers_are_what_a_parser_of_prometheus_reads(make_node: Callable[..., Node]) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    node = make_node("--metrics")
    client = farrow.connect(node.socket)
    client.put(b"x" * 10_000, "x")

    def families() -> dict[str, object]:
        return {family.name: family for family in parser.text_string_to_metric_families(text)}

    text = scrape(node)
    found = families()
    assert found["farrow_capacity_bytes"].samples[0].value == 256 << 20
    assert found["farrow_requests"].type == "counter"
    assert found["farrow_request_seconds"].type == "histogram"
    labels = found["farrow_node_info"].samples[0].labels
    assert (labels["fabric"], labels["pid"]) == ("shm", str(node.pid))
    stats = client.stats()
    numbers = {key for key, value in stats.items() if type(value) is int}
    # One family for each number of the node, besides those of this client and the names.
    aside = {"region_uid", "pid", "base", "pool_allocated", "pool_refused"}
    assert len(found) == len(numbers - aside) + 2
    for family in found.values():
        assert family.documentation, family.name
        if family.type != "histogram":
            assert len(family.samples) == 1


def test_a_node_is_replaced_while_its_clients_go_on(node: Node) -> None:
    client = farrow.connect(node.socket)
    held = client.get(client.put(b"held", "held"))
    old = node.pid
    for _ in range(3):
        following = subprocess.Popen(
            [sys.executable, "-c", _RUN_NODE, *node.flags, "--upgrade"],
            stdin=subprocess.DEVNULL,
            stderr=(node.folder / "node.log").open("ab"),
        )
        assert node._process is not None
        assert node._process.wait(LIMIT_SECONDS) == 0
        node._process = following
        client.put(b"more")
        assert client.stats()["pid"] == node.pid != old
        assert held.to_pybytes() == b"held"
        assert farrow.connect(node.socket).get("held").to_pybytes() == b"held"
    wait_until(lambda: client.stats()["clients"] == 1, "the others' places to come back")
