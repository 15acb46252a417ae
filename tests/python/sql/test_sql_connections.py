"""Connections between clients and workers of SQL: TLS 1.3, strangers, and floods of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Node, run_python, wait_until
from sql_cases import WORKERS, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")
from farrow_sql._worker import _accept, _channel  # noqa: E402

QUERY = "select sum(k) from numbers"
_COMMAND = "import sys; del sys.path[0]; from farrow.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[farrow.Client]:
    """A client of a node with a table and a worker, which serves one query at a time."""
    node = Node(tmp_path_factory.mktemp("node"))
    client = farrow.connect(node.socket)
    client.put(pa.table({"k": list(range(100))}), "numbers")
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--queries", "1"]
    worker = subprocess.Popen([*command, "--socket", node.socket], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: client.list(WORKERS).num_rows == 1, "a worker")
        yield client
    finally:
        worker.terminate()
        worker.wait(LIMIT_SECONDS)
        node.close()


def announced(client: farrow.Client) -> tuple[str, dict[str, Any]]:
    """The name of the worker, and what it says of itself."""
    name = client.list(WORKERS)["name"][0].as_py()
    return name, json.loads(client.get(name).to_pybytes())


@contextlib.contextmanager
def announcing(client: farrow.Client, **other: Any) -> Iterator[None]:
    """While the worker's announcement says something else."""
    name, found = announced(client)
    # Otherwise the worker announces itself again.
    client.put(json.dumps({**found, **other}).encode(), name, replace=True)
    try:
        yield
    finally:
        client.put(json.dumps(found).encode(), name, replace=True)


def answers(client: farrow.Client) -> bool:
    """Whether the worker serves a query."""
    found, prepared = farrow_sql._run._query.Query(QUERY, client, timeout=60).run()
    assert rows_of(found) == [(4950,)]
    return prepared.plan is not None


def not_used(client: farrow.Client) -> str:
    """Why the only worker is not used; the query runs all the same."""
    assert not answers(client)
    text = farrow_sql.explain(QUERY, client)
    assert "in this process: the cluster has no workers that can be used, 1 that cannot" in text
    [line] = [line for line in text.splitlines() if line.startswith("not used: worker ")]
    return line


def connect(client: farrow.Client, timeout: float = LIMIT_SECONDS) -> socket.socket:
    """A connection to the worker's port, as anybody can have one."""
    found = announced(client)[1]
    return socket.create_connection((found["host"], found["port"]), timeout)


