"""Subscriptions: as an iterator, as an asyncio stream, over restarts of the node, with gaps."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from farrow.events import Deleted, Gap, Sealed


def test_an_iterator(client: farrow.Client) -> None:
    before = client.put(b"before", "n/before")
    events = client.subscribe("n/")
    first = client.put(b"12345", "n/first")
    client.put(b"", "other")
    client.delete([first, before])
    sealed = next(events)
    assert isinstance(sealed, Sealed)
    assert (sealed.id, sealed.name, sealed.nbytes) == (first.id, "n/first", 5)
    assert sealed.time_ns <= client.list("other")["sealed_at"][0].value
    deleted = [events.next(LIMIT_SECONDS), events.next(LIMIT_SECONDS)]
    assert [(event.name, event.reason) for event in deleted if isinstance(event, Deleted)] == [
        ("n/first", "deleted"),
        ("n/before", "deleted"),
    ]
    with pytest.raises(farrow.Timeout):
        events.next(0.01)
    with events:
        pass
    assert list(events) == []
    with pytest.raises(farrow.InvalidArgument):
        events.next()


def test_a_client_that_subscribes_to_all_receives_all(node: Any, client: farrow.Client) -> None:
    """Also of what clients seal without a message while nobody asks."""
    other = farrow.connect(node.socket)

    def messages() -> int:
        before = int(client.stats()["requests"])
        other.put(b"small")
        return int(client.stats()["requests"]) - before - 1

    wait_until(lambda: messages() == 0, "puts without a message")
    with client.subscribe("n/"), client.subscribe(kinds=["deleted"]):
        assert messages() == 0
    with client.subscribe() as events:
        ids = [other.put(b"x" * size).id for size in (0, 10, 1000, 3 << 20)]
        ids += [ref.id for ref in other.put_many([b"y"] * 50)]
        with other.create(5000) as writer:
            writer.write(bytes(5000))
        ids += [writer.seal().id, other.put(pa.table({"n": [1, 2]})).id, other.put(b"", "n").id]
        seen = [events.next(LIMIT_SECONDS) for _ in ids]
        assert [event.id for event in seen if isinstance(event, Sealed)] == ids
        assert messages() == 1
    wait_until(lambda: messages() == 0, "puts without a message again")


def test_what_is_asked_for(client: farrow.Client) -> None:
    unnamed = client.put(b"x" * 100_000)
    client.put(b"", "a")
    client.delete(unnamed)
    deleted = client.subscribe(kinds=["deleted"], start="oldest", timeout=0)
    assert [(event.id, event.name) for event in deleted] == [(unnamed.id, None)]
    named = client.subscribe("a", start="oldest", timeout=0)
    assert [event.name for event in named] == ["a"]
    assert list(client.subscribe(timeout=0.01)) == []
    for wrong in [{"prefix": "x" * 256}, {"kinds": ["what"]}, {"start": "then"}, {"timeout": -1}]:
        with pytest.raises(farrow.InvalidArgument):
            client.subscribe(**wrong)  # type: ignore[arg-type]


def test_a_gap(client: farrow.Client) -> None:
    events = client.subscribe()
    for _ in range(20):
        client.delete_many(client.put_many([b"x" * 2] * 500, [f"{n}" for n in range(500)]))
    gap = next(events)
    assert isinstance(gap, Gap)
    seen = list(client.subscribe(start="oldest", timeout=0))
    assert gap.missed + len(seen) == 20_000
    events.close()


def test_a_thread_waits_and_another_closes(client: farrow.Client) -> None:
    events = client.subscribe("t")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(events))
    thread.start()
    client.put(b"", "t")
    other = client.subscribe("t", start="oldest")
    assert next(other).name == "t"  # type: ignore[union-attr]
    while not got:
        assert thread.is_alive()
    with pytest.raises(farrow.InvalidArgument, match="another thread"):
        while thread.is_alive():
            events.next(0)
    events.close()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    assert [event.name for event in got] == ["t"]


def test_asyncio(node: Any, client: farrow.Client) -> None:
    async def read(prefix: str, count: int) -> list[str | None]:
        names = []
        async for event in client.subscribe(prefix, timeout=LIMIT_SECONDS):
            assert isinstance(event, Sealed)
            names.append(event.name)
            if len(names) == count:
                break
        return names

    async def main() -> None:
        readers = [asyncio.create_task(read(prefix, 3)) for prefix in ("a", "b", "")]
        await asyncio.sleep(0.05)
        for name in ["a0", "b0", "a1"]:
            client.put(b"", name)
            await asyncio.sleep(0.01)
        node.restart()
        for name in ["b1", "a2", "b2"]:
            client.put(b"", name)
        a, b, both = await asyncio.wait_for(asyncio.gather(*readers), LIMIT_SECONDS)
        assert a == ["a0", "a1", "a2"]
        assert b == ["b0", "b1", "b2"]
        assert both == ["a0", "b0", "a1"]
        nothing = client.subscribe("never", timeout=0.05)
        assert [event async for event in nothing] == []
        closed = client.subscribe("never")
        asyncio.get_running_loop().call_later(0.02, closed.close)
        assert [event async for event in closed] == []

    asyncio.run(main())


def test_a_restart_of_the_node_loses_nothing(node: Any, client: farrow.Client) -> None:
    events = client.subscribe(timeout=LIMIT_SECONDS)
    expected = []
    for round_ in range(3):
        client.put(b"", f"before {round_}")
        node.restart()
        client.put(b"", f"after {round_}")
        expected += [f"before {round_}", f"after {round_}"]
    found = [next(events) for _ in expected]
    assert [event.name for event in found if isinstance(event, Sealed)] == expected


def test_control_c_ends_a_wait(node: Any) -> None:
    script = """
import sys, farrow
events = farrow.connect(sys.argv[1]).subscribe()
try:
    print("waiting", flush=True)
    next(events)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, node.socket], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=LIMIT_SECONDS)[0] == "interrupted\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
