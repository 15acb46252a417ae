"""DuckDB over the tables of a node: which statements run, with which tables, and what they return.

One database in memory, which can neither read files nor change its settings, serves all queries, so
that they share one limit of memory.  Each query has a connection of its own, in a transaction that
can only read.  The connection sees the tables that the query names, as they are when it starts.
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from farrow._scan._attached import NewestRows, folded, table_names
from farrow._scan._duckdb_source import register
from farrow.dataset import dataset
from farrow.exceptions import Disconnected, FarrowError, InvalidArgument
from farrow.flight._bound import (
    EXPLAIN,
    TypedNull,
    bound_rows,
    nodes_of,
    syntax_tree,
    with_typed_nulls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farrow import Client
    from farrow.dataset import FarrowDataset

__all__ = ["QueryEngine", "Statement", "TableSource"]

# Rows of one record batch of DuckDB; it fills a whole one before it returns it.
_BATCH_ROWS = 16_384
# Bytes of one message: drivers take 4 MiB (Go's gRPC) to 16 MiB (ADBC) by default.
_MESSAGE_BYTES_MAX = 2 << 20
# Tables that a query of DuckDB's own catalog sees.
_LISTED_TABLES_MAX = 2_000
# Statements that change nothing; a transaction that can only read refuses what these contain.
_READING = {"SELECT", "EXPLAIN"}
_OF_CATALOG = re.compile(
    r"\b((information_schema|pg_catalog|duckdb_\w+|pragma_\w+|show|query_table)\b|query\s*\()",
    re.IGNORECASE,
)
# In this order: the last one makes the others final.
_SETTINGS = (
    "SET python_enable_replacements = false",
    "SET GLOBAL python_enable_replacements = false",
    "SET GLOBAL autoinstall_known_extensions = false",
    "SET GLOBAL autoload_known_extensions = false",
    "SET GLOBAL allow_community_extensions = false",
    "SET GLOBAL temp_directory = ''",
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL lock_configuration = true",
)


class TableSource:
    """The tables of a node, by a client that is replaced after the node restarted.

    Args:
        connect: makes a client of the node.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._client: Client | None = None

    def read(self, question: Callable[[Client], Any]) -> Any:
        """Ask a client; once more, with a new one, if the node has restarted since.

        Raises:
            Disconnected: the node does not answer.
        """
        with self._lock:
            client = self._client = self._client or self._connect()
        try:
            # Mapped memory alone may answer a question, also that of a node that has ended.
            client.stats()
            return question(client)
        except Disconnected:
            with self._lock:
                if self._client is client:
                    self._client = None
                    self._client = self._connect()
                client = self._client or self._connect()
            return question(client)

    def names(self) -> list[str]:
        """All tables, in order."""
        found: list[str] = self.read(table_names)
        return found

    def schema(self, name: str) -> pa.Schema | None:
        """The columns of a table; None if it does not exist any more, or cannot be read now.

        Raises:
            Disconnected: the node does not answer.
        """
        try:
            return self.read(lambda client: NewestRows(name, client)).schema
        except Disconnected:
            raise
        except FarrowError:
            # One table of a node that is lost does not hide all others.
            return None

    def named(self, wanted: set[str]) -> dict[str, str]:
        """The tables that a query names: as it names them, and as they are called.

        SQL ignores case.  A name in the right case is preferred.

        Raises:
            InvalidArgument: several tables differ from a name in case only.
        """
        here = self.read(lambda client: {name for name in wanted if _has(client, name)})
        found = {name: name for name in here}
        if len(found) < len(wanted):
            listed = self.names()
            for name in wanted - set(found):
                same = [one for one in listed if folded(one) == folded(name)]
                if len(same) > 1:
                    raise InvalidArgument(f"{name!r} may be any of the tables {same}")
                if same:
                    found[name] = same[0]
        tables = {folded(name): table for name, table in found.items()}
        for name, table in found.items():
            if tables[folded(name)] != table:
                raise InvalidArgument(
                    f"one query cannot use both {table!r} and {tables[folded(name)]!r}, "
                    "whose names differ in case only"
                )
        return found


def _has(client: Client, name: str) -> bool:
    """Whether a table exists; none has a name that no object can have, as an expression may."""
    try:
        return client.contains(name)
    except InvalidArgument:
        return False


