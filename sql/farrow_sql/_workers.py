"""Find the workers of a cluster, and talk to one.

A worker announces itself by an object with its address and a key.  Whoever may read the objects of
the namespace may send it tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

import datafusion
import pyarrow as pa

import farrow
from farrow_sql._errors import raised
from farrow_sql._exchange import Output, delete_leftovers
from farrow_sql._frames import receive, send
from farrow_sql._task import Inputs, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PREFIX", "Worker", "WorkerLost", "keep_alive", "shut_down", "task_of", "workers"]

PREFIX = "farrow.sql/workers/"
# On one network; a process that answers at all answers within milliseconds.
_CONNECT_SECONDS = 3.0
# Silence after which a connection to a machine that vanished ends: 10 + 3 * 5 s.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class WorkerLost(farrow.FarrowError):
    """The connection to a worker ended."""


@dataclass
class Worker:
    """A connection to a worker, for one query."""

    name: str
    node: str
    connection: Connection

    def run(self, task: Task) -> list[Output]:
        """Run a task there.

        Raises:
            WorkerLost: the worker ended, or the query was cancelled here.
            QueryFailed, OutOfMemory, ...: what the task raised.
        """
        message, blobs = _message(task)
        try:
            send(self.connection, message, blobs)
            answer, data = receive(self.connection)
        except (EOFError, OSError) as error:
            raise WorkerLost(f"worker {self.name} on node {self.node!r} ended: {error}") from None
        if "error" in answer:
            raise raised(*answer["error"])
        return [
            Output(**head, data=blob) for head, blob in zip(answer["outputs"], data, strict=True)
        ]

    def close(self) -> None:
        """End the connection, also under a call of another thread: the worker forgets the query."""
        shut_down(self.connection.fileno())


def _message(task: Task) -> tuple[dict[str, Any], list[bytes]]:
    blobs = [task.plan]
    inputs = []
    for one in task.inputs:
        blobs.append(one.schema.serialize().to_pybytes())
        blobs += [output.data for output in one.outputs]
        inputs.append(
            {
                "first": one.first,
                "functions": one.functions,
                "is_table": one.is_table,
                "ranges": [[id.hex(), begin, end] for id, begin, end in one.ranges],
                "outputs": [output.head() for output in one.outputs],
            }
        )
    return {"inputs": inputs}, blobs


def task_of(message: dict[str, Any], blobs: list[bytes]) -> Task:
    """The task of a message.

    Raises:
        KeyError, ValueError, TypeError, StopIteration, ArrowInvalid: it has another form.
    """
    rest = iter(blobs)
    plan = next(rest)
    inputs = []
    for one in message["inputs"]:
        schema = pa.ipc.read_schema(pa.py_buffer(next(rest)))
        functions = [str(name) for name in one["functions"]]
        if functions and len(functions) != len(schema):
            raise ValueError(f"{len(functions)} functions for {len(schema)} columns")
        ranges = [(bytes.fromhex(id), int(begin), int(end)) for id, begin, end in one["ranges"]]
        outputs = [Output(**head, data=next(rest)) for head in one["outputs"]]
        inputs.append(
            Inputs(
                int(one["first"]),
                functions,
                schema,
                ranges,
                outputs=outputs,
                is_table=bool(one["is_table"]),
            )
        )
    return Task(plan, inputs)


def keep_alive(connection: socket.socket) -> None:
    """Notice that the machine at the other end vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def shut_down(descriptor: int) -> None:
    """End a connection, also while another thread reads it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as shared:
        shared.shutdown(socket.SHUT_RDWR)


def workers(client: farrow.Client) -> list[Worker]:
    """Connections to all workers that answer and have the same DataFusion, by node; announcements
    of ended ones are deleted.

    Another version may understand a plan in another way, and place rows by another hash.
    """
    found = []
    for name, announced in _announced(client):
        if announced.get("datafusion") != datafusion.__version__:
            continue
        try:
            found.append(_connect(name, announced))
        except ConnectionRefusedError:
            # The machine answers, and nothing listens: the worker was killed.
            with contextlib.suppress(farrow.FarrowError):
                client.delete(name)
            delete_leftovers(client, worker=name)
        except (OSError, EOFError, ValueError, TypeError, KeyError, AuthenticationError):
            # Another worker has the port by now, or the machine does not answer.
            continue
    return sorted(found, key=lambda worker: (worker.node, worker.name))


def _announced(client: farrow.Client) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in client.list(PREFIX, all_nodes=True)["name"].to_pylist():
        try:
            yield name, json.loads(client.get(name).to_pybytes())
        except (farrow.FarrowError, ValueError, AttributeError):
            # Deleted meanwhile, on a node that was lost meanwhile, or no announcement.
            continue


def _connect(name: str, announced: dict[str, Any]) -> Worker:
    address = (str(announced["host"]), int(announced["port"]))
    raw = socket.create_connection(address, _CONNECT_SECONDS)
    try:
        keep_alive(raw)
        # Reads and writes of the connection go to the descriptor itself, and block.
        raw.settimeout(None)
        connection = Connection(raw.detach())
    except BaseException:
        raw.close()
        raise
    try:
        key = bytes.fromhex(announced["key"])
        if not connection.poll(_CONNECT_SECONDS):
            raise TimeoutError(f"no answer of the worker within {_CONNECT_SECONDS} s")
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return Worker(name[len(PREFIX) :], str(announced["node"]), connection)
