"""Several nodes as one store: real daemons of this machine, from Python and by the command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, wait_until
from farrow._nodes._ports import free_addresses
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

TABLE = pa.table(
    {
        "n": pa.array(range(10_000), pa.int64()),
        "word": pa.array([None if n % 7 == 0 else f"word {n % 97}" for n in range(10_000)]),
        "list": pa.array([[n] * (n % 3) for n in range(10_000)]),
    }
)


VALUES: dict[str, Any] = {
    "bytes": bytes(range(256)) * 1000,
    "ndarray": np.arange(60_000, dtype=np.float32).reshape(200, 300).copy(order="F"),
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "array": TABLE["word"].chunk(0),
}


def equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return bool(np.array_equal(value, wanted)) and value.flags.f_contiguous
    if isinstance(wanted, bytes):
        return bool(value.to_pybytes() == wanted)
    return bool(value.equals(wanted))


def files_of(client: farrow.Client, value: Any) -> set[str]:
    """The files whose mapping each buffer of a value lies in, in this process."""
    maps = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        first, end = (int(word, 16) for word in words[0].split("-"))
        maps.append((first, end, words[5] if len(words) > 5 else ""))
    places = client.locate(value)
    assert places
    return {
        path
        for place in places
        for first, end, path in maps
        if first <= place["address"] < end and place["address"] + place["bytes"] <= end
    }


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("home", ["a", "b", "c"])
def test_what_is_put_at_a_node_is_used_in_place_on_all(
    nodes: Cluster, kind: str, home: str
) -> None:
    wanted = VALUES[kind]
    clients = nodes.clients()
    for putter in clients:
        before = putter.stats(node=home)["objects"]
        reference = putter.put(wanted, "far", node=home)
        assert putter.stats(node=home)["objects"] == before + 1
        for client in clients:
            for target in ("far", reference, reference.id):
                value = client.get(target)
                assert equal(value, wanted)
                assert all(place["in_region"] for place in client.at(home).locate(value))
                (file,) = files_of(client, value)
                assert file.startswith(str(nodes.nodes[home].memory_dir))
            others = [name for name in nodes.names if name != home]
            for other in others:
                assert not any(place["in_region"] for place in client.at(other).locate(value))
        value = None
        clients[0].delete("far")
        assert not any(client.contains("far") for client in clients)


def test_batches_writers_and_pools_at_a_node(nodes: Cluster) -> None:
    a, b = nodes.client("a"), nodes.client("b")
    refs = a.put_many([b"one", TABLE], ["one", None], node="b")
    assert b.list(node="b").num_rows == 2
    assert a.list().num_rows == 0
    with a.create(1000, "written", node="c") as writer:
        writer.buffer[:] = bytes([7]) * 1000
    made = a.create_many([10, 20], ["ten", "twenty"], node="b")
    for writer in made:
        writer.buffer[:] = b"x" * writer.nbytes
        writer.seal()
    assert b.get("written").to_pybytes() == bytes([7]) * 1000
    assert [value.size for value in b.get_many(["ten", "twenty"])] == [10, 20]
    assert b.get(refs[1]).equals(TABLE)
    # What is built in a node's pool stays where it is.
    pool = a.memory_pool(node="b")
    buffer = pa.allocate_buffer(800_000, memory_pool=pool)
    np.frombuffer(buffer, np.int64)[:] = 5
    built = pa.table({"n": pa.Array.from_buffers(pa.int64(), 100_000, [None, buffer])})
    a.put(built, "built", node="b")
    found = a.get("built")
    offsets = [[at["offset"] for at in a.at("b").locate(table)] for table in (built, found)]
    assert offsets[0] == offsets[1] != [None]
    b.delete([*refs, "written", "ten", "twenty", "built"])


def test_a_client_at_a_node_is_the_same_connection(nodes: Cluster) -> None:
    a = nodes.client("a")
    far = a.at("b")
    assert (a.node, far.node, far.address) == ("a", "b", a.address)
    assert repr(far).endswith(" at b>")
    assert a.memory_pool(node="b") is far.memory_pool() is far.at("b").memory_pool()
    assert a.memory_pool(node="b", strict=True) is far.memory_pool(strict=True)
    assert a.memory_pool() is a.memory_pool(node="a") is far.at("a").memory_pool()
    assert a.memory_pool() is not far.memory_pool()
    name = far.put(b"there", "there").name
    assert a.list(node="b")["name"].to_pylist() == [name]
    assert far.evict(1)["objects"] == 1
    assert not a.contains("there")
    far.put(b"again", "again")
    assert a.evict(1, node="c")["objects"] == 0
    assert a.evict(1, node="b")["objects"] == 1


def test_nodes(nodes: Cluster) -> None:
    for client, own in zip(nodes.clients(), nodes.names, strict=True):
        found = {node.name: node for node in client.nodes()}
        assert sorted(found) == nodes.names
        assert [node.name for node in found.values() if node.is_own] == [own]
        assert sorted(node.address for node in found.values()) == sorted(nodes.addresses)
        assert len({node.number for node in found.values()}) == 3
        for node in found.values():
            assert isinstance(node, farrow.NodeInfo)
            assert (node.reach, node.fabric, node.why_not) == ("live", "shm", "")
            assert (node.coherence, node.capacity) == ("coherent", 64 << 20)
            assert node.incarnation > 0


def test_lists_of_all_nodes(nodes: Cluster) -> None:
    a = nodes.client("a")
    for home in reversed(nodes.names):
        a.put(home.encode(), f"in {home}", metadata={"home": home}, node=home)
    unnamed = a.put(b"no name", node="c")
    listed = a.list(all_nodes=True)
    wanted = [("in a", "a"), ("in b", "b"), ("in c", "c"), (None, "c")]
    assert list(zip(*(listed[key].to_pylist() for key in ("name", "node")), strict=True)) == wanted
    assert listed.drop_columns(["node"]).schema.equals(a.list().schema)
    assert a.list("in b", all_nodes=True)["node"].to_pylist() == ["b"]
    assert a.list(where={"home": "c"}, all_nodes=True)["name"].to_pylist() == ["in c"]
    assert a.list(node="b")["name"].to_pylist() == ["in b"]
    with pytest.raises(farrow.InvalidArgument, match="both"):
        a.list(node="b", all_nodes=True)
    a.delete(["in a", "in b", "in c", unnamed])


def test_lists_of_all_nodes_name_the_nodes_that_are_missing(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the cluster has noticed a loss, lists left out the node without a word."""
    cluster = make_cluster(2)
    cluster.client("a").put(b"at b", "on b", node="b")
    assert cluster.client("a").list(all_nodes=True, strict=True)["name"].to_pylist() == ["on b"]
    cluster.nodes["b"].kill9()
    # A client that has not used the memory of b.
    assert main(["ls", "--socket", cluster.nodes["a"].socket, "--all"]) == 0
    assert "cannot be reached: b" in capsys.readouterr().err
    a = cluster.client("a")
    listed = a.list(all_nodes=True)
    assert listed["name"].to_pylist() == []
    missing = json.loads(listed.schema.metadata[b"farrow.not_listed"])
    assert list(missing) == ["b"]
    assert "lost" in missing["b"]
    assert a.list().schema.metadata is None
    with pytest.raises(farrow.NodeLost) as caught:
        a.list(all_nodes=True, strict=True)
    assert caught.value.node == "b"


