"""Farrow for asyncio: calls that wait for the node or for other programs do not block the loop.

    client = await farrow.aio.connect()
    table = await client.get("trades", timeout=60)

Each call runs on a thread of the client's own pool.  Cancelling the task ends a waiting call within
a tenth of a second, as Ctrl-C does, and leaves nothing behind.  A call that is about to change
something, such as the seal of a ``put``, completes nevertheless.
"""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import farrow
from farrow._native import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from farrow._types import Target
    from farrow.events import Subscription

    T = TypeVar("T")

__all__ = ["AsyncClient", "connect"]

# Calls of one client that wait at the same time; further ones wait for a thread.
THREADS = 32


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
        >>> async def main():
        ...     async with await farrow.aio.connect(client.address) as mine:
        ...         await mine.put(b"hello", "aio")
        ...         return (await mine.get("aio")).to_pybytes()
        >>> asyncio.run(main())
        b'hello'
    """
    threads = _threads()
    try:
        call = functools.partial(farrow.connect, address, timeout=timeout, namespace=namespace)
        return AsyncClient(await _run(threads, call), threads)
    except BaseException:
        threads.shutdown(wait=False)
        raise


class AsyncClient:
    """A connection to one node for asyncio; made by ``farrow.aio.connect``.

    Has the calls of ``farrow.Client`` that can wait, as coroutines with the same arguments, results
    and errors.  ``sync`` is the client itself, for all other calls.

    Attributes:
        sync: the ``farrow.Client`` of the connection.
    """

    def __init__(self, client: farrow.Client, threads: ThreadPoolExecutor | None = None) -> None:
        self.sync = client
        self._threads = threads or _threads()

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
        """``Client.close``, and the end of the client's threads once their calls have ended."""
        self.sync.close()
        self._threads.shutdown(wait=False)

    async def put(self, obj: Any, name: str | None = None, **options: Any) -> farrow.ObjectRef:
        """``Client.put``."""
        return await self._call(self.sync.put, obj, name, **options)

    async def put_many(
        self, objs: Iterable[Any], names: Sequence[str | None] | None = None, **options: Any
    ) -> list[farrow.ObjectRef]:
        """``Client.put_many``."""
        return await self._call(self.sync.put_many, objs, names, **options)

    async def get(self, target: Target, *, timeout: float = 0.0, **options: Any) -> Any:
        """``Client.get``."""
        return await self._call(self.sync.get, target, timeout=timeout, **options)

    async def get_many(self, targets: Iterable[Target], *, timeout: float = 0.0) -> list[Any]:
        """``Client.get_many``."""
        return await self._call(self.sync.get_many, targets, timeout=timeout)

    async def contains(self, target: Target) -> bool:
        """``Client.contains``."""
        return await self._call(self.sync.contains, target)

    async def wait(
        self, targets: Iterable[Target], *, num: int | None = None, timeout: float = 10.0
    ) -> list[bool]:
        """``Client.wait``."""
        return await self._call(self.sync.wait, targets, num=num, timeout=timeout)

    async def delete(self, target: Target | Iterable[Target]) -> None:
        """``Client.delete``."""
        await self._call(self.sync.delete, target)

    async def list(self, prefix: str = "", **options: Any) -> Any:
        """``Client.list``."""
        return await self._call(self.sync.list, prefix, **options)

    async def stats(self, **options: Any) -> dict[str, Any]:
        """``Client.stats``."""
        return await self._call(self.sync.stats, **options)

    async def barrier(self, name: str, parties: int, *, timeout: float = 60.0) -> None:
        """``Client.barrier``."""
        await self._call(self.sync.barrier, name, parties, timeout=timeout)

    async def subscribe(self, prefix: str = "", **options: Any) -> Subscription:
        """``Client.subscribe``; its result is an asynchronous iterator."""
        return await self._call(self.sync.subscribe, prefix, **options)

    async def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return await _run(self._threads, functools.partial(function, *args, **options))


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="farrow-aio")


async def _run(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """The result of a call on a thread; a cancelled task cancels it, and waits for its end."""
    token = CancelToken()
    job = threads.submit(token.run, call)
    running: asyncio.Future[T] = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # A call that waits for a thread has not begun.
        if not job.cancel():
            token.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                # Read, so that the loop does not report it: no task waits for it any more.
                running.exception()
        raise
