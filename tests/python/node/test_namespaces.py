"""Namespaces: names, quotas and writers of their own."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import NOBODY, Node, as_nobody
from farrow.cli import main
from farrow.events import Deleted, Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def team(client: farrow.Client) -> farrow.Client:
    """A client in a namespace ``team`` of this test's node."""
    client.create_namespace("team")
    return farrow.connect(client.address, namespace="team")


def names(client: farrow.Client) -> list[str | None]:
    """What it lists."""
    return client.list().column("name").to_pylist()


def test_names_are_apart_and_ids_are_not(client: farrow.Client, team: farrow.Client) -> None:
    assert (client.namespace, team.namespace) == ("", "team")
    ours, theirs = client.put(b"ours", "x"), team.put(b"theirs", "x")
    assert client.get("x").to_pybytes() == b"ours"
    assert team.get("x").to_pybytes() == b"theirs"
    assert client.get(theirs).to_pybytes() == b"theirs"
    assert client.get(theirs.id).to_pybytes() == b"theirs"
    team.put(b"alone", "y")
    assert (client.contains("y"), team.contains("y")) == (False, True)
    with pytest.raises(farrow.NotFound):
        client.get("y")
    team.put(b"unnamed")
    assert names(client) == ["x"]
    assert names(team) == ["x", "y", None]
    assert names(farrow.connect(client.address, namespace="team")) == ["x", "y", None]
    with pytest.raises(farrow.AlreadyExists, match='"x"'):
        team.put(b"", "x")
    team.delete("x")
    assert client.get(ours).to_pybytes() == b"ours"
    assert names(team) == ["y", None]


def test_what_is_another_namespaces_is_not_changed(
    client: farrow.Client, team: farrow.Client
) -> None:
    named, unnamed = team.put(bytes(1000), "x"), team.put(bytes(1000))
    for ref in (named, unnamed):
        for change in (client.delete, client.pin, client.unpin):
            with pytest.raises(farrow.PermissionDenied, match="namespace"):
                change(ref.id)
        assert client.get(ref.id).size == 1000
    assert client.evict(1 << 40)["objects"] == 0
    assert team.evict(1 << 40)["objects"] == 2


def test_hostile_names(client: farrow.Client, team: farrow.Client) -> None:
    team.put(b"theirs", "x")
    for name in ("team\0x", "\0x", "x\0", "\0", "team\0"):
        for who in (client, team):
            for put in (who.put, lambda _, name, who=who: who.create(1, name)):
                with pytest.raises(farrow.InvalidArgument):
                    put(b"", name)
            with pytest.raises(farrow.InvalidArgument):
                who.get(name)
            with pytest.raises(farrow.InvalidArgument):
                who.contains(name)
            with pytest.raises(farrow.InvalidArgument):
                who.delete(name)
        assert len(client.list(name)) == 0
    team.put(b"", "n" * 250)
    with pytest.raises(farrow.InvalidArgument, match="251 B refused: must be 1 to 250"):
        team.put(b"", "n" * 251)
    client.put(b"", "n" * 255)
    for name in ("", "a\0b", "n" * 64):
        with pytest.raises(farrow.InvalidArgument, match=f"{len(name)} B"):
            client.create_namespace(name)
    with pytest.raises(farrow.InvalidArgument, match="9 writers"):
        client.create_namespace("crowd", writers=range(9))
    for bad in ({"nbytes": -1}, {"objects": "many"}, {"writers": [-1]}, {"writers": 7}):
        with pytest.raises(farrow.InvalidArgument):
            client.create_namespace("bad", **bad)  # type: ignore[arg-type]
    assert [one["name"] for one in client.namespaces()] == ["", "team"]


def test_there_must_be_one_and_it_must_be_empty_to_go(
    client: farrow.Client, team: farrow.Client
) -> None:
    with pytest.raises(farrow.NotFound, match=r"tea.*there are.*team"):
        farrow.connect(client.address, namespace="tea")
    with pytest.raises(farrow.AlreadyExists):
        client.create_namespace("team")
    with pytest.raises(farrow.NotFound):
        client.drop_namespace("tea")
    team.put(bytes(5000), "x")
    with pytest.raises(farrow.NamespaceInUse) as caught:
        client.drop_namespace("team")
    assert (caught.value.objects, caught.value.clients) == (1, 1)
    assert caught.value.nbytes >= 5000
    with pytest.raises(farrow.NamespaceInUse):
        client.drop_namespace("")
    team.delete("x")
    client.create_namespace("short")
    client.drop_namespace("short")
    assert [one["name"] for one in client.namespaces()] == ["", "team"]


def test_they_outlive_the_node(node: Any, client: farrow.Client) -> None:
    client.create_namespace("team", nbytes=1 << 20, objects=9, writers=[7])
    team = farrow.connect(node.socket, namespace="team")
    ref = team.put(b"kept", "x")
    writer = team.create(10, "soon")
    node.restart()
    assert team.get("x").to_pybytes() == b"kept"
    assert team.stats()["objects"] == 1  # it has found the next daemon, and renewed its names
    with pytest.raises(farrow.AlreadyExists):
        farrow.connect(node.socket, namespace="team").create(1, "soon")
    writer.seal()
    client.put(b"", "soon")
    _, found = client.namespaces()
    assert found.pop("used_bytes") >= 128
    assert found == {
        "name": "team", "nbytes": 1 << 20, "objects": 9, "writers": [7],
        "used_objects": 2, "clients": found["clients"],
    }  # fmt: skip
    assert team.get(pickle.loads(pickle.dumps(ref))).size == 4


