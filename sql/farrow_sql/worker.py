"""A worker: runs tasks of queries at its node, until SIGTERM.

``farrow sql-worker`` on each machine, several times for several cores, is all that a cluster
needs::

    farrow sql-worker --listen 10.0.0.5 --memory 4GiB

The process itself only announces the worker.  Each query is served by a process of its own, since
DataFusion cannot end some operators: a query that was cancelled and does not end is ended with its
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import datafusion

import farrow
from farrow._nodes._modules import module_command
from farrow_sql._exchange import LEASE_SECONDS, delete_leftovers
from farrow_sql._run import _running
from farrow_sql._worker._channel import KEY_BYTES, Credentials
from farrow_sql._worker._processes import identity
from farrow_sql._worker._spill import SpillFolder
from farrow_sql._worker._workers import PREFIX, PROTOCOL, delete_ended

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["MEMORY_BYTES", "QUERIES", "Supervisor"]

# For the operators of one task; more spills to disk.
MEMORY_BYTES = 1 << 30
# Served at a time; each has a process of about 100 MiB.
QUERIES = 2
# How soon the end of a process is seen.
_POLL_SECONDS = 0.1
# A node that was started again gets the announcement within this time.
_ANNOUNCE_SECONDS = 2.0
# Queries of killed processes are listed no longer than this.
_CLEAN_SECONDS = 5.0
# A process that cannot start is tried again, not at once.
_RESTART_SECONDS = 1.0
_END_SECONDS = 5.0
# Refusals of the first announcement that stay until an operator changes something.
_FINAL = (farrow.PermissionDenied, farrow.QuotaExceeded, farrow.InvalidArgument)


@dataclass
class _Process:
    """A process that serves queries."""

    popen: subprocess.Popen[bytes]
    began: float
    # Where its operators spill; None: in its own folder for temporary files, if there is one.
    spill: Path | None

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def end(self) -> None:
        """Let it end, which it does with its input."""
        self.popen.stdin.close()  # type: ignore[union-attr]


class Supervisor:
    """The worker of this process.

    Args:
        connect: makes the client; called again if the node starts again without its memory.
        host: address to listen at, and to announce.
        memory: bytes for the operators of one task.
        queries: number of queries served at a time.
    """

    def __init__(
        self,
        connect: Callable[[], farrow.Client],
        *,
        host: str = "127.0.0.1",
        memory: int = MEMORY_BYTES,
        queries: int = QUERIES,
    ) -> None:
        self._connect = connect
        self._client = connect()
        self._node = self._client.node or ""
        key = secrets.token_hex(KEY_BYTES)
        credentials = Credentials.create()
        self._stop = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.name = f"{PREFIX}{self._node or 'node'}-{os.getpid()}-{secrets.token_hex(4)}"
        announcement = {
            "host": host,
            "port": self._listener.getsockname()[1],
            "key": key,
            "certificate": credentials.fingerprint,
            "protocol": PROTOCOL,
            "node": self._node,
            **identity(),
            "datafusion": datafusion.__version__,
        }
        self._announcement = json.dumps(announcement).encode()
        self._settings = json.dumps(
            {
                "name": self.name,
                "address": self._client.address,
                "namespace": self._client.namespace,
                "key": key,
                "certificate": credentials.certificate,
                "private_key": credentials.private_key,
                "memory": memory,
                "lease": LEASE_SECONDS,
                "listener": self._listener.fileno(),
                "family": int(family),
            }
        )
        self._queries = queries
        self._processes: list[_Process] = []
        self._was_announced = False
        self._refusal: type[farrow.FarrowError] | None = None
        self._obstacle: type[OSError] | None = None
        # Without a folder for temporary files only what spills fails.
        self._spill: SpillFolder | None = None
        with contextlib.suppress(OSError):
            self._spill = SpillFolder()

    def serve(self) -> None:
        """Announce the worker and serve queries, until :meth:`stop`.

        Raises:
            PermissionDenied, QuotaExceeded, InvalidArgument: it cannot be announced.
            ChildProcessError: its first process ended before it served.
            OSError: its first process cannot be started.

        Examples:
            >>> import threading
            >>> from farrow_sql.worker import Supervisor
            >>> worker = Supervisor(lambda: farrow.connect(client.address))
            >>> threading.Timer(1.0, worker.stop).start()
            >>> worker.serve()
        """
        announced = cleaned = -_ANNOUNCE_SECONDS
        try:
            with contextlib.suppress(farrow.FarrowError):
                delete_ended(self._client)
            self._start_missing()
            self._wait_for_first()
            while not self._stop.wait(_POLL_SECONDS):
                self._try_start_missing()
                if time.monotonic() - announced >= _ANNOUNCE_SECONDS:
                    self._announce()
                    announced = time.monotonic()
                if time.monotonic() - cleaned >= _CLEAN_SECONDS:
                    with contextlib.suppress(farrow.FarrowError):
                        _running.delete_ended(self._client)
                    cleaned = time.monotonic()
        finally:
            self._end()

    def _wait_for_first(self) -> None:
        """Wait until the first process serves: a worker that serves nothing delays each query.

        Raises:
            ChildProcessError: it ended.
        """
        if not self._processes:
            # Stopped before any was started.
            return
        first = self._processes[0].popen
        if not first.stdout.read(1):  # type: ignore[union-attr]
            first.wait()
            if not self._stop.is_set():
                raise self._ended(first)

    def stop(self) -> None:
        """End :meth:`serve`.  A signal handler may call it.

        Examples:
            >>> from farrow_sql.worker import Supervisor
            >>> worker = Supervisor(lambda: farrow.connect(client.address))
            >>> worker.stop()
            >>> worker.serve()
        """
        self._stop.set()

    def _announce(self) -> None:
        """Announce this worker, again if its node lost what it had.

        Raises:
            PermissionDenied, QuotaExceeded, InvalidArgument: it was never announced, and waiting
                would not help.
        """
        try:
            self._put_announcement()
        except farrow.FarrowError as error:
            if not self._was_announced and isinstance(error, _FINAL):
                raise
            # Once for each kind: its numbers may change all the time.
            if type(error) is not self._refusal:
                print(f"farrow sql-worker: not announced: {error}", file=sys.stderr, flush=True)
            self._refusal = type(error)
        else:
            self._was_announced = True
            self._refusal = None

    def _put_announcement(self) -> None:
        try:
            # Mapped memory alone, that of a node that is gone too, answers a search for a name.
            self._client.stats()
        except farrow.Disconnected:
            self._reconnect()
        if not self._client.contains(self.name):
            self._client.put(self._announcement, self.name)
            self._client.pin(self.name)

    def _reconnect(self) -> None:
        """Connect to a node that started again without its memory."""
        client = self._connect()
        try:
            self._client.stats()
        except farrow.Disconnected:
            # The processes have clients of the old memory. New ones take their place.
            self._client = client
            for process in self._processes:
                process.end()

    def _try_start_missing(self) -> None:
        """Start processes in the place of those that ended; later, if the machine has no room."""
        try:
            self._start_missing()
        except OSError as error:
            # Once for each kind: it may last.
            if type(error) is not self._obstacle:
                print(f"farrow sql-worker: no new process: {error}", file=sys.stderr, flush=True)
            self._obstacle = type(error)
            self._stop.wait(_RESTART_SECONDS)
        else:
            self._obstacle = None

    def _start_missing(self) -> None:
        now = time.monotonic()
        ended = [one for one in self._processes if not one.is_running]
        self._processes = [one for one in self._processes if one not in ended]
        for process in ended:
            if process.spill is not None:
                SpillFolder.remove(process.spill)
            delete_leftovers(self._client, worker=self.name, process=str(process.popen.pid))
        if any(now - process.began < _RESTART_SECONDS for process in ended):
            self._stop.wait(_RESTART_SECONDS)
        while len(self._processes) < self._queries and not self._stop.is_set():
            self._processes.append(self._start(now))

    def _start(self, now: float) -> _Process:
        spill = None
        if self._spill is not None:
            with contextlib.suppress(OSError):
                spill = self._spill.add()
        try:
            return _Process(self._open(spill), now, spill)
        except BaseException:
            if spill is not None:
                SpillFolder.remove(spill)
            raise

    def _open(self, spill: Path | None) -> subprocess.Popen[bytes]:
        """A process that has its settings.

        Raises:
            ChildProcessError: it ended before it read them.
            OSError: it cannot be started.
        """
        # DataFusion spills there.
        environment = {"TMPDIR": str(spill)} if spill else {}
        popen = subprocess.Popen(
            module_command("farrow_sql._worker._serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
            env={**os.environ, **environment},
        )
        try:
            # It ends when this pipe does: also if this process is killed.
            popen.stdin.write(self._settings.encode() + b"\n")  # type: ignore[union-attr]
            popen.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            # To close the pipe fails in the same way.
            with contextlib.suppress(OSError), popen:
                popen.kill()
            raise self._ended(popen) from None
        return popen

    def _ended(self, popen: subprocess.Popen[bytes]) -> ChildProcessError:
        return ChildProcessError(
            f"process {popen.pid} of worker {self.name} ended with code {popen.wait()} before it"
            " served: its messages are above"
        )

    def _end(self) -> None:
        has_node = True
        try:
            self._client.delete(self.name)
        except farrow.Disconnected:
            has_node = False
        except farrow.FarrowError:
            pass
        self._listener.close()
        for process in self._processes:
            process.end()
        for process in self._processes:
            try:
                process.popen.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            process.popen.stdout.close()  # type: ignore[union-attr]
        if has_node:
            # No other worker looks for them: they are found by the announcement.
            delete_leftovers(self._client, worker=self.name)
        if self._spill is not None:
            self._spill.close()
