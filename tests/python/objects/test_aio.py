"""``farrow.aio``: no call blocks the loop, and a cancelled task leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
import farrow.aio
from conftest import LIMIT_SECONDS, run_python

if TYPE_CHECKING:
    from conftest import Node


def test_calls_do_not_block_the_loop(node: Node) -> None:
    """A ``get`` with a timeout in a coroutine stopped every other task for that time."""

    async def main() -> list[int]:
        async with await farrow.aio.connect(node.socket) as client:
            waiting = asyncio.create_task(client.get("later", timeout=LIMIT_SECONDS))
            for _ in range(20):
                # The loop runs while the call waits.
                await asyncio.sleep(0.001)
            assert not waiting.done()
            reference = await client.put(pa.array([1, 2, 3]), "later")
            assert reference.name == "later"
            assert await client.contains("later")
            assert await client.wait(["later", "never"], num=1) == [True, False]
            assert (await client.list("la")).num_rows == 1
            assert (await client.stats())["objects"] == 1
            references = await client.put_many([b"one", b"two"])
            values = await client.get_many(references)
            assert [value.to_pybytes() for value in values] == [b"one", b"two"]
            await client.delete(references)
            with pytest.raises(farrow.NotFound):
                await client.get("never")
            found: list[int] = (await waiting).to_pylist()
        with pytest.raises(farrow.Disconnected):
            client.sync.stats()
        return found

    assert asyncio.run(main()) == [1, 2, 3]


def test_more_tasks_than_threads(node: Node) -> None:
    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            tasks = [client.get("later", timeout=LIMIT_SECONDS) for _ in range(20)]
            gathered = asyncio.gather(*tasks)
            await client.put(b"hello", "later")
            assert [value.to_pybytes() for value in await gathered] == [b"hello"] * 20

    asyncio.run(main())


def test_waiting_calls_do_not_delay_the_put_that_they_wait_for(node: Node) -> None:
    """All threads waited for objects: the ``put`` of a further one had no thread until they gave
    up."""
    count = farrow.aio.THREADS

    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            gets = (client.get(f"job/{n}", timeout=LIMIT_SECONDS) for n in range(count + 8))
            waiting = [asyncio.create_task(get) for get in gets]
            blocked = client.wait(["job/0"], timeout=LIMIT_SECONDS)
            # It is after all threads that wait.
            waiting.append(asyncio.create_task(blocked))
            await asyncio.sleep(0.1)
            assert (await client.stats())["objects"] == 0
            assert not await client.contains("job/0")
            with await client.subscribe("job/", timeout=LIMIT_SECONDS):
                pass
            assert (await client.list("job/")).num_rows == 0
            with pytest.raises(farrow.NotFound):
                await client.get("job/0")
            await client.put_many([b"0", b"1"], ["job/0", "job/1"])
            for n in range(2, count + 8):
                await client.put(f"{n}".encode(), f"job/{n}")
            *values, found = await asyncio.gather(*waiting)
            assert [int(value.to_pybytes()) for value in values] == list(range(count + 8))
            assert found == [True]

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < LIMIT_SECONDS


def test_gets_do_not_delay_the_put_that_waits_for_room(node: Node) -> None:
    """It had the same threads: all gets timed out, though the room was there."""

    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            gets = (client.get("x", timeout=LIMIT_SECONDS) for _ in range(farrow.aio.THREADS))
            waiting = [asyncio.create_task(get) for get in gets]
            await asyncio.sleep(0.1)
            await client.put(b"hello", "x", wait=LIMIT_SECONDS)
            values = await asyncio.gather(*waiting)
            assert all(value.to_pybytes() == b"hello" for value in values)

    asyncio.run(main())


def test_a_timeout_includes_the_wait_for_a_thread(node: Node) -> None:
    """A call began its time with its thread, and so waited for the timeouts of other calls.  The
    parties of a barrier waited for each other's threads."""

    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            await client.put(b"hello", "there")
            gets = (client.get(f"never/{n}", timeout=20.0) for n in range(farrow.aio.THREADS))
            waiting = [asyncio.create_task(get) for get in gets]
            await asyncio.sleep(0.1)
            with pytest.raises(farrow.Timeout, match="32 threads"):
                await client.get("late", timeout=0.1)
            assert (await client.get("there", timeout=0.1)).to_pybytes() == b"hello"
            assert await client.wait(["there", "late"], timeout=0.1) == [True, False]
            with pytest.raises(farrow.LimitReached, match="no thread for a barrier") as full:
                await client.barrier("b", 2, timeout=20.0)
            assert full.value.limit == farrow.aio.THREADS
            # A negative time is the same error as without a thread.
            with pytest.raises(farrow.InvalidArgument, match="-1"):
                await client.get("late", timeout=-1)
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await client.barrier("b", 1, timeout=LIMIT_SECONDS)

    asyncio.run(main())


