"""Addresses of this machine alone: its names, and free ports for nodes that are started again."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

__all__ = ["LOOPBACK_HOSTS", "free_addresses"]

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

_LOWEST = 10_000
# Default first port of outgoing connections, if the kernel does not report another (ip(7)).
_OUTGOING_FROM = 32_768
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1_000
# No port is returned twice: the first caller may not listen yet.
_given: set[int] = set()


def free_addresses(count: int) -> list[str]:
    """Return ``count`` different loopback addresses at which no process listens.

    No port is in the kernel's range for outgoing connections: a connection could take such a port
    while the node that listened there restarts.

    Raises:
        OSError: no free port was found.
    """
    highest = _outgoing_from() - 1
    found: list[str] = []
    for _ in range(_TRIES + count):
        if len(found) == count:
            return found
        port = _LOWEST + secrets.randbelow(highest - _LOWEST + 1)
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(f"127.0.0.1:{port}")
    raise OSError(f"{len(found)} of {count} free ports from {_LOWEST} to {highest}")


def _outgoing_from() -> int:
    try:
        lowest = int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _OUTGOING_FROM
    # The range may leave no room below it.
    return lowest if lowest > _LOWEST + _TRIES else 1 << 16


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
