"""Notifications of sealed and deleted objects, as clients of Plasma read them."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from typing import TYPE_CHECKING, TypeAlias

from farrow import exceptions as _exceptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from farrow.events import Event, Subscription

__all__ = ["ID_BYTES", "Notifications", "RawNotification", "unpacked"]

ID_BYTES = 20
# A message of the notification socket: its length, then the id and the sizes.
_LENGTH = struct.Struct("=L" if struct.calcsize("L") == 4 else "=Q")
_NOTIFICATION = struct.Struct(f"={ID_BYTES}sqq")
# Notifications that wait to be read.
_COLLECTED_MAX = 1_000_000

# Id, data bytes, metadata bytes.
RawNotification: TypeAlias = tuple[bytes, int, int]


def unpacked(buf: bytes) -> list[RawNotification]:
    """The notifications in a message of the socket.

    Raises:
        InvalidArgument: the length is not that of notifications.
    """
    if len(buf) % _NOTIFICATION.size:
        raise _exceptions.InvalidArgument(f"{len(buf)} bytes are no notification")
    return list(_NOTIFICATION.iter_unpack(buf))


class Notifications:
    """Notifications, collected by a thread: the node keeps only the last few thousand events."""

    def __init__(
        self, subscription: Subscription, convert: Callable[[Event], RawNotification | None]
    ) -> None:
        self._subscription = subscription
        self._convert = convert
        self._collected: queue.Queue[RawNotification | Exception] = queue.Queue(_COLLECTED_MAX)
        self._channel: tuple[socket.socket, socket.socket] | None = None
        self._start(self._collect)

    def _start(self, body: Callable[[], None]) -> None:
        threading.Thread(target=body, name="farrow-plasma", daemon=True).start()

    def _collect(self) -> None:
        try:
            for event in self._subscription:
                notification = self._convert(event)
                if notification is not None:
                    self._collected.put_nowait(notification)
            self._end(_exceptions.Disconnected("this client was disconnected"))
        except queue.Full:
            self._end(_exceptions.LimitReached(f"{_COLLECTED_MAX} notifications were not read"))
        except _exceptions.FarrowError as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        """The error of the next call that finds no notification."""
        self._subscription.close()
        while True:
            try:
                return self._collected.put_nowait(error)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._collected.get_nowait()

    def next(self) -> RawNotification:
        if self._channel is not None:
            raise _exceptions.InvalidArgument("get_notification_socket() has the notifications")
        return self._next()

    def _next(self) -> RawNotification:
        found = self._collected.get()
        if isinstance(found, Exception):
            self._collected.put(found)
            raise found
        return found

    def to_socket(self) -> socket.socket:
        if self._channel is None:
            self._channel = socket.socketpair()
            self._start(self._write)
        return self._channel[0]

    def _write(self) -> None:
        assert self._channel is not None
        with self._channel[1] as writer, contextlib.suppress(_exceptions.FarrowError, OSError):
            while True:
                message = _NOTIFICATION.pack(*self._next())
                writer.sendall(_LENGTH.pack(len(message)) + message)

    def close(self) -> None:
        """End the threads."""
        self._subscription.close()
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel[0].shutdown(socket.SHUT_RD)
