"""The server: the method for each message of Flight SQL."""

from __future__ import annotations

import functools
import logging
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from farrow.exceptions import Disconnected, FarrowError, InvalidArgument
from farrow.flight import _access, _catalog, _engine, _messages, _prepared, _queries
from farrow.flight._bound import typical
from farrow.flight._protobuf import Malformed, Message, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farrow import Client

__all__ = ["FlightSqlServer"]

_log = logging.getLogger("farrow.flight")
_Method = TypeVar("_Method", bound="Callable[..., Any]")

_ID_BYTES = 16
_MEMORY_BYTES = 1 << 30
_QUERIES = 8
_QUERY_SECONDS = 600.0
# A client that does not read keeps its call open: the end of the server does not wait for it.
_SHUTDOWN_SECONDS = 5.0
# Longer messages do not fit the trailers of an answer.
_ERROR_LENGTH_MAX = 2_000
_UPDATES = {
    "CommandStatementUpdate",
    "CommandPreparedStatementUpdate",
    "CommandStatementIngest",
    "CommandStatementSubstraitPlan",
}
_ACTIONS = (
    ("CreatePreparedStatement", "keep a query and its parameters"),
    ("ClosePreparedStatement", "forget a prepared query"),
    ("CancelFlightInfo", "end a query"),
    ("CancelQuery", "end a query"),
)
# Of CancelFlightInfoResult and ActionCancelQueryResult alike.
_CANCELLED = 1