def test_unknown_nodes_are_reported_with_those_there_are(nodes: Cluster) -> None:
    a = nodes.client("a")
    attempts: list[Callable[[], Any]] = [
        lambda: a.at("d"),
        lambda: a.put(b"x", node="d"),
        lambda: a.put_many([b"x"], node="d"),
        lambda: a.create(1, node="d"),
        lambda: a.create_many([1], node="d"),
        lambda: a.memory_pool(node="d"),
        lambda: a.evict(1, node="d"),
        lambda: a.stats(node="d"),
        lambda: a.list(node="d"),
        lambda: a.at("b").put(b"x", node=""),
    ]
    for attempt in attempts:
        with pytest.raises(farrow.InvalidArgument, match="no node") as caught:
            attempt()
        assert all(f'"{name}"' in str(caught.value) for name in nodes.names)
    for name in ("d", "b"):  # not known, and not lost
        with pytest.raises(farrow.InvalidArgument):
            a.forget_node(name)
    assert len(a.nodes()) == 3


def test_a_node_alone(shared: farrow.Client) -> None:
    assert shared.node is None
    assert shared.nodes() == []
    reference = shared.put(b"x", "alone")
    listed = shared.list("alone", all_nodes=True)
    assert (listed["name"].to_pylist(), listed["node"].to_pylist()) == (["alone"], [None])
    shared.delete(reference)
    with pytest.raises(farrow.InvalidArgument, match="no node"):
        shared.put(b"x", node="a")
    with pytest.raises(farrow.InvalidArgument):
        shared.forget_node("a")


