"""Plan a query with DataFusion, and cut it into stages whose tasks run anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import datafusion
import pyarrow as pa

from farrow.exceptions import InvalidArgument
from farrow_sql._errors import CannotDistribute
from farrow_sql._plans._cut import cut
from farrow_sql._plans._limits import project_early
from farrow_sql._plans._stages import Exchange, Scan, Stage, check_operators, operators, tree
from farrow_sql._plans._wire import replace_children, replace_texts
from farrow_sql._sessions import bytes_of, empty_rows, frame_of, reader, session
from farrow_sql._tables import add_views, declare, declare_tables

if TYPE_CHECKING:
    from farrow_sql._tables import Source

__all__ = ["Plan", "exchange_name", "make"]

# Names of columns until they get their own, which may be equal.
_PLACEHOLDER = "farrow column {}"


@dataclass
class Plan:
    """The stages of a query, and a session that makes the plans of their leaves."""

    sources: list[Source]
    stages: list[Stage]
    schema: pa.Schema
    context: datafusion.SessionContext

    def rows_of(self, stage: Stage, ranges: list[range]) -> bytes:
        """A plan that reads rows of an exchange, a partition for each range."""
        if not stage.schema.names:
            return empty_rows(self.context, sum(len(one) for one in ranges))
        functions = [exchange_name(stage, number) for number in range(len(stage.schema))]
        holders = [_PLACEHOLDER.format(number) for number in range(len(functions))]
        columns = list(zip(functions, holders, strict=True))
        names = list(zip(holders, stage.schema.names, strict=True))
        parts = [reader(self.context, columns, [one]) for one in ranges]
        named = [replace_texts(part, names) for part in parts]
        if len(parts) == 1:
            return named[0]
        whole = reader(self.context, columns, ranges)
        return replace_children(whole, list(zip(parts, named, strict=True)))

    def rows_of_table(self, scan: Scan, rows: range) -> bytes:
        """A plan that returns the numbers of rows of a table."""
        if scan.has_columns:
            return reader(self.context, [], [rows])
        return empty_rows(self.context, len(rows))


def exchange_name(stage: Stage, column: int) -> str:
    """The function that reads a column of the output of a stage."""
    return f"farrow_stage_{stage.number}_{column}"


def make(query: str, found: list[Source], partitions: int) -> Plan:
    """The plan of a query for this number of tasks a stage.

    Raises:
        InvalidArgument: DataFusion does not accept the query.
        CannotDistribute: it has to run on one node.
    """
    context = session(partitions)
    leaves = session(1)
    for one in (context, leaves):
        declare_tables(one, found)
    ranges = add_views(context, found)
    frame = frame_of(context, query)
    schema = frame.schema()
    try:
        physical = frame.execution_plan()
    except Exception as error:
        raise InvalidArgument(f"query not accepted: {error}") from None
    check_operators(operators(physical))
    stages = cut(project_early(tree(physical, context)), partitions, ranges)
    plan = Plan(found, stages, schema, leaves)
    for stage in stages:
        _check_rows(stage, len(found))
        try:
            stage.schema = _schema_of(plan, stage)
        except CannotDistribute:
            raise
        except Exception as error:
            # An operator relies on what DataFusion knows of rows before an exchange: that two
            # columns of a join are equal, for example, so that rows sorted by one are by the other.
            raise CannotDistribute(f"a part of the plan cannot run by itself: {error}") from None
        for number, kind in enumerate(stage.schema.types):
            declare(leaves, exchange_name(stage, number), kind)
    return plan


def _check_rows(stage: Stage, tables: int) -> None:
    """A stage that computes columns of a table must read the table itself: its numbers of rows are
    those of the task."""
    scanned = {scan.table for scan in stage.scans()}
    # Leaves are other plans, in which the functions are in their place.
    own = stage.assemble(lambda _: b"")
    for table in range(tables):
        if f"farrow_{table}_".encode() in own and table not in scanned:
            raise CannotDistribute("a column is computed after an exchange of its rows")


def _schema_of(plan: Plan, stage: Stage) -> pa.Schema:
    """Names and types of what a stage produces.

    DataFusion does not return the schema of a plan.  But a left join of one row with no rows has
    one row, and all columns.
    """

    def leaf(found: Scan | Exchange) -> bytes:
        if isinstance(found, Scan):
            return plan.rows_of_table(found, range(0))
        return plan.rows_of(found.stage, [range(0)])

    context = plan.context
    join = context.sql(
        "select * from (select 1 as one) left join (select value from range(0, 0)) on true"
    ).execution_plan()
    right = bytes_of(join.children()[1], context)
    probe = replace_children(bytes_of(join, context), [(right, stage.assemble(leaf))])
    rows = datafusion.ExecutionPlan.from_bytes(context, probe)
    for partition in range(rows.partition_count):
        for batch in context.execute(rows, partition):
            fields = list(batch.to_pyarrow().schema)[1:]
            return pa.schema([pa.field(one.name, one.type) for one in fields])
    raise CannotDistribute("DataFusion does not name the columns of a stage")
