"""Who holds what since when: the times that the dashboard notes, and what its server sends."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from dashboard_cases import EVIL, Visitor
from farrow.cli import main
from farrow.dashboard import Dashboard
from farrow.dashboard._holds import EXACT_SECONDS, HELD_MAX, HoldTimes, Moment
from farrow.dashboard._samples import Samples, _hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Cluster, Node


@pytest.fixture
def visitor(node: Node) -> Iterator[Visitor]:
    with Dashboard(lambda: farrow.connect(node.socket, timeout=2)) as made:
        yield Visitor(made)


def client_row(slot: int, *held: int, pid: int = 7, are_all: bool = True) -> dict[str, Any]:
    ids = [{"hi": 1, "lo": one} for one in held]
    more = {"granted": 0, "uid": 0, "holds": len(held), "is_connected": True}
    return {"slot": slot, "pid": pid, "held": ids, "are_all_held": are_all, **more}


def id_of(number: int) -> bytes:
    return bytes(7) + b"\1" + number.to_bytes(8, "big")


def note(times: HoldTimes, rows: list[dict[str, Any]], time: float, boot: float) -> None:
    times.note(rows, Moment(time, boot), Moment(time, boot))


def seen_of(times: HoldTimes, number: int, slot: int = 0) -> Any:
    [seen] = [seen for row, _, seen in times.of_object(id_of(number)) if row["slot"] == slot]
    return seen


def test_a_hold_has_the_time_of_the_first_reading_that_shows_it() -> None:
    times = HoldTimes()
    note(times, [client_row(0, 1)], 1000.0, 50.0)
    assert seen_of(times, 1) == (1000.0, 50.0, None, False, True)
    note(times, [client_row(0, 1, 2), client_row(3, 2)], 1001.0, 51.0)
    # What was there keeps its time, what is new has bounds on both sides, a new client too.
    assert seen_of(times, 1).since == 1000.0
    assert seen_of(times, 2) == seen_of(times, 2, 3) == (1001.0, 51.0, 1000.0, True, False)
    # Released, and taken again.
    note(times, [client_row(0, 1), client_row(3, 2)], 1002.0, 52.0)
    assert not [row for row, _, _ in times.of_object(id_of(2)) if row["slot"] == 0]
    note(times, [client_row(0, 1, 2), client_row(3, 2)], 1003.0, 53.0)
    assert seen_of(times, 2).since == 1003.0
    assert seen_of(times, 2, 3).since == 1001.0


def test_a_hold_after_a_gap_is_not_said_to_begin_at_its_end() -> None:
    """A clock that jumps is no gap, and does not hide one."""
    times = HoldTimes()
    note(times, [], 1000.0, 50.0)
    note(times, [client_row(0, 1)], 9000.0, 51.0)
    note(times, [client_row(0, 1, 2)], 9001.0, 51.0 + EXACT_SECONDS + 1)
    assert seen_of(times, 1).is_exact
    assert seen_of(times, 2) == (9001.0, 52.0 + EXACT_SECONDS, 9000.0, False, False)


def test_a_slot_that_passes_to_another_process_passes_no_time() -> None:
    times = HoldTimes()
    note(times, [client_row(0, 1)], 1000.0, 50.0)
    note(times, [client_row(0, 1, pid=8)], 1001.0, 51.0)
    assert seen_of(times, 1).since == 1001.0
    assert list(times.of_client(0, 7)) == []


def test_holds_that_a_reading_left_out_are_not_said_to_be_new() -> None:
    times = HoldTimes()
    note(times, [client_row(0, 5, 6)], 1000.0, 50.0)
    # The list is full: 6 is left out, and may still be held.
    note(times, [client_row(0, 4, 5, are_all=False)], 1001.0, 51.0)
    assert (times.are_all(), times.are_all(0, 7), times.are_all(1, 7)) == (False, False, True)
    note(times, [client_row(0, 5, 6)], 1002.0, 52.0)
    assert seen_of(times, 5).since == 1000.0
    # No reading is known that would have shown it, and did not.
    assert seen_of(times, 6) == (1002.0, 52.0, None, False, False)
    # What is new after a complete list is known again.
    note(times, [client_row(0, 5, 6, 7)], 1003.0, 53.0)
    assert seen_of(times, 7) == (1003.0, 53.0, 1002.0, True, False)


def test_lists_that_stay_incomplete_give_no_exact_times() -> None:
    times = HoldTimes()
    note(times, [], 1000.0, 50.0)
    # At the first list, the client is new: its holds are.
    note(times, [client_row(0, 1, are_all=False)], 1001.0, 51.0)
    assert seen_of(times, 1).is_exact
    for turn in range(2, 9):
        note(times, [client_row(0, 1, turn, are_all=False)], 1000.0 + turn, 50.0 + turn)
        assert seen_of(times, turn) == (1000.0 + turn, 50.0 + turn, None, False, False)
    assert seen_of(times, 1).since == 1001.0


def test_the_bounds_of_a_time_lie_outside_of_the_readings() -> None:
    """A hold may begin while a reading that does not show it is on its way."""
    times = HoldTimes()
    times.note([], Moment(1000.0, 50.0), Moment(1003.0, 53.0))
    times.note([client_row(0, 1)], Moment(1004.0, 54.0), Moment(1006.0, 56.0))
    assert seen_of(times, 1) == (1006.0, 56.0, 1000.0, True, False)
    # What counts is the time between the bounds.
    late = 54.0 + EXACT_SECONDS
    times.note([client_row(0, 1, 2)], Moment(1014.0, late), Moment(1015.0, late + 1))
    assert not seen_of(times, 2).is_exact


class SlowClient:
    """A client whose holds are read in some milliseconds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.read_at = 0.0

    def _overview(self, cells: int, held: int) -> dict[str, Any]:
        time.sleep(0.01)
        self.read_at = time.time()
        time.sleep(0.01)
        return {"clients": self.rows}


