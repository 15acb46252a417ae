"""Events of objects, as an iterator and as an asyncio stream.

``client.subscribe(prefix)`` makes a ``Subscription``.  Iterate over it, or use ``async for``::

    for event in client.subscribe("trades/"):
        if isinstance(event, farrow.events.Sealed):
            table = client.get(event.id)

Events arrive in the order in which they happened.  The node remembers the latest ones: some
thousands, more on a larger node.  A subscriber that falls further behind gets one ``Gap`` with the
number of missed events, and continues with the oldest remembered event.  No other event is lost: a
subscription continues after the node restarts.  A subscription to the objects of another node,
``client.subscribe(prefix, node="b")``, ends with ``NodeLost`` when that node is lost.  It uses one
of the 64 remote sessions that the clients of one node have there.

A client seals a small object without a name by itself, without a message to the node; such an
object has an event only for its removal.  While any client subscribes to all sealed objects,
without a prefix, each ``put`` sends a message to the node instead, and all seals are events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from farrow.exceptions import InvalidArgument, Timeout

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Any, TypeAlias

    from farrow._native import EventStream

__all__ = ["Deleted", "Event", "Gap", "Restored", "Sealed", "Spilled", "Subscription"]


@dataclass(frozen=True)
class _Change:
    """Attributes of all events but gaps."""

    id: bytes  # 16 bytes, as ``client.get`` takes them
    name: str | None
    nbytes: int  # of the value
    time_ns: int  # since 1970, by the node's clock


@dataclass(frozen=True)
class Sealed(_Change):
    """An object was sealed: ``get`` returns it."""


@dataclass(frozen=True)
class Deleted(_Change):
    """An object was deleted by a client, or evicted to make room."""

    reason: Literal["deleted", "evicted"] = "deleted"


@dataclass(frozen=True)
class Spilled(_Change):
    """The bytes of an object moved to a file; the next ``get`` restores them."""


@dataclass(frozen=True)
class Restored(_Change):
    """The bytes of a spilled object are back in shared memory."""


@dataclass(frozen=True)
class Gap:
    """Events were overwritten before this subscriber read them."""

    missed: int  # number of events, of any objects


if TYPE_CHECKING:
    Event: TypeAlias = Sealed | Deleted | Spilled | Restored | Gap
else:
    Event = (Sealed, Deleted, Spilled, Restored, Gap)  # for isinstance


_CLASSES: dict[str, type[Sealed | Spilled | Restored]] = {
    "sealed": Sealed,
    "spilled": Spilled,
    "restored": Restored,
}


def _event(item: tuple[Any, ...]) -> Event:
    kind = item[0]
    if kind == "gap":
        return Gap(item[1])
    _, id_, name, nbytes, time_ns = item
    if kind in ("deleted", "evicted"):
        return Deleted(id_, name, nbytes, time_ns, kind)
    return _CLASSES[kind](id_, name, nbytes, time_ns)


class Subscription:
    """A stream of events; made by ``Client.subscribe``.

    An iterator, an asynchronous iterator, and a context manager that closes it.  One thread or
    task at a time may wait for an event; any may close it.

    Examples:
        >>> with client.subscribe("Subscription/", timeout=0.0) as events:
        ...     _ = client.put(b"hello", "Subscription/1")
        ...     [type(event).__name__ for event in events]
        ['Sealed']
    """

    # The longest single wait of asyncio, so that a close from another thread is noticed.
    _SLICE_SECONDS: ClassVar[float] = 1.0

    def __init__(self, stream: EventStream, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument(f"a timeout of {timeout} seconds")
        self._stream = stream
        self._timeout = timeout
        self._is_closed = False

    def next(self, timeout: float | None = None) -> Event:
        """The next event.

        Args:
            timeout: seconds to wait; None: no limit.

        Returns:
            The event, one of the classes of this module.

        Raises:
            Timeout: there was no event in time.
            InvalidArgument: the subscription was closed.
            Disconnected: the node has ended, and no successor started.

        Examples:
            >>> with client.subscribe("next/") as events:
            ...     _ = client.put(b"hello", "next/1")
            ...     events.next(timeout=5.0).nbytes
            5
        """
        event = self._next(timeout)
        if event is not None:
            return event
        if self._is_closed:
            raise InvalidArgument("the subscription is closed")
        raise Timeout(f"no event within {timeout} seconds")

    def _next(self, timeout: float | None) -> Event | None:
        if self._is_closed:
            return None
        item = self._stream.next(timeout)
        return None if item is None else _event(item)

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        event = self._next(self._timeout)
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        import asyncio  # already loaded in an awaiting program; `import farrow` stays light

        loop = asyncio.get_running_loop()
        end = None if self._timeout is None else loop.time() + self._timeout
        while not self._is_closed:
            item = self._stream.take()
            if item is not None:
                return _event(item)
            left = self._SLICE_SECONDS
            if end is not None:
                left = min(left, end - loop.time())
                if left <= 0:
                    break
            # A connection is made on a thread: the node may be away.
            arm = self._stream.arm
            socket, pause = arm() if self._stream.is_connected() else await asyncio.to_thread(arm)
            if socket is None:
                await asyncio.sleep(min(pause, left))
            else:
                await _until_readable(loop, socket, left)
        raise StopAsyncIteration

    def close(self) -> None:
        """End the stream.  Iterations that wait for an event end.

        A second call has no effect.

        Examples:
            >>> events = client.subscribe()
            >>> events.close()
            >>> list(events)
            []
        """
        self._is_closed = True
        self._stream.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _until_readable(loop: asyncio.AbstractEventLoop, socket: int, limit: float) -> None:
    """Wait for the socket, at most ``limit`` seconds."""
    import asyncio

    ready = asyncio.Event()
    loop.add_reader(socket, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), limit)
    except asyncio.TimeoutError:  # not the built-in class before Python 3.11
        pass
    finally:
        loop.remove_reader(socket)