def test_quotas_are_those_of_all_in_it(client: farrow.Client) -> None:
    client.create_namespace("small", nbytes=8 << 20)
    client.create_namespace("few", objects=3)
    one, two = (farrow.connect(client.address, namespace="small") for _ in range(2))
    retained = one.put(bytes(5 << 20))
    for wait in (0.0, 600.0):
        with pytest.raises(farrow.QuotaExceeded) as caught:
            two.create(4 << 20, "more", wait=wait)
        error = caught.value
        assert (error.what, error.requested, error.limit) == ("bytes", 4 << 20, 8 << 20)
        assert error.limit >= error.used >= 5 << 20
        assert "small" in error.whose
    client.put(bytes(9 << 20))
    # It counts on when its maker has gone.
    reader = client.get(retained)
    two.delete(retained)
    with pytest.raises(farrow.QuotaExceeded):
        two.put(bytes(6 << 20))
    del reader, one
    few = [farrow.connect(client.address, namespace="few") for _ in range(3)]
    first = few[0].put(b"unnamed")
    few[0].put(b"unnamed")
    few[1].put(b"named", "x")
    for name in (None, "y"):
        with pytest.raises(farrow.QuotaExceeded, match="few") as caught:
            few[2].put(b"", name)
        assert (caught.value.what, caught.value.used, caught.value.limit) == ("objects", 3, 3)
    few[2].delete(first)
    few[2].put(b"")


def test_unnamed_objects_obey_the_quota_of_their_client(make_node: Any) -> None:
    client = farrow.connect(make_node("--client-objects", "5").socket)
    for _ in range(5):
        client.put(b"x")
    with pytest.raises(farrow.QuotaExceeded):
        client.put(b"x")


def test_events_are_those_of_the_namespace(client: farrow.Client, team: farrow.Client) -> None:
    with team.subscribe() as theirs, client.subscribe() as ours:
        client.put(b"", "a")
        team.put(b"", "b")
        team.delete("b")
        client.put(b"", "c")
        seen = [theirs.next(timeout=30) for _ in range(2)]
        assert [(type(event), event.name) for event in seen] == [(Sealed, "b"), (Deleted, "b")]
        assert [ours.next(timeout=30).name for _ in range(2)] == ["a", "c"]
    assert sum(ready for ready in team.wait(["a", "c"], num=1, timeout=0.05)) == 0


@pytest.fixture
def make_open_node() -> Iterator[Callable[..., Node]]:
    """Nodes with flags of their own, in a folder that all users may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="farrow-test-", dir="/dev/shm"))
    folder.chmod(0o711)
    nodes: list[Node] = []

    def make(*flags: str) -> Node:
        nodes.append(Node(folder, *flags))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_other_users_may_what_they_are_allowed(make_open_node: Callable[..., Node]) -> None:
    socket = make_open_node("--allow-uid", str(NOBODY), "--allow-uid", "1").socket
    client = farrow.connect(socket)
    client.create_namespace("theirs", writers=[NOBODY])
    client.create_namespace("closed", writers=[1])
    closed = farrow.connect(socket, namespace="closed")
    retained = closed.put(b"to read", "x")
    assert closed.get("x").size == 7

    def be_nobody() -> None:
        mine = farrow.connect(socket, namespace="theirs")
        mine.put(b"mine", "x")
        mine.put(b"mine")
        mine.delete("x")
        for refused in (
            lambda: mine.create_namespace("more"),
            lambda: mine.drop_namespace("closed"),
            lambda: mine.delete(retained.id),
        ):
            with pytest.raises(farrow.PermissionDenied):
                refused()
        other = farrow.connect(socket, namespace="closed")
        assert other.get("x").to_pybytes() == b"to read"
        for refused in (
            lambda: other.put(b"x"),
            lambda: other.put(b"x", "y"),
            lambda: other.create(10, "y"),
            lambda: other.delete("x"),
            lambda: other.pin("x"),
            lambda: other.evict(1),
        ):
            with pytest.raises(farrow.PermissionDenied, match=str(NOBODY)):
                refused()

    as_nobody(be_nobody)
    assert closed.get("x").size == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_other_users_learn_that_they_may_not_connect(
    make_open_node: Callable[..., Node],
) -> None:
    socket = make_open_node("--allow-uid", "1").socket

    def be_nobody() -> None:
        for _ in range(40):
            with pytest.raises(farrow.PermissionDenied, match=str(NOBODY)):
                farrow.connect(socket)

    as_nobody(be_nobody)


def test_command(node: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        code = main([*arguments])
        out, err = capsys.readouterr()
        return out if code == 0 else f"{code}: {err}"

    at = ("--socket", node.socket)
    assert run("namespaces", *at, "create", "team", "--bytes", "1MiB", "--objects", "3") == ""
    team = farrow.connect(node.socket, namespace="team")
    team.put(b"x" * 200, "there")
    assert "there" in run("ls", *at, "--namespace", "team")
    assert "there" not in run("ls", *at)
    listed = run("namespaces", *at)
    assert "(default)" in listed
    assert "team" in listed
    assert "1 objects" in run("namespaces", *at, "drop", "team")
    team.delete("there")
    del team
    assert run("namespaces", *at, "create", "b", "--writer", "7") == ""
    assert '"writers": [\n' in run("namespaces", *at, "--json")
    assert run("namespaces", *at, "drop", "b") == ""
    assert "no namespace" in run("namespaces", *at, "drop", "b")