def test_a_reading_has_the_clocks_before_and_after_it() -> None:
    client = SlowClient()
    samples = Samples(lambda: client)
    samples._overview(client, 1)
    first = client.read_at
    client.rows = [client_row(0, 1)]
    samples._overview(client, 1)
    seen = seen_of(samples._holds, 1)
    assert seen.not_before <= first - 0.005
    assert seen.since >= client.read_at + 0.005


def test_a_suspend_of_the_machine_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """``time.monotonic`` stops while the machine is suspended."""
    clocks = {time.CLOCK_BOOTTIME: 9000.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: clocks[clock])
    assert Moment.now().boot == 9000.0


def test_the_longest_holds_are_first_after_a_step_back_of_the_clock() -> None:
    samples = Samples(lambda: None)
    note(samples._holds, [client_row(0, 1)], 5000.0, 50.0)
    note(samples._holds, [client_row(0, 1, 2)], 2000.0, 51.0)
    rows = samples._oldest()["rows"]
    assert [(row["id"], row["since"]) for row in rows] == [
        (id_of(1).hex(), 5_000_000),
        (id_of(2).hex(), 2_000_000),
    ]


def test_a_reading_of_a_page_replaces_one_without_a_page() -> None:
    """A node that hangs would hold up both, one after the other, under one lock."""
    tries = []

    def connect() -> Any:
        tries.append(1)
        raise farrow.Timeout("it hangs")

    samples = Samples(connect)
    samples.changes(0)
    samples._watch_once()
    assert len(tries) == 1
    samples._taken_at -= 3
    samples._watch_once()
    assert len(tries) == 2


def test_no_more_is_noted_than_one_reading_has() -> None:
    times = HoldTimes()
    for turn in range(20):
        rows = [client_row(turn * 100 + one, *range(turn * 50, turn * 50 + 50)) for one in range(9)]
        note(times, rows, 1000.0 + turn, 50.0 + turn)
        assert len(list(times.all())) == len(times._clients) * 50 == 450
    note(times, [client_row(one) for one in range(1000)], 2000.0, 1050.0)
    assert times._clients == {}


