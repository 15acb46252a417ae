"""Addresses for nodes that are started on this machine and may be started again."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

__all__ = ["free_addresses"]

_LOWEST = 10_000
# What the kernel takes for connections to elsewhere, unless it says otherwise (ip(7)).
_OUTGOING_FROM = 32_768
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1_000
# No port is given twice: who asked first may not listen yet.
_given: set[int] = set()


def free_addresses(count: int) -> list[str]:
    """Return so many addresses of loopback at which nobody listens, all different.

    None of them is one that the kernel would give to a connection to elsewhere: such a port can be
    taken while a node that listened there is being started again.

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
    # A machine may leave nothing below.
    return lowest if lowest > _LOWEST + _TRIES else 1 << 16


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