def test_a_forked_child_learns_that_the_client_is_not_its_own(node: Node) -> None:
    """It has none of the threads: its calls never ended."""
    script = f"""
import asyncio, os, sys, farrow, farrow.aio

async def connected():
    client = await farrow.aio.connect({node.socket!r})
    await client.put(b"x", "x")
    await client.get("x")
    return client

async def use(client):
    for call in (client.get("x"), client.get("y", timeout=5), client.put(b"y", wait=5)):
        try:
            await asyncio.wait_for(call, {LIMIT_SECONDS})
        except farrow.Disconnected as error:
            print(error, flush=True)
    await client.close()

client = asyncio.run(connected())
child = os.fork()
if child == 0:
    try:
        asyncio.run(use(client))
    finally:
        os._exit(0)
os.waitpid(child, 0)
print(asyncio.run(client.get("x")).to_pybytes())
"""
    *reported, last = run_python(script).splitlines()
    assert len(reported) == 3, reported
    assert all("belongs to process" in words for words in reported), reported
    assert last == "b'x'"


def test_a_closed_client_says_so(node: Node) -> None:
    """Its calls raised ``RuntimeError: cannot schedule new futures after shutdown``."""

    async def main() -> None:
        client = await farrow.aio.connect(node.socket)
        await client.close()
        for call in (client.get("x"), client.get("x", timeout=5.0), client.put(b"x", wait=5.0)):
            with pytest.raises(farrow.Disconnected, match="the client is closed"):
                await call
        await client.close()

    asyncio.run(main())


def test_close_does_not_block_the_loop() -> None:
    """It waits for the answer of the node to a goodbye, on the thread of the loop."""
    goes_on = threading.Event()

    class Slow:
        def close(self) -> None:
            assert goes_on.wait(LIMIT_SECONDS / 3), "the loop is blocked"

    async def main() -> None:
        client: Any = Slow()
        closing = asyncio.create_task(farrow.aio.AsyncClient(client).close())
        await asyncio.sleep(0.01)
        goes_on.set()
        await closing

    asyncio.run(main())


def test_a_cancelled_task_ends_its_call(node: Node) -> None:
    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            task = asyncio.create_task(client.get("never", timeout=3600.0))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.barrier("b", 2, timeout=3600.0), 0.1)
            # The other party is alone: the first one has left.
            with pytest.raises(farrow.BarrierBroken, match="1 of 2 parties"):
                await client.barrier("b", 2, timeout=0.3)

    began = time.monotonic()
    # The threads of the calls have ended, or this would wait for an hour.
    asyncio.run(main())
    assert time.monotonic() - began < LIMIT_SECONDS


def test_a_cancelled_task_does_not_wait_for_a_thread(node: Node) -> None:
    """Regression test: all threads of a client waited for objects.  A further task, whose call had
    not begun, was cancelled: it hung until one of the threads was free."""

    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            gets = (client.get(f"never/{n}", timeout=20.0) for n in range(farrow.aio.THREADS))
            waiting = [asyncio.create_task(get) for get in gets]
            late = asyncio.create_task(client.get("late", timeout=20.0))
            await asyncio.sleep(0.1)
            late.cancel()
            await asyncio.wait([late])
            assert late.cancelled()
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    asyncio.run(main())


def test_events_are_an_asynchronous_iterator(node: Node) -> None:
    async def main() -> list[str | None]:
        async with await farrow.aio.connect(node.socket) as client:
            events = await client.subscribe("e/", timeout=LIMIT_SECONDS)
            await client.put(b"1", "e/1")
            await client.put(b"2", "e/2")
            names = []
            async for event in events:
                names.append(event.name)
                if len(names) == 2:
                    break
            return names

    assert asyncio.run(main()) == ["e/1", "e/2"]


def test_a_failed_connect_is_an_error(node: Node) -> None:
    async def main() -> None:
        with pytest.raises(farrow.Disconnected):
            await farrow.aio.connect(node.socket + ".not", timeout=0.2)

    asyncio.run(main())


@pytest.mark.parametrize("is_many", [False, True])
def test_a_put_that_completes_after_its_task_was_cancelled_leaves_no_unnamed_object(
    node: Node, is_many: bool
) -> None:
    """Nobody could find it, so its memory never came back."""
    value = bytes(8 << 20)

    async def main() -> None:
        async with await farrow.aio.connect(node.socket) as client:
            cancelled = 0
            for number in range(30):
                put = client.put_many([value], [None]) if is_many else client.put(value)
                try:
                    reference = await asyncio.wait_for(put, number * 0.0002)
                except asyncio.TimeoutError:
                    cancelled += 1
                else:
                    await client.delete([reference] if not is_many else reference)
            assert cancelled > 0
            assert (await client.stats())["objects"] == 0
            # One with a name is found by it, whether or not its task was cancelled.
            await client.put(b"hello", "named")
            assert await client.contains("named")

    asyncio.run(main())


def test_a_put_whose_task_is_cancelled_twice_leaves_no_unnamed_object() -> None:
    """The second cancel ended the wait for the call, and what it made was not removed."""
    begun, goes_on, removed = threading.Event(), threading.Event(), threading.Event()

    def call() -> str:
        begun.set()
        goes_on.wait(LIMIT_SECONDS)
        return "object"

    threads = farrow.aio._Threads(2, "test")

    def undo(made: str) -> Any:
        assert made == "object"
        return threads.submit(removed.set)

    async def main() -> None:
        task = asyncio.ensure_future(farrow.aio._run(threads, call, undo))
        await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(removed.wait, LIMIT_SECONDS)

    try:
        asyncio.run(main())
    finally:
        threads.shutdown()
