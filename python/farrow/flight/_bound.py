"""Bound parameters as DuckDB takes them: with the types of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

__all__ = ["bound_rows", "typical"]

Row = dict[str, Any]

_INTEGERS = {f"{sign}{size}int" for sign in ("", "u") for size in ("tiny", "small", "big")} | {
    "integer",
    "uinteger",
}

_VIEW = "farrow bound parameters"
# Values of other types are passed as text.  It keeps what values of Python lose: nanoseconds, and
# years before 1 and after 9999.
_AS_THEY_ARE = ("varchar", "blob")


def bound_rows(connection: duckdb.DuckDBPyConnection, bound: pa.Table) -> list[Row]:
    """Rows of parameters, by the names of their columns.

    DuckDB reads the columns itself: the values of a column have one type in all rows.

    Args:
        connection: a connection that is not in a transaction yet.
        bound: the parameters, a row for each execution.

    Raises:
        ArrowInvalid: DuckDB cannot keep a value.
        duckdb.Error: it cannot read a column of this type.
    """
    import duckdb

    names = bound.column_names
    if not names:
        return [{} for _ in range(bound.num_rows)]
    # Drivers may give several columns the same name, or none.
    keys = names if len(set(names)) == len(names) else [str(n + 1) for n in range(len(names))]
    columns = [f"c{number}" for number in range(len(names))]
    connection.register(_VIEW, bound.rename_columns(columns))
    try:
        kinds = connection.sql(f'SELECT * FROM "{_VIEW}"').types
        items = [item for pair in map(_items, columns, kinds) for item in pair]
        found = connection.execute(f'SELECT {", ".join(items)} FROM "{_VIEW}"').fetchall()
    finally:
        connection.unregister(_VIEW)

    kinds = [
        _narrow(connection, kind, [row[2 * number] for row in found])
        for number, kind in enumerate(kinds)
    ]

    def row_of(number: int, values: tuple[Any, ...]) -> Row:
        for name, kind, is_kept in zip(keys, bound.schema.types, values[1::2], strict=True):
            if not is_kept:
                raise pa.ArrowInvalid(
                    f"parameter {name!r}, row {number}: DuckDB cannot keep this {kind}"
                )
        typed = [
            None if value is None else duckdb.Value(value, kind)
            for value, kind in zip(values[::2], kinds, strict=True)
        ]
        return dict(zip(keys, typed, strict=True))

    return [row_of(number, values) for number, values in enumerate(found)]


def _narrow(connection: duckdb.DuckDBPyConnection, kind: Any, values: list[str | None]) -> Any:
    """The type of a column of integers: INTEGER if all are in its range, or BIGINT, or its own.

    Drivers bind integers of their language as 64 bits, where many functions of DuckDB take INTEGER
    alone, and unsigned ones overflow in a difference.
    """
    if kind.id not in _INTEGERS:
        return kind
    numbers = [int(value) for value in values if value is not None]
    for name, bits in (("INTEGER", 31), ("BIGINT", 63)):
        if all(-(1 << bits) <= number < 1 << bits for number in numbers):
            return connection.type(name)
    return kind


def _items(column: str, kind: Any) -> tuple[str, str]:
    """What is read of a column: its value, and whether it is the bound one again."""
    if kind.id in _AS_THEY_ARE:
        return column, "true"
    text = f"{column}::VARCHAR"
    return text, f"{text}::{kind} IS NOT DISTINCT FROM {column}"


def typical(rows: Sequence[Row | None]) -> Row | None:
    """A row of which no value is null that is not in all rows: a null has no type."""
    if not rows or rows[0] is None:
        return None
    found = dict(rows[0])
    for row in rows[1:]:
        for name, value in (row or {}).items():
            if found[name] is None:
                found[name] = value
    return found
