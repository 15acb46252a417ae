"""Find the workers of a cluster, and talk to one.

A worker announces itself by an object with its address, the hash of its certificate and a key.
Whoever may read the objects of the namespace may send it tasks.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import datafusion

import farrow
from farrow_sql._channel import Channel, NotTheWorker, client_channel
from farrow_sql._errors import raised
from farrow_sql._exchange import delete_leftovers
from farrow_sql._messages import done_of, message_of, receive, send

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from farrow_sql._task import Done, Task

__all__ = ["PREFIX", "PROTOCOL", "Found", "Worker", "WorkerLost", "workers"]

PREFIX = "farrow.sql/workers/"
# Of connections and messages; 1 had no encryption.
PROTOCOL = 2
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


def workers(client: farrow.Client, lost: Collection[str] = ()) -> Found:
    """Connections to all workers that answer and have the same versions, by node; announcements of
    ended ones are deleted.

    Another version of DataFusion may understand a plan in another way, and place rows by another
    hash.

    Args:
        client: the client that finds the announcements.
        lost: the names of workers that are not used.
    """
    found = Found()
    for name, announced in _announced(client):
        short = name[len(PREFIX) :]
        if short in lost:
            found.unused.append(f"worker {short}: it, or its node, has ended during the query")
            continue
        try:
            found.workers.append(_connect(short, announced))
        except ConnectionRefusedError:
            # The machine answers, and nothing listens: the worker was killed.
            with contextlib.suppress(farrow.FarrowError):
                client.delete(name)
            delete_leftovers(client, worker=name)
        except (OSError, ValueError, TypeError, KeyError, farrow.FarrowError) as error:
            # Another worker has the port by now, or the machine does not answer.
            found.unused.append(f"worker {short}: {error}")
    found.workers.sort(key=lambda worker: (worker.node, worker.name))
    return found


def _announced(client: farrow.Client) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in client.list(PREFIX, all_nodes=True)["name"].to_pylist():
        try:
            yield name, json.loads(client.get(name).to_pybytes())
        except (farrow.FarrowError, ValueError, AttributeError):
            # Deleted meanwhile, on a node that was lost meanwhile, or no announcement.
            continue


def _connect(name: str, announced: dict[str, Any]) -> Worker:
    # Never without encryption: what announces none is another version.
    for what, own in (("protocol", PROTOCOL), ("datafusion", datafusion.__version__)):
        if announced.get(what) != own:
            raise NotTheWorker(f"its {what} is {announced.get(what, 1)}, here it is {own}")
    address = (str(announced["host"]), int(announced["port"]))
    key = bytes.fromhex(announced["key"])
    channel = client_channel(address, str(announced["certificate"]), key, _CONNECT_SECONDS)
    return Worker(name, str(announced["node"]), channel)
