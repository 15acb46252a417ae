"""``farrow.sql``: queries over the tables of a cluster, by the package farrow-sql."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from farrow._native import Client

__all__ = ["MISSING", "sql"]

MISSING = "SQL over a cluster needs the package farrow-sql: pip install farrow-sql"


def sql(
    query: str,
    client: Client | None = None,
    *,
    timeout: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Run a query over the tables of the cluster, by their names, where their rows lie.

    The package ``farrow-sql`` plans it with DataFusion, and runs it on the workers that
    ``farrow sql-worker`` starts, or in this process if there are none.

    Args:
        query: one ``select`` in the SQL of DataFusion.
        client: the client that finds the tables; None: ``farrow.connect()``.
        timeout: seconds after which the query is cancelled; None: no limit.
        progress: called with the number of finished tasks, and of all.

    Returns:
        The rows.

    Raises:
        ImportError: the package farrow-sql is not installed.
        InvalidArgument: DataFusion does not accept the query.
        Timeout: the query took longer than ``timeout``.
        NodeLost: a node is lost that has rows of a table of the query.
        OutOfMemory: a node has no room for an exchange, or a task none for an operator.

    Examples:
        >>> _ = client.put(pa.table({"n": [1, 2, 3]}), "sql_numbers")
        >>> farrow.sql("select sum(n) as total from sql_numbers", client).to_pydict()
        {'total': [6]}
    """
    if not isinstance(query, str) or not isinstance(client, (_native.Client, type(None))):
        raise TypeError(
            "sql() takes a query as str and a farrow.Client or None, not "
            f"{type(query).__name__} and {type(client).__name__}"
        )
    try:
        import farrow_sql
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})") from error
    rows: pa.Table = farrow_sql.sql(query, client, timeout=timeout, progress=progress)
    return rows
