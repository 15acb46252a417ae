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

DataFusion leaves each filter that it can express to Arrow, for which comparisons with NaN are
false.  For DataFusion, NaN is greater than all numbers and equal to itself.  So it applies filters
on floating-point columns itself, and they exclude no chunk.  ``NOT IN`` of Arrow is true for null:
such a filter is rewritten.  A constant null in an ``in`` list or a ``between`` raises a TypeError:
DataFusion cannot translate it for a dataset.

DataFusion's threads may still read when the program ends, after a ``limit`` or a stream that was
not read to its end.  Their queries then end with an error that nothing reports, and the exit waits
for the threads: a tenth of a second after their last call, a second if a stream is still open, five
seconds at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow._scan import _ending
from farrow._scan._attached import NewestRows, newest_rows, register_each
from farrow._scan._null_sets import sql_filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import datafusion
    import pyarrow.dataset as ds

    from farrow import Client

__all__ = ["attach", "detach"]


def attach(
    context: datafusion.SessionContext,
    client: Client | None = None,
    names: Iterable[str] | None = None,
    *,
    snapshot: bool = False,
) -> list[str]:
    """Register Farrow's tables, under their names, in a session of DataFusion.

    A name with a slash, a capital letter or another special character needs double quotes in SQL.
    A table of the session with the same name is replaced. Call it again to see new names. A table
    with floating-point columns is a view.

    Args:
        context: the session.
        client: the client that finds the tables; None: ``farrow.connect()``.
        names: the tables; None: all huge tables and all named tables and record batches, without
            those that DataFusion cannot read. A warning names each of these.
        snapshot: whether all queries read the rows of now. Otherwise each scan reads the newest
            ones, and a query that names a table twice can read two versions of it.

    Returns:
        The names.

    Raises:
        NotFound: one of ``names`` does not exist.
        InvalidArgument: one of ``names`` is no table.
        UnsupportedType: one of ``names`` has a column of a type that DataFusion has not.
        NodeLost: a node is lost that may have one of the tables.

    Examples:
        >>> import datafusion
        >>> import farrow.datafusion
        >>> reference = client.put(pa.table({"shares": [1, 2]}), "orders")
        >>> context = datafusion.SessionContext()
        >>> farrow.datafusion.attach(context, client, ["orders"])
        ['orders']
        >>> context.sql("select sum(shares) as total from orders").to_pydict()
        {'total': [3]}
    """
    from farrow import connect

    client = connect() if client is None else client
    found = newest_rows(client, names, _Rows, snapshot=snapshot)
    return register_each(
        found, lambda name, rows: _register(context, name, rows), is_all=names is None
    )


def _register(context: datafusion.SessionContext, name: str, rows: NewestRows) -> None:
    from farrow import UnsupportedType

    quoted = _quoted(name)
    context.deregister_table(quoted)
    try:
        context.register_dataset(quoted, rows)
        if _compares_nan(rows.schema):
            view = context.table(quoted).select(*map(_column, rows.schema))
            context.deregister_table(quoted)
            context.register_view(quoted, view)
    except ValueError as error:
        # DataFusion has no classes of errors.
        raise UnsupportedType(f"DataFusion cannot read the table {name!r}: {error}") from error


def detach(context: datafusion.SessionContext, names: Iterable[str]) -> None:
    """Remove tables that :func:`attach` registered.

    Args:
        context: the session.
        names: the names that :func:`attach` returned.

    Examples:
        >>> import datafusion
        >>> import farrow.datafusion
        >>> reference = client.put(pa.table({"shares": [1, 2]}), "asks")
        >>> context = datafusion.SessionContext()
        >>> farrow.datafusion.detach(context, farrow.datafusion.attach(context, client, ["asks"]))
    """
    for name in names:
        context.deregister_table(_quoted(name))


class _Rows(NewestRows):
    """Rows whose filter can be a constant, to which DataFusion simplifies contradictions, or a
    set."""

    def scanner(self, *arguments: Any, filter: Any = None, **options: Any) -> ds.Scanner:
        return super().scanner(*arguments, filter=sql_filter(filter), **options)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        with _ending.call():
            return map(_Fragment, super().get_fragments(sql_filter(filter)))


class _Fragment:
    """A fragment of rows whose filter is a constant or a set, read by threads of DataFusion."""

    def __init__(self, fragment: Any) -> None:
        self._fragment = fragment

    def scanner(self, *arguments: Any, filter: Any = None, **options: Any) -> _Scanner:
        with _ending.call():
            # DataFusion passes the filter once more.
            options["filter"] = sql_filter(filter)
            return _Scanner(self._fragment.scanner(*arguments, **options))


class _Scanner:
    """What DataFusion uses of a scanner."""

    def __init__(self, scanner: ds.Scanner) -> None:
        self._scanner = scanner

    @property
    def projected_schema(self) -> pa.Schema:
        return self._scanner.projected_schema

    def to_batches(self) -> _BatchQueue:
        with _ending.call():
            return _BatchQueue(self._scanner.to_batches())


class _BatchQueue:
    """Record batches that a thread of DataFusion reads until it has no use for more, or the
    interpreter ends."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        # Not this object, which would never be deleted.
        self._reader = object()
        _ending.opened(self._reader)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            with _ending.call():
                return next(self._batches)
        except BaseException:
            # Also at the end of the rows.
            _ending.closed(self._reader)
            raise

    def __del__(self) -> None:
        _ending.closed(self._reader)


def _compares_nan(schema: pa.Schema) -> bool:
    """Whether a filter on one of the columns can differ from Arrow's."""
    # DataFusion reports columns of the same name when it reads them.
    is_floating = any(_is_floating(field.type) for field in schema)
    return is_floating and len(set(schema.names)) == len(schema)


def _is_floating(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return bool(pa.types.is_floating(data_type))


def _column(field: pa.Field) -> datafusion.Expr:
    """The column; a floating-point one in a function that DataFusion cannot leave to Arrow."""
    import datafusion

    column = datafusion.column(_quoted(field.name))
    if not _is_floating(field.type):
        return column
    # Where it is NaN, itself: NaN differ in their signs.
    return datafusion.functions.nanvl(column, column).alias(field.name)


def _quoted(name: str) -> str:
    """A name that DataFusion takes as it is, not as a catalog, a schema and a table."""
    return '"' + name.replace('"', '""') + '"'
