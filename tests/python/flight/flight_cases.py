"""A client of Flight SQL that sends any bytes, and a server for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pytest

import farrow
from conftest import wait_until
from farrow.flight import FlightSqlServer
from farrow.flight._messages import in_any
from farrow.flight._protobuf import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Node

WAIT_SECONDS = 60.0
ROWS = 200_000
TRADES = pa.schema({"n": pa.int64(), "price": pa.float64()})
# Runs for hours, and returns its first row at its end.
SLOW = "select sum(a.range * b.range % 7) as s from range(10_000_000_000) a, range(1_000_000) b"
# Its rows never end.
ENDLESS = "select a.n, b.range from trades a, range(10_000_000_000) b"


def query(sql: str) -> bytes:
    """The command of a query."""
    return in_any("CommandStatementQuery", (1, sql))


class RawClient:
    """Messages as a driver would send them, or as none would."""

    def __init__(self, uri: str, token: str | None, **options: Any) -> None:
        self.client = flight.connect(uri, **options)
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self.options = flight.FlightCallOptions(timeout=WAIT_SECONDS, headers=headers)

    def info(self, command: bytes) -> flight.FlightInfo:
        descriptor = flight.FlightDescriptor.for_command(command)
        return self.client.get_flight_info(descriptor, self.options)

    def ticket(self, sql: str) -> bytes:
        [endpoint] = self.info(query(sql)).endpoints
        found: bytes = endpoint.ticket.ticket
        return found

    def get(self, ticket: bytes) -> Any:
        return self.client.do_get(flight.Ticket(ticket), self.options)

    def ask(self, name: str, *fields: tuple[int, int | bytes | str]) -> pa.Table:
        """The rows of a command, whose columns must be those that were announced."""
        info = self.info(in_any(name, *fields))
        [endpoint] = info.endpoints
        assert endpoint.locations == []
        found = self.get(endpoint.ticket.ticket).read_all()
        assert found.schema.equals(info.schema), (found.schema, info.schema)
        return found

    def query(self, sql: str) -> pa.Table:
        return self.ask("CommandStatementQuery", (1, sql))

    def act(self, kind: str, body: bytes) -> list[bytes]:
        action = flight.Action(kind, body)
        found = self.client.do_action(action, self.options)
        return [result.body.to_pybytes() for result in found]

    def prepare(self, sql: str) -> tuple[bytes, pa.Schema, pa.Schema]:
        """The handle of a prepared statement, its result's columns, and its parameters."""
        [body] = self.act(
            "CreatePreparedStatement", in_any("ActionCreatePreparedStatementRequest", (1, sql))
        )
        message = Message(Message(body).binary(2))
        schemas = [pa.ipc.read_schema(pa.py_buffer(message.binary(n))) for n in (2, 3)]
        return message.binary(1), schemas[0], schemas[1]

    def bind(
        self, handle: bytes, rows: pa.Table, name: str = "CommandPreparedStatementQuery"
    ) -> None:
        descriptor = flight.FlightDescriptor.for_command(in_any(name, (1, handle)))
        writer, _ = self.client.do_put(descriptor, rows.schema, self.options)
        with writer:
            writer.write_table(rows)

    def close(self) -> None:
        self.client.close()


def client_of(server: FlightSqlServer) -> RawClient:
    return RawClient(server.uri, server.token)


def chunk(number: int, rows: int = ROWS) -> pa.Table:
    n = pa.array(range(number * rows, (number + 1) * rows))
    return pa.table({"n": n, "price": pc.cast(n, pa.float64())})


def until_running(server: FlightSqlServer, count: int) -> None:
    wait_until(lambda: server.running == count, f"{count} queries run")


@pytest.fixture
def serve(node: Node) -> Iterator[Callable[..., FlightSqlServer]]:
    """Servers with options of their own, ended after the test."""
    pytest.importorskip("duckdb", minversion="2")
    servers: list[FlightSqlServer] = []

    def start(**options: Any) -> FlightSqlServer:
        made = FlightSqlServer(lambda: farrow.connect(node.socket, timeout=5), **options)
        servers.append(made)
        return made

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Callable[..., FlightSqlServer]) -> FlightSqlServer:
    return serve(threads=2)


@pytest.fixture
def raw(server: FlightSqlServer) -> Iterator[RawClient]:
    made = client_of(server)
    yield made
    made.close()


@pytest.fixture
def trades(client: farrow.Client) -> farrow.HugeTable:
    """Two chunks of 200,000 rows."""
    table = client.huge_table("trades", TRADES)
    for number in range(2):
        table.append(chunk(number))
    return table