def test_barriers_and_flags_join_clients_of_all_nodes(nodes: Cluster) -> None:
    clients = nodes.clients()
    seen: list[int] = []

    def work(client: farrow.Client, number: int) -> None:
        client.barrier("start", len(clients), timeout=LIMIT_SECONDS)
        client.set_flags("came", 1 << number)
        seen.append(client.wait_flags("came", 0b111, timeout=LIMIT_SECONDS))

    workers = [threading.Thread(target=work, args=(c, n)) for n, c in enumerate(clients)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_SECONDS)
    assert seen == [0b111] * 3
    assert clients[1].set_flags("came", 0, clear=0b10) == 0b101
    with pytest.raises(farrow.Timeout, match="0x2"):
        clients[2].wait_flags("came", 0b10, timeout=0.05)
    with pytest.raises(farrow.BarrierBroken, match="1 of 2 parties") as broken:
        clients[0].barrier("alone", 2, timeout=0.05)
    assert broken.value.who == f"process {os.getpid()} of node a"
    with pytest.raises(farrow.InvalidArgument, match="0 parties"):
        clients[0].barrier("none", 0)


def test_names_are_one_in_the_cluster(nodes: Cluster) -> None:
    clients = nodes.clients()
    clients[0].put(b"first", "same", node="c")
    for client in clients:
        for home in nodes.names:
            with pytest.raises(farrow.AlreadyExists, match="same"):
                client.put(b"second", "same", node=home)
            with pytest.raises(farrow.AlreadyExists, match="same"):
                client.create(10, "same", node=home)
        assert client.get("same").to_pybytes() == b"first"
    clients[1].delete("same")
    clients[2].put(b"second", "same")
    assert clients[0].get("same").to_pybytes() == b"second"
    clients[2].delete("same")


def lost_node(attempt: Callable[[], Any]) -> str:
    """The node that is lost, as soon as an attempt says so."""
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            attempt()
        except farrow.NodeLost as error:
            return error.node
        except farrow.Disconnected:
            pass  # its connection went before others knew why
        assert time.monotonic() < end, "no error that names the node"
        time.sleep(0.01)


