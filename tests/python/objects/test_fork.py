"""A preloading server puts a table, forks its workers and goes on: it deletes,
evicts, ends or is killed. The workers' inherited views then showed the bytes of whatever was put
next, without an error. What a child inherited stays what it was while the child has it, and
comes back when the child ends."""

# What a child uses by name, its parent deletes afterwards.
# ruff: noqa: F821

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from fork_cases import FOREIGN, WORDS, Child, is_pattern, overwrite, pattern, used, wait_unused

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["fork_cases"]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_children"),
]


def test_a_deleted_object_stays_what_it_was_in_a_child(client: farrow.Client) -> None:
    """The case of the issue: 40 MB, delete, other data; `used` fell to 0 while the child read."""
    client.put(pattern(1, 5_000_000), "big")
    value = client.get("big")

    def work(step: Callable[[], None]) -> None:
        step()
        assert is_pattern(value, 1)

    child = Child(work)
    child.at_step()
    del value
    gc.collect()
    client.delete("big")
    overwrite(client)
    assert used(client) >= 40_000_000
    child.finish()
    wait_unused(client)


def test_what_only_children_have_is_not_evicted(make_node: Callable[..., Any]) -> None:
    client = farrow.connect(make_node("--memory", "64MiB", "--evict", "lru").socket)
    client.put(pattern(2), "kept")
    value = client.get("kept")

    def work(step: Callable[[], None]) -> None:
        step()
        assert is_pattern(value, 2)

    child = Child(work)
    child.at_step()
    del value
    for _ in range(30):
        client.put(np.full(8 << 20, FOREIGN, np.uint8))
    assert client.contains("kept")
    child.finish()

    def is_evicted() -> bool:
        client.put(np.full(8 << 20, FOREIGN, np.uint8))
        return not client.contains("kept")

    wait_until(is_evicted, "an eviction of what no child has")


@pytest.mark.parametrize("how", ["exit", "close", "kill"])
def test_a_child_outlives_its_parent(node: Any, client: farrow.Client, how: str) -> None:
    """The parent's place was given up when it ended, and with it what its children read."""
    reader, writer = os.pipe()
    go, reported = os.pipe()

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(3), "orphaned")
        value = own.get("orphaned")
        loose = pa.array(range(100_000), memory_pool=own.memory_pool())
        pid = os.fork()
        if pid == 0:
            os.read(go, 1)
            is_good = is_pattern(value, 3) and loose[99_999].as_py() == 99_999
            os.write(writer, b"y" if is_good else b"n")
            os._exit(0)
        if how == "close":
            del value, loose, own
            gc.collect()
        step()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(parent)
    child.at_step()
    child.go()
    assert child.end() == (-signal.SIGKILL if how == "kill" else 0)
    client.delete("orphaned")
    overwrite(client)
    assert used(client) >= 8 * WORDS
    os.write(reported, b"x")
    assert os.read(reader, 1) == b"y"
    wait_unused(client)
    for one in (reader, writer, go, reported):
        os.close(one)


@pytest.mark.parametrize("is_parent_alive", [True, False])
def test_a_killed_child_gives_everything_back(node: Any, is_parent_alive: bool) -> None:
    client = farrow.connect(node.socket)
    reader, writer = os.pipe()

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(4), "held")
        value = own.get("held")
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            time.sleep(LIMIT_SECONDS)
            os._exit(len(value) == 0)
        os.write(writer, str(pid).encode())
        del value
        own.delete("held")
        step()
        step()

    child = Child(parent)
    child.at_step()
    pid = int(os.read(reader, 16))
    if not is_parent_alive:
        os.kill(child.pid, signal.SIGKILL)
        assert child.end() == -signal.SIGKILL
    overwrite(client, 1)
    assert used(client) >= 8 * WORDS
    os.kill(pid, signal.SIGKILL)
    wait_unused(client)
    if is_parent_alive:
        child.go()
        child.at_step()
        child.finish()
    os.close(reader)
    os.close(writer)


