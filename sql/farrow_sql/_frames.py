"""Messages between client and worker: a JSON object and blobs, over an authenticated connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from farrow_sql._errors import QueryFailed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["receive", "send"]

# Plans have some KB; an exchange that is too small for an object has less than 64 KiB.
_BYTES_MAX = 64 << 20
_BLOBS_MAX = 65536


def send(connection: Connection, message: dict[str, Any], blobs: list[bytes]) -> None:
    """Send a message; its blobs follow it."""
    connection.send_bytes(json.dumps({**message, "blobs": len(blobs)}).encode())
    for blob in blobs:
        connection.send_bytes(blob)


def receive(connection: Connection) -> tuple[dict[str, Any], list[bytes]]:
    """The next message, and its blobs.

    Raises:
        EOFError, OSError: the other side has ended.
        QueryFailed: it is no message.
    """
    text = connection.recv_bytes(_BYTES_MAX)
    try:
        message = json.loads(text)
        count = message["blobs"]
    except (ValueError, TypeError, KeyError) as error:
        raise QueryFailed(f"a message of {len(text)} B that is none: {error!r}") from None
    if not isinstance(count, int) or not 0 <= count <= _BLOBS_MAX:
        raise QueryFailed(f"a message with {count!r} blobs; at most {_BLOBS_MAX} are read")
    return message, [connection.recv_bytes(_BYTES_MAX) for _ in range(count)]