def test_a_killed_node_is_reported_by_name_and_nothing_else_stops(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(3)
    a, b, _ = cluster.clients()
    a.put(TABLE, "on b", node="b")
    reference = a.put(TABLE, "on c", node="c")
    held = a.get("on c")
    cluster.nodes["c"].kill9()

    attempts: list[Callable[[], Any]] = [
        lambda: a.create(1 << 20, "new", node="c").abort(),
        lambda: a.get("on c"),
        lambda: b.get(reference),
        lambda: a.stats(node="c"),
    ]

    def is_lost(client: farrow.Client) -> bool:
        return {node.name: node.reach for node in client.nodes()}["c"] == "lost"

    assert lost_node(attempts[0]) == "c"
    for client in (a, b):
        wait_until(lambda client=client: is_lost(client), "c is lost")
    for attempt in attempts:
        with pytest.raises(farrow.NodeLost) as caught:
            attempt()
        assert caught.value.node == "c"
    # What was got stays, and the others go on.
    assert held.equals(TABLE)
    assert b.get("on b").equals(TABLE)
    a.put(b"still", "still", node="b")
    assert b.get("still").to_pybytes() == b"still"
    assert a.list(all_nodes=True)["name"].to_pylist() == ["on b", "still"]

    assert main(["ls", "--socket", cluster.nodes["a"].socket, "--all"]) == 0
    out, err = capsys.readouterr()
    assert "on b" in out
    assert "on c" not in out
    assert "cannot be reached: c" in err
    assert main(["nodes", "--socket", cluster.nodes["a"].socket]) == 0
    assert "lost" in capsys.readouterr().out

    # It comes back with what it had, and is forgotten when it goes for good.
    cluster.nodes["c"].start()
    cluster.settle(3)
    wait_until(lambda: a.contains("on c"), "c with what it had")
    assert a.get("on c").equals(TABLE)
    cluster.nodes["c"].kill9()
    wait_until(lambda: is_lost(a), "c is lost again")
    assert main(["nodes", "--socket", cluster.nodes["a"].socket, "forget", "c"]) == 0
    wait_until(lambda: "c" not in {node.name for node in a.nodes()}, "c is forgotten")


def test_a_node_that_lost_most_others_is_cut_off(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(3)
    a = cluster.client("a")
    for name in ("b", "c"):
        cluster.nodes[name].kill9()

    reported: list[str] = []

    def attempt() -> bool:
        try:
            a.delete(a.put(b"x", "named"))
        except farrow.CutOff as error:
            reported.append(error.node)
        except (farrow.NodeLost, farrow.Timeout):
            pass
        return bool(reported)

    wait_until(attempt, "a knows that it is cut off")
    assert reported == ["a"]
    # Without a name nobody else need be asked.
    assert a.get(a.put(b"unnamed")).to_pybytes() == b"unnamed"


def test_the_commands(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: str, *words: str) -> tuple[int, str, str]:
        code = main([command, "--socket", nodes.nodes["a"].socket, *words])
        return (code, *capsys.readouterr())

    a = nodes.client("a")
    a.put(b"x", "near")
    a.put(TABLE, "far", node="b")
    code, out, _ = run("nodes")
    assert code == 0
    for text in (*nodes.names, *nodes.addresses, "live", "shm", "coherent", "64.0 MiB"):
        assert text in out
    code, out, _ = run("nodes", "--json")
    rows = json.loads(out)
    assert {row["name"] for row in rows} == set(nodes.names)
    assert set(rows[0]) == set(farrow.NodeInfo._fields)
    assert [row["name"] for row in json.loads(run("ls", "--json")[1])] == ["near"]
    code, out, err = run("ls", "--all", "--json")
    assert (code, err) == (0, "")
    assert {row["name"]: row["node"] for row in json.loads(out)} == {"near": "a", "far": "b"}
    code, out, _ = run("ls", "--node", "b")
    assert "far" in out
    assert "near" not in out
    code, _, err = run("ls", "--node", "d")
    assert code == 1
    assert err.startswith("farrow: no node")
    code, _, err = run("nodes", "forget", "b")
    assert code == 1
    assert err.count("\n") == 1
    with pytest.raises(SystemExit) as caught:
        run("ls", "--node", "b", "--all")
    assert caught.value.code == 2
    capsys.readouterr()
    a.delete(["near", "far"])


def test_nodes_of_a_node_alone(shared_node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--socket", shared_node.socket]) == 0
    assert "no cluster" in capsys.readouterr().out
    assert main(["nodes", "--socket", shared_node.socket, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_nodes_with_certificates(
    make_cluster: Callable[..., Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert main(["certs", "init", str(folder), "--days", "2"]) == 0
    for name in ("a", "b"):
        assert main(["certs", "issue", str(folder), name, "127.0.0.1", "--days", "1"]) == 0
    assert str(folder / "b.key") in capsys.readouterr().out
    cluster = make_cluster(2, "--certs", str(folder))
    a, b = cluster.clients()
    a.put(TABLE, "sealed", node="b")
    assert b.get("sealed").equals(TABLE)
    assert b.list()["name"].to_pylist() == ["sealed"]


def test_certificates_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert main(["certs", "init", str(folder)]) == 0
    assert main(["certs", "issue", str(folder), "a"]) == 0
    for name in ("ca.key", "a.key"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"ca.pem", "ca.key", "a.pem", "a.key"}
    capsys.readouterr()
    failures = [
        (["init", str(folder)], "ca.pem is there already"),
        (["issue", str(folder), "a"], "a.pem is there already"),
        (["issue", str(folder), "ca"], "ca.pem is there already"),
        (["issue", str(folder), "B"], '"B" is no name of a node'),
        (["issue", str(folder), "../b"], "is no name of a node"),
        (["issue", str(folder), "b", "not a host"], '"not a host" is neither'),
        (["issue", str(folder), "b", "a.farrow.internal"], "neither"),
        (["issue", str(folder), "b", "--days", "0"], "valid for 0 s"),
        (["issue", str(folder), "b", "--days", "99999"], "valid for"),
        (["revoke", str(folder), "b"], "b.pem"),
        (["revoke", str(folder), "../a"], "is no name of a node"),
        (["init", str(tmp_path / "other"), "--days", "-1"], "-1 days"),
        (["issue", str(tmp_path / "none"), "b"], "none/ca.key"),
    ]
    for words, text in failures:
        assert main(["certs", *words]) == 1, words
        _, err = capsys.readouterr()
        assert err.startswith("farrow: ")
        assert err.count("\n") == 1
        assert text in err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_certificate_of_another_authority_is_no_entry(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    for folder, name in (("ours", "a"), ("theirs", "b")):
        assert main(["certs", "init", str(tmp_path / folder)]) == 0
        assert main(["certs", "issue", str(tmp_path / folder), name]) == 0
    addresses = free_addresses(2)
    a = make_node("--name", "a", "--listen", addresses[0], "--certs", str(tmp_path / "ours"))
    flags = ["--name", "b", "--listen", addresses[1], "--certs", str(tmp_path / "theirs")]
    b = make_node(*flags, "--join", addresses[0])
    # It says so, and the other one goes on alone.
    wait_until(lambda: "ertificate" in b.log() or "ertificate" in a.log(), "a word of it")
    assert [node.name for node in farrow.connect(a.socket).nodes()] == ["a"]
    farrow.connect(a.socket).put(b"x", "still here")


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    cluster = pytest.importorskip("farrow.demo.cluster")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = io.StringIO()
    out = Console(file=text, width=160, highlight=False)
    assert cluster.run(cluster.Options(rows=20_000, memory_bytes=64 << 20), out=out) == 0, (
        text.getvalue()
    )
    reported = text.getvalue()
    assert "20,000 rows" in reported
    assert "the client at a, the client at b and the client at c agree" in reported
    assert "NO" not in reported.split()
    for theirs in ("4.99 ms", "58 of 68 ms", "118 of 300 ms", "3.2 ms", "5.05 ms", "1.89 ms"):
        assert theirs in reported
    assert list(tmp_path.iterdir()) == []


def test_a_demo_for_which_there_is_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = pytest.importorskip("farrow.demo.cluster")
    assert cluster.run(cluster.Options(rows=200_000, memory_bytes=8 << 20)) == 1
    _, err = capsys.readouterr()
    assert err.startswith("farrow: demo: ")
    assert "use fewer rows" in err


def test_the_demo_stopped_in_the_middle_ends_its_nodes(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "farrow.cli", "demo", "cluster", "--rows", "100000"]
    process = subprocess.Popen(
        [*command, "--memory", "128M"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(
        lambda: process.poll() is not None or bool(list(tmp_path.glob("farrow-demo-*/c.sock"))),
        "the nodes of the demo",
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert list(tmp_path.iterdir()) == []
    mark = f"TMPDIR={tmp_path}\0".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*") if mark in environment_of(path)]


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_top_shows_the_other_nodes(nodes: Cluster) -> None:
    command = [sys.executable, "-m", "farrow.cli", "top", "--once", "--socket"]
    command.append(nodes.nodes["a"].socket)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "127.0.0.1:" in line]
    # In the order in which they joined, and that two nodes may do in any.
    assert sorted(row[0:5] for row in rows) == [
        [name, address, "live", "shm", "coherent"]
        for name, address in zip("bc", nodes.addresses[1:], strict=True)
    ]


def test_events_of_another_node(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(3)
    a, b, _ = cluster.clients()
    events = a.subscribe("n/", node="b")
    ref = b.put(b"x", "n/1")
    a.put(b"x", "n/2")
    sealed = events.next(LIMIT_SECONDS)
    assert isinstance(sealed, farrow.events.Sealed)
    assert (sealed.id, sealed.name) == (ref.id, "n/1")

    async def stream() -> list[str | None]:
        wanted = a.at("b").subscribe("n/", timeout=LIMIT_SECONDS)
        b.put(b"x", "n/3")
        b.put(b"x", "n/4")
        return [(await anext(wanted)).name for _ in range(2)]  # type: ignore[union-attr]

    assert asyncio.run(stream()) == ["n/3", "n/4"]
    cluster.nodes["b"].kill9()
    assert [events.next(LIMIT_SECONDS).name for _ in range(2)] == ["n/3", "n/4"]  # type: ignore[union-attr]
    with pytest.raises(farrow.NodeLost) as caught:
        events.next(LIMIT_SECONDS)
    assert caught.value.node == "b"
    with pytest.raises(farrow.InvalidArgument):
        a.subscribe(node="nowhere")