def ends(connection: socket.socket) -> bool:
    """Whether the worker ends a connection before the time of its wait."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_connections_are_encrypted(served: farrow.Client) -> None:
    """What passes over the wire has neither the key nor the plan nor the rows."""
    _, found = announced(served)
    seen = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                seen.extend(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection((found["host"], found["port"]))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        with announcing(served, port=listener.getsockname()[1]):
            text = "select 'a secret word' as word, sum(k) as total from numbers"
            rows, prepared = farrow_sql._run._query.Query(text, served, timeout=60).run()
            assert prepared.plan is not None
            assert rows.to_pydict() == {"word": ["a secret word"], "total": [4950]}
    finally:
        listener.close()
    assert len(seen) > 1000
    for plain in (b"secret", b"farrow_0", bytes.fromhex(found["key"]), b"outputs", b"total"):
        assert plain not in seen
    # A record of a handshake, in the framing that TLS 1.3 has in common with 1.2.
    assert seen[:2] == b"\x16\x03"


def test_another_certificate_is_not_trusted(served: farrow.Client) -> None:
    other = _channel.Credentials.create().fingerprint
    with announcing(served, certificate=other):
        line = not_used(served)
    own = announced(served)[1]["certificate"]
    assert f"has the SHA-256 {own}, announced is {other}" in line
    assert answers(served)


@pytest.fixture
def impostor() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Something else that listens at a port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(greet: Callable[[socket.socket], None]) -> int:
        def body() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    with connection, contextlib.suppress(OSError):
                        greet(connection)

        threading.Thread(target=body, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    listener.close()


def test_nothing_leads_to_plain_text(served: farrow.Client, impostor: Callable[..., int]) -> None:
    """A port that speaks without TLS gets no key, and an announcement that asks for it no query."""
    received = bytearray()

    def greet(connection: socket.socket) -> None:
        connection.sendall(struct.pack("<Q", 5) + b"ready")
        while data := connection.recv(65536):
            received.extend(data)

    with announcing(served, port=impostor(greet)):
        assert "no TLS 1.3 at 127.0.0.1:" in not_used(served)
    assert bytes.fromhex(announced(served)[1]["key"]) not in received
    # As workers did before they had certificates.
    with announcing(served, protocol=1):
        assert "its protocol is 1, here it is 2" in not_used(served)
    with announcing(served, certificate=None):
        assert "announced is None" in not_used(served)


def test_an_older_tls_is_refused(served: farrow.Client) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(served) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw)
    assert answers(served)


def test_a_worker_that_does_not_answer_costs_seconds(
    served: farrow.Client, impostor: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farrow_sql._worker._workers, "_CONNECT_SECONDS", 0.3)

    def listen(connection: socket.socket) -> None:
        while connection.recv(65536):
            continue

    with announcing(served, port=impostor(listen)):
        assert "timed out" in not_used(served)


def test_what_is_no_announcement_is_left_out(
    served: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write in the namespace can write below the prefix."""
    _, found = announced(served)
    bad = [
        b"", b"null", b"[]", b"7", b"{}", b"\xff", b"[" * 50_000, b"{" + b" " * 70_000 + b"}",
        *(json.dumps({**found, **other}).encode() for other in (
            {"port": 70_000}, {"port": -1}, {"port": "x"}, {"port": None}, {"port": 1e300},
            {"host": "a" * 300}, {"host": "no host"}, {"host": ["x"]}, {"key": "xyz"}, {"key": 7},
            {"certificate": []}, {"datafusion": "1.0"}, {"protocol": "2"},
        )),
    ]  # fmt: skip
    names = [f"{WORKERS}zz-{number}" for number in range(len(bad))]
    served.put_many(bad, names)
    served.put(pa.table({"x": [1]}), f"{WORKERS}zz-table")
    try:
        assert answers(served)
        text = farrow_sql.explain(QUERY, served)
        # One for each that is a JSON object of a size that it can have.
        unused = [line.split()[3] for line in text.splitlines() if "not used: worker zz-" in line]
        assert unused == [f"zz-{number}:" for number in sorted([4, *range(8, 21)], key=str)]
        assert "worker zz-19: its datafusion is 1.0, here it is" in text
    finally:
        served.delete([*names, f"{WORKERS}zz-table"])


def test_strangers_are_not_served(served: farrow.Client) -> None:
    """They have no key, and whatever they send ends their own connection only."""
    _, found = announced(served)
    address = (found["host"], found["port"])
    # It proves that it is the worker, and the key is another one.
    with pytest.raises((TimeoutError, OSError)):
        _channel.client_channel(address, found["certificate"], os.urandom(32), 0.5)
    for length in (33, 1 << 40, (1 << 64) - 1):
        with connect(served) as raw:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(raw) as stream:
                stream.sendall(struct.pack("<Q", length))
                assert ends(stream)
    # Plain text to the port.
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\x16\x03\x01\xff\xff"):
        with connect(served) as raw:
            raw.sendall(data)
            if data[0] != 0x16:
                wait_until(lambda raw=raw: ends(raw), "the worker ends it")  # type: ignore[misc]
        assert answers(served)


