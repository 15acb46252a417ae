"""The processes and files of a demo, all of which are removed at its end, also after errors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import farrow
from farrow._nodes._connect import _node_arguments
from farrow._nodes._modules import module_command
from farrow.cli._output import console

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from rich.console import Console

__all__ = ["DemoError", "DemoSetup", "Process", "on_stage"]

# Limit of a step; a slower machine gets an error instead of hanging.
STEP_SECONDS_MAX = 120.0
_END_SECONDS_MAX = 5.0
# Share of free memory for all nodes: this process has the table too, and copies to compare.
MEMORY_SHARE_MAX = 0.5
# If the demo is killed, the kernel ends the node: PR_SET_PDEATHSIG (1) of <linux/prctl.h> with
# SIGTERM (15), which persists across exec.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)


class DemoError(Exception):
    """A step failed; the message is for the user."""


def on_stage(out: Console, play: Callable[[DemoSetup], None]) -> int:
    """Run ``play`` on a new stage; print a failure as one line, and always clean up.

    Returns:
        An exit code: 0, or 1 if a step failed, or 130 after Ctrl-C.
    """
    try:
        with DemoSetup() as stage:
            play(stage)
    except KeyboardInterrupt:
        out.print("\n  stopped; everything is cleared away")
        return 130
    except (DemoError, OSError, ValueError, MemoryError) as error:
        return _fail(error)
    except (farrow.FarrowError, pa.ArrowException) as error:
        return _fail(error)
    return 0


def _fail(error: BaseException) -> int:
    line = " ".join(str(error).split())
    console(stderr=True).print(f"farrow: demo: {line}", markup=False)
    return 1


class Process:
    """A worker (``farrow.demo._worker``) and the pipe to it."""

    def __init__(self, label: str, log: Path) -> None:
        self.label = label
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                module_command("farrow.demo._worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request, without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"{self.label} ended: {_tail(self._log)}") from None

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest request.

        Raises:
            DemoError: the worker failed or died.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DemoError(f"{self.label} ended: {_tail(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DemoError(f"{self.label}: {answer['error']}")
        return answer

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(do, **arguments)
        return self.answer()

    def end(self) -> None:
        """Close its input and wait; kill it after a timeout."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        _wait(self._process)
        self._process.stdout.close()


class DemoSetup:
    """Owner of a scratch directory, nodes and workers; a context manager that removes them."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="farrow-demo-"))
        self._shared_files: list[Path] = []
        self._processes: list[Process] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._handler: Any = None

    @property
    def socket(self) -> str:
        """The socket of the one node."""
        return self.socket_of("node")

    def socket_of(self, name: str) -> str:
        """The socket of one of several nodes."""
        return str(self.directory / f"{name}.sock")

    def start_node(self, memory_bytes: int, name: str = "node", flags: Sequence[str] = ()) -> int:
        """Start a node; return its process id.  It serves soon after (``wait_for_node``)."""
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT]
        command += [sys.executable, *_node_arguments()]
        command += ["--socket", self.socket_of(name), "--memory", str(memory_bytes), *flags]
        with self._log_of(name).open("ab") as file:
            self._nodes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return self._nodes[name].pid

    def _log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def wait_for_node(self, name: str = "node") -> None:
        """Wait until the node accepts connections: its socket exists a moment earlier.

        Raises:
            DemoError: the node ended, or took too long; the message has its last lines.
        """
        limit = time.monotonic() + STEP_SECONDS_MAX
        while not _listens(self.socket_of(name)):
            if self._nodes[name].poll() is not None:
                raise DemoError(f"{name} did not start: {_tail(self._log_of(name))}")
            if time.monotonic() > limit:
                raise DemoError(f"the node did not serve within {STEP_SECONDS_MAX:.0f} s")
            time.sleep(0.01)

    def worker(self, label: str) -> Process:
        """Start a worker."""
        process = Process(label, self.directory / "workers.log")
        self._processes.append(process)
        return process

    def shared_file(self) -> Path:
        """A path in /dev/shm that is removed at the end."""
        path = Path("/dev/shm") / f"{self.directory.name}-{len(self._shared_files)}.arrow"
        self._shared_files.append(path)
        return path

    def __enter__(self) -> DemoSetup:
        self._handler = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *exception: object) -> None:
        # A second Ctrl-C must not interrupt the cleanup.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in self._processes:
                process.end()
            for node in self._nodes.values():
                node.terminate()
            for node in self._nodes.values():
                _wait(node)
            for path in self._shared_files:
                path.unlink(missing_ok=True)
            shutil.rmtree(self.directory, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, interrupt)
            signal.signal(signal.SIGTERM, self._handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    """The last line a process wrote before it ended."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it wrote no message"


def free_memory_bytes() -> int:
    """The largest size of a region: free memory or free space in /dev/shm, the smaller."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            break
    else:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(available, shutil.disk_usage("/dev/shm").free)


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
