"""Ctrl-C during a call that waits.

It was ignored: ``get(timeout=3600)``, ``wait``, ``put(wait=3600)``, ``barrier`` and the others went
on until their time was over, since nobody looked for signals while the daemon was silent.  Each
test sends a real SIGINT to a child process that waits for an hour, and then looks whether the node
is as it was before and the same client can go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Cluster, Node

# The thread that says so runs only while the call has let go of the GIL.
CHILD = """
import json, os, signal, sys, threading, time
import farrow
import pyarrow as pa

signal.signal(signal.SIGINT, signal.default_int_handler)
client = farrow.connect(sys.argv[1])
TELL = {"clients", "free", "granted", "holds", "objects", "used", "waiting", "waiting_bytes"}

def numbers():
    return {key: value for key, value in client.stats().items() if key in TELL}

def say_so():
    time.sleep(0.2)
    print("waiting", flush=True)

SETUP
before = numbers()
threading.Thread(target=say_so, daemon=True).start()
try:
    CALL
    ended = "returned"
except KeyboardInterrupt:
    ended = "interrupted"
after = numbers()
client.put(b"usable", "afterwards")
assert bytes(client.get("afterwards")) == b"usable"
client.delete("afterwards")
print(json.dumps({"ended": ended, "before": before, "after": after}), flush=True)
"""


class Child:
    """A process that waits inside a call."""

    def __init__(self, node: Node, call: str, setup: str = "") -> None:
        script = CHILD.replace("SETUP", setup).replace("CALL", call)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, node.socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "waiting\n":
            pytest.fail(self.process.communicate(timeout=LIMIT_SECONDS)[1])

    def end(self) -> dict[str, Any]:
        """What it says at its end."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        finally:
            self.process.kill()
        assert self.process.returncode == 0, err
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said

    def interrupt(self) -> dict[str, Any]:
        """Sends Ctrl-C; what it says then."""
        self.process.send_signal(signal.SIGINT)
        return self.end()


FULL = "client.put(bytes(60 << 20), 'full')"
TABLE = "table = client.huge_table('huge', pa.schema([('x', pa.int64())]))"


@pytest.mark.parametrize(
    ("call", "setup"),
    [
        pytest.param("client.get('never', timeout=3600)", "", id="get"),
        pytest.param("client.get_many(['no', 'never'], timeout=3600)", "", id="get_many"),
        pytest.param("client.wait(['never'], timeout=3600)", "", id="wait"),
        pytest.param("client.put(bytes(20 << 20), wait=3600)", FULL, id="put"),
        pytest.param("client.put(bytes(20 << 20), 'n', wait=3600)", FULL, id="put-named"),
        pytest.param("client.create(20 << 20, 'n', wait=3600)", FULL, id="create"),
        pytest.param("client.barrier('b', 2, timeout=3600)", "", id="barrier"),
        pytest.param("client.wait_flags('f', 1, timeout=3600)", "", id="wait_flags"),
        pytest.param("table.wait(rows=1, timeout=3600)", TABLE, id="huge_table"),
    ],
)
def test_an_interrupt_ends_the_call_and_leaves_everything_as_it_was(
    make_node: Callable[..., Node], call: str, setup: str
) -> None:
    node = make_node("--memory", "64MiB")
    said = Child(node, call, setup).interrupt()
    assert said["ended"] == "interrupted"
    assert said["after"] == said["before"]
    assert "n" not in farrow.connect(node.socket).list()["name"].to_pylist()


def test_a_wait_for_room_in_a_quota_of_objects_is_withdrawn(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "64MiB", "--client-objects", "2")
    call = """
    try:
        client.put(b'3', wait=3600)
    finally:
        client.delete('two')
"""
    said = Child(node, call, "client.put(b'1', 'one'); client.put(b'2', 'two')").interrupt()
    assert said["ended"] == "interrupted"
    # That the child goes on with a put says that nothing is kept for the one that it gave up.
    assert said["after"]["objects"] == 1


def test_memory_that_a_cancelled_put_waited_for_goes_to_the_next(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "64MiB")
    client = farrow.connect(node.socket)
    client.put(bytes(40 << 20), "full")
    child = Child(node, "client.put(bytes(50 << 20), wait=3600)")
    assert client.stats()["waiting"] == 1
    # Behind it: it may pass only until it took as much as the first waits for.
    assert child.interrupt()["ended"] == "interrupted"
    assert client.stats()["waiting"] == 0
    client.put(bytes(10 << 20), "second")


def test_a_barrier_is_not_broken_by_a_party_that_is_interrupted(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "64MiB")
    child = Child(node, "client.barrier('b', 3, timeout=3600)")
    waits = threading.Thread(
        target=lambda: farrow.connect(node.socket).barrier("b", 3, timeout=LIMIT_SECONDS)
    )
    waits.start()
    assert child.interrupt()["ended"] == "interrupted"
    others = [
        threading.Thread(
            target=lambda: farrow.connect(node.socket).barrier("b", 3, timeout=LIMIT_SECONDS)
        )
        for _ in range(2)
    ]
    for other in others:
        other.start()
    for other in [waits, *others]:
        other.join(LIMIT_SECONDS)
        assert not other.is_alive(), "three parties came and none was released"