def test_silence_keeps_no_client_out(served: farrow.Client) -> None:
    """The process of the worker waited for the first who came, while others waited behind."""
    silent = [connect(served) for _ in range(_accept.PENDING_MAX // 2)]
    try:
        assert answers(served)
        # The query was served before the silent ones' time was over, and cut them.
        for one in silent:
            one.settimeout(_accept.HANDSHAKE_SECONDS + LIMIT_SECONDS)
            assert ends(one)
    finally:
        for one in silent:
            one.close()
    # Without a query, their time ends.
    with connect(served, _accept.HANDSHAKE_SECONDS + LIMIT_SECONDS) as one:
        assert ends(one)


def test_a_flood_keeps_no_client_out(served: farrow.Client) -> None:
    """More connections than are accepted at a time, again and again, while queries run."""
    stop = threading.Event()
    counts = [0, 0]

    def flood(number: int) -> None:
        found: list[socket.socket] = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                found.append(connect(served, 1.0))
                counts[number] += 1
            if len(found) > 2 * _accept.PENDING_MAX:
                found.pop(0).close()
            time.sleep(0.005)
        for one in found:
            one.close()

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(counts) > 4 * _accept.PENDING_MAX, "the flood")
        assert sum(answers(served) for _ in range(10)) >= 8
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers(served)


def test_of_the_address_with_most_connections_the_oldest_is_cut() -> None:
    """So an honest client of another address is not."""
    context = _channel.server_context(_channel.Credentials.create())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        acceptor = _accept.Acceptor(listener, context, bytes(32))
        accepted: list[_channel.Channel] = []
        thread = threading.Thread(target=lambda: accepted.append(acceptor.accept()), daemon=True)
        thread.start()

        def come(source: str) -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), 10, (source, 0))

        honest = come("127.0.0.2")
        strangers = [come("127.0.0.3") for _ in range(_accept.PENDING_MAX + 5)]
        # One for each that is too many, the first ones first.
        for one in strangers[:6]:
            assert ends(one)
        raw = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        raw.check_hostname, raw.verify_mode = False, ssl.CERT_NONE
        with raw.wrap_socket(honest) as stream:
            channel = _channel.Channel(stream)
            channel.send_bytes(bytes(32))
            assert channel.recv_bytes(5) == b"ready"
            for one in strangers:
                assert ends(one)
                one.close()
        thread.join(LIMIT_SECONDS)
        assert len(accepted) == 1
        accepted[0].close()


def test_a_message_has_limits() -> None:
    from farrow_sql._worker import _messages

    class Scripted:
        def __init__(self, *data: bytes) -> None:
            self.data = list(data)

        def recv_bytes(self, limit: int) -> bytes:
            assert len(self.data[0]) <= limit
            return self.data.pop(0)

    for text in (b"", b"[]", b"null", b"{}", b'{"blobs": -1}', b'{"blobs": 65537}', b"\xff"):
        with pytest.raises(farrow_sql.QueryFailed):
            _messages.receive(Scripted(text))  # type: ignore[arg-type]
    found = _messages.receive(Scripted(b'{"blobs": 2}', b"a", b"b"))  # type: ignore[arg-type]
    assert found == ({"blobs": 2}, [b"a", b"b"])


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ended_process() -> dict[str, Any]:
    """The identity of a process of this machine that has ended."""
    script = (
        "import json; from farrow_sql._worker._processes import identity; "
        "print(json.dumps(identity()))"
    )
    found: dict[str, Any] = json.loads(run_python(script))
    return found


def test_only_what_is_proved_to_have_ended_is_deleted(served: farrow.Client) -> None:
    """A refused connection is no proof: the port of a worker at 127.0.0.1 of another machine is
    refused here."""
    _, own = announced(served)
    ended = {**own, **ended_process(), "port": closed_port()}
    other_machine = {**ended, "node": "other", "boot": "other"}
    announcements = {
        "aa-ended": ended,
        "aa-pid-again": {**own, "port": ended["port"], "started": "1"},
        "bb-loopback": other_machine,
        "bb-localhost": {**other_machine, "host": "localhost"},
        "bb-no-node": {name: one for name, one in other_machine.items() if name != "node"},
        "bb-running": {**own, "port": ended["port"]},
        "bb-container": {**ended, "pid_namespace": "pid:[1]"},
        "bb-no-identity": {**ended, "boot": None},
        "bb-no-pid": {**ended, "pid": -1},
        "bb-huge-pid": {**ended, "pid": 1 << 70},
    }
    staged = {
        name: served.put(pa.table({"x": [1]}), metadata={"farrow.sql.worker": WORKERS + name})
        for name in ("aa-ended", "bb-loopback")
    }
    for name, one in announcements.items():
        served.put(json.dumps(one).encode(), WORKERS + name)
    retained = sorted(WORKERS + name for name in announcements if name.startswith("bb-"))
    try:
        text = farrow_sql.explain(QUERY, served)
        names = served.list(WORKERS)["name"].to_pylist()
        assert [
            name for name in names if name[len(WORKERS) :].startswith(("aa-", "bb-"))
        ] == retained
        assert not served.contains(staged["aa-ended"])
        assert served.contains(staged["bb-loopback"])
        for line in (
            "worker bb-loopback: it listens at 127.0.0.1 of node 'other': start it with --listen",
            "worker bb-localhost: it listens at localhost of node 'other'",
            f"worker bb-running: connection refused at 127.0.0.1 port {ended['port']}",
        ):
            assert f"not used: {line}" in text
        assert answers(served)
    finally:
        served.delete([*retained, staged["bb-loopback"]])