class FlightSqlServer:
    """Serves the tables of a node to drivers of Arrow Flight SQL.

    It starts in the constructor and serves until ``close``.

    Args:
        connect: makes a client of the node.
        host: an address of this machine; without ``certificate`` a loopback address.
        port: the port; 0: a free one.
        token: the secret of all clients, 16 to 4,096 characters of ASCII without spaces; None: a
            random one.
        certificate: a file with the certificate of the server and its chain, in PEM.
        key: a file with its key, in PEM.
        memory: bytes that all queries together may use.
        threads: threads of all queries together; None: one for each core.
        queries: how many run at a time; others wait for up to 30 seconds.
        query_seconds: how long a query may take, until its last row is sent.

    Raises:
        InvalidArgument: ``host`` can be reached by other machines and there is no certificate, or
            DuckDB 2 is not installed, or an argument is out of its range.
        OSError: the port is taken, or a file cannot be read.

    Examples:
        >>> from farrow.flight import FlightSqlServer
        >>> with FlightSqlServer(lambda: farrow.connect(client.address), port=0) as server:
        ...     server.uri.startswith("grpc+tcp://127.0.0.1:")
        True
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        memory: int = _MEMORY_BYTES,
        threads: int | None = None,
        queries: int = _QUERIES,
        query_seconds: float = _QUERY_SECONDS,
    ) -> None:
        if (certificate is None) != (key is None):
            raise InvalidArgument("a certificate needs its key, and a key its certificate")
        _access.check_address(host, certificate is not None)
        if queries < 1 or not query_seconds > 0:
            raise InvalidArgument(f"{queries} queries for {query_seconds} s: both must be positive")
        # An empty one would admit every client.
        self.token = (
            _access.new_token() if token is None else _access.checked_token(token, "the argument")
        )
        self._host, self._scheme = host, "grpc+tcp" if certificate is None else "grpc+tls"
        pairs = None
        if certificate is not None and key is not None:
            pairs = [(Path(certificate).read_bytes(), Path(key).read_bytes())]
        self._ending: threading.Thread | None = None
        self._engine = _open_engine(connect, memory, threads)
        self._queries = _queries.Queries(self._engine, most=queries, seconds=query_seconds)
        try:
            self._service = _Service(
                self._engine,
                self._queries,
                (f"[{host}]" if ":" in host else host, port),
                auth_handler=_access.NoHandshake(),
                middleware={"call": _access.Admission(self.token)},
                tls_certificates=pairs,
            )
        except (pa.ArrowException, OSError) as error:
            self._end_queries()
            raise OSError(f"cannot serve {host}:{port}: {error}") from None

    @property
    def port(self) -> int:
        """The port of the server.

        Examples:
            >>> from farrow.flight import FlightSqlServer
            >>> with FlightSqlServer(lambda: farrow.connect(client.address)) as server:
            ...     server.port > 0
            True
        """
        return int(self._service.port)

    @property
    def uri(self) -> str:
        """The address for drivers.

        Examples:
            >>> from farrow.flight import FlightSqlServer
            >>> with FlightSqlServer(lambda: farrow.connect(client.address)) as server:
            ...     server.uri == f"grpc+tcp://127.0.0.1:{server.port}"
            True
        """
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self.port}"

    @property
    def running(self) -> int:
        """The number of queries that run now.

        Examples:
            >>> from farrow.flight import FlightSqlServer
            >>> with FlightSqlServer(lambda: farrow.connect(client.address)) as server:
            ...     server.running
            0
        """
        return self._queries.count

    def close(self) -> bool:
        """End all queries and the server.

        Returns:
            False if a client still has a call open after 5 seconds: only the end of the process
            ends that call.

        Examples:
            >>> from farrow.flight import FlightSqlServer
            >>> server = FlightSqlServer(lambda: farrow.connect(client.address))
            >>> server.close()
            True
        """
        if self._ending is None:
            self._end_queries()
            self._ending = threading.Thread(target=self._service.end, daemon=True)
            self._ending.start()
        self._ending.join(_SHUTDOWN_SECONDS)
        return not self._ending.is_alive()

    def _end_queries(self) -> None:
        self._queries.close()
        self._engine.close()

    def __enter__(self) -> FlightSqlServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _open_engine(
    connect: Callable[[], Client], memory: int, threads: int | None
) -> _engine.QueryEngine:
    cores = len(os.sched_getaffinity(0))
    tables = _engine.TableSource(connect)
    try:
        return _engine.QueryEngine(tables, memory=memory, threads=threads or cores)
    except ImportError:
        raise InvalidArgument(
            "queries need DuckDB, which is not installed: pip install 'farrow[flight]'"
        ) from None


def _answered(method: _Method) -> _Method:
    """A method of the service: its errors have codes of Flight, and a text without a traceback."""

    @functools.wraps(method)
    def wrapped(self: Any, context: Any, *arguments: Any) -> Any:
        call = context.get_middleware("call")
        call.begin(context)
        try:
            return method(self, call, *arguments)
        except Exception as error:
            raise _reported(error) from None

    return wrapped  # type: ignore[return-value]


def _reported(error: Exception) -> Any:
    """An error as the client receives it.

    Flight sends the traceback of any other error with it: paths of this machine, at length.
    """
    import duckdb

    text = str(error)[:_ERROR_LENGTH_MAX] or type(error).__name__
    if isinstance(error, flight.FlightError):
        return error
    if isinstance(error, NotImplementedError):
        # Drivers look for its code, which no error of Flight has.
        return pa.ArrowNotImplementedError(text)
    if isinstance(error, Disconnected):
        return flight.FlightUnavailableError(f"the node does not answer: {text}")
    if isinstance(error, duckdb.PermissionException):
        return flight.FlightUnauthorizedError(text)
    if isinstance(error, (FarrowError, duckdb.Error, pa.ArrowException, Malformed)):
        return flight.FlightServerError(text)
    _log.error("a call failed", exc_info=error)
    return flight.FlightInternalError(f"{type(error).__name__}: {text}")


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    """The calls of Flight, each in a thread of its own."""

    def __init__(
        self, engine: _engine.QueryEngine, queries: _queries.Queries, location: Any, **options: Any
    ) -> None:
        self._engine = engine
        self._queries = queries
        self._prepared = _prepared.PreparedStatements()
        super().__init__(location, **options)

    def end(self) -> None:
        """End the server and wait for its calls; unlike ``shutdown``, it is not ended once more by
        the interpreter."""
        self.__exit__(None, None, None)

    # ---- what a command would return

    @_answered
    def get_flight_info(self, call: _queries.Call, descriptor: Any) -> flight.FlightInfo:
        command = _messages.command(_command_of(descriptor))
        schema = self._schema(call, command)
        ticket = descriptor.command
        if command.name == "CommandStatementQuery":
            # The ticket has all that it needs, so it cannot expire.
            handle = secrets.token_bytes(_ID_BYTES) + command.message.binary(1)
            ticket = _messages.in_any("TicketStatementQuery", (1, handle))
        endpoint = flight.FlightEndpoint(ticket, [])
        return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    @_answered
    def get_schema(self, call: _queries.Call, descriptor: Any) -> flight.SchemaResult:
        return flight.SchemaResult(self._schema(call, _messages.command(_command_of(descriptor))))

    def _schema(self, call: _queries.Call, command: _messages.Command) -> pa.Schema:
        if _catalog.is_question(command.name):
            return _catalog.schema_of(command)
        if command.name == "CommandStatementQuery":
            return self._described(call, _messages.SqlText.of(command.message).query, None)
        if command.name == "CommandPreparedStatementQuery":
            prepared = self._prepared.find(command.message.binary(1))
            return self._described(call, prepared.sql, prepared.bound)
        raise _unknown(command.name)

    def _described(self, call: _queries.Call, sql: str, bound: pa.Table | None) -> pa.Schema:
        query = self._queries.begin(call)
        try:
            with query.working():
                statement = self._engine.parse(query.connection, sql)
                row = typical(self._engine.bound(query.connection, bound))
                self._engine.attach(query.connection, statement, is_snapshot=False)
                relation = self._engine.relation(query.connection, statement, row)
                return self._engine.schema(relation)
        finally:
            query.close()

    # ---- rows

    @_answered
    def do_get(self, call: _queries.Call, ticket: Any) -> flight.FlightDataStream:
        command = _messages.command(ticket.ticket)
        if _catalog.is_question(command.name):
            found = _catalog.answer(command, self._engine.tables)
            small = _engine.messages(iter(found.to_batches()), found.schema)
            return flight.GeneratorStream(found.schema, small)
        handle = command.message.binary(1)
        if command.name == "TicketStatementQuery":
            sql = _text(handle[_ID_BYTES:])
            return self._stream(call, handle[:_ID_BYTES], sql, None)
        if command.name == "CommandPreparedStatementQuery":
            prepared = self._prepared.find(handle)
            return self._stream(call, handle, prepared.sql, prepared.bound)
        raise _unknown(command.name)

    def _stream(
        self, call: _queries.Call, id: bytes, sql: str, bound: pa.Table | None
    ) -> flight.FlightDataStream:
        """The rows of a query, for each of its bound rows in turn."""
        query = self._queries.begin(call, id)
        engine = self._engine
        try:
            with query.working():
                statement = engine.parse(query.connection, sql)
                rows = engine.bound(query.connection, bound)
                engine.attach(query.connection, statement, is_snapshot=True)
                relation = engine.relation(query.connection, statement, typical(rows))
                schema = engine.schema(relation)
        except BaseException:
            query.close()
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for row in rows:
                    with query.working():
                        found = engine.relation(query.connection, statement, row)
                        reader = engine.reader(found)
                    yield from _engine.messages(query.batches(reader), schema)
            except Exception as error:
                raise _reported(error) from None
            finally:
                query.close()

        stream = batches()
        return flight.GeneratorStream(schema, _Closing(stream, query))

    # ---- prepared statements and cancellation

    @_answered
    def do_put(self, call: _queries.Call, descriptor: Any, reader: Any, writer: Any) -> None:
        command = _messages.command(_command_of(descriptor))
        if command.name in _UPDATES:
            raise flight.FlightUnauthorizedError(
                f"{command.name} is refused: the tables can only be read"
            )
        if command.name != "CommandPreparedStatementQuery":
            raise _unknown(command.name)
        handle = command.message.binary(1)
        self._prepared.find(handle)
        chunks = (chunk.data for chunk in reader)
        self._prepared.bind(handle, _prepared.parameters(chunks, reader.schema))

    @_answered
    def do_action(self, call: _queries.Call, action: Any) -> list[bytes]:
        body = action.body.to_pybytes()
        if action.type == "CancelFlightInfo":
            # A message of Flight itself: it is in no Any.
            return [self._cancel(body)]
        if action.type not in [name for name, _ in _ACTIONS]:
            raise pa.ArrowNotImplementedError(f"no action {action.type[:200]!r}")
        command = _messages.command(body)
        if command.name != f"Action{action.type}Request":
            raise _unknown(command.name)
        if action.type == "CancelQuery":
            self._cancel(body=encode((1, command.message.binary(1))))
            return [_messages.in_any("ActionCancelQueryResult", (1, _CANCELLED))]
        if action.type == "ClosePreparedStatement":
            self._prepared.close(command.message.binary(1))
            return []
        return [self._prepare(call, _messages.SqlText.of(command.message).query)]

    def _prepare(self, call: _queries.Call, sql: str) -> bytes:
        query = self._queries.begin(call)
        try:
            with query.working():
                statement = self._engine.parse(query.connection, sql)
                self._engine.attach(query.connection, statement, is_snapshot=False)
                relation = self._engine.relation(query.connection, statement, None)
                schema = self._engine.schema(relation)
                parameters = self._engine.parameter_schema(query.connection, statement)
        finally:
            query.close()
        return _messages.in_any(
            "ActionCreatePreparedStatementResult",
            (1, self._prepared.create(sql).handle),
            (2, schema.serialize().to_pybytes()),
            (3, parameters.serialize().to_pybytes()),
        )

    def _cancel(self, body: bytes) -> bytes:
        """End the query of a ``CancelFlightInfoRequest``: a FlightInfo with its tickets."""
        if len(body) > 4 * _messages.COMMAND_BYTES_MAX:
            raise pa.ArrowInvalid(f"a request of {len(body)} B")
        info = Message(Message(body).binary(1))
        tickets = [Message(Message(one).binary(1)).binary(1) for one in info.binaries(3)]
        found = False
        for ticket in tickets:
            command = _messages.command(ticket)
            handle = command.message.binary(1)
            is_text = command.name == "TicketStatementQuery"
            found |= self._queries.cancel(handle[:_ID_BYTES] if is_text else handle)
        if not found:
            raise pa.ArrowKeyError("no such query runs")
        return encode((1, _CANCELLED))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(_ACTIONS)


class _Closing:
    """The batches of a stream, whose query ends with it, also if no batch was ever asked for."""

    def __init__(self, batches: Any, query: _queries.RunningQuery) -> None:
        self._batches = batches
        self._query = query

    def __iter__(self) -> _Closing:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def __del__(self) -> None:
        self._batches.close()
        self._query.close()


def _command_of(descriptor: Any) -> bytes:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise pa.ArrowInvalid("a path; this server answers commands of Flight SQL")
    return bytes(descriptor.command)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the query is not UTF-8 at byte {error.start}") from None


def _unknown(name: str) -> pa.ArrowNotImplementedError:
    return pa.ArrowNotImplementedError(f"no command {name[:200]!r} here")
