"""Accept the clients of a worker, among strangers.

Any process that reaches the port can connect.  Before a connection has proved that it knows the
key it costs a thread, has a deadline, and is one of a limited number: of the address with the most
of them, the oldest is cut for a new one.  So neither silence nor a flood excludes the clients of
other addresses.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import wait

from farrow_sql._errors import QueryFailed
from farrow_sql._worker._channel import KEY_BYTES, READY, Channel, keep_alive, shut_down

__all__ = ["Acceptor"]

# Of a process of a worker; each has a thread and some 50 KB of TLS.
PENDING_MAX = 32
# From the connection to the key: milliseconds in a network that works.
HANDSHAKE_SECONDS = 5.0


@dataclass
class _Pending:
    connection: socket.socket
    address: str
    end: float


class Acceptor:
    """The door of one process of a worker.

    Args:
        listener: a listening socket, which processes may share.
        context: the certificate of the worker.
        key: what clients send.
    """

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, key: bytes) -> None:
        self._listener = listener
        # Another process may have taken the connection that this one was told of.
        listener.setblocking(False)
        self._context = context
        self._key = key
        self._pending: list[_Pending] = []
        self._accepted: Channel | None = None
        self._lock = threading.Lock()
        self._woken, self._wake = os.pipe()

    def accept(self) -> Channel:
        """The next connection that proves to be a client's, however long that takes.

        Other connections that this process had accepted by then are cut.  Their clients connect
        again, and find another process.
        """
        while True:
            with self._lock:
                ends = [one.end for one in self._pending]
            seconds = max(min(ends) - time.monotonic(), 0) if ends else None
            ready = wait([self._listener, self._woken], seconds)
            if self._woken in ready:
                os.read(self._woken, 4096)
            with self._lock:
                channel, self._accepted = self._accepted, None
                now = time.monotonic()
                self._cut([one for one in self._pending if channel is not None or one.end <= now])
            if channel is not None:
                try:
                    channel.send_bytes(READY)
                    return channel
                except OSError:
                    channel.close()
            if self._listener in ready:
                self._take()

    def _take(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptors are left, or the connection has ended already.
            time.sleep(0.01)
            return
        one = _Pending(connection, str(address[0]), time.monotonic() + HANDSHAKE_SECONDS)
        with self._lock:
            if len(self._pending) >= PENDING_MAX:
                [(most, _)] = Counter(other.address for other in self._pending).most_common(1)
                self._cut([other for other in self._pending if other.address == most][:1])
            self._pending.append(one)
        threading.Thread(target=self._greet, args=(one,), daemon=True).start()

    def _cut(self, ended: list[_Pending]) -> None:
        for one in ended:
            self._pending.remove(one)
            shut_down(one.connection)

    def _greet(self, one: _Pending) -> None:
        """Identify the peer; the end of the connection, from either side, ends the thread."""
        channel = None
        with contextlib.suppress(OSError, EOFError, QueryFailed, ValueError):
            keep_alive(one.connection)
            one.connection.settimeout(None)
            # The connection itself stays open, so that it can be cut at any time.
            own = one.connection.dup()
            channel = self._authenticated(own)
        with self._lock:
            is_first = one in self._pending and self._accepted is None
            if one in self._pending:
                self._pending.remove(one)
            if channel is not None and is_first:
                self._accepted, channel = channel, None
            one.connection.close()
        if channel is not None:
            channel.close()
        os.write(self._wake, b"w")

    def _authenticated(self, connection: socket.socket) -> Channel | None:
        try:
            stream = self._context.wrap_socket(connection, server_side=True)
        except BaseException:
            connection.close()
            raise
        channel = Channel(stream)
        try:
            if hmac.compare_digest(channel.recv_bytes(KEY_BYTES), self._key):
                return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
        return None
