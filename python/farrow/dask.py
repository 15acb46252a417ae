"""Dask: workers exchange references, and read and write tables of Farrow.

A Dask cluster whose workers run on machines with a node of Farrow::

    from distributed import Client
    import farrow.dask

    cluster = Client("tcp://scheduler:8786")
    cluster.register_plugin(farrow.dask.SharingPlugin())     # workers exchange references
    trades = farrow.dask.read_farrow("trades", columns=["price"])
    trades["price"].mean().compute()

Workers connect with ``farrow.connect()``, so ``$FARROW_SOCKET`` in their environment selects the
node.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import distributed
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed.protocol.serialize import dask_deserialize, dask_serialize

import farrow
from farrow._scan import _chunks
from farrow._scan._views import without_views
from farrow.exceptions import InvalidArgument, RowsTaken
from farrow.sharing import _references

if TYPE_CHECKING:
    import dask.dataframe

__all__ = ["SharingPlugin", "read_farrow", "to_farrow"]

_CLASSES = (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array, pa.Buffer, np.ndarray)

# This number keeps all threads at work until the end, though partitions take different times.
_PARTITIONS_PER_THREAD = 4

# The functions that were registered before, by class; None: the class was pickled.
_before: dict[type, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {}


class SharingPlugin(distributed.WorkerPlugin):  # type: ignore[misc]
    """Make all workers of a cluster, and this process, pass values by reference.

    Register it with ``distributed.Client.register_plugin``.  See ``farrow.sharing.install`` for the
    arguments.

    Examples:
        >>> import distributed
        >>> import farrow.dask
        >>> with distributed.Client(n_workers=1, dashboard_address=None) as cluster:
        ...     _ = cluster.register_plugin(farrow.dask.SharingPlugin())
        >>> farrow.sharing.uninstall()
    """

    name = "farrow-sharing"

    def __init__(
        self,
        *,
        min_bytes: int = _references.MIN_BYTES,
        lease: float = _references.LEASE_SECONDS,
        unread: float | None = None,
    ) -> None:
        self._min_bytes = min_bytes
        self._lease = lease
        self._unread = unread
        # Results come to this process by reference too.
        self.setup(None)

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        import farrow.dask  # registers there
        import farrow.sharing

        farrow.sharing.install(min_bytes=self._min_bytes, lease=self._lease, unread=self._unread)

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the plugin is removed, or the worker ends."""
        import farrow.sharing

        farrow.sharing.uninstall()


def register(wanted: bool) -> None:
    """Register with Dask's serialization, or restore it."""
    for cls in _CLASSES:
        if wanted and cls not in _before:
            # The look-up loads what Dask registers lazily, which would replace ours.
            before = _registered(dask_serialize, cls), _registered(dask_deserialize, cls)
            _before[cls] = before
            dask_deserialize.register(cls)(_deserializer(before[1]))
        if cls in _before:
            serialize, _ = _before[cls]
            # Messages may still arrive: the deserializer stays, and knows both forms.
            dask_serialize.register(cls)(
                _serializer(serialize) if wanted else serialize or _not_here
            )


def _registered(dispatch: Any, cls: type) -> Callable[..., Any] | None:
    try:
        function: Callable[..., Any] = dispatch.dispatch(cls)
    except TypeError:
        return None
    return function


def _not_here(value: Any) -> Any:
    """Dask tries the next family of serializers: pickle."""
    raise NotImplementedError(type(value).__name__)


