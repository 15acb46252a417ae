"""Bound parameters as DuckDB takes them: with the types of their columns."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

__all__ = [
    "EXPLAIN",
    "TypedNull",
    "bound_rows",
    "nodes_of",
    "syntax_tree",
    "typical",
    "with_typed_nulls",
]

Row = dict[str, Any]

# What is before the query of an EXPLAIN statement.
EXPLAIN = re.compile(r"^\s*explain\s+(analyze\s+|\([^()]*\)\s*)?", re.IGNORECASE)


class TypedNull(NamedTuple):
    """A null of a column that has a type. A null value of DuckDB has none."""

    #: As DuckDB writes it.
    kind: str


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
    for name, column in zip(keys, bound.columns, strict=True):
        if not all(_is_in_microseconds(leaf) for one in column.chunks for leaf in _leaves(one)):
            raise pa.ArrowInvalid(
                f"parameter {name!r}: DuckDB keeps durations and intervals in microseconds, and "
                f"this {column.type} has nanoseconds"
            )
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
        for name, kind, is_exact in zip(keys, bound.schema.types, values[1::2], strict=True):
            if not is_exact:
                raise pa.ArrowInvalid(
                    f"parameter {name!r}, row {number}: DuckDB cannot keep this {kind}"
                )
        typed = [
            _null(kind) if value is None else duckdb.Value(value, kind)
            for value, kind in zip(values[::2], kinds, strict=True)
        ]
        return dict(zip(keys, typed, strict=True))

    return [row_of(number, values) for number, values in enumerate(found)]


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of which a nested one is made."""
    parts: Sequence[pa.Array] = ()
    if isinstance(array, pa.ExtensionArray):
        parts = [array.storage]
    elif isinstance(array, pa.DictionaryArray):
        parts = [array.dictionary]
    elif isinstance(array, pa.RunEndEncodedArray):
        parts = [array.values]
    elif isinstance(array, pa.UnionArray):
        parts = [array.field(number) for number in range(array.type.num_fields)]
    elif isinstance(array, pa.StructArray):
        parts = array.flatten()
    elif isinstance(array, pa.MapArray):
        parts = [array.keys, array.items]
    elif array.type.num_fields:
        # Lists of all kinds.
        parts = [array.flatten()]
    else:
        yield array
    for part in parts:
        yield from _leaves(part)


def _is_in_microseconds(array: pa.Array) -> bool:
    """Whether DuckDB, which cuts nanoseconds off, keeps durations and intervals as they are."""
    if array.type == pa.duration("ns"):
        cut = array.cast(pa.duration("us"), safe=False)
        return bool(cut.cast(array.type).equals(array))
    if array.type == pa.month_day_nano_interval():
        return all(one.nanoseconds % 1000 == 0 for one in array.drop_null().to_pylist())
    return True


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


def _null(kind: Any) -> TypedNull | None:
    return None if kind.id == "sqlnull" else TypedNull(str(kind))


def syntax_tree(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """How DuckDB parses a query; its "error" is true if it cannot, or cannot show it.

    Raises:
        RecursionError: it is nested too deeply.
    """
    [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(text)
    return tree


def nodes_of(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def with_typed_nulls(
    connection: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, Any]
) -> str:
    """A query in which each parameter that is a typed null is cast to its type.

    Args:
        connection: a connection.
        sql: the query.
        values: the values of its parameters, by their names.

    Returns:
        The query with casts; as it is if no value is a typed null, or if DuckDB does not say where
        the parameters are.
    """
    kinds = {name: value.kind for name, value in values.items() if isinstance(value, TypedNull)}
    if not kinds:
        return sql
    query = EXPLAIN.sub("", sql, count=1)
    before = sql[: len(sql) - len(query)]
    try:
        tree = syntax_tree(connection, query)
    except RecursionError:
        return sql
    places = set()
    for node in nodes_of(tree):
        if node.get("class") == "PARAMETER" and node.get("identifier") in kinds:
            begin, size = node.get("query_location"), node.get("query_location_length")
            if not isinstance(begin, int) or not isinstance(size, int):
                return sql
            places.add((begin, begin + size, node["identifier"]))
    # Places are numbers of bytes.
    encoded = query.encode()
    for begin, end, name in sorted(places, reverse=True):
        parameter = encoded[begin:end]
        if parameter[:1] not in (b"?", b"$"):
            return sql
        cast = b"(CAST(%b AS %b))" % (parameter, kinds[name].encode())
        encoded = encoded[:begin] + cast + encoded[end:]
    return before + encoded.decode()


def typical(rows: Sequence[Row | None]) -> Row | None:
    """A row of which no value is null that is not in all rows: a null may have no type."""
    if not rows or rows[0] is None:
        return None
    found = dict(rows[0])
    for row in rows[1:]:
        for name, value in (row or {}).items():
            if found[name] is None or isinstance(found[name], TypedNull):
                found[name] = value
    return found
