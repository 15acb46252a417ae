"""One large object that many nodes want: it spreads from those that have it already."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, scrape, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
# Above the size from which an object is sent by others than its home.
SIZE = 12 * MB
# A node that loses its lease during a transfer fetches the object again.
FLAGS = ("--plaintext", "--net=only", "--no-prepare", "--metrics", "--lease-ms", "10000")


def served(cluster: Cluster, name: str) -> dict[str, int]:
    """Bytes that a node sent of its own objects, and of replicas."""
    text = scrape(cluster.nodes[name])
    found = re.findall(r'^farrow_served_bytes_total\{of="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {of: int(float(value)) for of, value in found}


def all_served(cluster: Cluster) -> tuple[int, int]:
    """Bytes that the home, node a, sent, and those that others sent of replicas."""
    others = [served(cluster, name) for name in cluster.names[1:]]
    assert [one["own"] for one in others] == [0] * len(others)
    home = served(cluster, "a")
    assert home["replica"] == 0
    return home["own"], sum(one["replica"] for one in others)


def put(client: farrow.Client, name: str) -> bytes:
    value = os.urandom(SIZE)
    client.put(value, name)
    return value


def read(client: farrow.Client, name: str) -> bytes:
    found: bytes = client.get(name, timeout=LIMIT_SECONDS).to_pybytes()
    return found


def wait_for_notice(home: farrow.Client) -> None:
    """A reader releases the object after it has told the home that its replica is complete."""
    wait_until(lambda: home.stats()["holds"] == 0, "no node reads at the home")


def test_many_readers_at_once_are_not_all_sent_the_object_by_its_home(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(6, *FLAGS)
    home, *readers = cluster.clients()
    value = put(home, "model")
    with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
        found = list(pool.map(lambda client: read(client, "model"), readers))
    assert found == [value] * 5
    own, replicas = all_served(cluster)
    assert own + replicas == 5 * SIZE, "each byte was sent to each reader once"
    assert 0 < own <= 4 * SIZE
    assert replicas >= SIZE
    # A delete reaches all of them.
    del found
    home.delete("model")
    assert [client.contains("model") for client in readers] == [False] * 5


def test_one_after_another_the_home_sends_it_once(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(4, *FLAGS)
    home, *readers = cluster.clients()
    value = put(home, "model")
    for reader in readers:
        assert read(reader, "model") == value
        wait_for_notice(home)
    assert all_served(cluster) == (SIZE, 2 * SIZE)
    # Small objects are sent by their home: that takes less time than a question.
    home.put(b"x" * MB, "small")
    for reader in readers:
        assert reader.get("small").to_pybytes() == b"x" * MB
    # A node answers scrapers that come often with the same text.
    wait_until(lambda: all_served(cluster) == (SIZE + 3 * MB, 2 * SIZE), "small ones from the home")


def test_a_replica_that_was_dropped_is_not_asked_for_in_vain_for_long(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(3, *FLAGS)
    a, b, c = cluster.clients()
    value = put(a, "model")
    assert read(b, "model") == value
    wait_for_notice(a)
    assert b.evict(SIZE)["objects"] >= 1
    assert read(c, "model") == value
    assert all_served(cluster) == (2 * SIZE, 0)
    # The object of this name is another one now.
    a.delete("model")
    value = put(a, "model")
    assert read(b, "model") == value
    assert read(c, "model") == value


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_sender_that_dies_or_hangs_costs_only_time(
    make_cluster: Callable[..., Cluster], how: str
) -> None:
    cluster = make_cluster(4, *FLAGS)
    a, b, c, d = cluster.clients()
    value = put(a, "model")
    assert read(b, "model") == value
    wait_for_notice(a)
    sender = cluster.nodes["b"]
    os.kill(sender.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:
        # The home still names the sender, or knows already that it is lost.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda client: read(client, "model"), [c, d]))
        assert found == [value, value]
    finally:
        if how == "stop":
            os.kill(sender.pid, signal.SIGCONT)


def test_senders_killed_half_way_leave_no_wrong_byte(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(5, *FLAGS)
    home, *readers = cluster.clients()
    values = {f"model/{number}": put(home, f"model/{number}") for number in range(3)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # Node b is killed while it reads, or sends: where exactly, differs with each run.
        reads = [
            (name, pool.submit(read, reader, name)) for name in values for reader in readers[1:]
        ]
        lost = [pool.submit(read, readers[0], name) for name in values]
        concurrent.futures.wait(lost, return_when=concurrent.futures.FIRST_COMPLETED)
        cluster.nodes["b"].kill9()
        for name, done in reads:
            assert done.result() == values[name], name
        for one in lost:
            one.exception()


def test_a_node_that_may_only_read_sends_nothing_to_others(
    make_cluster: Callable[..., Cluster],
) -> None:
    """It could not replace the object either, so no reader has to trust it."""
    cluster = make_cluster(3, *FLAGS)
    a, b, c = cluster.clients()
    a.permit("b", "read")
    value = put(a, "model")
    assert read(b, "model") == value
    wait_for_notice(a)
    assert read(c, "model") == value
    assert all_served(cluster) == (2 * SIZE, 0)
