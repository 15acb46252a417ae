"""A reference in flight is not lost while its sender lives, nor within its lease after that, and it
is never leaked.

A prototype without leases lost it when the sender dropped its table and the node evicted: the
receiver got NotFound.  Later a reference had only its lease after the sender had dropped the table:
a receiver whose queue was slower than that got NotFound, though the sender lived."""

from __future__ import annotations

import contextlib
import gc
import pickle
import subprocess
import sys
import textwrap
import time
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
import farrow.sharing
from conftest import LIMIT_SECONDS, Cluster, Node, wait_until
from farrow.sharing import _references, _unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORDS = 500_000
REFERENCE_BYTES_MAX = 1024
EVERYTHING = 10**9

SENDER = """
import gc, os, sys, time
import numpy as np, pyarrow as pa
import farrow, farrow.sharing
from multiprocessing.reduction import ForkingPickler
farrow.sharing.install(lease={lease}, unread={unread})
client = farrow.connect({socket!r})
value = pa.table({{"n": pa.array(np.arange({words}))}})
value = client.get(client.put(value, wait=5.0)).slice(7)
def send(value):
    message = bytes(ForkingPickler.dumps(value))
    sys.stdout.buffer.write(len(message).to_bytes(4, "little") + message)
    sys.stdout.flush()
{code}
"""


