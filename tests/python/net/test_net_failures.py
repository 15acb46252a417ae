"""Objects of nodes whose memory no other maps, while nodes are lost, stopped and restarted."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, wait_until
from net_cases import ONLY, finds_nothing, is_removed, row, table

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["net_cases"]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_home_that_is_lost(make_cluster: Callable[..., Cluster], how: str) -> None:
    """What is held stays; what is asked for says which node is lost; the name is not free."""
    nodes = make_cluster(3, *ONLY)
    a, b = nodes.client("a"), nodes.client("b")
    nodes.client("c").put(table(), "there")
    nodes.client("c").put(table(), "not yet")
    held = a.get("there")
    lost = nodes.nodes["c"]
    os.kill(lost.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:

        def is_lost(client: farrow.Client) -> bool:
            return row(client, "c").reach == "lost"

        began = time.monotonic()
        with pytest.raises((farrow.NodeLost, farrow.NodeUnreachable, farrow.NotFound)):
            a.get("not yet")
        assert time.monotonic() - began < LIMIT_SECONDS
        wait_until(lambda: is_lost(a) and is_lost(b), f"{a.nodes()}")
        assert held.equals(table())
        with pytest.raises((farrow.NodeLost, farrow.NotFound)):
            a.get("not yet")
    finally:
        if how == "stop":
            os.kill(lost.pid, signal.SIGCONT)
    del held


def test_a_home_that_starts_again_over_its_memory(two: Cluster) -> None:
    """It knows nothing of copies any more, so there are none."""
    a, b = two.clients()

    def is_read(client: farrow.Client) -> bool:
        try:
            return client.get("kept").equals(table())
        except farrow.NodeLost:
            # Its former life, until the others know of this one.
            return False

    b.put(table(), "kept")
    held = a.get("kept")
    for _ in range(3):
        two.nodes["b"].restart()
        wait_until(lambda: [one.reach for one in a.nodes()] == ["live", "live"], f"{a.nodes()}")
        two.settle(2)
        assert held.equals(table())
        wait_until(lambda: is_read(a), "b is a member again")
    two.client("b").delete("kept")
    assert is_removed(a, "kept")
    assert held.equals(table())


def test_a_reader_that_starts_again_keeps_no_copy_and_fetches_it_again(two: Cluster) -> None:
    a, b = two.clients()
    b.put(table(), "kept")
    held = a.get("kept")
    two.nodes["a"].restart()
    two.settle(2)
    assert held.equals(table())
    a = two.client("a")
    assert a.get("kept").equals(table())
    b.delete("kept")
    assert is_removed(a, "kept")
    assert held.equals(table())
    del held
    wait_until(lambda: two.client("a").stats()["used"] == 0, f"{two.client('a').stats()}")


def test_a_stopped_reader_holds_a_delete_up_no_longer_than_its_lease(
    make_cluster: Callable[..., Cluster],
) -> None:
    nodes = make_cluster(3, *ONLY)
    b = nodes.client("b")
    b.put(table(), "there")
    stopped = nodes.nodes["a"]
    reader = farrow.connect(stopped.socket, timeout=1.0)
    held = reader.get("there")
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        b.delete("there")
        assert time.monotonic() - began < LIMIT_SECONDS
        # Its clients read by loads, and know when its lease is over.
        with pytest.raises(farrow.FarrowError):
            reader.get("there")
        assert held.equals(table())
        # A node that nobody hears of may have any name.
        with pytest.raises((farrow.NotFound, farrow.NodeLost)):
            nodes.client("c").get("there")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    nodes.settle(3)
    wait_until(lambda: finds_nothing(nodes.client("a"), "there"), "a is a member again")


def test_an_object_is_there_for_its_home_until_no_other_node_finds_it(
    make_cluster: Callable[..., Cluster],
) -> None:
    nodes = make_cluster(3, *ONLY)
    b = nodes.client("b")
    b.put(table(), "there")
    stopped = nodes.nodes["a"]
    assert nodes.client("a").get("there").equals(table())
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        deleter = nodes.client("b")
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            deleted = threads.submit(deleter.delete, "there")
            time.sleep(0.2)
            # The stopped node's clients may find it: so must all.
            assert b.contains("there")
            assert not deleted.done()
            deleted.result(LIMIT_SECONDS)
        # A node that nobody hears of may have any name: what is gone is not known to be gone.
        for client in (b, nodes.client("c")):
            with pytest.raises((farrow.NotFound, farrow.NodeLost)):
                client.get("there")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    nodes.settle(3)
    for client in nodes.clients():
        wait_until(lambda client=client: finds_nothing(client, "there"), "all nodes are members")


def test_names_are_found_by_their_authorities_and_without(
    make_cluster: Callable[..., Cluster],
) -> None:
    """Four nodes: the authority of a name is asked first, and all nodes if it does not know."""
    nodes = make_cluster(4, *ONLY)
    clients = dict(zip(nodes.names, nodes.clients(), strict=True))
    names = [f"name {number}" for number in range(12)]
    for number, name in enumerate(names):
        clients[nodes.names[number % 4]].put(name.encode(), name)
    for client in clients.values():
        for name in names:
            assert client.contains(name)
            assert client.get(name).to_pybytes() == name.encode()
        assert not client.contains("nothing")
        with pytest.raises(farrow.NotFound):
            client.get("nothing")
    # A name that moves is found at its new home, whatever authorities remember.
    for number, name in enumerate(names):
        clients["a"].delete(name)
        clients[nodes.names[(number + 1) % 4]].put(b"new", name)
        assert all(client.get(name).to_pybytes() == b"new" for client in clients.values())
    # Authorities that have restarted know nothing, and those of a smaller cluster are others.
    nodes.nodes["b"].restart()
    nodes.settle(4)
    nodes.nodes["d"].stop()
    for node in "abc":
        client = nodes.client(node)
        wait_until(lambda client=client: row(client, "d").reach == "left", "d has left")
        for number, name in enumerate(names):
            if nodes.names[(number + 1) % 4] != "d":
                assert client.contains(name)
                assert client.get(name).to_pybytes() == b"new"
            else:
                assert not client.contains(name)
