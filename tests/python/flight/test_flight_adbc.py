"""The ADBC driver of Flight SQL, which programs in Python, R, Go and C++ use."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import farrow
from farrow.flight import FlightSqlServer
from flight_cases import (
    ROWS,
    SLOW,
    TRADES,
    until_running,
)

pytest_plugins = ["flight_cases"]

driver: Any = pytest.importorskip("adbc_driver_flightsql.dbapi")


def adbc(server: FlightSqlServer) -> Any:
    bearer = {"adbc.flight.sql.authorization_header": f"Bearer {server.token}"}
    return driver.connect(server.uri, db_kwargs=bearer, autocommit=True)


def test_adbc_reads_tables(server: FlightSqlServer, trades: farrow.HugeTable) -> None:
    with adbc(server) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), sum(price) from trades where n < 10")
        assert cursor.fetchall() == [(10, 45.0)]
        cursor.execute("select n from trades order by n")
        assert cursor.fetch_arrow_table()["n"].to_pylist() == list(range(2 * ROWS))
        cursor.execute("select price from trades where n = ? or n = ?", (3, 5))
        assert sorted(cursor.fetchall()) == [(3.0,), (5.0,)]
        cursor.execute("select 1 as a, 2 as a")
        assert cursor.fetchall() == [(1, 2)]
        schema = cursor.adbc_execute_schema("select n, price from trades")
        assert schema.equals(TRADES)


def test_duckdb_queries_what_the_driver_reads(
    server: FlightSqlServer, trades: farrow.HugeTable
) -> None:
    """DuckDB has no Flight SQL of its own: it takes the driver's stream of batches."""
    duckdb = pytest.importorskip("duckdb")
    with adbc(server) as connection, connection.cursor() as cursor:
        cursor.execute("select n, price from trades where n < 100")
        batches = cursor.fetch_record_batch()
        own = duckdb.connect()
        own.register("far", batches)
        found = own.execute("select count(*), sum(price) from far where n % 2 = 0").fetchall()
        assert found == [(50, sum(range(0, 100, 2)))]


def test_adbc_asks_for_tables(server: FlightSqlServer, client: farrow.Client) -> None:
    client.huge_table("trades", TRADES)
    client.put(pa.table({"a": ["x"]}), "notes/today")
    with adbc(server) as connection:
        objects = connection.adbc_get_objects().read_all().to_pylist()
        [catalog] = objects
        [schema] = catalog["catalog_db_schemas"]
        tables = {table["table_name"]: table for table in schema["db_schema_tables"]}
        assert sorted(tables) == ["notes/today", "trades"]
        columns = [column["column_name"] for column in tables["trades"]["table_columns"]]
        assert columns == ["n", "price"]
        assert connection.adbc_get_table_schema("trades").equals(TRADES)
        assert connection.adbc_get_table_types() == ["TABLE"]
        info = connection.adbc_get_info()
        assert info["vendor_name"] == "Farrow"


def test_adbc_reports_errors(server: FlightSqlServer, trades: farrow.HugeTable) -> None:
    wrong = {"adbc.flight.sql.authorization_header": "Bearer wrong"}
    with pytest.raises(driver.Error, match="token is wrong"):  # noqa: SIM117
        with driver.connect(server.uri, db_kwargs=wrong, autocommit=True) as connection:
            connection.cursor().execute("select 1")
    with adbc(server) as connection, connection.cursor() as cursor:
        for sql, message in {
            "select * from nothing": "nothing",
            "create table x as select 1": "CREATE is refused",
            "select * from read_csv('/etc/passwd')": "(?i)permission|disabled",
        }.items():
            with pytest.raises(driver.Error, match=message):
                cursor.execute(sql)
        with pytest.raises(driver.Error):
            cursor.adbc_ingest("new", pa.table({"a": [1]}))
        cursor.execute("select 1")
        assert cursor.fetchone() == (1,)


def test_adbc_cancels(server: FlightSqlServer, trades: farrow.HugeTable) -> None:
    with adbc(server) as connection, connection.cursor() as cursor:
        cursor.execute(SLOW)
        timer = threading.Timer(0.5, cursor.adbc_cancel)
        timer.start()
        with pytest.raises(driver.Error):
            cursor.fetchall()
        timer.join()
        until_running(server, 0)


def test_adbc_by_password(server: FlightSqlServer, trades: farrow.HugeTable) -> None:
    given = {"username": "anybody", "password": server.token}
    with (
        driver.connect(server.uri, db_kwargs=given, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select count(*) from trades")
        assert cursor.fetchone() == (2 * ROWS,)
