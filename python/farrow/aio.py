"""Farrow for asyncio: calls that wait for the node or for other programs do not block the loop.

    client = await farrow.aio.connect()
    table = await client.get("trades", timeout=60)

Each call runs on a thread of the client.  Calls that wait for other programs have threads of their
own, and so have puts that wait for room, so that no other call is behind them.  Cancelling the task
ends a waiting call within a tenth of a second, as Ctrl-C does, and leaves nothing behind.  A call
that is about to change something, such as the seal of a ``put``, completes nevertheless; the object
is deleted again if it has no name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import farrow
from farrow._native import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from farrow._values._types import Target
    from farrow.events import Subscription

    T = TypeVar("T")

__all__ = ["AsyncClient", "connect"]

# Calls of one client that wait for other programs at the same time; further ones wait for a thread.
THREADS = 32
# Puts that wait for room at the same time. They wait for deletes, never for the calls above.
ROOM_THREADS = 32
# All other calls, which can be what the waiting ones wait for. Only transfers of objects from other
# nodes take long.
SHORT_THREADS = 32
# What is left of the time of a call that got its thread late; without any, it would not wait.
LEAST_SECONDS = 0.001
# Event loops take no infinite delay. Longer waits for a thread end with the thread.
THREAD_SECONDS_MAX = 86_400.0


async def connect(
    address: str | os.PathLike[str] | None = None, *, timeout: float = 10.0, namespace: str = ""
) -> AsyncClient:
    """Connect to a node of this machine, as ``farrow.connect`` does.

    Args:
        address: path of the node's socket; None: as ``farrow.connect``.
        timeout: seconds to connect, including the start of a private node.
        namespace: the namespace of the client.

    Returns:
        A client whose methods are coroutines.

    Raises:
        Disconnected, Timeout, ...: as ``farrow.connect``.

    Examples:
        >>> import asyncio
        >>> import farrow.aio
        >>> async def main():
        ...     async with await farrow.aio.connect(client.address) as mine:
        ...         await mine.put(b"hello", "aio")
        ...         return (await mine.get("aio")).to_pybytes()
        >>> asyncio.run(main())
        b'hello'
    """
    threads = _ClientThreads()
    try:
        call = functools.partial(farrow.connect, address, timeout=timeout, namespace=namespace)
        return AsyncClient(await _run(threads.waiting, call), threads)
    except BaseException:
        threads.shutdown()
        raise


class AsyncClient:
    """A connection to one node for asyncio; made by ``farrow.aio.connect``.

    Has the calls of ``farrow.Client`` that can wait, as coroutines with the same arguments, results
    and errors.  ``sync`` is the client itself, for all other calls.

    Attributes:
        sync: the ``farrow.Client`` of the connection.

    Examples:
        >>> import asyncio
        >>> import farrow.aio
        >>> async def main():
        ...     async with await farrow.aio.connect(client.address) as mine:
        ...         await mine.put(b"hello", "aio/client")
        ...         return mine.sync.list("aio/client").num_rows
        >>> asyncio.run(main())
        1
    """

    def __init__(self, client: farrow.Client, threads: _ClientThreads | None = None) -> None:
        self.sync = client
        self._threads = threads or _ClientThreads()

    def __repr__(self) -> str:
        return f"<farrow.aio.AsyncClient of {self.sync!r}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """``Client.close``, and the end of the client's threads once their calls have ended.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     mine = await farrow.aio.connect(client.address)
            ...     await mine.close()
            >>> asyncio.run(main())
        """
        # It waits for a node that does not answer, and for no other call.
        closing = _Threads(1, "farrow-aio-close")
        try:
            await _run(closing, self.sync.close)
        finally:
            closing.shutdown()
            self._threads.shutdown()

    async def put(self, obj: Any, name: str | None = None, **options: Any) -> farrow.ObjectRef:
        """``Client.put``: seal a value, under a name if there is one.

        Args:
            obj: the value.
            name: its name; None: it has none.
            options: the other arguments of ``Client.put``, by keyword.

        Returns:
            The object.

        Raises:
            FarrowError: as ``Client.put``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         reference = await mine.put(b"hello", "aio/put")
            ...         return reference.name
            >>> asyncio.run(main())
            'aio/put'
        """
        call = functools.partial(self.sync.put, obj, name, **options)
        return await self._put(call, lambda made: [made] if name is None else [])

    async def put_many(
        self, objs: Iterable[Any], names: Sequence[str | None] | None = None, **options: Any
    ) -> list[farrow.ObjectRef]:
        """``Client.put_many``: seal several values with one message.

        Args:
            objs: the values.
            names: their names, with None for a value without one; None: no value has one.
            options: the other arguments of ``Client.put_many``, by keyword.

        Returns:
            The objects, in the order of the values.

        Raises:
            FarrowError: as ``Client.put_many``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         return len(await mine.put_many([b"one", b"two"]))
            >>> asyncio.run(main())
            2
        """
        call = functools.partial(self.sync.put_many, objs, names, **options)
        return await self._put(call, lambda made: [one for one in made if one.name is None])

    async def get(self, target: Target, *, timeout: float = 0.0, **options: Any) -> Any:
        """``Client.get``: the value of an object, in place.

        Args:
            target: a name, an id, or what ``put`` returned.
            timeout: seconds to wait for the name to be sealed.
            options: the other arguments of ``Client.get``, by keyword.

        Returns:
            The value, of the kind that was put.

        Raises:
            FarrowError: as ``Client.get``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         await mine.put(b"hello", "aio/get")
            ...         return (await mine.get("aio/get", timeout=1)).to_pybytes()
            >>> asyncio.run(main())
            b'hello'
        """
        return await self._call(self.sync.get, target, timeout=timeout, **options)

    async def get_many(self, targets: Iterable[Target], *, timeout: float = 0.0) -> list[Any]:
        """``Client.get_many``: the values of several objects.

        Args:
            targets: names, ids, or what ``put`` returned.
            timeout: seconds to wait for all names to be sealed.

        Returns:
            The values, in the order of the targets.

        Raises:
            FarrowError: as ``Client.get_many``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         objects = await mine.put_many([b"one", b"two"])
            ...         return [len(value) for value in await mine.get_many(objects)]
            >>> asyncio.run(main())
            [3, 3]
        """
        return await self._call(self.sync.get_many, targets, timeout=timeout)

    async def contains(self, target: Target) -> bool:
        """``Client.contains``: whether there is a sealed object.

        Args:
            target: a name, an id, or what ``put`` returned.

        Returns:
            Whether a ``get`` would find it.

        Raises:
            FarrowError: as ``Client.contains``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         return await mine.contains("aio/nowhere")
            >>> asyncio.run(main())
            False
        """
        return await self._call(self.sync.contains, target)

    async def wait(
        self, targets: Iterable[Target], *, num: int | None = None, timeout: float = 10.0
    ) -> list[bool]:
        """``Client.wait``: wait until objects are sealed.

        Args:
            targets: names, ids, or what ``put`` returned.
            num: the number of objects to wait for; None: all.
            timeout: seconds to wait.

        Returns:
            For each target, whether it is sealed.

        Raises:
            FarrowError: as ``Client.wait``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         await mine.put(b"hello", "aio/wait")
            ...         return await mine.wait(["aio/wait", "aio/later"], num=1)
            >>> asyncio.run(main())
            [True, False]
        """
        return await self._call(self.sync.wait, targets, num=num, timeout=timeout)

    async def delete(self, target: Target | Iterable[Target]) -> None:
        """``Client.delete``: delete objects.

        Args:
            target: a name, an id, what ``put`` returned, or several of these.

        Raises:
            FarrowError: as ``Client.delete``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         await mine.delete(await mine.put(b"hello"))
            >>> asyncio.run(main())
        """
        await self._call(self.sync.delete, target)

    async def list(self, prefix: str = "", **options: Any) -> Any:
        """``Client.list``: the sealed objects.

        Args:
            prefix: the beginning of their names; empty: all objects.
            options: the other arguments of ``Client.list``, by keyword.

        Returns:
            A table with a row for each object.

        Raises:
            FarrowError: as ``Client.list``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         await mine.put(b"hello", "aio/list")
            ...         return (await mine.list("aio/list"))["name"].to_pylist()
            >>> asyncio.run(main())
            ['aio/list']
        """
        return await self._call(self.sync.list, prefix, **options)

    async def stats(self, **options: Any) -> dict[str, Any]:
        """``Client.stats``: the statistics of the node.

        Args:
            options: the arguments of ``Client.stats``, by keyword.

        Returns:
            The statistics by name.

        Raises:
            FarrowError: as ``Client.stats``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         return (await mine.stats())["capacity"] > 0
            >>> asyncio.run(main())
            True
        """
        return await self._call(self.sync.stats, **options)

    async def barrier(self, name: str, parties: int, *, timeout: float = 60.0) -> None:
        """``Client.barrier``: wait until a number of parties have arrived.

        Args:
            name: the name of the barrier.
            parties: the number of parties.
            timeout: seconds to wait for the others.

        Raises:
            LimitReached: 32 other calls of this client wait, so that this one has no thread.
            FarrowError: as ``Client.barrier``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         await mine.barrier("aio/barrier", 1)
            >>> asyncio.run(main())
        """
        # The parties that wait would hold the threads until their timeouts.
        if self._threads.waiting.is_full():
            error = farrow.LimitReached(
                f"no thread for a barrier: {THREADS} other calls of this client wait, and it has"
                f" {THREADS} threads for them"
            )
            error.limit = THREADS
            raise error
        await self._call(self.sync.barrier, name, parties, timeout=timeout)

    async def subscribe(self, prefix: str = "", **options: Any) -> Subscription:
        """``Client.subscribe``: the changes of objects, as an asynchronous iterator.

        Args:
            prefix: the beginning of the names; empty: all objects.
            options: the other arguments of ``Client.subscribe``, by keyword.

        Returns:
            The subscription.

        Raises:
            FarrowError: as ``Client.subscribe``.

        Examples:
            >>> import asyncio
            >>> import farrow.aio
            >>> async def main():
            ...     async with await farrow.aio.connect(client.address) as mine:
            ...         with await mine.subscribe("aio/subscribe") as changes:
            ...             await mine.put(b"hello", "aio/subscribe")
            ...             async for change in changes:
            ...                 return change.name
            >>> asyncio.run(main())
            'aio/subscribe'
        """
        # Its timeout is that of the events.
        call = functools.partial(self.sync.subscribe, prefix, **options)
        return await _run(self._threads.short, call)

    async def _put(
        self, call: functools.partial[T], unnamed: Callable[[T], Sequence[farrow.ObjectRef]]
    ) -> T:
        """The result of a put. If the task was cancelled while it completed, an object without a
        name is deleted: no client could find it."""

        def undo(made: T) -> Future[None]:
            return self._threads.short.submit(_delete, self.sync, unnamed(made))

        return await self._timed(self._threads.room, call, "wait", undo)

    async def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        call = functools.partial(function, *args, **options)
        return await self._timed(self._threads.waiting, call, "timeout")

    async def _timed(
        self,
        threads: _Threads,
        call: functools.partial[T],
        option: str,
        undo: Callable[[T], Future[None]] | None = None,
    ) -> T:
        """The result of a call that waits for the seconds of an option, those included in which no
        thread of these is free.  Without the option, or with no time, it has other threads."""
        seconds = call.keywords.get(option)
        if seconds is None or not seconds > 0:
            return await _run(self._threads.short, call, undo)
        end = time.monotonic() + seconds

        def rest() -> T:
            return call(**{option: max(end - time.monotonic(), LEAST_SECONDS)})

        try:
            return await _run(threads, rest, undo, seconds)
        except _NoThread:
            pass
        try:
            # What it waits for may be there.
            return await _run(self._threads.short, functools.partial(call, **{option: 0.0}), undo)
        except farrow.NotFound:
            error = farrow.Timeout(
                f"timed out after {seconds} s waiting for one of the client's {THREADS} threads,"
                " which wait in other calls"
            )
            error.waited_seconds = seconds
            raise error from None


def _delete(client: farrow.Client, objects: Sequence[farrow.ObjectRef]) -> None:
    with contextlib.suppress(farrow.FarrowError):
        client.delete_many(objects)


class _Threads:
    """Threads for calls of one kind."""

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._count = count
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Calls that have not ended, those included that wait for a thread.
        self._open = 0
        self._is_closed = False

    def are_there(self) -> bool:
        """False after ``close``, and in a forked child, which has none of the threads."""
        return not self._is_closed and self._pid == os.getpid()

    def is_full(self) -> bool:
        """Whether the next call would wait for a thread."""
        with self._lock:
            return self.are_there() and self._open >= self._count

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Call the function on a thread."""
        job = self._executor.submit(function, *args)
        with self._lock:
            self._open += 1
        job.add_done_callback(self._ended)
        return job

    def _ended(self, _: object) -> None:
        with self._lock:
            self._open -= 1

    def shutdown(self) -> None:
        """End the threads once their calls have ended."""
        if self.are_there():
            self._is_closed = True
            self._executor.shutdown(wait=False)


