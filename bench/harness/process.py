"""Processes of a run: a peer's server and its drivers, ended whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["Driver", "Memory", "PeerError", "PeerRun", "memory_of", "python_of"]

PEERS = Path(__file__).resolve().parent.parent / "peers"
# No single request takes this long on any machine the table fits in.
_ANSWER_SECONDS_MAX = 180.0
_END_SECONDS_MAX = 10.0


class PeerError(Exception):
    """A peer cannot be measured; the message says why."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of one process, in bytes: proportional set size, its part on tmpfs, page tables."""

    total: int
    shared: int
    page_tables: int

    @property
    def own(self) -> int:
        """All that exists because of this process alone."""
        return self.total - self.shared + self.page_tables


def memory_of(pid: int) -> Memory:
    """From ``/proc/PID/smaps_rollup`` and ``/proc/PID/status``."""
    kilobytes: dict[str, int] = {}
    for name in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                kilobytes[words[0].rstrip(":")] = int(words[1])
    return Memory(
        kilobytes["Pss"] * 1024,
        kilobytes.get("Pss_Shmem", 0) * 1024,
        kilobytes.get("VmPTE", 0) * 1024,
    )


def python_of(peer: str) -> str | None:
    """The interpreter that runs a peer; None if the peer has a set-up that was not run."""
    if not (PEERS / peer / "setup").exists():
        return sys.executable
    python = PEERS / ".envs" / peer / "bin" / "python"
    return str(python) if python.exists() else None


class Driver:
    """A process that runs ``peers/driver.py`` for one peer."""

    def __init__(self, peer: str, log: Path) -> None:
        python = python_of(peer)
        if python is None:
            raise PeerError(f"run bench/peers/{peer}/setup first")
        self._peer = peer
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(PEERS / "driver.py"), peer],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def call(self, do: str, **arguments: Any) -> Any:
        """Ask for something and wait.

        Raises:
            PeerError: it failed, died, or took more than three minutes.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps({"do": do, **arguments}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self._peer} died: {_tail(self._log)}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(_ANSWER_SECONDS_MAX):
                raise PeerError(f"{self._peer}: no answer to {do} in {_ANSWER_SECONDS_MAX:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self._peer} died in {do}: {_tail(self._log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._peer}: {do}: {answer['error']}")
        return answer["answer"]

    def end(self) -> None:
        """End the process."""
        _end(self._process)


class PeerRun:
    """One peer's server and drivers with a scratch directory; a context manager."""

    def __init__(self, peer: str, capacity: int) -> None:
        self.peer = peer
        self._directory = tempfile.mkdtemp(prefix="farrow-bench-")
        self._log = Path(self._directory) / "log"
        self._drivers: list[Driver] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._capacity = capacity

    def __enter__(self) -> PeerRun:
        try:
            first = self.driver(connect=False)
            command = first.call("server", directory=self._directory, capacity=self._capacity)
            first.end()
            if command is not None:
                with self._log.open("ab") as log:
                    self._server = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for driver in self._drivers:
                driver.end()
            if self._server is not None:
                _end(self._server)
            shutil.rmtree(Path("/dev/shm") / Path(self._directory).name, ignore_errors=True)
            shutil.rmtree(self._directory, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, interrupt)

    @property
    def server_pid(self) -> int | None:
        """Process id of the server, if there is one."""
        return self._server.pid if self._server is not None else None

    def driver(self, *, connect: bool = True) -> Driver:
        """A new process, connected."""
        driver = Driver(self.peer, self._log)
        self._drivers.append(driver)
        if connect:
            driver.call("connect", directory=self._directory)
        return driver


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the input and ask by SIGTERM; insist after a while."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    limit = time.monotonic() + (0.5 if process.stdin is not None else 0.0)
    while process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
