"""Messages between client and worker: a JSON object and blobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow_sql._errors import QueryFailed
from farrow_sql._exchange import Output
from farrow_sql._worker._task import Done, Inputs, Task

if TYPE_CHECKING:
    from farrow_sql._worker._channel import Channel

__all__ = ["answer_of", "done_of", "message_of", "receive", "send", "task_of"]

# Plans have some KB; an exchange that is too small for an object has less than 64 KiB.
_BYTES_MAX = 64 << 20
_BLOBS_MAX = 65536
# Of all blobs of a message.
_TOTAL_BYTES_MAX = 1 << 30


def send(channel: Channel, message: dict[str, Any], blobs: list[bytes]) -> None:
    """Send a message; its blobs follow it."""
    channel.send_bytes(json.dumps({**message, "blobs": len(blobs)}).encode())
    for blob in blobs:
        channel.send_bytes(blob)


def receive(channel: Channel) -> tuple[dict[str, Any], list[bytes]]:
    """The next message, and its blobs.

    Raises:
        EOFError, OSError: the other side has ended.
        QueryFailed: it is no message.
    """
    text = channel.recv_bytes(_BYTES_MAX)
    try:
        message = json.loads(text)
        count = message["blobs"]
    except (ValueError, TypeError, KeyError) as error:
        raise QueryFailed(f"a message of {len(text)} B that is none: {error!r}") from None
    if not isinstance(count, int) or not 0 <= count <= _BLOBS_MAX:
        raise QueryFailed(f"a message with {count!r} blobs; at most {_BLOBS_MAX} are read")
    blobs: list[bytes] = []
    left = _TOTAL_BYTES_MAX
    for _ in range(count):
        blobs.append(channel.recv_bytes(min(left, _BYTES_MAX)))
        left -= len(blobs[-1])
    return message, blobs


def message_of(task: Task) -> tuple[dict[str, Any], list[bytes]]:
    """The message of a task, and its blobs."""
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
                "nodes": one.nodes,
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
                [str(node) for node in one["nodes"]],
                outputs=outputs,
                is_table=bool(one["is_table"]),
            )
        )
    return Task(plan, inputs)


def answer_of(done: Done) -> tuple[dict[str, Any], list[bytes]]:
    """The message of what a task has done, and its blobs."""
    heads = [one.head() for one in done.outputs]
    return {"outputs": heads, "bytes_moved": done.bytes_moved}, [one.data for one in done.outputs]


def done_of(message: dict[str, Any], blobs: list[bytes]) -> Done:
    """What a task has done.

    Raises:
        KeyError, ValueError, TypeError: the message has another form.
    """
    pairs = zip(message["outputs"], blobs, strict=True)
    return Done([Output(**head, data=blob) for head, blob in pairs], int(message["bytes_moved"]))
