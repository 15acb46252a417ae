"""Farrow's tables by their names in DuckDB's SQL.

:func:`attach` registers a view for each table, which finds the newest rows of the table at each
query.  Between queries it holds nothing in memory::

    import duckdb
    import farrow.duckdb

    connection = duckdb.connect()
    farrow.duckdb.attach(connection)
    connection.sql("select day, sum(price) from trades group by day")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow._scan._attached import folded, newest_rows, register_each
from farrow._scan._duckdb_source import register

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

    from farrow import Client

__all__ = ["attach", "detach"]


def attach(
    connection: duckdb.DuckDBPyConnection,
    client: Client | None = None,
    names: Iterable[str] | None = None,
    *,
    snapshot: bool = False,
) -> list[str]:
    """Register views of Farrow's tables, under their names, in a connection of DuckDB.

    A name with a slash or another special character needs double quotes in SQL. A table of the
    connection with the same name is hidden by the view. Call it again to see new names.

    Args:
        connection: the connection; its cursors do not see the views.
        client: the client that finds the tables; None: ``farrow.connect()``.
        names: the tables; None: all huge tables and all named tables and record batches, without
            those that DuckDB cannot read. A warning names each of these.
        snapshot: whether all queries read the rows of now. Otherwise each scan reads the newest
            ones, and a query that names a table twice can read two versions of it.

    Returns:
        The names of the views.

    Raises:
        NotFound: one of ``names`` does not exist.
        InvalidArgument: two of the names differ in case only, which DuckDB ignores.
        UnsupportedType: one of ``names`` has no columns, or one of a type that DuckDB has not.
        NodeLost: a node is lost that may have one of the tables.

    Examples:
        >>> import duckdb
        >>> import farrow.duckdb
        >>> reference = client.put(pa.table({"price": [1.5, 2.5]}), "quotes")
        >>> connection = duckdb.connect()
        >>> farrow.duckdb.attach(connection, client, ["quotes"])
        ['quotes']
        >>> connection.sql("select sum(price) from quotes").fetchall()
        [(4.0,)]
    """
    from farrow import InvalidArgument, connect

    client = connect() if client is None else client
    found = newest_rows(client, names, snapshot=snapshot)
    seen: dict[str, str] = {}
    for name in found:
        other = seen.setdefault(folded(name), name)
        if other != name:
            raise InvalidArgument(
                f"{other!r} and {name!r} differ in case only, which DuckDB ignores: "
                "give the names of the tables to attach"
            )
    return register_each(
        found, lambda name, rows: register(connection, name, rows), is_all=names is None
    )


def detach(connection: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
    """Remove views that :func:`attach` registered.

    Args:
        connection: the connection.
        names: the names that :func:`attach` returned.

    Examples:
        >>> import duckdb
        >>> import farrow.duckdb
        >>> reference = client.put(pa.table({"price": [1.5, 2.5]}), "bids")
        >>> connection = duckdb.connect()
        >>> farrow.duckdb.detach(connection, farrow.duckdb.attach(connection, client, ["bids"]))
    """
    for name in names:
        connection.unregister(name)
