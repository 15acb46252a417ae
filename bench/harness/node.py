"""Nodes of a measurement, and the wait until they answer."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import farrow
from farrow._nodes._ports import free_addresses

# The names of the nodes of a pair.
NODES = "ab"
# A loaded machine starts a node within seconds.
START_SECONDS_MAX = 60.0
PREPARED_SECONDS_MAX = 120.0


@contextlib.contextmanager
def running_node(folder: Path, memory: int, *flags: str) -> Iterator[str]:
    """A node with ``memory`` bytes that nothing restarts, ended after the block; its socket."""
    socket = str(folder / "node.sock")
    command = [sys.executable, "-m", "farrow.cli", "node", "--unsupervised", "--socket", socket]
    command += ["--memory", str(memory), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, socket)
        yield socket
    finally:
        process.terminate()
        process.wait(START_SECONDS_MAX)


def _wait(process: subprocess.Popen[bytes], socket: str) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            farrow.connect(socket).close()
        except farrow.Disconnected:
            if process.poll() is not None or time.monotonic() >= until:
                raise
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def running_pair(folder: Path, memory: int, *flags: str) -> Iterator[list[str]]:
    """Two nodes that know each other, each with ``memory`` bytes, out of which nothing is evicted;
    their sockets."""
    addresses = free_addresses(len(NODES))
    common = ["--memory-dir", "/dev/shm", "--evict", "none", "--plaintext", *flags]
    sockets = []
    with contextlib.ExitStack() as stack:
        for name, own, other in zip(NODES, addresses, reversed(addresses), strict=True):
            place = folder / name
            place.mkdir()
            more = ["--name", name, "--listen", own, "--join", other]
            sockets.append(stack.enter_context(running_node(place, memory, *common, *more)))
        for socket in sockets:
            client = farrow.connect(socket)
            wait_until(
                lambda client=client: [one.reach for one in client.nodes()] == ["live"] * 2,
                "both nodes",
            )
        yield sockets


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not become true; ``what`` says what was expected.
    """
    end = time.monotonic() + START_SECONDS_MAX
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"{what}: not within {START_SECONDS_MAX:g} s")
        time.sleep(0.05)


def wait_for_pages(client: farrow.Client) -> None:
    """Wait while the node touches pages ahead, which would disturb a measurement."""
    until = time.monotonic() + PREPARED_SECONDS_MAX
    while time.monotonic() < until:
        stats = client.stats()
        # All but the last piece, which may be cut.
        if stats["prepared"] + (16 << 20) > stats["capacity"]:
            return
        time.sleep(0.2)