class Statement:
    """One parsed query.

    Attributes:
        sql: its text.
        kind: SELECT or EXPLAIN.
        parameters: names of its parameters: numbers from 1, or words.
    """

    def __init__(self, sql: str, kind: str, parameters: list[str]) -> None:
        self.sql = sql
        self.kind = kind
        self.parameters = parameters

    @property
    def has_positions(self) -> bool:
        """Whether its parameters are numbers."""
        return all(name.isdecimal() for name in self.parameters)

    def by_name(self, row: dict[str, Any] | None) -> dict[str, Any]:
        """The value of each parameter.

        DuckDB ignores the case of names.  Values whose columns have other names are in the order of
        the parameters, as drivers send them that know only positions.

        Args:
            row: the bound values by the names of their columns, in order; None: all null.

        Raises:
            ArrowInvalid: there are fewer or more values than parameters, or only some have the name
                of one.
        """
        if not self.parameters:
            return {}
        row = dict.fromkeys(self.parameters) if row is None else row
        if len(row) != len(self.parameters):
            raise pa.ArrowInvalid(
                f"the query has {len(self.parameters)} parameters, {len(row)} are bound"
            )
        if not self.has_positions:
            wanted = {folded(name): name for name in self.parameters}
            given = {folded(name.removeprefix("$")): value for name, value in row.items()}
            if given.keys() == wanted.keys():
                return {wanted[name]: value for name, value in given.items()}
            if given.keys() & wanted.keys():
                raise pa.ArrowInvalid(
                    f"the query has the parameters {self.parameters}, bound are {[*row]}"
                )
        return dict(zip(self.parameters, row.values(), strict=True))

    def values(self, named: dict[str, Any]) -> list[Any] | dict[str, Any] | None:
        """The values of its parameters as DuckDB takes them."""
        if not named:
            return None
        plain = {
            name: None if isinstance(value, TypedNull) else value for name, value in named.items()
        }
        return list(plain.values()) if self.has_positions else plain


class QueryEngine:
    """The database that runs queries.

    Args:
        tables: the tables of the node.
        memory: bytes that all queries together may use.
        threads: threads of all queries together.

    Raises:
        InvalidArgument: DuckDB is older than version 2.
        ImportError: it is not installed.
    """

    def __init__(self, tables: TableSource, *, memory: int, threads: int) -> None:
        import duckdb

        # In DuckDB 1.4 a query can call enable_logging(storage = 'file', ...).
        if int(duckdb.__version__.partition(".")[0]) < 2:
            raise InvalidArgument(
                f"queries need DuckDB 2, and {duckdb.__version__} is installed: older versions "
                "let a query change settings, and so write files"
            )
        self.tables = tables
        self._lock = threading.Lock()
        limits: dict[str, Any] = {"memory_limit": f"{memory}B", "threads": str(threads)}
        self._database = duckdb.connect(":memory:", config=limits)
        for setting in _SETTINGS:
            with contextlib.suppress(duckdb.CatalogException):
                # A setting that this version has as a local one only.
                self._database.execute(setting)
        self._check_settings()

    def _check_settings(self) -> None:
        """A new connection must have the settings on which safety rests."""
        with self.connection() as connection:
            for name, wanted in (
                ("enable_external_access", False),
                ("lock_configuration", True),
                ("python_enable_replacements", False),
            ):
                [(value,)] = connection.execute(f"SELECT current_setting('{name}')").fetchall()
                if value is not wanted:
                    raise InvalidArgument(f"DuckDB has {name} = {value}, not {wanted}")

    def connection(self) -> Any:
        """A connection of its own for one query."""
        with self._lock:
            return self._database.cursor()

    def close(self) -> None:
        """End the database."""
        with self._lock:
            self._database.close()

    def parse(self, connection: Any, sql: str) -> Statement:
        """Check that a text is one statement that only reads.

        Raises:
            FlightUnauthorizedError: it is one that writes.
            ArrowInvalid: it is none, or several.
            duckdb.Error: it is no SQL.
        """
        statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise pa.ArrowInvalid(f"{len(statements)} statements in a query, 1 is allowed")
        [statement] = statements
        kind = statement.type.name
        if kind not in _READING:
            raise flight.FlightUnauthorizedError(f"{kind} is refused: the tables can only be read")
        names = sorted(statement.named_parameters, key=lambda name: (len(name), name))
        return Statement(sql, kind, names)

    def attach(self, connection: Any, statement: Statement, *, is_snapshot: bool) -> None:
        """Show a connection the tables of a statement, and let it only read from then on.

        Args:
            connection: the connection of the query.
            statement: the query.
            is_snapshot: whether the query will read rows: all its scans of a table find the same.

        Raises:
            FarrowError: a table cannot be read.
        """
        named, expressions = _named_tables(connection, statement.sql)
        for name, table in self.tables.named(named or set()).items():
            try:
                register(connection, name, self._rows(table, is_snapshot))
            except InvalidArgument:
                # An object without columns may have the name of a table expression.
                if name not in expressions:
                    raise
        if named is None or _OF_CATALOG.search(statement.sql):
            self._attach_all(connection, named or set(), is_snapshot)
        connection.execute("BEGIN TRANSACTION READ ONLY")

    def _rows(self, table: str, is_snapshot: bool) -> Any:
        if is_snapshot:
            return self.tables.read(lambda client: dataset(table, client))
        return self.tables.read(lambda client: NewestRows(table, client))

    def _attach_all(self, connection: Any, attached: set[str], is_snapshot: bool) -> None:
        # Most of them are never read.
        kind = _FirstRows if is_snapshot else NewestRows
        taken = {folded(name) for name in attached}
        for name in self.tables.names()[:_LISTED_TABLES_MAX]:
            if folded(name) not in taken:
                with contextlib.suppress(FarrowError):
                    rows = self.tables.read(lambda client: kind(name, client))  # noqa: B023
                    register(connection, name, rows)
                    taken.add(folded(name))

    def bound(self, connection: Any, bound: pa.Table | None) -> list[dict[str, Any] | None]:
        """The parameters of each execution of a statement; before :meth:`attach`.

        Raises:
            ArrowInvalid: DuckDB cannot keep a value.
            duckdb.Error: it cannot read a column of this type.
        """
        return [None] if bound is None else [*bound_rows(connection, bound)]

    def relation(self, connection: Any, statement: Statement, row: dict[str, Any] | None) -> Any:
        """A statement with its parameters, which reads nothing yet."""
        import duckdb

        named = statement.by_name(row)
        values = statement.values(named)
        typed = with_typed_nulls(connection, statement.sql, named)
        if typed != statement.sql:
            with contextlib.suppress(duckdb.BinderException, duckdb.ParserException):
                self.parse(connection, typed)
                return connection.sql(typed, params=values)
        # Also where a null of that type cannot be bound, as that of a driver without types.
        return connection.sql(statement.sql, params=values)

    def schema(self, relation: Any) -> pa.Schema:
        """The columns of the result; no row is read."""
        found = relation.limit(0).to_arrow_table().schema
        # A subquery has no two columns of one name.
        return _plain(_renamed(found, relation.columns))

    def parameter_schema(self, connection: Any, statement: Statement) -> pa.Schema:
        """The parameters of a statement; text where DuckDB leaves the type open."""
        kinds = _parameter_types(connection, statement.sql) if statement.parameters else {}
        return pa.schema(
            [(name, _type_named(connection, kinds.get(name))) for name in statement.parameters]
        )

    def reader(self, relation: Any) -> pa.RecordBatchReader:
        """Start a query; its rows are computed as they are read."""
        return relation.to_arrow_reader(_BATCH_ROWS)


