"""SQL over the tables of a cluster: planned by DataFusion, run where the rows lie.

Start workers on the machines of the cluster, then ask from any of them::

    farrow sql-worker                                # on each machine

    import farrow

    farrow.sql("select day, sum(price) from trades group by day order by day")

The parts of a plan between exchanges run as tasks beside the chunks of the tables.  Exchanges are
objects of Farrow, read in place or over the network.  A query that cannot be divided, and each
query of a cluster without workers, runs in this process and returns the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farrow
from farrow_sql._errors import CannotDistribute, QueryFailed
from farrow_sql._run._explain import text_of
from farrow_sql._run._query import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

__all__ = ["CannotDistribute", "QueryFailed", "explain", "sql"]


def sql(
    query: str,
    client: farrow.Client | None = None,
    *,
    timeout: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Run a query over the tables of Farrow, by their names.

    Args:
        query: one ``select`` in the SQL of DataFusion. A name with a slash, a capital letter or
            another special character needs double quotes.
        client: the client that finds the tables; None: ``farrow.connect()``.
        timeout: seconds after which the query is cancelled; None: no limit. Ctrl-C cancels it too.
        progress: called with the number of finished tasks, and of all.

    Returns:
        The rows, in the memory of the node that produced them, where it is mapped.

    Raises:
        InvalidArgument: DataFusion does not accept the query, or this process was forked from one
            that had run one.
        Timeout: the query took longer than ``timeout``.
        NodeLost: a node is lost that has rows of a table of the query.
        OutOfMemory: a node has no room for an exchange, or a task none for an operator.
        QueryFailed: DataFusion reported another error while the query ran, or workers ended in
            each of three runs.

    Examples:
        >>> import farrow_sql
        >>> reference = client.put(pa.table({"shares": [1, 2]}), "holdings")
        >>> farrow_sql.sql("select sum(shares) as total from holdings", client).to_pydict()
        {'total': [3]}
    """
    client = farrow.connect() if client is None else client
    rows, _ = Query(query, client, timeout, progress).run()
    return rows


def explain(
    query: str,
    client: farrow.Client | None = None,
    *,
    analyze: bool = False,
    timeout: float | None = None,
) -> str:
    """How a query runs: its stages, the nodes of their tasks, and with ``analyze`` what moved.

    Args:
        query: as for :func:`sql`.
        client: the client that finds the tables; None: ``farrow.connect()``.
        analyze: run the query, and add rows, bytes and seconds.
        timeout: seconds after which the query is cancelled; None: no limit.

    Returns:
        Text with a line for each table and each stage; with ``analyze`` also for what moved.

    Raises:
        InvalidArgument, ...: as :func:`sql`.

    Examples:
        >>> import farrow_sql
        >>> reference = client.put(pa.table({"shares": [1, 2]}), "positions")
        >>> text = farrow_sql.explain("select sum(shares) as total from positions", client)
        >>> text.startswith("table positions: 1 of 1 chunks")
        True
    """
    client = farrow.connect() if client is None else client
    requested = Query(query, client, timeout)
    if analyze:
        return text_of(requested.run()[1])
    prepared = requested.prepare()
    try:
        return text_of(prepared)
    finally:
        prepared.close()