class _ClientThreads:
    """The threads of a client."""

    def __init__(self) -> None:
        self.waiting = _Threads(THREADS, "farrow-aio")
        self.room = _Threads(ROOM_THREADS, "farrow-aio-room")
        self.short = _Threads(SHORT_THREADS, "farrow-aio-short")

    def shutdown(self) -> None:
        """End the threads once their calls have ended."""
        for threads in (self.waiting, self.room, self.short):
            threads.shutdown()


class _NoThread(Exception):
    """No thread was free in time: the call has not begun."""


async def _run(
    threads: _Threads,
    call: Callable[[], T],
    undo: Callable[[T], Future[None]] | None = None,
    begin_within: float | None = None,
) -> T:
    """The result of a call on a thread; a cancelled task cancels it, and waits for its end.

    ``undo`` begins to remove the result of a call that completed nevertheless.
    """
    if not threads.are_there():
        # The client raises an error that says so.
        return call()
    token = CancelToken()
    job = threads.submit(token.run, call)
    running: asyncio.Future[T] = asyncio.wrap_future(job)
    try:
        if begin_within is not None and begin_within < THREAD_SECONDS_MAX:
            await asyncio.wait([running], timeout=begin_within)
            if job.cancel():
                raise _NoThread
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # A call that waits for a thread has not begun.
        if not job.cancel():
            token.cancel()
            removed: Future[None] = Future()
            # By the job, since the task may be cancelled once more while it waits.
            job.add_done_callback(functools.partial(_remove, undo, removed))
            running.add_done_callback(_read)
            await asyncio.wait([running])
            await asyncio.wait([asyncio.wrap_future(removed)])
        raise


def _read(running: asyncio.Future[Any]) -> None:
    """Read an exception that no task waits for, so that the loop does not report it."""
    if not running.cancelled():
        running.exception()


def _remove(
    undo: Callable[[T], Future[None]] | None, removed: Future[None], job: Future[T]
) -> None:
    """Remove the result of a job that has ended, if there is one; ``removed`` ends then."""

    def end(_: object = None) -> None:
        removed.set_result(None)

    if undo is None or job.cancelled() or job.exception() is not None:
        return end()
    try:
        undo(job.result()).add_done_callback(end)
    except RuntimeError:
        # After ``close`` there is no thread, and no client that could delete.
        end()
