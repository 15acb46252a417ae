"""Processes of a run: a peer's server and its drivers, ended in all cases."""

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Driver",
    "Lines",
    "Memory",
    "PeerError",
    "PeerRun",
    "built",
    "end_on_signal",
    "memory_of",
    "python_of",
    "run_program",
    "set_up",
]

# A process id and its start time in clock ticks: an id alone may be reused.
_Process = tuple[int, int]

PEERS = Path(__file__).resolve().parent.parent / "peers"
REPOSITORY = PEERS.parent.parent
# No single request takes this long on any machine the table fits in.
_ANSWER_SECONDS_MAX = 180.0
# For a graph, this includes the time to fill it.
_LINE_SECONDS_MAX = 600.0
_END_SECONDS_MAX = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The largest environment is Ray's, some 300 MB.
_SET_UP_SECONDS_MAX = 600.0


class PeerError(Exception):
    """A peer cannot be measured; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of one process in bytes: proportional set size, its part on tmpfs, page tables."""

    total: int
    shared: int
    page_tables: int

    @property
    def own(self) -> int:
        """Private memory and page tables of this process."""
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


def built(program: str, how: str) -> Path:
    """Path of a program built by cargo for release; ``how`` is the command that builds it.

    Raises:
        PeerError: the program does not exist.
    """
    path = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release" / program
    if not path.exists():
        raise PeerError(f"{program} is not built: cargo build --release {how}")
    return path


def python_of(peer: str) -> str | None:
    """The interpreter of a peer; None if the peer's set-up was not run."""
    if not (PEERS / peer / "setup").exists():
        return sys.executable
    python = PEERS / ".envs" / peer / "bin" / "python"
    return str(python) if python.exists() else None


def set_up(peers: list[str], notes: list[str], say: Callable[[str], None]) -> list[str]:
    """Create the environments of peers that need one; returns the peers that can be measured.

    A peer that fails is left out, and a note has its last output.
    """
    ready = []
    for peer in peers:
        script = PEERS / peer / "setup"
        if script.exists():
            if python_of(peer) is None:
                say(f"setting up {peer} ...")
            try:
                subprocess.run(
                    [str(script)],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=_SET_UP_SECONDS_MAX,
                )
            except subprocess.TimeoutExpired:
                notes.append(f"{peer} is not available: no set-up in {_SET_UP_SECONDS_MAX:.0f} s")
                continue
            except subprocess.CalledProcessError as error:
                lines = error.stderr.strip().splitlines()
                notes.append(f"{peer} is not available: {lines[-1] if lines else 'setup failed'}")
                continue
        ready.append(peer)
    return ready


def end_on_signal() -> None:
    """Make SIGTERM and SIGHUP raise an exception, so that started processes are ended."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def run_program(command: list[str], seconds_max: float | None = None, **how: Any) -> int:
    """Run another benchmark to its end; the exit code.

    If this program is ended, or the time is over, the other one ends its peers before it.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    process = subprocess.Popen(command, **how)
    try:
        return process.wait(seconds_max)
    except BaseException:
        process.terminate()
        process.wait()
        raise


class Driver:
    """A process that runs a driver's program (of ``peers/``) for one peer."""

    def __init__(self, peer: str, log: Path, program: str = "driver.py") -> None:
        python = python_of(peer)
        if python is None:
            raise PeerError(f"run bench/peers/{peer}/setup first")
        self._peer = peer
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(PEERS / program), peer],
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
        """Send a request and wait for the answer.

        Raises:
            PeerError: it failed, died, or took more than three minutes.
        """
        self.ask(do, **arguments)
        return self.answer(do)

    def ask(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting; ``answer`` must follow.

        Raises:
            PeerError: the process is dead.
        """
        assert self._process.stdin is not None
        request = json.dumps({"do": do, **arguments}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self._peer} died: {_tail(self._log)}") from None

    def answer(self, do: str) -> Any:
        """The answer to the last request.

        Raises:
            PeerError: it failed, died, or took more than three minutes.
        """
        line = _line(self._process, f"{self._peer}: {do}", _ANSWER_SECONDS_MAX)
        if not line:
            raise PeerError(f"{self._peer} died in {do}: {_tail(self._log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._peer}: {do}: {answer['error']}")
        return answer["answer"]

    def end(self) -> None:
        """End the process."""
        _end(self._process)


def _line(process: subprocess.Popen[bytes], what: str, seconds_max: float) -> bytes:
    """The next line of a process; empty if it ended."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds_max):
            raise PeerError(f"{what}: no answer in {seconds_max:.0f} s")
    return process.stdout.readline()


class Lines:
    """A process that answers each line of JSON with one line."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, message: Any) -> None:
        """Send a request without waiting; ``answer`` must follow."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the last request.

        Raises:
            PeerError: the process ended, or took more than ten minutes.
        """
        line = _line(self._process, str(self._process.args), _LINE_SECONDS_MAX)
        if not line:
            raise PeerError(f"{self._process.args} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class PeerRun:
    """One peer's server and drivers with a scratch directory; a context manager."""

    def __init__(self, peer: str, capacity: int, program: str = "driver.py") -> None:
        self.peer = peer
        self._program = program
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
        before = {one: signal.signal(one, signal.SIG_IGN) for one in _SIGNALS}
        try:
            for driver in self._drivers:
                driver.end()
            if self._server is not None:
                family = _family(self._server.pid)
                _end(self._server)
                _end_rest(family)
            for left in Path("/dev/shm").glob(f"{Path(self._directory).name}*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
            shutil.rmtree(self._directory, ignore_errors=True)
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    @property
    def server_pid(self) -> int | None:
        """Process id of the server, if there is one."""
        return self._server.pid if self._server is not None else None

    def server_family(self) -> list[int]:
        """Process ids of the server and its descendants; none if there is no server."""
        return [pid for pid, _ in _family(self._server.pid)] if self._server is not None else []

    def end_drivers(self, keep: Driver) -> None:
        """End all drivers but one."""
        for driver in self._drivers:
            if driver is not keep:
                driver.end()
        self._drivers = [keep]

    def driver(self, *, connect: bool = True) -> Driver:
        """A new process, connected."""
        driver = Driver(self.peer, self._log, self._program)
        self._drivers.append(driver)
        if connect:
            driver.call("connect", directory=self._directory)
        return driver


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the input and send SIGTERM; kill the process after a timeout."""
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


def _family(root: int) -> list[_Process]:
    """A process and its descendants that are alive."""
    children: dict[int, list[_Process]] = {}
    own: list[_Process] = []
    for folder in Path("/proc").glob("[0-9]*"):
        found = _parent_and_start(int(folder.name))
        if found is not None:
            parent, start = found
            children.setdefault(parent, []).append((int(folder.name), start))
            if int(folder.name) == root:
                own.append((root, start))
    for pid, _ in own:
        own.extend(children.get(pid, []))
    return own


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    """From ``/proc/PID/stat``; None if it is gone or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else (int(words[1]), int(words[19]))


def _end_rest(family: list[_Process]) -> None:
    """End the remaining descendants of an ended server."""
    limit = time.monotonic() + _END_SECONDS_MAX
    while time.monotonic() < limit:
        left = [(pid, start) for pid, start in family if _is_alive(pid, start)]
        if not left:
            return
        is_late = time.monotonic() > limit - _END_SECONDS_MAX / 2
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(0.1)


def _is_alive(pid: int, start: int) -> bool:
    found = _parent_and_start(pid)
    return found is not None and found[1] == start


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
