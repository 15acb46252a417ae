"""Who may connect to the Flight SQL server, and how queries, nodes and the server end."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from farrow.flight import FlightSqlServer
from farrow.flight._protobuf import encode
from flight_cases import (
    ENDLESS,
    ROWS,
    SLOW,
    RawClient,
    client_of,
    query,
    until_running,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

pytest_plugins = ["flight_cases"]

# ---- who may connect


def test_only_the_token_is_let_in(server: FlightSqlServer) -> None:
    for token in (None, "", "wrong", server.token + "x", server.token[:-1]):
        with pytest.raises(flight.FlightUnauthenticatedError, match="token is"):
            RawClient(server.uri, token).query("select 1")
    # Drivers that know user and password only.
    plain = flight.connect(server.uri)
    with pytest.raises(flight.FlightUnauthenticatedError):
        plain.authenticate_basic_token("me", "wrong")
    header = plain.authenticate_basic_token("me", server.token)
    raw = client_of(server)
    raw.options = flight.FlightCallOptions(headers=[header])
    assert raw.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_other_machines_need_a_certificate(
    serve: Callable[..., FlightSqlServer], tmp_path: Path
) -> None:
    for host in ("0.0.0.0", "::", "example.org", "192.0.2.1"):
        with pytest.raises(farrow.InvalidArgument, match="in plain text"):
            serve(host=host)
    with pytest.raises(farrow.InvalidArgument, match="needs its key"):
        serve(certificate=tmp_path / "none.pem")
    with pytest.raises(FileNotFoundError):
        serve(certificate=tmp_path / "none.pem", key=tmp_path / "none.key")


def test_tls(serve: Callable[..., FlightSqlServer], tmp_path: Path) -> None:
    from farrow.cli import main

    folder = str(tmp_path / "certs")
    assert main(["certs", "init", folder]) == 0
    assert main(["certs", "issue", folder, "a", "localhost", "127.0.0.1"]) == 0
    server = serve(host="0.0.0.0", certificate=f"{folder}/a.pem", key=f"{folder}/a.key")
    assert server.uri.startswith("grpc+tls://0.0.0.0:")
    authority = (tmp_path / "certs" / "ca.pem").read_bytes()
    address = f"grpc+tls://localhost:{server.port}"
    raw = RawClient(address, server.token, tls_root_certs=authority)
    assert raw.query("select 1 as one").to_pylist() == [{"one": 1}]
    with pytest.raises(flight.FlightUnauthenticatedError):
        RawClient(address, "wrong", tls_root_certs=authority).query("select 1")
    with pytest.raises(flight.FlightUnavailableError):
        RawClient(address, server.token).query("select 1")


def test_a_port_that_is_taken_is_an_error(serve: Callable[..., FlightSqlServer]) -> None:
    first = serve()
    with pytest.raises(OSError, match=str(first.port)):
        serve(port=first.port)


# ---- the end of queries


def test_a_query_that_is_cancelled_ends(
    server: FlightSqlServer, raw: RawClient, trades: farrow.HugeTable
) -> None:
    stream = raw.get(raw.ticket(ENDLESS))
    assert stream.read_chunk().data.num_rows > 0
    until_running(server, 1)
    stream.cancel()
    until_running(server, 0)
    # By the action, from another connection.
    info = raw.info(query(SLOW))
    errors: list[Exception] = []

    def read() -> None:
        try:
            # Not read_all: there pyarrow takes a cancellation for Ctrl-C in this process.
            list(raw.get(info.endpoints[0].ticket.ticket))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until_running(server, 1)
    request = encode((1, info.serialize()))
    assert client_of(server).act("CancelFlightInfo", request) == [encode((1, 1))]
    thread.join(LIMIT_SECONDS)
    assert isinstance(errors[0], flight.FlightCancelledError), errors
    until_running(server, 0)
    with pytest.raises(flight.FlightServerError, match="no such query"):
        raw.act("CancelFlightInfo", request)


def test_a_client_that_dies_leaves_no_query(
    server: FlightSqlServer, trades: farrow.HugeTable
) -> None:
    script = """
