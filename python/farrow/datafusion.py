"""Farrow's tables by their names in a session of DataFusion.

:func:`attach` registers a table for each, which finds the newest rows at each query.  Between
queries it holds nothing in memory.  Columns and filters reach the shared memory: each chunk that
can have matching rows is a partition of the scan::

    import datafusion
    import farrow.datafusion

    context = datafusion.SessionContext()
    farrow.datafusion.attach(context)
    context.sql("select day, sum(price) from trades group by day").show()

DataFusion reads such a table through pyarrow's dataset interface.  That costs a call into Python
for each partition; a native table provider would need DataFusion itself in this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow._attached import newest_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import datafusion

    from farrow import Client

__all__ = ["attach", "detach"]


def attach(
    context: datafusion.SessionContext,
    client: Client | None = None,
    names: Iterable[str] | None = None,
) -> list[str]:
    """Register Farrow's tables, under their names, in a session of DataFusion.

    A name with a slash, a capital letter or another special character needs double quotes in SQL.
    A table of the session with the same name is replaced. Call it again to see new names.

    Args:
        context: the session.
        client: the client that finds the tables; None: ``farrow.connect()``.
        names: the tables; None: all huge tables and all named tables and record batches.

    Returns:
        The names.

    Raises:
        NotFound: one of ``names`` does not exist.
        InvalidArgument: one of ``names`` has no columns.
        NodeLost: a node is lost that may have one of the tables.
    """
    from farrow import connect

    client = connect() if client is None else client
    found = newest_rows(client, names)
    for name, rows in found.items():
        quoted = _quoted(name)
        context.deregister_table(quoted)
        context.register_dataset(quoted, rows)
    return list(found)


def detach(context: datafusion.SessionContext, names: Iterable[str]) -> None:
    """Remove tables that :func:`attach` registered.

    Args:
        context: the session.
        names: the names that :func:`attach` returned.
    """
    for name in names:
        context.deregister_table(_quoted(name))


def _quoted(name: str) -> str:
    """A name that DataFusion takes as it is, not as a catalog, a schema and a table."""
    return '"' + name.replace('"', '""') + '"'
