"""What a node tells of itself, and a node that follows another."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, RUN_NODE, scrape, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node


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
    # The info, the histogram, whether it is ready, errors, two of the audit log, and five of each
    # namespace.
    assert len(found) == len(numbers - aside) + 11
    for family in found.values():
        assert family.documentation, family.name
        # A namespace without limits has no samples of them.
        if family.type != "histogram" and not family.name.endswith(("request_errors", "_max")):
            assert len(family.samples) == 1, family.name


def test_a_node_is_replaced_while_its_clients_go_on(node: Node) -> None:
    client = farrow.connect(node.socket)
    held = client.get(client.put(b"held", "held"))
    old = node.pid
    for _ in range(3):
        following = subprocess.Popen(
            [*RUN_NODE, *node.flags, "--upgrade"],
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


def top(node: Node, *flags: str) -> list[str]:
    return [sys.executable, "-m", "farrow.cli", "top", "--socket", node.socket, *flags]


def test_top_prints_one_frame(node: Node) -> None:
    client = farrow.connect(node.socket)
    held = client.get(client.put(b"x" * (10 << 20), "large"))
    client.put(b"y" * (10 << 20), "not held")
    done = subprocess.run(top(node, "--once"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"farrow node {node.pid}" in done.stdout
    lines = [line.strip() for line in done.stdout.splitlines()]
    cells = "".join(line for line in lines if line and set(line) <= set(".+#@"))
    # 256 MiB in 720 cells: 10 MiB are 28 of them.
    assert len(cells) == 720
    assert abs(cells.count("@") - 29) <= 2, cells
    assert abs(cells.count("#") - 28) <= 2, cells
    row = next(line.split() for line in done.stdout.splitlines() if f" {os.getpid()} " in line)
    assert row[-2:] == ["1", "yes"], row
    del held


def test_top_draws_in_a_terminal_until_q(node: Node) -> None:
    master, terminal = pty.openpty()
    running = subprocess.Popen(
        top(node, "--interval", "0.1"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "40"},
    )
    os.close(terminal)
    seen = b""
    frames = 0
    while frames < 3:
        seen += os.read(master, 4096)
        frames = seen.count(b"farrow node")
    os.write(master, b"q")
    wait_until(lambda: drained(master) and running.poll() is not None, "top to quit")
    assert running.returncode == 0
    os.close(master)


def drained(master: int) -> bool:
    """Read what is there, so that the writer is never stuck."""
    with contextlib.suppress(OSError):
        while select.select([master], [], [], 0)[0] and os.read(master, 4096):
            pass
    return True


def test_top_in_a_pipe_ends_with_its_reader(node: Node) -> None:
    running = subprocess.Popen(top(node, "--interval", "0.05"), stdout=subprocess.PIPE)
    assert running.stdout is not None
    titles = 0
    while titles < 3:
        titles += b"farrow node" in running.stdout.readline()
    running.stdout.close()
    assert running.wait(LIMIT_SECONDS) == 1