import sys, pyarrow.flight as flight
from flight_cases import RawClient
from farrow.flight._messages import in_any
raw = RawClient(sys.argv[1], sys.argv[2])
info = raw.info(in_any("CommandStatementQuery", (1, sys.argv[3])))
print("ready", flush=True)
raw.get(info.endpoints[0].ticket.ticket).read_all()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, server.uri, server.token, SLOW],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    until_running(server, 1)
    process.kill()
    process.wait(LIMIT_SECONDS)
    until_running(server, 0)


def test_a_query_has_a_time_limit(
    serve: Callable[..., FlightSqlServer], trades: farrow.HugeTable
) -> None:
    server = serve(query_seconds=0.5, threads=1)
    raw = client_of(server)
    with pytest.raises(flight.FlightTimedOutError, match=r"longer than 0\.5 s"):
        raw.query(SLOW)
    # A client that stops reading does not keep the slot either.
    stream = raw.get(raw.ticket(ENDLESS))
    stream.read_chunk()
    until_running(server, 0)
    with pytest.raises(flight.FlightTimedOutError):
        stream.read_all()
    assert raw.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_queries_wait_for_a_slot(
    serve: Callable[..., FlightSqlServer],
    trades: farrow.HugeTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from farrow.flight import _queries

    server = serve(queries=1, threads=1)
    raw = client_of(server)
    stream = raw.get(raw.ticket(ENDLESS))
    stream.read_chunk()
    monkeypatch.setattr(_queries, "_WAIT_SECONDS", 0.2)
    with pytest.raises(flight.FlightUnavailableError, match="1 queries run, 1 are allowed"):
        raw.query("select 1")
    monkeypatch.setattr(_queries, "_WAIT_SECONDS", LIMIT_SECONDS)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(raw.query("select 1 as one")))
    thread.start()
    stream.cancel()
    thread.join(LIMIT_SECONDS)
    assert found[0].to_pylist() == [{"one": 1}]


def test_the_time_of_a_query_begins_with_its_slot() -> None:
    from farrow.flight._queries import Call, Queries, RunningQuery

    class Engine:
        def connection(self) -> None:
            return None

    queries = Queries(Engine(), most=1, seconds=3600.0)  # type: ignore[arg-type]
    found: list[RunningQuery] = []
    try:
        first = queries.begin(Call({}))
        thread = threading.Thread(target=lambda: found.append(queries.begin(Call({}))))
        thread.start()
        wait_until(lambda: queries._waiting == 1, "the second one waits")
        ended = time.monotonic()
        first.close()
        thread.join(LIMIT_SECONDS)
        assert found[0]._ends_at >= ended + 3600.0
        assert queries.count == 1
    finally:
        queries.close()
    assert (queries.count, queries._waiting) == (0, 0)


def test_the_server_ends_its_queries(
    serve: Callable[..., FlightSqlServer], trades: farrow.HugeTable
) -> None:
    server = serve()
    raw = client_of(server)
    ticket = raw.ticket(SLOW)
    errors: list[Exception] = []

    def read() -> None:
        try:
            raw.get(ticket).read_all()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until_running(server, 1)
    assert server.close()
    thread.join(LIMIT_SECONDS)
    assert isinstance(errors[0], flight.FlightUnavailableError), errors


# ---- the node


def test_a_table_that_is_dropped_while_it_is_read(
    raw: RawClient, trades: farrow.HugeTable, client: farrow.Client
) -> None:
    ticket = raw.ticket("select n from trades")
    stream = raw.get(ticket)
    first = stream.read_chunk().data
    trades.drop()
    rest = stream.read_all()
    total = pc.sum(first["n"]).as_py() + pc.sum(rest["n"]).as_py()
    assert total == sum(range(2 * ROWS))
    with pytest.raises(flight.FlightServerError, match="trades"):
        raw.get(ticket).read_all()


def test_a_node_that_is_killed_and_starts_again(
    node: Node, server: FlightSqlServer, raw: RawClient, trades: farrow.HugeTable
) -> None:
    query = "select count(*) as c from trades"
    assert raw.query(query).to_pylist() == [{"c": 2 * ROWS}]
    ticket = raw.ticket("select n from trades")
    stream = raw.get(ticket)
    stream.read_chunk()
    node.kill9()
    # What is being read is in memory still; what needs the node is an error that says so.
    assert stream.read_all().num_rows > 0
    node.start()
    wait_until(lambda: answers(raw, query), "queries after the restart")
    assert raw.query(query).to_pylist() == [{"c": 2 * ROWS}]