def _serializer(before: Callable[..., Any] | None) -> Callable[..., Any]:
    def serialize(value: Any, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
        is_exact = not isinstance(value, np.ndarray) or type(value) is np.ndarray
        # A message has a context.  What is spilled to disk has none, and outlives every lease.
        is_message = context is not None
        reduced = _references.reduce(value) if is_exact and is_message else None
        if reduced is not None:
            return {"farrow": pickle.dumps(reduced)}, []
        if before is None:
            _not_here(value)
        assert before is not None
        from distributed.utils import has_keyword

        if has_keyword(before, "context"):
            return before(value, context=context)  # type: ignore[no-any-return]
        return before(value)  # type: ignore[no-any-return]

    return serialize


def _deserializer(before: Callable[..., Any] | None) -> Callable[..., Any]:
    def deserialize(header: dict[str, Any], frames: list[Any]) -> Any:
        if "farrow" in header:
            function, arguments = pickle.loads(header["farrow"])
            return function(*arguments)
        if before is None:
            raise InvalidArgument(f"a message of Dask without a reference: {sorted(header)}")
        return before(header, frames)

    return deserialize


def read_farrow(
    name: str,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    *,
    version: int | None = None,
    npartitions: int | None = None,
    address: str | None = None,
) -> dask.dataframe.DataFrame:
    """A Dask dataframe over a table in Farrow.

    Its columns have types of Arrow (``pandas.ArrowDtype``) and are the memory of the node: a worker
    reads in place.  A selection of columns is pushed into the read, and chunks of a huge table that
    cannot have rows of the filter are left out by their statistics.  A partition has contiguous
    chunks of one node.

    Args:
        name: name of a huge table, or of an object that is a table.
        columns: names of columns; None: all.
        filters: rows to read: a ``pyarrow.compute.Expression``, or the tuples of
            ``dask.dataframe.read_parquet``, such as ``[("price", ">", 5)]``.
        version: a version of a huge table; None: the newest.
        npartitions: about how many partitions; None: four for each thread of the workers.  No
            chunk is divided, and one partition has at most 256 MiB of chunks.
        address: path of the socket of a node, for this process and for workers on its machine;
            None: as ``farrow.connect``.

    Returns:
        A dataframe with the selected columns, whose index has row numbers of each partition.

    Raises:
        NotFound: there is no such table.
        RowsMissing: the huge table has gaps.
        InvalidArgument: the object has no columns, or a column does not exist.

    Examples:
        >>> reference = client.put(pa.table({"price": [1.5, 2.5]}), "dask/read_farrow")
        >>> frame = farrow.dask.read_farrow("dask/read_farrow", address=client.address)
        >>> float(frame["price"].sum().compute())
        4.0
    """
    import dask.dataframe as dd

    client = farrow.connect(address)
    expression = _expression(filters)
    schema, chunks = _chunks.chunks(client, name, expression, version)
    selected = _chunks.selected_schema(schema, columns)
    meta = _frame(_with_filter(schema.empty_table(), selected.names, expression))
    if not chunks:
        return dd.from_pandas(meta, npartitions=1)
    count = _PARTITIONS_PER_THREAD * _threads() if npartitions is None else npartitions
    return dd.from_map(
        _Read(client.address, schema, tuple(selected.names), expression),
        [tuple(chunk.id for chunk in group) for group in _chunks.groups(chunks, count)],
        meta=meta,
        label="read-farrow",
        enforce_metadata=False,
    )


def _threads() -> int:
    """Threads of the workers of the present cluster, or of this machine."""
    try:
        client = distributed.get_client()
    except ValueError:
        # Dask's own scheduler of threads.
        return len(os.sched_getaffinity(0))
    # An asynchronous client answers later only.
    threads = 0 if client.asynchronous else sum(client.nthreads().values())
    return threads or len(os.sched_getaffinity(0))


class _Read:
    """Reads one partition; Dask gives it fewer columns where a program needs no others."""

    def __init__(
        self, address: str, schema: pa.Schema, columns: tuple[str, ...], filter: Any
    ) -> None:
        self._address = address
        self._schema = schema
        self.columns = columns
        self._filter = filter

    def __dask_tokenize__(self) -> Any:
        # The text of a filter does not tell long strings apart.
        return type(self).__name__, self._address, self.columns, pickle.dumps(self._filter)

    def __call__(self, ids: Sequence[bytes], columns: Sequence[str] | None = None) -> Any:
        wanted = self.columns if columns is None else columns
        selection = _chunks.selection(self._schema, wanted, self._filter)
        parts = [_references.read_chunk(self._address, selection, id) for id in ids]
        return _frame(_joined(parts))


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Their rows.  Arrow's concatenation forgets those of tables without columns."""
    if parts[0].num_columns:
        return pa.concat_tables(parts)
    rows = sum(part.num_rows for part in parts)
    return pa.table({"": pa.nulls(rows)}).select([])


def _with_filter(table: pa.Table, columns: Sequence[str], filter: Any) -> pa.Table:
    return (table if filter is None else table.filter(filter)).select(list(columns))


def _expression(filters: Any) -> pc.Expression | None:
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    from pyarrow.parquet import filters_to_expression

    return filters_to_expression(filters)


def _frame(table: pa.Table) -> Any:
    """A pandas frame over the memory of a table."""
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)


