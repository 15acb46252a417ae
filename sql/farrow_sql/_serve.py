"""Serve the queries of a worker, one at a time: ``python -m farrow_sql._serve``, which only a
:class:`farrow_sql.worker.Supervisor` starts.

Its settings are the first line of standard input; the end of standard input ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Pipe, answer_challenge, deliver_challenge, wait
from typing import Any

import farrow
from farrow_sql import _task
from farrow_sql._errors import QueryFailed, spoken
from farrow_sql._exchange import Retained
from farrow_sql._frames import receive, send
from farrow_sql._workers import keep_alive, shut_down, task_of

__all__ = ["main"]

_HANDSHAKE_SECONDS = 10.0
_CANCELLED = 3

_Answer = tuple[dict[str, Any], list[bytes]]


def main() -> int:
    """Serve until standard input ends."""
    # Ctrl-C in a terminal is for the supervisor, which ends standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.buffer.readline())
    client = farrow.connect(settings["address"], namespace=settings["namespace"])
    listener = socket.socket(settings["family"], socket.SOCK_STREAM, fileno=settings["listener"])
    server = _Server(client, settings)
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.write(1, b"r")
    while True:
        accepted, _ = listener.accept()
        server.query(accepted)


def _end_with_input() -> None:
    """End with the supervisor.  Exchanges stay for their lease: the query goes on elsewhere."""
    sys.stdin.buffer.read()
    os._exit(0)


class _Server:
    def __init__(self, client: farrow.Client, settings: dict[str, Any]) -> None:
        self._client = client
        self._node = client.node or ""
        self._name = str(settings["name"])
        self._key = bytes.fromhex(settings["key"])
        self._memory = int(settings["memory"])
        self._retained: Retained | None = None
        # A task failed, and other partitions of it may run on.
        self._is_worn = False

    def end(self, code: int) -> None:
        """End this process with what it retains for a query; no thread is waited for."""
        if self._retained is not None:
            with contextlib.suppress(Exception):
                self._retained.close()
        os._exit(code)

    def query(self, accepted: socket.socket) -> None:
        """Run the tasks of one query, one after another, and delete what they produced."""
        self._retained = Retained(self._client, self._node, self._name)
        try:
            keep_alive(accepted)
            accepted.settimeout(None)
            with Connection(accepted.detach()) as connection:
                self._greet(connection)
                while True:
                    message, blobs = receive(connection)
                    answer, data = self._answer(connection, message, blobs)
                    send(connection, answer, data)
        except (EOFError, OSError, AuthenticationError, QueryFailed):
            # The query has ended, or the other side is no client.
            pass
        finally:
            if self._is_worn:
                self.end(0)
            self._retained.close()

    def _greet(self, connection: Connection) -> None:
        # A stranger that sends nothing must not keep this process.
        timer = threading.Timer(_HANDSHAKE_SECONDS, shut_down, [connection.fileno()])
        timer.daemon = True
        timer.start()
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        finally:
            timer.cancel()

    def _answer(
        self, connection: Connection, message: dict[str, Any], blobs: list[bytes]
    ) -> _Answer:
        """Run one task in a thread of its own; without its client, the process ends with it.

        DataFusion would go on: it ends an operator between batches only, and some have none for
        minutes.
        """
        result: list[_Answer] = []
        finished, finish = Pipe(duplex=False)

        def body() -> None:
            result.append(self._run(message, blobs))
            finish.close()

        threading.Thread(target=body, daemon=True).start()
        # A client sends nothing while it waits: what can be read is its end.
        if finished not in wait([finished, connection]):
            self.end(_CANCELLED)
        finished.close()
        return result[0]

    def _run(self, message: dict[str, Any], blobs: list[bytes]) -> _Answer:
        assert self._retained is not None
        try:
            task = task_of(message, blobs)
            outputs = _task.run(self._client, task, self._retained, self._memory)
        except BaseException as error:
            # Whatever a query causes, a panic of DataFusion too, is its own error.
            self._is_worn = True
            return {"error": spoken(error)}, []
        return {"outputs": [one.head() for one in outputs]}, [one.data for one in outputs]


if __name__ == "__main__":
    sys.exit(main())
