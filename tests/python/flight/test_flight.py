"""Flight SQL over Farrow's tables: queries, and the questions of drivers."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import farrow
from farrow.flight import FlightSqlServer, _engine
from farrow.flight._messages import in_any
from flight_cases import (
    ROWS,
    TRADES,
    RawClient,
    chunk,
    client_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


pytest_plugins = ["flight_cases"]

# ---- queries


def test_a_query_returns_the_rows_of_a_table(raw: RawClient, trades: farrow.HugeTable) -> None:
    found = raw.query("select count(*) as rows, sum(price) as total from trades where n < 10")
    assert found.to_pylist() == [{"rows": 10, "total": 45.0}]
    assert raw.query("select n from trades order by n").num_rows == 2 * ROWS
    # Rows that are appended later are seen by the next query.
    trades.append(pa.table({"n": [-1], "price": [0.5]}))
    assert raw.query("select price from trades where n < 0").to_pylist() == [{"price": 0.5}]


def test_a_ticket_can_be_read_twice(raw: RawClient, trades: farrow.HugeTable) -> None:
    ticket = raw.ticket("select max(n) as most from trades")
    for _ in range(2):
        assert raw.get(ticket).read_all().to_pylist() == [{"most": 2 * ROWS - 1}]


def test_names_that_are_no_identifiers(raw: RawClient, client: farrow.Client) -> None:
    for number, name in enumerate(["notes/today", "select", 'a "b" c', "Umlaut ä", "a.b.c", "x;y"]):
        client.put(pa.table({"n": [number]}), name)
        quoted = '"' + name.replace('"', '""') + '"'
        assert raw.query(f"select n from {quoted}").to_pylist() == [{"n": number}], name
        whole = f"select n from temp.main.{quoted}"
        assert raw.query(whole).to_pylist() == [{"n": number}], name


def test_names_that_differ_in_case_only(raw: RawClient, client: farrow.Client) -> None:
    """DuckDB ignores case: the rows of the wrong table must never be returned."""
    client.put(pa.table({"n": [1]}), "Sales")
    assert raw.query("select n from sales").to_pylist() == [{"n": 1}]
    client.put(pa.table({"n": [2]}), "sales")
    assert raw.query("select n from sales").to_pylist() == [{"n": 2}]
    assert raw.query("select n from Sales").to_pylist() == [{"n": 1}]
    with pytest.raises(flight.FlightServerError, match="may be any"):
        raw.query("select n from SALES")
    with pytest.raises(flight.FlightServerError, match="in case only"):
        raw.query('select * from "Sales" join "sales" using (n)')


def test_table_expressions_may_have_names_of_objects(raw: RawClient, client: farrow.Client) -> None:
    client.put(b"no rows", "bytes")
    client.put(pa.table({"n": [1, 2, 3]}), "numbers")
    assert raw.query("with bytes as (select 7 as a) from bytes").to_pylist() == [{"a": 7}]
    narrowed = "with numbers as (select n from numbers where n > 1) select sum(n) as s from numbers"
    assert raw.query(narrowed).to_pylist() == [{"s": 5}]
    with pytest.raises(flight.FlightServerError, match="no columns"):
        raw.query("select * from bytes")
    # No object can have so long a name.
    long = "x" * 300
    assert raw.query(f"with {long} as (select 7 as a) from {long}").to_pylist() == [{"a": 7}]


def test_two_columns_of_one_name(raw: RawClient) -> None:
    found = raw.query("select 1 as a, 'x' as a, 2.5 as b")
    assert found.column_names == ["a", "a", "b"]


def test_columns_of_all_kinds(raw: RawClient, client: farrow.Client) -> None:
    day = dt.datetime(2024, 2, 29, 12, 30, 15, 250)
    table = pa.table(
        {
            "flag": [True, None],
            "small": pa.array([-3, None], pa.int8()),
            "large": pa.array([2**63 + 1, None], pa.uint64()),
            "text": ["ä", None],
            "data": [b"\0\xff", None],
            "money": pa.array([decimal.Decimal("12.34"), None], pa.decimal128(10, 2)),
            "day": pa.array([day.date(), None]),
            "when": pa.array([day, None], pa.timestamp("us")),
            "there": pa.array([day, None], pa.timestamp("us", "UTC")),
            "list": [[1, 2], None],
            "struct": [{"a": 1}, None],
            "kind": pa.array(["x", None]).dictionary_encode(),
        }
    )
    client.put(table, "mixed")
    found = raw.query("select * from mixed")
    plain = table.set_column(11, "kind", table["kind"].cast(pa.string()))
    assert found.to_pylist() == plain.to_pylist()
    assert raw.query("select 'x'::enum('x', 'y') as e").to_pylist() == [{"e": "x"}]
    for text, value in (
        ("['x', null, 'y']::enum('x', 'y')[]", ["x", None, "y"]),
        ("['x']::enum('x', 'y')[1]", ["x"]),
        ("{'a': [{'b': 'x'::enum('x', 'y')}], 'c': 1}", {"a": [{"b": "x"}], "c": 1}),
        ("map {'x'::enum('x', 'y'): 1}", [("x", 1)]),
    ):
        assert raw.query(f"select {text} as e").to_pylist() == [{"e": value}], text


def test_a_large_result_comes_in_small_messages(raw: RawClient, client: farrow.Client) -> None:
    """Drivers refuse messages of more than some MiB."""
    client.put(pa.table({"text": ["x" * 10_000] * 2_000}), "texts")
    ticket = raw.ticket("select text from texts")
    sizes, rows = [], 0
    for part in raw.get(ticket):
        sizes.append(part.data.nbytes)
        rows += part.data.num_rows
    assert rows == 2_000
    assert max(sizes) <= 2 << 20


def test_a_long_list_of_tables_comes_in_small_messages(
    raw: RawClient, client: farrow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"table {number}" for number in range(8)]
    client.put_many([pa.table({"n": [1]})] * 8, names)
    monkeypatch.setattr(_engine, "_MESSAGE_BYTES_MAX", 500)
    command = in_any("CommandGetTables", (5, 1))
    parts = [part.data for part in raw.get(command)]
    assert len(parts) > 2
    assert [name for part in parts for name in part["table_name"].to_pylist()] == names


def test_the_tables_of_duckdb_itself(raw: RawClient, trades: farrow.HugeTable) -> None:
    names = raw.query("select table_name from information_schema.tables order by 1")
    assert names["table_name"].to_pylist() == ["trades"]
    assert raw.query("show tables")[0].to_pylist() == ["trades"]
    assert raw.query("select count(*) as c from QUERY ('select n from trades')")["c"][
        0
    ].as_py() == (2 * ROWS)
    described = raw.query("describe trades")
    assert described["column_name"].to_pylist() == ["n", "price"]
    plan = raw.query("explain select * from trades").to_pylist()
    assert plan
    values = raw.query("explain analyze select sum(n) from trades").to_pylist()
    assert values


# ---- what is refused

REFUSED = [
    "create table x as select 1",
    "create view x as select 1",
    "create temp table x (a int)",
    "insert into trades values (1, 2.0)",
    "update trades set n = 1",
    "delete from trades",
    "drop view trades",
    "copy trades to '/tmp/farrow-out.csv'",
    "copy (select 1) to '/dev/stdout'",
    "copy trades from '/etc/passwd'",
    "attach '/tmp/farrow-other.db'",
    "install httpfs",
    "load httpfs",
    "set memory_limit = '100GB'",
    "set enable_external_access = true",
    "reset lock_configuration",
    "pragma memory_limit = '100GB'",
    "pragma enable_profiling",
    "call duckdb_settings()",
    "export database '/tmp/farrow-export'",
    "import database '/tmp/farrow-export'",
    "checkpoint",
    "vacuum",
    "begin transaction",
    "commit",
    "rollback; select 1",
    "use main",
    "prepare x as select 1",
    "select 1; select 2",
    "select 1; drop view trades",
    "explain analyze create table x as select 1",
    "explain analyze insert into trades values (1, 2.0)",
    "with x as (insert into trades values (1, 2.0) returning n) select * from x",
    "select * from read_csv('/etc/passwd')",
    "select * from read_text('/etc/passwd')",
    "select * from read_blob('/etc/*')",
    "select * from read_json('/etc/passwd')",
    "select * from read_parquet('/tmp/none.parquet')",
    "select * from '/etc/passwd'",
    "select * from '/tmp/none.csv'",
    "select * from glob('/etc/*')",
    "select * from sniff_csv('/etc/passwd')",
    "from read_csv('https://localhost:1/x.csv')",
    "select * from arrow_scan(1, 2, 3)",
    "select * from arrow_scan(1::pointer, 2::pointer, 3::pointer)",
    "select * from pandas_scan(1)",
    "select * from enable_logging('QueryLog', storage = 'file', storage_path = '/tmp/farrow-log')",
    "select * from query('copy trades to ''/tmp/farrow-out.csv''')",
    "select getenv('HOME')",
    "select * from sys",
    "select * from raw",
    "select * from self",
    "selec 1",
    "",
    ";",
]


def test_what_is_no_plain_query_is_refused(raw: RawClient, trades: farrow.HugeTable) -> None:
    """No file is read or written, no setting changes, no memory address is taken."""
    texts = []
    for sql in REFUSED:
        try:
            found = raw.query(sql)
        except flight.FlightError as error:
            texts.append(str(error))
            continue
        raise AssertionError(f"{sql!r} was not refused: {found}")
    # Flight adds the traceback of other errors, with paths of the server.
    assert [text for text in texts if "Traceback" in text] == []
    assert raw.query("select count(*) as c from trades").to_pylist() == [{"c": 2 * ROWS}]


def test_updates_are_refused_with_the_reason(raw: RawClient, trades: farrow.HugeTable) -> None:
    for name in ("CommandStatementUpdate", "CommandPreparedStatementUpdate"):
        with pytest.raises(flight.FlightUnauthorizedError, match="can only be read"):
            raw.bind(b"insert into trades values (1, 2.0)", chunk(0, 1), name)
    with pytest.raises(flight.FlightUnauthorizedError, match="CREATE is refused"):
        raw.query("create table x as select 1")


def test_memory_has_a_limit(
    serve: Callable[..., FlightSqlServer], trades: farrow.HugeTable
) -> None:
    raw = client_of(serve(memory=64 << 20, threads=1))
    with pytest.raises(flight.FlightServerError, match=r"(?i)memory"):
        raw.query(
            "select a.n, list(b.n) from trades a join trades b on a.n % 7 = b.n % 7 group by 1"
        )
    assert raw.query("select 1 as one").to_pylist() == [{"one": 1}]
    # Rows that only pass through need little of it, however many there are.
    ticket = raw.ticket("select a.n from trades a, range(100) b")
    rows = sum(part.data.num_rows for part in raw.get(ticket))
    assert rows == 100 * 2 * ROWS


# ---- the messages


def test_questions_about_the_server(raw: RawClient, client: farrow.Client) -> None:
    trades = client.huge_table("trades", TRADES)
    client.put(pa.table({"a": ["x"]}), "notes/today")
    client.put(b"no rows", "bytes")
    assert raw.ask("CommandGetCatalogs").to_pylist() == [{"catalog_name": "temp"}]
    here = {"catalog_name": "temp", "db_schema_name": "main"}
    assert raw.ask("CommandGetDbSchemas").to_pylist() == [here]
    assert raw.ask("CommandGetDbSchemas", (2, "ma_n")).to_pylist() == [here]
    assert raw.ask("CommandGetDbSchemas", (1, "other")).to_pylist() == []
    assert raw.ask("CommandGetTableTypes").to_pylist() == [{"table_type": "TABLE"}]
    tables = raw.ask("CommandGetTables", (5, 1)).to_pylist()
    assert [row["table_name"] for row in tables] == ["notes/today", "trades"]
    assert pa.ipc.read_schema(pa.py_buffer(tables[1]["table_schema"])).equals(trades.schema)
    for fields, names in [
        ([(3, "trade_")], ["trades"]),
        ([(3, "notes/%")], ["notes/today"]),
        ([(3, "%" * 5000 + "x")], []),
        ([(1, "")], []),
        ([(2, "%")], ["notes/today", "trades"]),
        ([(4, "VIEW")], []),
        ([(4, "VIEW"), (4, "TABLE")], ["notes/today", "trades"]),
    ]:
        found = raw.ask("CommandGetTables", *fields)
        assert found["table_name"].to_pylist() == names, fields
        assert "table_schema" not in found.column_names
    for name in ("PrimaryKeys", "ExportedKeys", "ImportedKeys", "CrossReference", "XdbcTypeInfo"):
        assert raw.ask(f"CommandGet{name}", (3, "trades")).num_rows == 0
    facts = dict(zip(*raw.ask("CommandGetSqlInfo").to_pydict().values(), strict=True))
    assert (facts[0], facts[3], facts[8], facts[504]) == ("Farrow", True, 0, '"')
    some = raw.ask("CommandGetSqlInfo", (1, 3), (1, 99_999), (1, 0))
    assert some.to_pydict() == {"info_name": [3, 0], "value": [True, "Farrow"]}
    packed = raw.ask("CommandGetSqlInfo", (1, b"\x03\x00"))
    assert packed["info_name"].to_pylist() == [3, 0]


def test_prepared_statements(raw: RawClient, trades: farrow.HugeTable) -> None:
    handle, schema, parameters = raw.prepare("select price from trades where n = ? or n = ?")
    assert schema.equals(pa.schema({"price": pa.float64()}))
    assert parameters.types == [pa.int64(), pa.int64()]

    def rows() -> list[Any]:
        return raw.ask("CommandPreparedStatementQuery", (1, handle))["price"].to_pylist()

    raw.bind(handle, pa.table({"0": [3], "1": [5]}))
    assert sorted(rows()) == [3.0, 5.0]
    # Each row of parameters is an execution.
    raw.bind(handle, pa.table({"0": [3, 9], "1": [3, 9]}))
    assert rows() == [3.0, 9.0]
    raw.bind(handle, pa.table({"0": pa.array([], pa.int64()), "1": pa.array([], pa.int64())}))
    assert rows() == []
    raw.bind(handle, pa.table({"0": [3]}))
    with pytest.raises(flight.FlightServerError, match="2 parameters, 1"):
        rows()
    raw.act("ClosePreparedStatement", in_any("ActionClosePreparedStatementRequest", (1, handle)))
    with pytest.raises(flight.FlightServerError, match="no such prepared statement"):
        rows()


def test_named_parameters(raw: RawClient, trades: farrow.HugeTable) -> None:
    handle, _, parameters = raw.prepare("select $low::int as a, $high::int as b")
    assert sorted(parameters.names) == ["high", "low"]
    raw.bind(handle, pa.table({"low": [1], "high": [2]}))
    found = raw.ask("CommandPreparedStatementQuery", (1, handle))
    assert found.to_pylist() == [{"a": 1, "b": 2}]
    handle, _, _ = raw.prepare("select $Start::int as a, $End::int as b")
    raw.bind(handle, pa.table({"start": [2], "end": [6]}))
    found = raw.ask("CommandPreparedStatementQuery", (1, handle))
    assert found.to_pylist() == [{"a": 2, "b": 6}]


def test_prepared_statements_have_limits(raw: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from farrow.flight import _prepared

    monkeypatch.setattr(_prepared, "_STATEMENTS_MAX", 3)
    handles = [raw.prepare("select ? as a")[0] for _ in range(3)]
    with pytest.raises(flight.FlightUnavailableError, match="3 prepared statements"):
        raw.prepare("select 1")
    with pytest.raises(flight.FlightServerError, match="1025 rows"):
        raw.bind(handles[0], pa.table({"a": range(1025)}))
    with pytest.raises(flight.FlightServerError, match="8388608 B are allowed"):
        raw.bind(handles[0], pa.table({"a": ["x" * (9 << 20)]}))
    # One that is not used expires, and makes room.
    monkeypatch.setattr(_prepared, "IDLE_SECONDS", 0.0)
    with pytest.raises(flight.FlightServerError, match="not used for 0 s"):
        raw.bind(handles[0], pa.table({"a": [1]}))
    raw.prepare("select 1")


HOSTILE = [
    b"",
    b"\0",
    b"\xff" * 20,
    b"select 1",
    b"\x0a\x05abc",
    in_any("CommandNothing"),
    in_any("CommandStatementQuery", (1, b"\xff\xfe")),
    in_any("CommandStatementQuery", (1, 7)),
    in_any("CommandStatementQuery", (1, "select 1"), (2, b"transaction")),
    in_any("CommandGetTables", (3, b"\xff")),
    in_any("CommandGetTables", (5, b"\xff")),
    in_any("CommandGetSqlInfo", (1, b"\xff" * 11)),
    in_any("CommandPreparedStatementQuery", (1, b"nothing")),
    in_any("CommandStatementQuery", (1, "select " + "not " * 20_000 + "true")),
    in_any("CommandStatementQuery", (1, "select 1 -- " + "x" * (1 << 20))),
    in_any("CommandGetSqlInfo", *[(1, 1)] * 5000),
    in_any("CommandStatementSubstraitPlan", (1, b"plan")),
]


def test_hostile_messages_are_errors(raw: RawClient) -> None:
    def put(command: bytes) -> None:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, _ = raw.client.do_put(descriptor, TRADES, raw.options)
        writer.close()

    def read(command: bytes) -> None:
        raw.get(raw.info(command).endpoints[0].ticket.ticket).read_all()

    calls = [read, lambda data: raw.get(data).read_all(), put]
    for action in ("CancelFlightInfo", "CancelQuery", "CreatePreparedStatement", "Nothing"):
        calls.append(lambda data, action=action: raw.act(action, data))
    for command in HOSTILE:
        for call in calls:
            try:
                call(command)
            except (NotImplementedError, flight.FlightError):
                continue
            raise AssertionError(f"{call} took {command[:100]!r}")
    assert raw.query("select 1 as one").to_pylist() == [{"one": 1}]


def test_random_bytes_are_errors(raw: RawClient) -> None:

    rng = random.Random(5)
    whole = in_any("CommandGetTables", (1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, 1))
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data) + 1)]
        try:
            raw.info(bytes(data))
        except (NotImplementedError, flight.FlightError):
            continue


def test_paths_and_other_calls_of_flight_are_errors(raw: RawClient) -> None:
    with pytest.raises(flight.FlightServerError, match="path"):
        raw.client.get_flight_info(flight.FlightDescriptor.for_path("trades"), raw.options)
    with pytest.raises(NotImplementedError):
        list(raw.client.list_flights(options=raw.options))
    assert "CancelFlightInfo" in [action.type for action in raw.client.list_actions(raw.options)]
