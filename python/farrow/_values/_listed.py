"""Rows of a list of objects as Python values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["listed_rows"]


def listed_rows(listed: pa.Table, times: pa.DataType | None = None) -> list[dict[str, Any]]:
    """The rows of a list of objects, or of some of its columns.

    A list has times in nanoseconds. They do not fit Python's ``datetime``, so ``to_pylist`` needs
    pandas for them.

    Args:
        listed: a table that ``Client.list`` returned, or some of its rows and columns.
        times: type of the times; None: integers, in nanoseconds since 1970.

    Returns:
        A dictionary for each row, by column.
    """
    for number, field in enumerate(listed.schema):
        if pa.types.is_timestamp(field.type):
            column = listed.column(number).cast(times or pa.int64())
            listed = listed.set_column(number, field.name, column)
    rows: list[dict[str, Any]] = listed.to_pylist()
    return rows