def to_farrow(
    frame: dask.dataframe.DataFrame, name: str, *, address: str | None = None
) -> farrow.HugeTable:
    """Append the rows of a Dask dataframe to a huge table, which is created if it does not exist.

    Each worker appends its partitions to the memory of its own node.  The rows keep their order.
    The index is not stored.  Names of columns that are not text, such as numbers, become text.

    If a partition fails, a table that this call has created is dropped.  A table that existed keeps
    the partitions that were appended, with gaps: its reads raise ``RowsMissing``.

    Args:
        frame: the dataframe.
        name: name of the huge table.
        address: as in ``read_farrow``.

    Returns:
        The table.

    Raises:
        RowsTaken: another process appended to the table meanwhile.
        InvalidArgument: the table has another schema.
        OutOfMemory, QuotaExceeded, ...: as ``HugeTable.append``.

    Examples:
        >>> import dask.dataframe as dd
        >>> import pandas as pd
        >>> frame = dd.from_pandas(pd.DataFrame({"price": [1.5, 2.5]}), npartitions=2)
        >>> farrow.dask.to_farrow(frame, "dask/to_farrow", address=client.address).rows
        2
    """
    import dask

    client = farrow.connect(address)
    frame = frame.persist()
    parts = frame.to_delayed()
    describe = dask.delayed(_describe, pure=False)
    described = dask.compute(*[describe(part) for part in parts])
    schema = pa.unify_schemas([schema for _, schema in described], promote_options="permissive")
    is_new = not client.contains(name)
    table = client.huge_table(name, schema)
    append = dask.delayed(_append, pure=False)
    position, work = table.rows, []
    for part, (rows, _) in zip(parts, described, strict=True):
        if rows:
            work.append(append(part, client.address, name, table.schema, position))
        position += rows
    try:
        dask.compute(*work)
    except BaseException:
        if is_new:
            table.drop()
        raise
    return table


def _describe(part: Any) -> tuple[int, pa.Schema]:
    named = _named(part)
    schema = pa.Schema.from_pandas(named, preserve_index=False).remove_metadata()
    return len(part), schema


def _named(part: Any) -> Any:
    """The frame over the same memory, with text as names of columns: in pandas they can be numbers
    and tuples."""
    named = part.copy(deep=False)
    named.columns = [str(name) for name in part.columns]
    return named


def _append(part: Any, address: str, name: str, schema: pa.Schema, position: int) -> None:
    table = pa.Table.from_pandas(_named(part), schema=schema, preserve_index=False)
    client = _references.checked_client(address)
    huge = client.huge_table(name)
    try:
        huge.append(table.replace_schema_metadata(schema.metadata), position=position)
    except RowsTaken:
        # Dask runs a task again whose worker ended after its work.
        if not _has_rows(client, huge, position, table):
            raise


_ALL = _chunks.Selection(None, None, None)


def _has_rows(client: farrow.Client, huge: Any, position: int, table: pa.Table) -> bool:
    for chunk in huge.partitions():
        if (chunk.position, chunk.rows) == (position, len(table)):
            return _are_same(_ALL.read(client, chunk.id), without_views(table))
    return False


def _are_same(left: pa.Table, right: pa.Table) -> bool:
    """Whether two tables have the same rows.  For Arrow a NaN equals no other one."""
    return left.equals(right) or _serialized(left) == _serialized(right)


def _serialized(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    plain = table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    found: bytes = sink.getvalue().to_pybytes()
    return found
