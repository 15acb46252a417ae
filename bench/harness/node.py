"""A node of a measurement, and the wait until it answers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import farrow

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


def wait_for_pages(client: farrow.Client) -> None:
    """Wait while the node touches pages ahead, which would disturb a measurement."""
    until = time.monotonic() + PREPARED_SECONDS_MAX
    while time.monotonic() < until:
        stats = client.stats()
        # All but the last piece, which may be cut.
        if stats["prepared"] + (16 << 20) > stats["capacity"]:
            return
        time.sleep(0.2)