def test_a_node_that_starts_again_without_its_memory(
    node: Node, server: FlightSqlServer, raw: RawClient, client: farrow.Client
) -> None:
    """The server went on with the rows of the memory that was gone, for ever."""
    client.put(pa.table({"n": [1]}), "counts")
    query = "select n from counts"
    assert raw.query(query).to_pylist() == [{"n": 1}]
    node.kill9()
    for path in node.memory_dir.iterdir():
        path.unlink()
    node.start()
    farrow.connect(node.socket).put(pa.table({"n": [2]}), "counts")
    wait_until(lambda: answers(raw, query), "queries after the restart")
    assert raw.query(query).to_pylist() == [{"n": 2}]


def answers(raw: RawClient, sql: str) -> bool:
    try:
        raw.query(sql)
    except flight.FlightUnavailableError:
        return False
    return True


# ---- the command


def test_the_command_serves_until_a_signal(
    node: Node, trades: farrow.HugeTable, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb", minversion="2")
    token = tmp_path / "token"
    command = [sys.executable, "-m", "farrow.cli", "flight", "--socket", node.socket]
    options = ["--port", "0", "--token-file", str(token), "--memory", "256MiB"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        uri = process.stdout.readline().strip()
        assert uri.startswith("grpc+tcp://127.0.0.1:"), process.stderr
        assert token.stat().st_mode & 0o777 == 0o600
        raw = RawClient(uri, token.read_text().strip())
        assert raw.query("select max(n) as n from trades").to_pylist() == [{"n": 2 * ROWS - 1}]
        # A client that does not read must not keep the process.
        ticket = raw.ticket(ENDLESS)
        stream = raw.get(ticket)
        stream.read_chunk()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    from farrow.flight._access import token_of

    path = tmp_path / "token"
    first = token_of(path)
    assert len(first) >= 32
    assert token_of(path) == first
    path.chmod(0o644)
    with pytest.raises(farrow.InvalidArgument, match="644"):
        token_of(path)
    path.chmod(0o600)
    for wrong in ("", "short", "a b" * 10, "x" * 5000, "ä" * 20):
        path.write_text(wrong)
        with pytest.raises(farrow.InvalidArgument, match="has no token"):
            token_of(path)


@pytest.mark.parametrize("token", ["", "short", "a b" * 10, "x" * 5000, "ä" * 20, "x" * 20 + "\n"])
def test_a_server_needs_a_token(serve: Callable[..., FlightSqlServer], token: str) -> None:
    """With an empty one everybody was let in."""
    with pytest.raises(farrow.InvalidArgument, match="has no token"):
        serve(token=token)


def test_no_base64_is_no_password() -> None:
    from farrow.flight._access import Admission

    for value in ("é", "====", "/w==", ""):
        with pytest.raises(flight.FlightUnauthenticatedError, match="token is missing"):
            Admission("t" * 16).start_call(None, {"authorization": [f"Basic {value}"]})


def test_a_server_waits_for_the_default_node_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without --socket, the outage of a node ended workers of SQL, and was no ``Unavailable``."""
    from farrow.cli._client import connect
    from farrow.flight._server import _reported

    monkeypatch.delenv("FARROW_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    options = argparse.Namespace(socket=None, timeout=0.1, namespace="")
    with pytest.raises(farrow.Disconnected, match="start a node with") as caught:
        connect(options)
    assert isinstance(_reported(caught.value), flight.FlightUnavailableError)


def test_an_old_duckdb_is_refused(
    serve: Callable[..., FlightSqlServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB 1.4 let a query call ``enable_logging``, which writes files, with a locked
    configuration."""
    duckdb: Any = pytest.importorskip("duckdb")
    monkeypatch.setattr(duckdb, "__version__", "1.4.4")
    with pytest.raises(farrow.InvalidArgument, match=r"DuckDB 2, and 1\.4\.4 is installed"):
        serve()


def test_duckdb_is_an_optional_dependency(
    serve: Callable[..., FlightSqlServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(farrow.InvalidArgument, match=r"pip install 'farrow\[flight\]'"):
        serve()