def test_a_fork_of_a_fork(client: farrow.Client) -> None:
    """The first child ends while its own child reads on."""
    client.put(pattern(5), "old")
    value = client.get("old")
    go, reported = os.pipe()
    reader, writer = os.pipe()

    def work(step: Callable[[], None]) -> None:
        if os.fork() == 0:
            os.read(go, 1)
            os.write(writer, b"y" if is_pattern(value, 5) else b"n")
            os._exit(0)
        step()

    child = Child(work)
    child.at_step()
    child.finish()
    del value
    client.delete("old")
    overwrite(client)
    os.write(reported, b"x")
    assert os.read(reader, 1) == b"y"
    wait_unused(client)
    for one in (reader, writer, go, reported):
        os.close(one)


def test_a_child_that_ends_in_good_order_takes_nothing_along(node: Any) -> None:
    """Interpreter shutdown, garbage collection and `del` in a child are its own affair."""
    client = farrow.connect(node.socket)
    client.put(pattern(7), "seven")
    value = client.get("seven")
    table = client.get(client.put(pa.table({"n": pattern(8)})))
    pid = os.fork()
    if pid == 0:
        # As pytest is not to go on here, a new interpreter's end is what `atexit` and the like do.
        del table
        gc.collect()
        del value, client
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.delete("seven")
    overwrite(client)
    assert is_pattern(value, 7)
    assert is_pattern(table["n"].to_numpy(), 8)
    script = (
        "import os, sys, farrow\nclient = farrow.connect(sys.argv[1])\n"
        "value = client.get(client.put(b'x' * 100000))\npid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert bytes(value) == b'x' * 100000 and client.stats()['clients'] >= 1\n"
    )
    subprocess.run([sys.executable, "-c", script, node.socket], check=True, timeout=60)


@pytest.mark.parametrize("how", ["kill", "upgrade"])
@pytest.mark.parametrize("is_parent_alive", [True, False])
def test_a_child_outlives_the_daemon(node: Any, how: str, is_parent_alive: bool) -> None:
    """The next daemon finds the place of a client that has ended, and asks the kernel, too."""
    client = farrow.connect(node.socket)

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(40), "forty")
        value = own.get("forty")

        def work(step: Callable[[], None]) -> None:
            step()
            assert is_pattern(value, 40)

        child = Child(work)
        child.at_step()
        del value
        step()
        child.finish()
        step()

    family = Child(parent)
    family.at_step()
    go, reported = os.pipe()
    reader, writer = os.pipe()

    def orphaner(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(41), "forty-one")
        value = own.get("forty-one")
        if os.fork() == 0:
            os.read(go, 1)
            os.write(writer, b"y" if is_pattern(value, 41) else b"n")
            os._exit(0)

    if not is_parent_alive:
        assert Child(orphaner).end() == 0
    if how == "kill":
        node.restart()
    else:
        before = node._process
        node._process = subprocess.Popen(
            [*before.args, "--upgrade"],
            stdin=subprocess.DEVNULL,
            stderr=(node.folder / "node.log").open("ab"),
        )
        before.wait(LIMIT_SECONDS)
    client.delete(["forty"] if is_parent_alive else ["forty", "forty-one"])
    overwrite(client)
    family.go()
    family.at_step()
    if not is_parent_alive:
        os.write(reported, b"x")
        assert os.read(reader, 1) == b"y"
    wait_unused(client)
    family.finish()
    for one in (reader, writer, go, reported):
        os.close(one)


def test_memory_of_another_node(make_cluster: Callable[..., Any]) -> None:
    """A child reads what its parent got from another node, which hears of the parent's end only."""
    cluster = make_cluster(2)
    own, other = cluster.clients()

    def parent(step: Callable[[], None]) -> None:
        client = cluster.client("a")
        there = client.at("b")
        there.put(pattern(80, 100_000), "there")
        value = client.get("there")
        mine = client.get(client.put(pattern(81, 100_000), "here"))

        def work(step: Callable[[], None]) -> None:
            step()
            assert is_pattern(value, 80)
            assert is_pattern(mine, 81)

        child = Child(work)
        child.at_step()
        del value, mine
        client.delete(["there", "here"])
        step()
        child.finish()
        step()

    family = Child(parent)
    family.at_step()
    overwrite(other, 2)
    overwrite(own, 2)
    assert used(other) >= 800_000
    assert used(own) >= 800_000
    family.go()
    family.at_step()
    wait_unused(own)
    wait_unused(other)
    family.finish()
