"""Find the workers of a cluster, and talk to one.

A worker announces itself by an object with its address, the hash of its certificate and a key.
Any client that may read the objects of the namespace may send it tasks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import datafusion

import farrow
from farrow_sql._deadline import NEVER
from farrow_sql._errors import raised
from farrow_sql._exchange import delete_leftovers
from farrow_sql._worker._channel import Channel, NotTheWorker, client_channel
from farrow_sql._worker._messages import done_of, message_of, receive, send
from farrow_sql._worker._processes import has_ended

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from farrow_sql._deadline import Deadline
    from farrow_sql._worker._task import Done, Task

__all__ = [
    "PREFIX",
    "PROTOCOL",
    "Found",
    "Worker",
    "WorkerLost",
    "announcements",
    "delete_ended",
    "workers",
]

PREFIX = "farrow.sql/workers/"
# Of connections and messages; 1 had no encryption.
PROTOCOL = 2
# Of an announcement, which has some 300 B.
_BYTES_MAX = 1 << 16
# That are opened at a time.
_CONNECTIONS = 32
# On one network; a process that answers at all answers within milliseconds.
_CONNECT_SECONDS = 3.0


class WorkerLost(farrow.FarrowError):
    """The connection to a worker ended."""


@dataclass
class Worker:
    """A connection to a worker, for one query."""

    name: str
    node: str
    channel: Channel

    def run(self, task: Task) -> Done:
        """Run a task there.

        Raises:
            WorkerLost: the worker or its node ended, or the query was cancelled here.
            QueryFailed, OutOfMemory, ...: what the task raised.
        """
        message, blobs = message_of(task)
        try:
            send(self.channel, message, blobs)
            answer, data = receive(self.channel)
        except (EOFError, OSError) as error:
            raise WorkerLost(f"worker {self.name} on node {self.node!r} ended: {error}") from None
        try:
            if "error" not in answer:
                return done_of(answer, data)
            kind, text = answer["error"]
        except (KeyError, ValueError, TypeError) as error:
            raise raised("", f"worker {self.name} sent no answer: {error!r}") from None
        if kind == farrow.Disconnected.__name__:
            # The node was killed, and its workers were not.
            raise WorkerLost(f"worker {self.name} has lost its node {self.node!r}: {text}")
        raise raised(kind, text)

    def close(self) -> None:
        """End the connection, also under a call of another thread: the worker forgets the query."""
        self.channel.shut_down()


@dataclass
class Found:
    """The workers of a cluster."""

    workers: list[Worker] = field(default_factory=list)
    # Why others cannot be used.
    unused: list[str] = field(default_factory=list)


def workers(client: farrow.Client, lost: Collection[str] = (), deadline: Deadline = NEVER) -> Found:
    """Connections to all workers that answer and have the same versions, by node; announcements of
    those that are proved to have ended are deleted.

    Another version of DataFusion may understand a plan in another way, and place rows by another
    hash.

    Args:
        client: the client that finds the announcements.
        lost: the names of workers that are not used.
        deadline: when the wait for them ends; a later one is not used.

    Raises:
        Late: the announcements were not read by then.
    """
    found = Found()
    announced = {}
    for name, one in deadline.read(lambda: list(announcements(client, PREFIX))):
        short = name[len(PREFIX) :]
        if short in lost:
            found.unused.append(f"worker {short}: it, or its node, has ended during the query")
        else:
            announced[short] = one
    # At a time, so that machines that do not answer cost the time of one.
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        answers = list(
            pool.map(lambda name: _connected(name, announced[name], deadline), announced)
        )
    for short, answer in zip(announced, answers, strict=True):
        if isinstance(answer, Worker):
            found.workers.append(answer)
        elif isinstance(answer, ConnectionRefusedError) and has_ended(announced[short]):
            _delete(client, PREFIX + short)
        else:
            # Another worker has the port by now, or the machine does not answer, or refuses.
            is_refused = isinstance(answer, ConnectionRefusedError)
            reason = _refusal(client, announced[short]) if is_refused else answer
            found.unused.append(f"worker {short}: {reason}")
    found.workers.sort(key=lambda worker: (worker.node, worker.name))
    return found


def delete_ended(client: farrow.Client) -> None:
    """Delete the announcements of workers of this machine that were killed."""
    for name, one in announcements(client, PREFIX):
        if has_ended(one):
            _delete(client, name)


def _delete(client: farrow.Client, name: str) -> None:
    with contextlib.suppress(farrow.FarrowError):
        client.delete(name)
    delete_leftovers(client, worker=name)


def _refusal(client: farrow.Client, announced: dict[str, Any]) -> str:
    """Why a connection was refused to a worker that may be alive."""
    host, node = str(announced["host"]), announced.get("node")
    is_elsewhere = node != (client.node or "")
    with contextlib.suppress(ValueError):
        if is_elsewhere and (host == "localhost" or ipaddress.ip_address(host).is_loopback):
            return f"it listens at {host} of node {node!r}: start it with --listen ADDRESS"
    return f"connection refused at {host} port {announced['port']}"


def announcements(
    client: farrow.Client, prefix: str, *, all_nodes: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects below a prefix that may be announcements; any client may have put them."""
    listed = client.list(prefix, all_nodes=all_nodes)
    for name, size in zip(listed["name"].to_pylist(), listed["bytes"].to_pylist(), strict=True):
        try:
            found = json.loads(client.get(name).to_pybytes()) if size <= _BYTES_MAX else None
        except (farrow.FarrowError, ValueError, AttributeError, RecursionError):
            # Deleted meanwhile, on a node that was lost meanwhile, or no announcement.
            continue
        if isinstance(found, dict):
            yield name, found


def _connected(name: str, announced: dict[str, Any], deadline: Deadline) -> Worker | Exception:
    try:
        return _connect(name, announced, deadline)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, farrow.FarrowError) as error:
        return error


def _connect(name: str, announced: dict[str, Any], deadline: Deadline) -> Worker:
    # Never without encryption: what announces none is another version.
    for what, own in (("protocol", PROTOCOL), ("datafusion", datafusion.__version__)):
        if announced.get(what) != own:
            raise NotTheWorker(f"its {what} is {announced.get(what, 1)}, here it is {own}")
    address = (str(announced["host"]), int(announced["port"]))
    if not 0 < address[1] < 1 << 16:
        raise ValueError(f"a port {address[1]}")
    key = bytes.fromhex(announced["key"])
    seconds = deadline.left(_CONNECT_SECONDS)
    channel = client_channel(address, str(announced["certificate"]), key, seconds)
    return Worker(name, str(announced["node"]), channel)