class _FirstRows(NewestRows):
    """A table that the first scan opens: all scans find the same rows."""

    def __init__(self, name: str, client: Client) -> None:
        super().__init__(name, client)
        self._lock = threading.Lock()

    def _open(self) -> FarrowDataset:
        with self._lock:
            self._snapshot = super()._open()
        return self._snapshot

    def _open_for_scan(self) -> FarrowDataset:
        return self._open()


def _named_tables(connection: Any, sql: str) -> tuple[set[str] | None, set[str]]:
    """The tables that a query names, or None if they are unknown; and the names of its common table
    expressions, which are among the tables where they are used.

    DuckDB's own list of names lacks those of queries with parameters, and of some joins.
    """
    try:
        tree = syntax_tree(connection, EXPLAIN.sub("", sql, count=1))
    except RecursionError:
        raise pa.ArrowInvalid("the query is nested too deeply") from None
    if tree.get("error"):
        return None, set()
    tables: set[str] = set()
    expressions: set[str] = set()
    for node in nodes_of(tree):
        if node.get("type") == "BASE_TABLE":
            tables.add(str(node["table_name"]))
        for one in (node.get("cte_map") or {}).get("map") or ():
            expressions.add(str(one["key"]))
    return tables, expressions


def messages(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Record batches of this schema that are small enough for a message each."""
    for batch in batches:
        columns = [
            _of_type(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)
        ]
        yield from _small(pa.RecordBatch.from_arrays(columns, schema=schema))


def _of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type.equals(kind):
        return column
    # An enum within another type; or what DuckDB makes of a bound null, which has no type.
    return pa.nulls(len(column), kind) if column.null_count == len(column) else column.cast(kind)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    pending = [batch]
    while pending:
        one = pending.pop()
        if one.nbytes <= _MESSAGE_BYTES_MAX or one.num_rows < 2:
            yield one
        else:
            half = one.num_rows // 2
            pending += [one.slice(half), one.slice(0, half)]


def _plain(schema: pa.Schema) -> pa.Schema:
    """A schema without dictionaries, which a stream of single batches cannot send."""
    return pa.schema([_plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    return kind


def _renamed(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def _parameter_types(connection: Any, sql: str) -> dict[str, str]:
    """Types of parameters by name, as DuckDB reports them for its own relations; else empty."""
    import duckdb

    try:
        described = connection._bind(sql)[2]
        return {str(name): str(kind) for name, kind in described}
    except (AttributeError, IndexError, TypeError, ValueError, duckdb.Error):
        return {}


def _type_named(connection: Any, name: str | None) -> pa.DataType:
    """The Arrow type of a type of DuckDB; text if it is not known yet."""
    import duckdb

    if name is None:
        return pa.string()
    try:
        found = connection.sql(f"SELECT CAST(NULL AS {name}) AS value").limit(0).to_arrow_table()
    except duckdb.Error:
        return pa.string()
    kind = found.schema.field(0).type
    return pa.string() if pa.types.is_null(kind) else kind
