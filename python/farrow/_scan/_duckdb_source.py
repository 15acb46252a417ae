"""Farrow's tables as DuckDB 2 scans them: it filters by itself where no chunk would be skipped.

A dataset of Arrow must apply each filter that it takes, which copies the matching rows.  DuckDB
filters while it reads, and faster.  So a filter is taken only if it leaves out many rows before
they are read.  The hook by which DuckDB takes such a source is not public: without it, tables are
registered as datasets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from farrow._scan._attached import NewestRows
    from farrow.dataset import FarrowDataset

__all__ = ["register"]

# A filter that leaves more than this share of the rows is DuckDB's.
_SHARE_MAX = 0.5


def register(
    connection: duckdb.DuckDBPyConnection, name: str, rows: NewestRows | FarrowDataset
) -> None:
    """Register a view of a table.

    Args:
        connection: the connection.
        name: name of the view.
        rows: the table.

    Raises:
        UnsupportedType: the table has no columns, or one of a type that DuckDB has not.
    """
    import duckdb

    from farrow import UnsupportedType

    try:
        _register(connection, name, rows)
    except duckdb.Error as error:
        raise UnsupportedType(f"DuckDB cannot read the table {name!r}: {error}") from error


def _register(
    connection: duckdb.DuckDBPyConnection, name: str, rows: NewestRows | FarrowDataset
) -> None:
    try:
        from duckdb._sources.pyarrow import PyArrowDatasetSource
        from duckdb._sources.to_arrow import to_arrow

        hook = connection._register_arrow_source
    except (ImportError, AttributeError):
        connection.register(name, rows)
        return

    class Source(PyArrowDatasetSource):  # type: ignore[misc, unused-ignore]
        def rows(self) -> int | None:
            """For the order of joins."""
            return int(self.obj.count_rows())

        def accepts(self, predicate: Any) -> bool:
            """Whether rows are left out by a filter before they are read."""
            if not super().accepts(predicate):
                return False
            share = _opened(self.obj)._share_read(to_arrow(predicate, self.declared_schema()))
            return share <= _SHARE_MAX

        def stream(
            self, columns: Sequence[int] | None, filters: Sequence[Any]
        ) -> tuple[object, bool]:
            """The rows, in place if there is no filter and they are mapped."""
            opened = _opened(self.obj)
            if filters or opened._is_far or opened._with_filter(None) is not None:
                found: tuple[object, bool] = super().stream(columns, filters)
                return found
            return _in_place(opened, columns), columns is not None

    hook(name, Source(rows))


def _opened(rows: NewestRows | FarrowDataset) -> FarrowDataset:
    from farrow._scan._attached import NewestRows

    return rows._open_for_scan() if isinstance(rows, NewestRows) else rows


def _in_place(rows: FarrowDataset, columns: Sequence[int] | None) -> object:
    """All rows of some columns, as a stream of Arrow."""
    names = None if columns is None else [rows.schema.names[number] for number in columns]
    schema, chunks = rows._read(None, names)
    table = pa.Table.from_batches([one for chunk in chunks for one in chunk], schema)
    if columns is not None:
        # A column by its number, unless only the named ones were read.
        is_whole = len(schema) == len(rows.schema)
        table = table.select(list(columns) if is_whole else names)
    return table.__arrow_c_stream__()
