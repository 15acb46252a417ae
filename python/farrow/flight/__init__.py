"""Arrow Flight SQL over the tables of a node, for programs that do not know Farrow.

ADBC and JDBC drivers, and with them Power BI, DBeaver, R, Go and Java, connect to this server and
send SQL.  ``farrow flight`` runs it in a process of its own.  DuckDB executes the queries over the
tables in place; only results travel, as record batches.  Nothing can be written.

The room has these parts: ``_protobuf`` and ``_messages`` decode what clients send, ``_engine``
runs queries, ``_queries`` limits and cancels them, ``_catalog`` answers questions about tables,
``_prepared`` keeps prepared statements, ``_access`` checks tokens, and ``_server`` joins them.
"""

from __future__ import annotations

from farrow.flight._server import FlightSqlServer

__all__ = ["FlightSqlServer"]