def test_an_object_sealed_a_moment_before_was_not_held_before_its_seal() -> None:
    times = HoldTimes()
    note(times, [client_row(0, 1)], 1000.0, 50.0)
    [(row, id, seen)] = times.all()
    for sealed, is_exact in ((999.0, True), (1000.0 - EXACT_SECONDS - 1, False), (1001.0, False)):
        found = {"name": "x", "bytes": 1, "sealed_at": int(sealed * 1e9)}
        assert _hold(row, id, seen, found, is_alone=False)["is_exact"] is is_exact
    assert not _hold(row, id, seen, None, is_alone=False)["is_listed"]


def holders(visitor: Visitor, id: bytes) -> Any:
    return visitor.get(f"/holds.json?object={id.hex()}").json()


def test_the_holders_of_an_object_and_the_objects_of_a_client(node: Node, visitor: Visitor) -> None:
    client, reader = farrow.connect(node.socket), farrow.connect(node.socket)
    client.put(np.zeros(1000), EVIL)
    # The client seals it itself, without a message and without a name.
    unnamed = client.put(b"no name").id
    visitor.parts()
    before = time.time()
    values = [reader.get(EVIL), reader.get(unnamed), client.get(EVIL)]
    named = next(row["id"] for row in client.list().to_pylist() if row["name"] == EVIL)

    wait_until(lambda: len(holders(visitor, named)["rows"]) == 2, "both holders")
    found = holders(visitor, named)
    assert (found["all"], found["are_all"], found["is_here"]) == (2, True, True)
    assert {one["process"] for one in found["rows"]} == {os.getpid()}
    assert len({one["client"] for one in found["rows"]}) == 2
    for one in found["rows"]:
        assert one["name"] == EVIL
        assert one["is_exact"]
        assert before - 1 <= one["since"] / 1000 <= time.time() + 1
    [own] = holders(visitor, unnamed)["rows"]
    assert (own["name"], own["is_listed"], own["bytes"]) == (None, True, 7)

    # A page that is loaded again, or another one, has the same times.
    assert holders(Visitor(visitor.dashboard), named) == found
    path = f"/holds.json?client={own['client']}&process={os.getpid()}"
    held = visitor.get(path).json()
    assert {one["id"] for one in held["rows"]} == {named.hex(), unnamed.hex()}
    oldest = visitor.parts()["holds"]
    assert (oldest["all"], oldest["are_all"], len(oldest["rows"])) == (3, True, 3)
    # The rows of clients have no lists of ids.
    assert all("held" not in one for one in visitor.parts()["clients"]["rows"])

    # Deleted, and still held.
    client.delete(EVIL)
    wait_until(lambda: not holders(visitor, named)["rows"][0]["is_listed"], "the deletion")
    assert [one["since"] for one in holders(visitor, named)["rows"]] == [
        one["since"] for one in found["rows"]
    ]
    values.clear()
    wait_until(lambda: holders(visitor, named)["rows"] == [], "the release")
    wait_until(lambda: visitor.parts()["holds"]["all"] == 0, "no hold")


def test_an_object_that_the_node_took_over_is_held_under_its_own_id(
    node: Node, visitor: Visitor
) -> None:
    """A hold under the place where a client sealed the object counts for the object."""
    client, reader = farrow.connect(node.socket), farrow.connect(node.socket)
    id = client.put(b"seven").id
    value = reader.get(id)
    client.pin(id)
    listed = client.list().column("id").to_pylist()
    assert len(listed) == 1
    wait_until(lambda: len(holders(visitor, listed[0])["rows"]) == 1, "its holder")
    del value


