"""Run a whole query in this process, over the tables of the cluster."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow.exceptions import InvalidArgument
from farrow_sql._columns import Column, register
from farrow_sql._deadline import Deadline
from farrow_sql._errors import Late, raised, spoken
from farrow_sql._sessions import frame_of, session
from farrow_sql._tables import (
    add_views,
    column_name,
    declare_tables,
    first_row,
    joined,
    read_ranges,
)
from farrow_sql._worker._task import StreamDrain

if TYPE_CHECKING:
    import datafusion

    import farrow
    from farrow_sql._tables import Source

__all__ = ["LocalQuery", "Moved", "check"]


@dataclass
class Moved:
    """What a query read from other nodes than those of its tasks."""

    exchange_bytes: int = 0
    table_rows: int = 0
    table_bytes: int = 0
    # By the client, of the last stage.
    result_bytes: int = 0


class _Batches:
    """The rows of a stream, in this process."""

    def __init__(self) -> None:
        self.found: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self.found.append(rows)

    def end(self) -> None:
        pass


class LocalQuery:
    """A query that is not divided.

    Args:
        client: the client that reads the tables.
        text: one ``select``.
        deadline: the end of its time.
    """

    def __init__(self, client: farrow.Client, text: str, deadline: Deadline) -> None:
        self._client = client
        self._text = text
        self._deadline = deadline
        self.moved = Moved()

    def run(self, found: list[Source]) -> pa.Table:
        """The rows of the query over these tables.

        Raises:
            InvalidArgument: DataFusion does not accept the query.
            Late: the deadline is over.
            QueryFailed, OutOfMemory, ...: DataFusion reported an error while it ran.
        """
        used = check(self._text, found)
        # Views refer to the functions that are registered when they are made.
        context = session(_cores())
        declare_tables(context, found)
        for table, source in enumerate(found):
            self._deadline.read(lambda: self._read(context, table, source, used))  # noqa: B023
        add_views(context, found)
        frame = frame_of(context, self._text)
        schema = pa.schema([pa.field(one.name, one.type) for one in frame.schema()])
        batches = _Batches()
        self._drain(frame.execute_stream(), batches)
        tables = [pa.Table.from_arrays(one.columns, schema=schema) for one in batches.found]
        return pa.concat_tables([pa.Table.from_batches([], schema), *tables])

    def _drain(self, stream: Any, batches: _Batches) -> None:
        """Read a stream; an operator ends between batches, so it may outlive the query a while."""
        drain = StreamDrain([stream], [batches])
        del stream
        try:
            self._deadline.run(drain.run, drain.cancel)
        except (KeyboardInterrupt, Late):
            raise
        except BaseException as error:
            raise raised(*spoken(error)) from None

    def _read(
        self, context: datafusion.SessionContext, table: int, source: Source, used: str
    ) -> None:
        """Let the session read the columns of a table that the plan names."""
        numbers = [
            number
            for number in range(len(source.schema))
            if re.search(rf"\b{column_name(table, number)}\(", used)
        ]
        if not numbers:
            return
        schema = pa.schema([source.schema.field(number) for number in numbers])
        own = self._client.node or ""
        own_rows = joined(
            (part.id, part.begin, part.begin + part.rows, part.node) for part in source.parts
        )
        ranges = [(id, begin, end) for id, begin, end, _ in own_rows]
        nodes = [node for *_, node in own_rows]
        rows, moved = read_ranges(self._client, ranges, nodes, schema)
        self.moved.table_bytes += moved
        self.moved.table_rows += sum(part.rows for part in source.parts if part.node != own)
        first = first_row(table)
        for position, number in enumerate(numbers):
            column = Column(rows.column(position), first, lambda: self._deadline.is_over)
            register(context, column_name(table, number), column)


def check(text: str, found: list[Source]) -> str:
    """The plan of a query, which names the columns that it reads.

    Raises:
        InvalidArgument: DataFusion does not accept it; the message has its words.
    """
    context = session(1)
    declare_tables(context, found)
    add_views(context, found)
    frame = frame_of(context, text)
    try:
        return frame.execution_plan().display_indent()
    except Exception as error:
        raise InvalidArgument(f"query not accepted: {error}") from None


def _cores() -> int:
    return len(os.sched_getaffinity(0))
