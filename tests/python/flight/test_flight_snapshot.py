"""A query reads one version of a table that its text does not name: all of its scans find the rows
of the first one."""

from __future__ import annotations

import pyarrow as pa
import pytest

import farrow
from farrow.flight._engine import QueryEngine, TableSource

pytest.importorskip("duckdb", minversion="2")

QUERY = "select count(*) from query_table('trades')"


def test_tables_of_table_functions_do_not_change_during_a_query(client: farrow.Client) -> None:
    table = client.huge_table("trades", pa.schema({"n": pa.int64()}))
    table.append(pa.table({"n": [1, 2]}))
    client.put(pa.table({"n": [1]}), "put")
    engine = QueryEngine(TableSource(lambda: client), memory=64 << 20, threads=1)
    try:
        with engine.connection() as connection:
            statement = engine.parse(connection, QUERY)
            engine.attach(connection, statement, is_snapshot=True)
            assert connection.execute(QUERY).fetchall() == [(2,)]
            table.append(pa.table({"n": [3]}))
            # As the second scan of one query.
            assert connection.execute(QUERY).fetchall() == [(2,)]
            assert connection.execute("select n from query_table('put')").fetchall() == [(1,)]
        with engine.connection() as connection:
            engine.attach(connection, engine.parse(connection, QUERY), is_snapshot=True)
            assert connection.execute(QUERY).fetchall() == [(3,)]
    finally:
        engine.close()