def test_the_holder_of_a_copy_of_an_object_of_another_node(
    make_cluster: Callable[..., Cluster],
) -> None:
    """A copy has an id of its own, which no list has: its holders were without a name."""
    cluster = make_cluster(2, "--plaintext", "--net=only", "--no-prepare")
    owner, reader = cluster.client("a"), cluster.client("b")
    id = owner.put(pa.table({"n": range(100)}), "trades").id
    value = reader.get("trades")
    with Dashboard(lambda: cluster.client("b")) as dashboard:
        visitor = Visitor(dashboard)
        wait_until(lambda: visitor.parts()["holds"]["all"] == 1, "the hold")
        [row] = visitor.parts()["holds"]["rows"]
        assert (row["name"], row["is_copy"], row["is_listed"]) == ("trades", True, True)
        assert row["id"] != id.hex()
        assert row["process"] == os.getpid()
        # By the id that lists and the other node have.
        found = visitor.get(f"/holds.json?object={id.hex()}").json()
        assert (len(found["rows"]), found["is_here"]) == (1, False)
        assert (found["rows"][0]["id"], found["rows"][0]["is_copy"]) == (row["id"], True)
        own = reader.put(b"own", "own")
        held = reader.get("own")

        def names() -> dict[str | None, bool]:
            return {row["name"]: row["is_copy"] for row in visitor.parts()["holds"]["rows"]}

        wait_until(lambda: names() == {"trades": True, "own": False}, "the other hold")
        del held
        reader.delete(own)
        # A copy of what was deleted is one no more.
        owner.delete("trades")
        is_shown = lambda: visitor.parts()["holds"]["rows"][0]["is_listed"]  # noqa: E731
        wait_until(lambda: not is_shown(), "the deletion")
        assert value["n"].to_pylist() == list(range(100))


def test_the_time_of_a_hold_is_noted_while_no_page_is_open(node: Node) -> None:
    client = farrow.connect(node.socket)
    client.put(b"early", "early")
    client.put(b"late", "late")
    values = [client.get("early")]
    began = time.time()
    with Dashboard(lambda: farrow.connect(node.socket)) as dashboard:
        times = dashboard._server.samples._holds
        wait_until(lambda: len(list(times.all())) == 1, "the first reading")
        values.append(client.get("late"))
        # No request was made, so no page reads.
        wait_until(lambda: len(list(times.all())) == 2, "the next reading")
        noted = {id: seen for _, id, seen in times.all()}
        visitor = Visitor(dashboard)
        first, second = visitor.parts()["holds"]["rows"]
        assert (first["name"], first["is_first"]) == ("early", True)
        assert (second["name"], second["is_first"], second["is_exact"]) == ("late", False, True)
        for one in (first, second):
            assert one["since"] == round(noted[bytes.fromhex(one["id"])].since * 1000)
            assert began - 1 <= one["since"] / 1000
    values.clear()


def test_a_node_that_starts_again_over_its_memory_keeps_the_times(
    node: Node, visitor: Visitor
) -> None:
    client = farrow.connect(node.socket)
    client.put(b"x", "x")
    value = client.get("x")
    wait_until(lambda: visitor.parts()["holds"]["all"] == 1, "the hold")
    [before] = visitor.parts()["holds"]["rows"]
    node.kill9()
    wait_until(lambda: visitor.parts()["state"]["error"] is not None, "the error")
    # The last holds stay on the page.
    assert visitor.parts()["holds"]["rows"] == [before]
    node.start()
    wait_until(lambda: visitor.parts()["state"]["error"] is None, "the node again")
    [after] = visitor.parts()["holds"]["rows"]
    assert (after["id"], after["since"]) == (before["id"], before["since"])
    assert bytes(value) == b"x"