def test_a_worker_runs_no_file_of_its_folder(node: Node, tmp_path: Path) -> None:
    """A file with the name of a module of Python ran in place of it; its error was no end."""
    tmp_path.joinpath("json.py").write_text("raise RuntimeError('not the json of Python')")
    client = farrow.connect(node.socket)
    # As the command ``farrow`` does, which does not search its folder.
    command = [sys.executable, "-c", _COMMAND, "sql-worker", "--socket", node.socket]
    worker = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: client.list(WORKERS).num_rows == 1, "a worker")
        client.put(pa.table({"k": [1, 2]}), "numbers")
        assert rows_of(farrow.sql(QUERY, client, timeout=60)) == [(3,)]
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=LIMIT_SECONDS)
    assert "RuntimeError" not in said


def test_a_worker_whose_process_cannot_serve_is_not_announced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query of each client waited seconds for it."""
    from farrow_sql import worker

    client = farrow.connect(node.socket)
    ends = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(7)"]
    monkeypatch.setattr(worker, "module_command", lambda module: ends)
    serving = worker.Supervisor(lambda: farrow.connect(node.socket), queries=1)
    with pytest.raises(ChildProcessError, match="ended with code 7 before it served"):
        serving.serve()
    assert client.list(WORKERS).num_rows == 0


# Serves nothing, and says that it does.
_SERVES = "import sys; sys.stdin.readline(); print('x', flush=True); sys.stdin.read()"


def test_a_worker_outlives_a_machine_without_room(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended when one process could not be started once."""
    from farrow_sql import worker

    commands = [[sys.executable, "-c", _SERVES]]
    monkeypatch.setattr(worker, "module_command", lambda module: commands[-1])
    serving = worker.Supervisor(lambda: farrow.connect(node.socket), queries=1)
    thread = threading.Thread(target=serving.serve)
    thread.start()
    try:
        wait_until(lambda: serving._was_announced, "the worker is announced")
        first = serving._processes[0]
        # As if something had cleaned the folder for temporary files.
        assert serving._spill is not None
        shutil.rmtree(serving._spill._path)
        commands.append(["/no/such/program"])
        first.popen.kill()
        wait_until(lambda: serving._obstacle is not None, "no process can be started")
        commands.append(commands[0])
        wait_until(lambda: serving._obstacle is None, "a process is started")
        assert thread.is_alive()
        assert serving._processes[0].spill is None
    finally:
        serving.stop()
        thread.join(LIMIT_SECONDS)
    assert capsys.readouterr().err.count("no new process: ") == 1


def test_a_process_that_ends_before_it_has_its_settings(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farrow_sql import worker

    ends = [sys.executable, "-c", "import sys; sys.exit(7)"]
    monkeypatch.setattr(worker, "module_command", lambda module: ends)
    serving = worker.Supervisor(lambda: farrow.connect(node.socket), queries=1)
    # More than a pipe takes without a reader.
    serving._settings = "x" * (1 << 20)
    with pytest.raises(ChildProcessError, match="ended with code 7 before it served"):
        serving._start(0.0)
    assert serving._spill is not None
    assert list(serving._spill._path.iterdir()) == []
    serving._end()


def test_a_worker_deletes_announcements_of_killed_ones(node: Node) -> None:
    client = farrow.connect(node.socket)
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--socket", node.socket]

    workers: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        before = client.list(WORKERS)["name"].to_pylist()
        workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        wait_until(lambda: client.list(WORKERS)["name"].to_pylist() != before, "a worker")
        wait_until(lambda: client.list(WORKERS).num_rows == 1, "one worker is announced")

    try:
        start()
        workers[0].kill()
        workers[0].wait(LIMIT_SECONDS)
        start()
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(LIMIT_SECONDS)
    assert workers[-1].returncode == 0
