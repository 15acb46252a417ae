"""``start_plasma_store`` and the command ``plasma_store`` on a node of Farrow."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import farrow
from farrow._nodes._connect import _node_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main", "start_plasma_store"]

# The smallest memory of a node.
_MEMORY_BYTES_MIN = 1 << 20
# Plasma has no limit on objects; a node has one, and each object takes a few hundred bytes of its
# tables. One for each KiB is more than any store of Plasma's own tests has.
_OBJECTS_MIN = 16_384
_OBJECTS_MAX = 4_000_000
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


@contextlib.contextmanager
def start_plasma_store(
    plasma_store_memory: int,
    use_valgrind: bool = False,
    use_profiler: bool = False,
    plasma_directory: str | None = None,
    use_hugepages: bool = False,
    external_store: str | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a node for the time of a block.

    Args:
        plasma_store_memory: capacity in bytes; rounded up to pages, 1 MiB at least.
        use_valgrind: not supported.
        use_profiler: not supported.
        plasma_directory: folder for the memory, in a tmpfs.
        use_hugepages: ignored: a node uses huge pages where it can.
        external_store: not None: evicted objects are written to a temporary folder, and restored
            when they are read.

    Returns:
        As the value of the block: the path of the node's socket, and the process.

    Raises:
        RuntimeError: the node did not start.

    Examples:
        >>> from farrow.compat import plasma
        >>> with plasma.start_plasma_store(64 << 20) as (socket, process):
        ...     plasma.connect(socket).get(plasma.connect(socket).put("hello"))
        'hello'
    """
    if use_valgrind or use_profiler:
        raise NotImplementedError("a node does not run under valgrind")
    with tempfile.TemporaryDirectory(prefix="farrow-plasma-") as folder:
        name = os.path.join(folder, "plasma.sock")
        spill = None if external_store is None else os.path.join(folder, "spilled")
        arguments = _arguments(plasma_store_memory, name, plasma_directory, spill)
        process = subprocess.Popen(
            [sys.executable, *_node_arguments(), *arguments], stdin=subprocess.DEVNULL
        )
        try:
            _wait_for(name, process)
            yield name, process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _arguments(memory: int, socket: str, memory_dir: str | None, spill: str | None) -> list[str]:
    """The arguments of a node that does what a Plasma store does."""
    arguments = ["--socket", socket, "--memory", str(max(memory, _MEMORY_BYTES_MIN))]
    objects = min(max(memory >> 10, _OBJECTS_MIN), _OBJECTS_MAX)
    arguments += ["--objects-max", str(objects)]
    if memory_dir is not None:
        arguments += ["--memory-dir", memory_dir]
    if spill is not None:
        arguments += ["--spill", spill]
    return arguments


def _wait_for(name: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None:
        with contextlib.suppress(farrow.Disconnected):
            farrow.connect(name, timeout=1.0).close()
            return
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the node at {name} did not start (exit code {process.poll()})")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``plasma_store``: becomes a node."""
    parser = argparse.ArgumentParser(
        prog="plasma_store", description="A node of Farrow with the options of a Plasma store."
    )
    parser.add_argument("-s", dest="socket", required=True, metavar="SOCKET")
    parser.add_argument("-m", dest="memory", required=True, type=int, metavar="BYTES")
    parser.add_argument("-d", dest="directory", metavar="FOLDER", help="a tmpfs for the memory")
    parser.add_argument("-e", dest="spill", metavar="FOLDER", help="where evicted objects go")
    given = parser.parse_args(arguments)
    if given.spill is not None and "://" in given.spill:
        parser.error(f"-e {given.spill}: name a folder; there are no other external stores")
    if not 0 < given.memory < 1 << 63:
        parser.error(f"-m {given.memory}: not a number of bytes that a machine has")
    Path(given.socket).parent.mkdir(parents=True, exist_ok=True)
    node = _arguments(given.memory, given.socket, given.directory, given.spill)
    os.execv(sys.executable, [sys.executable, *_node_arguments(), *node])


if __name__ == "__main__":
    sys.exit(main())
