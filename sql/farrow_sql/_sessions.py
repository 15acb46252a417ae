"""Sessions of DataFusion, and plans that read rows by their numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import datafusion
import pyarrow as pa

from farrow.exceptions import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BATCH_ROWS", "bytes_of", "empty_rows", "frame_of", "quoted", "reader", "session"]

# Each batch costs a call into Python for each column: more rows than DataFusion's own 8192.
BATCH_ROWS = 32768
# A filter that a join or a sort finds while it runs cannot reach operators of another process.  The
# result of a subquery that is an expression cannot either: as a join it can.
_OFF = (
    "enable_dynamic_filter_pushdown",
    "enable_topk_dynamic_filter_pushdown",
    "enable_join_dynamic_filter_pushdown",
    "enable_aggregate_dynamic_filter_pushdown",
    "enable_physical_uncorrelated_scalar_subquery",
)


class _State:
    """What one process knows of DataFusion's threads, which a forked child lacks."""

    has_session = False
    is_forked = False


def _after_fork() -> None:
    _State.is_forked = _State.is_forked or _State.has_session


os.register_at_fork(after_in_child=_after_fork)


def session(
    partitions: int, runtime: datafusion.RuntimeEnvBuilder | None = None
) -> datafusion.SessionContext:
    """A session whose plans have this number of partitions and exchange no Python code.

    Raises:
        InvalidArgument: this process was forked from one that had a session: it would wait forever.
    """
    if _State.is_forked:
        raise InvalidArgument(
            "the process from which this one was forked has used DataFusion, whose threads are not "
            "in this one: start it by spawn"
        )
    _State.has_session = True
    config = datafusion.SessionConfig().with_target_partitions(partitions)
    config = config.with_batch_size(BATCH_ROWS)
    for name in _OFF:
        config = config.set(f"datafusion.optimizer.{name}", "false")
    # Both sides of a join are partitioned, by the same hash.  DataFusion knows no sizes here: small
    # sides are found when the plan is cut.
    for name in ("threshold", "threshold_rows"):
        config = config.set(f"datafusion.optimizer.hash_join_single_partition_{name}", "0")
    # An interleaved union needs inputs that DataFusion itself has partitioned.
    config = config.set("datafusion.optimizer.prefer_existing_union", "true")
    context = datafusion.SessionContext(config, runtime or datafusion.RuntimeEnvBuilder())
    return context.with_python_udf_inlining(enabled=False)


def frame_of(context: datafusion.SessionContext, query: str) -> datafusion.DataFrame:
    """A query, which may only read.

    Raises:
        InvalidArgument: DataFusion does not accept it; the message has its words.
    """
    options = datafusion.SQLOptions().with_allow_ddl(False)
    options = options.with_allow_dml(False).with_allow_statements(False)
    try:
        return context.sql_with_options(query, options)
    except Exception as error:
        raise InvalidArgument(f"query not accepted: {error}") from None


def bytes_of(plan: datafusion.ExecutionPlan, context: datafusion.SessionContext) -> bytes:
    """A serialized plan."""
    return bytes(plan.to_bytes(context))


def quoted(name: str) -> str:
    """A name in SQL, as it is."""
    return '"' + name.replace('"', '""') + '"'


def reader(
    context: datafusion.SessionContext, columns: Sequence[tuple[str, str]], ranges: list[range]
) -> bytes:
    """A plan that reads ranges of rows, a partition each: columns are function and name.

    Without columns, it returns the numbers of the rows, as ``value``.
    """
    listed = ", ".join(f"{quoted(function)}(value) as {quoted(name)}" for function, name in columns)
    parts = [f"select {listed or 'value'} from range({one.start}, {one.stop})" for one in ranges]
    return bytes_of(context.sql(" union all ".join(parts)).execution_plan(), context)


def empty_rows(context: datafusion.SessionContext, rows: int) -> bytes:
    """A plan that returns rows without columns."""
    name = f"rows_{rows}"
    if not context.table_exist(name):
        structs = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
        batch = pa.RecordBatch.from_struct_array(structs)
        context.register_record_batches(name, [[batch]])
    return bytes_of(context.table(name).execution_plan(), context)
