"""Page faults of lazy values that the node serves, and how they return to the client."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, Node, as_nobody, wait_until
from farrow._nodes._ports import free_addresses
from test_lazy import ONLY, brought, needs_right, open_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MB = 1 << 20


@pytest.fixture
def mortal(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other, and may end."""
    return make_cluster(2, *ONLY)


def threads(node: Node) -> int:
    """Threads of a node that serve page faults."""
    found = 0
    for task in Path(f"/proc/{node.pid}/task").iterdir():
        # It may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += (task / "comm").read_text().strip() == "farrow-faults"
    return found


def numbers(seed: int, size: int = 4 * MB) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(1, 1 << 60, size // 8)


@needs_right
def test_the_node_serves_faults_while_a_value_lives(mortal: Cluster) -> None:
    a, b = mortal.clients()
    node = mortal.nodes["a"]
    value = numbers(1)
    b.put(value, "served")
    first, second = (a.get("served", lazy=True) for _ in range(2))
    wait_until(lambda: threads(node) == 2, "each is served")
    before = brought(mortal)
    assert first[100_000] == value[100_000] == second[100_000]
    assert brought(mortal) - before == 64 << 10, "once for both"
    assert np.array_equal(first, value)
    del first
    wait_until(lambda: threads(node) == 1, "the first ends")
    assert np.array_equal(second, value)
    del second
    wait_until(lambda: threads(node) == 0, "the second ends")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@needs_right
def test_another_user_serves_its_faults_itself() -> None:
    """Who serves the faults of a process can show it any bytes."""
    value = numbers(2)
    with open_nodes() as make:
        cluster = Cluster(make, 2, *ONLY, "--allow-uid", "65534")
        cluster.client("b").put(value, "other")
        node = cluster.nodes["a"]

        def run() -> None:
            lazy = farrow.connect(node.socket).get("other", lazy=True)
            assert np.array_equal(lazy, value)
            assert threads(node) == 0

        as_nobody(run)


def read_at_random(
    lazy: NDArray[np.int64], value: NDArray[np.int64], seed: int, is_over: threading.Event
) -> int:
    """Reads until it is over, and everything once more. Returns the number of wrong values."""
    random_ = random.Random(seed)
    wrong = 0
    while not is_over.is_set():
        # NumPy compares fewer than some 500 values with the interpreter's lock, and the thread that
        # starts the node again would wait for a reader of a page that only the node can bring.
        at = random_.randrange(len(value) - 1_000)
        many = random_.choice([1_000, 1_000, 20_000])
        wrong += int((lazy[at : at + many] != value[at : at + many]).sum())
    return wrong + int((lazy != value).sum())


@needs_right
def test_readers_go_on_while_their_node_is_killed(mortal: Cluster) -> None:
    """Faults that a killed node had taken are served by the client."""
    # A page that does not come within the timeout ends this process.
    a = farrow.connect(mortal.nodes["a"].socket, timeout=LIMIT_SECONDS)
    b = mortal.client("b")
    values = [numbers(seed, 12 * MB) for seed in range(3)]
    for number, value in enumerate(values):
        b.put(value, f"killed {number}")
    lazy = [a.get(f"killed {number}", lazy=True) for number in range(3)]
    wait_until(lambda: threads(mortal.nodes["a"]) == 3, "each is served")
    is_over = threading.Event()
    wrong: list[int] = []

    def read(number: int, seed: int) -> None:
        wrong.append(read_at_random(lazy[number], values[number], seed, is_over))

    readers = [
        threading.Thread(target=read, args=(number, seed), daemon=True)
        for number in range(3)
        for seed in range(2)
    ]
    for reader in readers:
        reader.start()
    mortal.nodes["a"].restart()
    mortal.settle(2)
    is_over.set()
    for reader in readers:
        reader.join(LIMIT_SECONDS)
    assert wrong == [0] * len(readers)


@needs_right
def test_a_value_at_the_addresses_of_an_earlier_one(mortal: Cluster) -> None:
    """A page that the node shows late would be one of the next value, before its bytes came."""
    a, b = mortal.clients()
    values = [numbers(seed, 8 * MB) for seed in range(2)]
    chunk = (64 << 10) // 8
    for turn in range(60):
        name = f"again {turn}"
        b.put(values[turn % 2], name)
        lazy = a.get(name, lazy=True)
        # Read ahead is on its way when the value ends.
        end = random.Random(turn).randrange(1, 40) * chunk
        assert np.array_equal(lazy[:end], values[turn % 2][:end])
        if turn % 5 == 4:
            assert np.array_equal(lazy, values[turn % 2])
        del lazy
        b.delete(name)


@needs_right
def test_the_node_serves_faults_again_after_the_home_hung(make_node: Callable[..., Node]) -> None:
    """Longer than a transfer may stall, and shorter than a lease."""
    addresses = free_addresses(2)
    nodes = [
        make_node(
            "--memory", "64MiB", "--name", name, "--listen", own, "--join", other,
            "--lease-ms", "60000", *ONLY,
        )
        for name, own, other in zip("ab", addresses, addresses[::-1], strict=True)
    ]  # fmt: skip
    a, b = (farrow.connect(node.socket) for node in nodes)
    wait_until(lambda: sum(one.fabric != "" for one in a.nodes()) == 2, "a cluster")
    value = numbers(4, 16 * MB)
    b.put(value, "hung")
    lazy = a.get("hung", lazy=True)
    assert lazy[0] == value[0]
    wait_until(lambda: threads(nodes[0]) == 1, "the node serves it")
    # A read holds the lock of Python, so another process lets the home run on.
    names, home = f"/proc/{nodes[0].pid}/task/*/comm", nodes[1].pid
    script = f"while grep -qsx farrow-faults {names}; do sleep 0.1; done; kill -CONT {home}"
    os.kill(home, signal.SIGSTOP)
    helper = subprocess.Popen(["sh", "-c", script])
    try:
        assert lazy[1 * MB] == value[1 * MB]
        assert helper.wait(LIMIT_SECONDS) == 0, "the client has served its faults"
    finally:
        helper.kill()
        helper.wait()
        os.kill(home, signal.SIGCONT)
    chunks = iter(range(200, 256))

    def is_served_again() -> bool:
        at = next(chunks) * (64 << 10) // 8
        assert lazy[at] == value[at]
        time.sleep(0.1)
        return threads(nodes[0]) == 1

    wait_until(is_served_again, "the node serves them again")
    assert np.array_equal(lazy, value)


STOPPED = """
import sys, farrow
client = farrow.connect(sys.argv[1])
value = client.get("stopped", lazy=True)
print(value[0], flush=True)
sys.stdin.readline()
del value
print("gone", flush=True)
sys.stdin.readline()
"""


@needs_right
def test_a_stopped_node_delays_no_process_that_drops_a_value(mortal: Cluster) -> None:
    node = mortal.nodes["a"]
    value = numbers(3)
    mortal.client("b").put(value, "stopped")
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED, node.socket],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == f"{value[0]}\n"
    os.kill(node.pid, signal.SIGSTOP)
    try:
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "gone\n"
    finally:
        os.kill(node.pid, signal.SIGCONT)
    child.communicate("\n", timeout=LIMIT_SECONDS)
    assert child.returncode == 0
    wait_until(lambda: threads(node) == 0, "the node serves nobody")
