"""Ray: tasks that read and aggregate tables of Farrow where they lie, and arguments by reference.

On a Ray cluster whose machines run nodes of Farrow::

    import ray
    import farrow.ray

    ray.init()
    farrow.ray.aggregate("trades", ["k"], [("price", "sum")])     # partials beside the chunks
    farrow.ray.read_farrow("trades", columns=["price"])            # a ray.data.Dataset

A Ray node with the custom resource ``farrow:NAME`` runs the tasks for the chunks of the Farrow node
``NAME``: start it with ``ray start --resources '{"farrow:a": 1}'``.  Without that resource in the
cluster, tasks run anywhere.  Tasks connect with ``farrow.connect()``; ``$FARROW_SOCKET`` in their
environment selects the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask

import farrow
from farrow._scan import _blocks, _chunks
from farrow.exceptions import InvalidArgument
from farrow.sharing import _references
from farrow.sharing._ray import setup_worker

if TYPE_CHECKING:
    from farrow.huge import Partition

__all__ = ["FarrowDatasink", "aggregate", "read_farrow", "register_transport", "setup_worker"]

# A task takes this part of the resource: it only says where the task runs.
_SHARE_OF_NODE = 0.001

# This number keeps all cores at work until the end, though tasks take different times.
_TASKS_PER_CORE = 4

# How partial results combine: the partial aggregates, and the function that combines them.
_PARTIALS: dict[str, tuple[tuple[str, str], ...]] = {
    "sum": (("sum", "sum"),),
    "count": (("count", "sum"),),
    "min": (("min", "min"),),
    "max": (("max", "max"),),
    "mean": (("sum", "sum"), ("count", "sum")),
}


def register_transport() -> None:
    """Let the methods of actors return tables and arrays by reference, by Ray Direct Transport.

    Call it before the actors are created, in the process that creates them.  Then a method with
    ``@ray.method(tensor_transport="farrow")`` returns each ``pyarrow.Table`` of its result by
    reference, and one with ``tensor_transport="farrow_numpy"`` each ``numpy.ndarray``.  The class
    of the actor has ``@ray.remote(enable_tensor_transport=True)``.  ``ray.put(value,
    _tensor_transport="farrow")`` does the same.  A value that is not in Farrow's memory is copied
    there once, by the node of ``farrow.connect()``.

    Receivers get the same memory, read-only.  Ray counts the references: when the program has no
    ``ObjectRef`` to the result and no receiver has its values, the memory returns, ten seconds
    later.

    The API of Ray is in alpha.  In a process that has returned a value of a type in this way, Ray
    pickles other values of that type into its own messages, also where ``farrow.sharing.install``
    would pass a reference.

    Raises:
        InvalidArgument: this Ray has no transports of other packages.

    Examples:
        >>> farrow.ray.register_transport()
        >>> @ray.remote(enable_tensor_transport=True)
        ... class Loader:
        ...     @ray.method(tensor_transport="farrow")
        ...     def load(self):
        ...         return pa.table({"price": [1.5, 2.5]})
    """
    from farrow.sharing import _ray_transport

    _ray_transport.register()


def _options(node: str) -> dict[str, Any]:
    """Where the tasks for the chunks of a node run."""
    name = f"farrow:{node}"
    return {"resources": {name: _SHARE_OF_NODE}} if name in ray.cluster_resources() else {}


def _by_node(chunks: Iterable[Partition]) -> dict[str, list[Partition]]:
    nodes: dict[str, list[Partition]] = {}
    for chunk in chunks:
        nodes.setdefault(chunk.node, []).append(chunk)
    return nodes


class _FarrowDatasource(Datasource):  # type: ignore[misc]
    """Chunks of one node."""

    def __init__(
        self,
        address: str,
        schema: pa.Schema,
        chunks: list[Partition],
        selection: _chunks.Selection,
    ) -> None:
        super().__init__()
        self._address = address
        self._schema = schema
        self._chunks = chunks
        self._selection = selection

    def get_name(self) -> str:
        return "Farrow"

    def estimate_inmemory_data_size(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        groups = _chunks.groups(self._chunks, parallelism)
        return [self._task(group, per_task_row_limit) for group in groups]

    def _task(self, group: list[Partition], row_limit: int | None) -> ReadTask:
        address, selection = self._address, self._selection
        ids = [chunk.id for chunk in group]

        def read() -> Iterable[pa.Table]:
            for id in ids:
                yield _references.read_chunk(address, selection, id)

        # A filter leaves an unknown number of rows.
        rows = sum(chunk.rows for chunk in group) if selection.filter is None else None
        metadata = BlockMetadata(
            num_rows=rows,
            size_bytes=sum(chunk.nbytes for chunk in group),
            input_files=None,
            exec_stats=None,
        )
        return ReadTask(read, metadata, schema=self._schema, per_task_row_limit=row_limit)


def read_farrow(
    name: str,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    version: int | None = None,
    address: str | None = None,
) -> ray.data.Dataset:
    """A Ray dataset over a table in Farrow.

    The tasks that read the chunks of a node run there (see the module): four for each CPU of the
    cluster, unless there are fewer chunks or more than 256 MiB of chunks for each.  Chunks of a
    huge table that cannot have rows of the filter are left out by their statistics.  Ray copies
    what the tasks read into its own object store: select columns and rows here, or use
    ``aggregate``.

    Args:
        name: name of a huge table, or of an object that is a table.
        columns: names of columns; None: all.
        filter: the rows to read; None: all.
        version: a version of a huge table; None: the newest.
        address: path of the socket of a node, for this process and for tasks on its machine;
            None: as ``farrow.connect``.

    Returns:
        A dataset with the selected columns and rows.

    Raises:
        NotFound: there is no such table.
        RowsMissing: the huge table has gaps.
        InvalidArgument: the object has no columns, or a column does not exist.
    """
    client = farrow.connect(address)
    schema, chunks = _chunks.chunks(client, name, filter, version)
    selected = _chunks.selected_schema(schema, columns)
    selection = _chunks.selection(schema, columns, filter)
    by_node = _by_node(chunks)
    cores = ray.cluster_resources().get("CPU", 1)
    tasks = max(1, round(_TASKS_PER_CORE * cores / max(1, len(by_node))))
    sources = [
        ray.data.read_datasource(
            _FarrowDatasource(client.address, selected, own, selection),
            ray_remote_args=_options(node),
            # With more than there are tasks, Ray would divide the blocks once more.
            override_num_blocks=len(_chunks.groups(own, tasks)),
        )
        for node, own in by_node.items()
    ]
    if not sources:
        return ray.data.from_arrow(selected.empty_table())
    first, *rest = sources
    return first.union(*rest) if rest else first


class FarrowDatasink(Datasink):  # type: ignore[misc]
    """Appends a Ray dataset to a huge table, for ``Dataset.write_datasink``.

    Each task writes its blocks to the memory of its own node.  When all tasks have ended, their
    blocks are appended in order, without a copy; so a task that Ray repeats adds its rows once.

    Args:
        name: name of the huge table, which is created if it does not exist.
        address: as in ``read_farrow``.
    """

    def __init__(self, name: str, *, address: str | None = None) -> None:
        self._name = name
        self._address = farrow.connect(address).address

    def get_name(self) -> str:
        return "Farrow"

    def write(self, blocks: Iterable[Any], ctx: Any) -> tuple[int, str | None, list[Any]]:
        """Called by Ray in each task: its number, its node, and references to its blocks."""
        client = _references.checked_client(self._address)
        found: list[_blocks.Block] = []
        # Ray repeats a task that fails, or gives up: its blocks stay unknown.
        with _blocks.dropped_on_error(client, found):
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if table.num_rows:
                    found.append(_blocks.put_block(client, table))
        return ctx.task_idx, client.node, found

    def on_write_complete(self, write_result: Any) -> None:
        """Called by Ray on the driver after all tasks."""
        ordered = sorted(write_result.write_returns, key=lambda task: task[0])
        blocks = [(block, node) for _, node, found in ordered for block in found]
        _blocks.append_blocks(_references.checked_client(self._address), self._name, blocks)


def aggregate(
    name: str,
    keys: Sequence[str],
    aggregates: Sequence[tuple[str, str]],
    *,
    address: str | None = None,
) -> pa.Table:
    """Group the rows of a table in Farrow, with one task for each node that has rows.

    A task aggregates the chunks of its node in place, and only its groups travel.

    Args:
        name: name of a huge table, or of an object that is a table.
        keys: names of the columns to group by; empty: one group.
        aggregates: pairs of a column and "sum", "count", "min", "max" or "mean".
        address: as in ``read_farrow``.

    Returns:
        The keys, and one column ``COLUMN_FUNCTION`` for each pair, in no order of rows.  Nulls are
        ignored; a mean is float64.  Columns with a dictionary have the type of its values.

    Raises:
        NotFound: there is no such table.
        RowsMissing: the huge table has gaps.
        InvalidArgument: a column or a function does not exist.
    """
    for _, function in aggregates:
        if function not in _PARTIALS:
            raise InvalidArgument(f"no aggregate {function!r}; there are {', '.join(_PARTIALS)}")
    client = farrow.connect(address)
    schema, chunks = _chunks.chunks(client, name)
    plan = _Plan(list(keys), list(aggregates))
    selected = _chunks.selected_schema(schema, plan.columns)
    task = ray.remote(_partial)
    partials = [
        task.options(**_options(node)).remote(client.address, [chunk.id for chunk in own], plan)
        for node, own in _by_node(chunks).items()
    ]
    found = ray.get(partials) or [plan.partial(selected.empty_table())]
    return plan.combined(pa.concat_tables(found))


def _partial(address: str, ids: list[bytes], plan: _Plan) -> pa.Table:
    selection = _chunks.Selection(plan.columns, None, plan.columns)
    parts = [_references.read_chunk(address, selection, id) for id in ids]
    return plan.partial(pa.concat_tables(parts))


@dataclass(frozen=True)
class _Plan:
    """What :func:`aggregate` computes.  Columns of partial tables have numbers, since names of a
    table may be anything: ``k0`` for the first key, ``v0_sum`` for a sum of the first value."""

    keys: list[str]
    aggregates: list[tuple[str, str]]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(dict.fromkeys([*self.keys, *(column for column, _ in self.aggregates)]))

    @property
    def _values(self) -> list[tuple[str, bool]]:
        """The columns that are aggregated, and whether as float64."""
        return list(dict.fromkeys((c, function == "mean") for c, function in self.aggregates))

    def _parts(self) -> Iterator[tuple[int, str, str]]:
        """Each partial aggregate: the number of the value, and how it is made and combined."""
        numbers = {value: number for number, value in enumerate(self._values)}
        for column, function in self.aggregates:
            for part, combine in _PARTIALS[function]:
                yield numbers[column, function == "mean"], part, combine

    def _key_names(self) -> list[str]:
        return [f"k{number}" for number in range(len(self.keys))]

    def partial(self, table: pa.Table) -> pa.Table:
        """The groups of some rows."""
        columns = {f"k{number}": _plain(table[key]) for number, key in enumerate(self.keys)}
        for number, (column, is_float) in enumerate(self._values):
            columns[f"v{number}"] = _float(table[column]) if is_float else _plain(table[column])
        pairs = dict.fromkeys((f"v{number}", part) for number, part, _ in self._parts())
        return pa.table(columns).group_by(self._key_names()).aggregate(list(pairs))

    def combined(self, partial: pa.Table) -> pa.Table:
        """The groups of all rows."""
        pairs = dict.fromkeys((f"v{number}_{part}", how) for number, part, how in self._parts())
        whole = partial.group_by(self._key_names()).aggregate(list(pairs))
        names = list(self.keys)
        columns = [whole[name] for name in self._key_names()]
        parts = (whole[f"v{number}_{part}_{how}"] for number, part, how in self._parts())
        for column, function in self.aggregates:
            names.append(f"{column}_{function}")
            found = [next(parts) for _ in _PARTIALS[function]]
            if function == "mean":
                total, count = found
                columns.append(pc.divide(total.cast(pa.float64(), safe=False), count))
            else:
                columns.append(found[0])
        return pa.table(columns, names)


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without a dictionary: Arrow groups by no dictionaries that differ between chunks."""
    is_dictionary = pa.types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if is_dictionary else values


def _float(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """As float64.  A sum of integers would wrap."""
    values = _plain(values)
    return values.cast(pa.float64(), safe=False) if pa.types.is_integer(values.type) else values