class Sender:
    """A process that puts a table, and then does what the test says."""

    def __init__(self, socket: str, code: str, lease: float, unread: float | None = None) -> None:
        code = textwrap.dedent(code)
        text = SENDER.format(socket=socket, code=code, lease=lease, unread=unread, words=WORDS)
        self._process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def message(self) -> bytes:
        assert self._process.stdout is not None
        size = int.from_bytes(self._process.stdout.read(4), "little")
        message = self._process.stdout.read(size)
        assert 0 < len(message) < REFERENCE_BYTES_MAX
        return message

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def wait_for(self, text: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.read(len(text)) == text

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        self._process.kill()
        for pipe in self._process.stdin, self._process.stdout:
            assert pipe is not None
            pipe.close()
        self._process.wait(LIMIT_SECONDS)


@pytest.fixture
def lru(make_node: Callable[..., Node]) -> Node:
    return make_node("--evict", "lru")


@pytest.fixture
def make_sender() -> Iterator[Callable[..., Sender]]:
    senders: list[Sender] = []

    def make(node: Node, code: str, lease: float = 3600.0, unread: float | None = None) -> Sender:
        senders.append(Sender(node.socket, code, lease, unread))
        return senders[-1]

    yield make
    for sender in senders:
        sender.close()
    farrow.sharing.uninstall()
    _references._state.clients.clear()
    _references._state.is_decided = False


def check(value: pa.Table) -> None:
    assert value["n"].to_numpy().tolist() == list(range(7, WORDS))


def used(node: Node) -> int:
    return int(farrow.connect(node.socket).stats()["used"])


def wait_for_memory(node: Node, before: int) -> None:
    """Until all memory is back, to the byte: the sender's own object is evicted, as any."""
    _references._state.clients.clear()
    gc.collect()

    def is_back() -> bool:
        farrow.connect(node.socket).evict(EVERYTHING)
        return used(node) == before

    wait_until(is_back, f"{before} B used, not {used(node)} B")


def test_the_sender_drops_its_table_and_the_node_evicts(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    code = """
    send(value)
    del value; gc.collect()
    sys.stdout.write("dropped"); sys.stdout.flush()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code)
    message = sender.message()
    sender.wait_for(b"dropped")
    farrow.connect(lru.socket).evict(EVERYTHING)
    # Engines read a message again, for retries and broadcasts.
    values = [pickle.loads(message) for _ in range(3)]
    farrow.connect(lru.socket).evict(EVERYTHING)
    for value in values:
        check(value)


def test_the_sender_is_killed_with_its_message_in_the_pipe(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    before = used(lru)
    sender = make_sender(lru, "send(value); sys.stdin.readline()", lease=8.0)
    # The message is in the pipe of a dead process.
    time.sleep(0.1)
    wait_until(lambda: farrow.connect(lru.socket).stats()["objects"] == 3, "the message is made")
    sender.kill9()
    wait_until(lambda: farrow.connect(lru.socket).stats()["clients"] == 1, "the sender is gone")
    farrow.connect(lru.socket).evict(EVERYTHING)
    message = sender.message()
    value = pickle.loads(message)
    farrow.connect(lru.socket).evict(EVERYTHING)
    check(value)
    del value
    wait_for_memory(lru, before)
    with pytest.raises(farrow.NotFound):
        pickle.loads(message)


def test_a_receiver_outlives_sender_and_lease(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    before = used(lru)
    sender = make_sender(lru, "send(value); sys.stdin.readline()", lease=1.0)
    message = sender.message()
    value = pickle.loads(message)
    sender.kill9()

    def is_over() -> bool:
        try:
            pickle.loads(message)
        except farrow.NotFound:
            return True
        return False

    wait_until(is_over, "the lease is over")
    client = farrow.connect(lru.socket)
    client.evict(EVERYTHING)
    client.put(np.zeros(WORDS))
    check(value)
    client.evict(EVERYTHING)
    del value, client
    wait_for_memory(lru, before)


def test_a_receiver_is_killed(lru: Node, make_sender: Callable[..., Sender]) -> None:
    before = used(lru)
    sender = make_sender(lru, "send(value); sys.stdin.readline()", lease=1.0)
    message = sender.message()
    code = f"""
    import pickle, sys
    value = pickle.loads({message!r})
    sys.stdout.write(str(value.num_rows)); sys.stdout.flush()
    sys.stdin.readline()
    """
    receiver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert receiver.stdout is not None
    assert receiver.stdin is not None
    assert receiver.stdout.read(6) == str(WORDS - 7).encode()
    receiver.kill()
    receiver.wait(LIMIT_SECONDS)
    receiver.stdin.close()
    receiver.stdout.close()
    # It held the objects; the sender still has them.
    check(pickle.loads(message))
    sender.kill9()
    wait_for_memory(lru, before)


SLICES = """
    for start in range(20):
        send(value.slice(start))
    sys.stdin.readline()
    """


def objects(node: Node) -> int:
    return int(farrow.connect(node.socket).stats()["objects"])


def test_messages_of_a_slow_queue_are_not_lost(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    """The slices are dropped at once, and nothing reads their messages for many leases."""
    before = used(lru)
    sender = make_sender(lru, SLICES, lease=0.1)
    messages = [sender.message() for _ in range(20)]
    time.sleep(2.0)
    farrow.connect(lru.socket).evict(EVERYTHING)
    for start, message in enumerate(messages):
        value = pickle.loads(message)
        assert value["n"].to_numpy().tolist() == list(range(7 + start, WORDS))
    del value
    # Their memory returns while the sender lives, which has put a table of its own.
    wait_until(lambda: objects(lru) <= 1, "the leases are over")
    sender.kill9()
    wait_for_memory(lru, before)


def test_a_message_is_valid_for_its_lease_after_it_was_read(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    sender = make_sender(lru, SLICES, lease=5.0)
    message = [sender.message() for _ in range(20)][-1]
    for _ in range(3):
        assert len(pickle.loads(message)) == WORDS - 26
        farrow.connect(lru.socket).evict(EVERYTHING)
        time.sleep(0.5)


def test_each_message_of_a_value_waits_for_its_reader(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    """One of ten readers reads twice, and the ninth and tenth are slow."""
    code = """
    for _ in range(10):
        send(value)
    del value; gc.collect()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=0.1)
    messages = [sender.message() for _ in range(10)]
    for message in [*messages[:8], messages[0]]:
        check(pickle.loads(message))
    time.sleep(2.0)
    farrow.connect(lru.socket).evict(EVERYTHING)
    for message in messages[8:]:
        check(pickle.loads(message))
    wait_until(lambda: objects(lru) <= 1, "the lease is over")


def test_messages_that_no_process_reads_end_with_their_sender(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    before = used(lru)
    sender = make_sender(lru, SLICES, lease=1.0)
    for _ in range(20):
        sender.message()
    time.sleep(1.5)
    assert objects(lru) == 41
    sender.kill9()
    wait_until(lambda: objects(lru) <= 1, "the leases are over")
    wait_for_memory(lru, before)


def test_a_limit_returns_the_memory_of_lost_messages(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    sender = make_sender(lru, SLICES, lease=0.2, unread=0.5)
    for _ in range(20):
        sender.message()
    wait_until(lambda: objects(lru) == 1, "the limit is over, and the leases")


def test_a_message_is_read_while_there_is_no_daemon(
    lru: Node, make_sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon learns with a later message that it was read."""
    monkeypatch.setattr(_unread, "_RETRY_SECONDS", 2.0)
    code = """
    for _ in range(20):
        send(value)
    del value; gc.collect()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=5.0)
    messages = [sender.message() for _ in range(20)]
    _references._state.clients[lru.socket] = farrow.connect(lru.socket, timeout=1.0)
    lru.kill9()
    for message in messages[:-1]:
        check_length(pickle.loads(message))
    lru.start()
    time.sleep(2.0)

    def is_over() -> bool:
        # On a busy machine the new daemon may be late for one.
        with contextlib.suppress(farrow.NotFound):
            check_length(pickle.loads(messages[-1]))
        return objects(lru) <= 1

    wait_until(is_over, "the lease is over")


def test_a_node_that_does_not_answer_is_not_tried_at_each_message() -> None:
    calls: list[list[bytes]] = []

    class Client:
        is_up = False

        def delete_many(self, ids: list[bytes]) -> None:
            calls.append(ids)
            if not self.is_up:
                raise farrow.Disconnected("no daemon")
            raise farrow.NotFound("one was read before")

    client: Any = Client()
    sent = _unread.Acknowledgements()
    for number in range(5):
        sent.send(client, "/a", bytes([number]))
    sent.send(client, "/b", b"b")
    assert calls == [[b"\0"], [b"b"]]
    with pytest.MonkeyPatch.context() as patch:
        # Other threads have their own clock.
        patch.setattr(_unread, "time", SimpleNamespace(monotonic=lambda: float("inf")))
        client.is_up = True
        sent.send(client, "/a", b"last")
        sent.send(client, "/a", b"next")
    assert calls[2:] == [[b"\0", b"\1", b"\2", b"\3", b"\4", b"last"], [b"next"]]


def test_a_sender_may_close_its_client_after_each_message(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    """The client that the program had closed was used for the next messages, and for the looks: the
    values passed as copies, and their memory did not return."""
    code = """
    from farrow.sharing import _references
    del value
    for number in range(3):
        with farrow.connect(client.address) as other:
            value = other.get(other.put(pa.table({"n": np.arange(number, 50_000)})))
            send(value)
            _references._client(client.address)
            del value
    client.close(); gc.collect()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=0.2)
    messages = [sender.message() for _ in range(3)]
    for number, message in enumerate(messages):
        assert pickle.loads(message)["n"][0].as_py() == number
    # What was put is left, without a lease.
    wait_until(lambda: objects(lru) == 4, "the leases are over")


def test_messages_of_living_values_that_were_read_do_not_count(
    lru: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_unread, "_MARKERS_MAX", 10)
    monkeypatch.setattr(_unread, "_LOOK_SECONDS_MAX", 0.0)
    farrow.sharing.install(lease=0.2)
    try:
        client = farrow.connect(lru.socket)
        table = client.get(client.put(pa.table({"n": np.arange(WORDS)})))
        living = [table.slice(number) for number in range(30)]
        for value in living:
            message = bytes(ForkingPickler.dumps(value))
            assert len(message) < REFERENCE_BYTES_MAX
            assert len(pickle.loads(message)) == len(value)
        unread = [bytes(ForkingPickler.dumps(value)) for value in living]
        lengths = [len(message) < REFERENCE_BYTES_MAX for message in unread]
        assert lengths == [True] * 10 + [False] * 20
    finally:
        farrow.sharing.uninstall()
        _references._state.clients.clear()
        _references._state.is_decided = False


def check_length(value: pa.Table) -> None:
    assert len(value) == WORDS - 7


def test_the_sender_lives_longer_than_any_lease(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    sender = make_sender(lru, "send(value); sys.stdin.readline()", lease=0.05)
    message = sender.message()
    time.sleep(1.0)
    farrow.connect(lru.socket).evict(EVERYTHING)
    check(pickle.loads(message))


def test_leases_survive_the_daemon(lru: Node, make_sender: Callable[..., Sender]) -> None:
    """Kill the daemon with two references in flight, of a living sender and of a dead one."""
    before = used(lru)
    dead = make_sender(lru, "send(value); sys.stdin.readline()", lease=6.0)
    living = make_sender(lru, "send(value); sys.stdin.readline()", lease=0.5)
    messages = [dead.message(), living.message()]
    dead.kill9()
    lru.restart()
    time.sleep(1.5)
    farrow.connect(lru.socket).evict(EVERYTHING)
    for message in messages:
        check(pickle.loads(message))
    living.kill9()
    wait_until(lambda: farrow.connect(lru.socket).evict(EVERYTHING)["pinned"] == 0, "no leases")
    wait_for_memory(lru, before)


def test_ended_leases_end_after_the_daemon_did(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    """The next daemon took the lease of a living client for an open one, until the client ended.
    The client learns of that daemon after the time of the lease."""
    code = """
    from farrow.sharing import _references
    send(value)
    del value; gc.collect()
    while _references._state.unread._count:
        time.sleep(0.01)
    sys.stdout.write("dropped"); sys.stdout.flush()
    sys.stdin.readline()
    client.stats()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=1.0)
    check(pickle.loads(sender.message()))
    sender.wait_for(b"dropped")
    lru.restart()
    client = farrow.connect(lru.socket)
    time.sleep(1.0)
    sender.go_on()
    wait_until(lambda: client.evict(EVERYTHING)["pinned"] == 0, "the lease is over")


def test_references_end_while_there_is_no_daemon(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    """Each drop of a reference had a thread of its own, which waited for the next daemon."""
    code = """
    values = [value.slice(number) for number in range(100)]
    for one in values:
        send(one)
    sys.stdin.readline()
    del one
    values.clear(); gc.collect()
    time.sleep(3.0)
    tasks = os.listdir("/proc/self/task")
    threads = [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks]
    sys.stdout.write("%03d" % threads.count("farrow-lease")); sys.stdout.flush()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=1.0)
    for message in [sender.message() for _ in range(100)]:
        pickle.loads(message)
    lru.kill9()
    sender.go_on()
    sender.wait_for(b"001")
    lru.start()
    client = farrow.connect(lru.socket)
    wait_until(lambda: client.evict(EVERYTHING)["pinned"] == 0, "the leases are over")


def test_a_forked_child_ends_no_lease_of_its_parent(
    lru: Node, make_sender: Callable[..., Sender]
) -> None:
    code = """
    send(value)
    if os.fork() == 0:
        del value; gc.collect()
        sys.exit(0)
    os.wait()
    sys.stdout.write("waited"); sys.stdout.flush()
    sys.stdin.readline()
    """
    sender = make_sender(lru, code, lease=0.05)
    message = sender.message()
    sender.wait_for(b"waited")
    time.sleep(1.0)
    farrow.connect(lru.socket).evict(EVERYTHING)
    check(pickle.loads(message))


def test_references_over_two_nodes_end_on_both(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2)
    client = cluster.client("a")
    trades = client.huge_table("trades", pa.schema({"n": pa.int64()}))
    for node in "a", "b":
        trades.append(pa.table({"n": np.arange(WORDS)}), node=node)
    before = [int(client.stats(node=node)["objects"]) for node in "ab"]
    code = """
    value = client.huge_table("trades").table()
    send(value)
    sys.stdin.readline()
    """
    sender = Sender(cluster.nodes["a"].socket, code, 2.0)
    try:
        message = sender.message()
        sender.kill9()
        value = pickle.loads(message)
        assert value["n"].to_numpy().sum() == 2 * sum(range(WORDS))
    finally:
        sender.close()
    del value

    def objects() -> list[Any]:
        return [client.stats(node=node)["objects"] for node in "ab"]

    # The sender also put a table of its own.
    wait_until(lambda: objects() == [before[0] + 1, before[1]], f"{before} objects: {objects()}")
    farrow.sharing.uninstall()
    _references._state.clients.clear()