def test_a_party_at_another_node_is_withdrawn_there(nodes: Cluster) -> None:
    """Whichever node keeps the name, for some of these it is another one."""
    for number in range(4):
        name = f"barrier-{number}"
        child = Child(nodes.nodes["a"], f"client.barrier({name!r}, 2, timeout=3600)")
        said = child.interrupt()
        assert (said["ended"], said["after"]) == ("interrupted", said["before"])
        other = threading.Thread(
            target=lambda name=name: nodes.client("b").barrier(name, 2, timeout=LIMIT_SECONDS)
        )
        other.start()
        nodes.client("c").barrier(name, 2, timeout=LIMIT_SECONDS)
        other.join(LIMIT_SECONDS)
        assert not other.is_alive()


def test_a_handler_that_returns_lets_the_wait_go_on(node: Node) -> None:
    setup = """
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(client.put(b"of the handler")))
"""
    call = "value = client.get('later', timeout=3600); assert came and bytes(value) == b'x'"
    child = Child(node, call, setup)
    child.process.send_signal(signal.SIGUSR1)
    client = farrow.connect(node.socket)
    # The handler used the client in the middle of its own wait.
    wait_until(lambda: client.stats()["objects"] == 1, "the handler put something")
    client.put(b"x", "later")
    assert child.end()["ended"] == "returned"


def test_a_handler_that_raises_something_else_ends_the_call_with_that(node: Node) -> None:
    setup = """
class Alarm(Exception): pass
def alarm(*_): raise Alarm
signal.signal(signal.SIGALRM, alarm)
"""
    call = """
    try:
        client.wait(['never'], timeout=3600)
    except Alarm:
        raise KeyboardInterrupt from None
"""
    child = Child(node, call, setup)
    child.process.send_signal(signal.SIGALRM)
    said = child.end()
    assert (said["ended"], said["after"]) == ("interrupted", said["before"])


def test_only_the_main_thread_is_interrupted(node: Node) -> None:
    setup = """
got = []
thread = threading.Thread(target=lambda: got.append(client.get("later", timeout=3600)))
thread.start()
"""
    call = """
    try:
        client.wait_flags('f', 1, timeout=3600)
    except KeyboardInterrupt:
        print("flags", flush=True)
        thread.join()
        assert bytes(got[0]) == b"x"
        raise
"""
    child = Child(node, call, setup)
    child.process.send_signal(signal.SIGINT)
    assert child.process.stdout is not None
    assert child.process.stdout.readline() == "flags\n"
    farrow.connect(node.socket).put(b"x", "later")
    assert child.end()["ended"] == "interrupted"


def test_a_node_that_does_not_answer_keeps_no_client(make_node: Callable[..., Node]) -> None:
    """The answer to the abandoned request comes late, and brings nothing."""
    node = make_node("--memory", "64MiB")
    call = f"""
    os.kill({node.pid}, signal.SIGSTOP)
    try:
        client.put(bytes(20 << 20), wait=3600)
    finally:
        os.kill({node.pid}, signal.SIGCONT)
        time.sleep(0.1)
        client.stats()
"""
    said = Child(node, call).interrupt()
    assert said["ended"] == "interrupted"
    assert said["after"] == said["before"]


def test_a_connection_that_is_given_up_leaves_no_client_behind(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "64MiB")
    call = f"""
    os.kill({node.pid}, signal.SIGSTOP)
    try:
        farrow.connect(sys.argv[1], timeout=3600)
    finally:
        os.kill({node.pid}, signal.SIGCONT)
        time.sleep(0.1)
        client.stats()
"""
    said = Child(node, call).interrupt()
    assert said["ended"] == "interrupted"
    assert said["after"] == said["before"]


def test_a_search_for_a_node_that_has_left_is_ended(node: Node) -> None:
    node.kill9()
    script = """
import signal, sys, threading, time
import farrow
signal.signal(signal.SIGINT, signal.default_int_handler)
client = farrow.connect(sys.argv[1], timeout=3600)
print("connected", flush=True)
sys.stdin.readline()
def say_so():
    time.sleep(0.2)
    print("waiting", flush=True)
threading.Thread(target=say_so, daemon=True).start()
try:
    client.wait(["never"], timeout=3600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
client.put(b"x", "afterwards")
"""
    node.start()
    child = subprocess.Popen(
        [sys.executable, "-c", script, node.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "connected\n"
    node.kill9()
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "waiting\n"
    os.kill(child.pid, signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    node.start()
    child.communicate("\n", timeout=LIMIT_SECONDS)
    assert child.returncode == 0
    assert "afterwards" in farrow.connect(node.socket).list()["name"].to_pylist()