def is_served(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def test_without_a_page_no_private_node_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: within 5 s of ``farrow stop``, the next reading of the holds started one."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    memory = Path(f"/dev/shm/farrow-test-{os.getpid()}-{tmp_path.name}")
    memory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("FARROW_MEMORY_DIR", str(memory))
    monkeypatch.setenv("FARROW_MEMORY", "64MiB")
    monkeypatch.setenv("FARROW_LINGER", "0")
    monkeypatch.delenv("FARROW_SOCKET", raising=False)
    with Dashboard(farrow.connect) as dashboard:
        samples = dashboard._server.samples
        wait_until(lambda: samples._holds._last is not None, "the first reading")
        address = samples._client.address
        assert address.startswith(str(runtime))
        assert main(["stop"]) == 0
        wait_until(lambda: not is_served(address), "the end of the node")
        # The first of them meets the end, the next ones a missing socket.
        for _ in range(3):
            with samples._lock:
                samples._watch_once()
        assert samples._watcher is None
        assert not is_served(address)
        # A page that is open connects as its function does.
        visitor = Visitor(dashboard)
        wait_until(lambda: visitor.parts()["state"]["error"] is None, "another node")
        assert main(["stop"]) == 0
    wait_until(lambda: not any(memory.iterdir()), "the memory of the node to go")
    memory.rmdir()


@pytest.mark.parametrize(("seconds", "has_ended"), [(0.6, True), (60.0, False)])
def test_close_waits_briefly_for_a_reading(
    monkeypatch: pytest.MonkeyPatch, seconds: float, has_ended: bool
) -> None:
    began, end = threading.Event(), threading.Event()

    def read() -> None:
        began.set()
        end.wait(seconds)

    dashboard = Dashboard(lambda: None)
    monkeypatch.setattr(dashboard._server.samples, "_watch_once", read)
    with dashboard:
        assert began.wait(LIMIT_SECONDS)
        closed_at = time.monotonic()
    assert time.monotonic() - closed_at < 30
    watcher = dashboard._watcher
    assert watcher is not None
    assert watcher.is_alive() is not has_ended
    end.set()
    watcher.join(LIMIT_SECONDS)


def test_close_in_another_thread_ends_serve(node: Node) -> None:
    """Regression test: it went on with a closed socket, and took a whole core."""
    dashboard = Dashboard(lambda: farrow.connect(node.socket))
    thread = threading.Thread(target=dashboard.serve, daemon=True)
    thread.start()
    wait_until(lambda: dashboard._serving is not None, "the server")
    dashboard.close()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()


def test_a_reading_lists_a_limited_number_of_holds(node: Node, visitor: Visitor) -> None:
    """One client has more than fit. The client with few has all of its own."""
    many, few = farrow.connect(node.socket), farrow.connect(node.socket)
    values = many.get_many(many.put_many([b"x"] * (HELD_MAX + 10)))
    few.put(b"few", "few")
    values.append(few.get("few"))
    overview = many._overview(1, HELD_MAX)
    assert sum(len(one["held"]) for one in overview["clients"]) == HELD_MAX
    by_holds = {one["holds"]: one for one in overview["clients"]}
    assert by_holds[1]["are_all_held"]
    assert not by_holds[HELD_MAX + 10]["are_all_held"]
    assert all(not one["held"] for one in many._overview(1)["clients"])
    wait_until(lambda: visitor.parts()["holds"]["all"] == HELD_MAX, "the holds")
    assert not visitor.parts()["holds"]["are_all"]
    assert len(visitor.parts()["holds"]["rows"]) == 20
    path = f"/holds.json?client={by_holds[HELD_MAX + 10]['slot']}&process={os.getpid()}"
    found = visitor.get(path).json()
    assert (len(found["rows"]), found["all"], found["are_all"]) == (500, HELD_MAX - 1, False)
    values.clear()


def test_malformed_questions_about_holds_end_nothing(visitor: Visitor) -> None:
    empty = {"rows": [], "all": 0, "are_all": True, "is_here": True}
    for query in (
        "", "object=", "object=zz", "object=" + "f" * 31, "object=" + "F" * 32, "client=1",
        "process=1", "client=-1&process=1", "client=\N{SUPERSCRIPT TWO}&process=1",
        "client=" + "9" * 5000 + "&process=1",
    ):  # fmt: skip
        path = "/holds.json?" + urllib.parse.quote(query, safe="=&")
        assert visitor.get(path).json() == empty, query
    # An object of another node is not known here.
    assert not visitor.get("/holds.json?object=" + "f" * 32).json()["is_here"]
    visitor.authorization = ""
    assert visitor.get("/holds.json?client=1&process=1").status == 403
