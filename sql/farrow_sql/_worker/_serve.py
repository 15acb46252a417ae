"""Serve the queries of a worker, one at a time: ``python -m farrow_sql._worker._serve``, which only
a :class:`farrow_sql.worker.Supervisor` starts.

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
from multiprocessing.connection import Pipe, wait
from typing import Any

import farrow
from farrow_sql._errors import QueryFailed, spoken
from farrow_sql._exchange import Retained
from farrow_sql._worker import _task
from farrow_sql._worker._accept import Acceptor
from farrow_sql._worker._channel import Channel, Credentials, server_context
from farrow_sql._worker._messages import answer_of, receive, send, task_of

__all__ = ["main"]

_CANCELLED = 3

_Answer = tuple[dict[str, Any], list[bytes]]


def main() -> int:
    """Serve until standard input ends."""
    # Ctrl-C in a terminal is for the supervisor, which ends standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        client = farrow.connect(settings["address"], namespace=settings["namespace"])
    except farrow.FarrowError as error:
        # The node may be starting again: the supervisor tries again as well.
        print(f"farrow sql-worker: {error}", file=sys.stderr)
        return 1
    listener = socket.socket(settings["family"], socket.SOCK_STREAM, fileno=settings["listener"])
    context = server_context(Credentials(settings["certificate"], settings["private_key"]))
    acceptor = Acceptor(listener, context, bytes.fromhex(settings["key"]))
    server = _Server(client, settings)
    threading.Thread(target=_end_with_input, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        # Otherwise the supervisor has ended, and this process ends by the end of its input.
        os.write(1, b"r")
    while True:
        server.query(acceptor.accept())


def _end_with_input() -> None:
    """End with the supervisor.  Exchanges stay for their lease: the query continues elsewhere."""
    sys.stdin.buffer.read()
    os._exit(0)


class _Server:
    def __init__(self, client: farrow.Client, settings: dict[str, Any]) -> None:
        self._client = client
        self._node = client.node or ""
        self._name = str(settings["name"])
        self._memory = int(settings["memory"])
        self._lease = float(settings["lease"])
        self._retained: Retained | None = None
        # A task failed, and other partitions of it may run on.
        self._is_worn = False

    def end(self, code: int) -> None:
        """End this process with what it retains for a query; no thread is waited for."""
        if self._retained is not None:
            with contextlib.suppress(Exception):
                self._retained.close()
        os._exit(code)

    def query(self, channel: Channel) -> None:
        """Run the tasks of one query, one after another, and delete what they produced."""
        self._retained = Retained(self._client, self._node, self._name, self._lease)
        try:
            with contextlib.closing(channel):
                while True:
                    message, blobs = receive(channel)
                    answer, data = self._answer(channel, message, blobs)
                    send(channel, answer, data)
        except (EOFError, OSError, QueryFailed):
            # The query has ended, or the other side is no client of this version.
            pass
        finally:
            if self._is_worn:
                self.end(0)
            self._retained.close()

    def _answer(self, channel: Channel, message: dict[str, Any], blobs: list[bytes]) -> _Answer:
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
        if finished not in wait([finished, channel.fileno()]):
            self.end(_CANCELLED)
        finished.close()
        return result[0]

    def _run(self, message: dict[str, Any], blobs: list[bytes]) -> _Answer:
        assert self._retained is not None
        try:
            task = task_of(message, blobs)
            return answer_of(_task.run(self._client, task, self._retained, self._memory))
        except BaseException as error:
            # Whatever a query causes, a panic of DataFusion too, is its own error.
            self._is_worn = True
            return {"error": spoken(error)}, []


if __name__ == "__main__":
    sys.exit(main())
