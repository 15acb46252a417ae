"""Answers to questions about the server and its tables, in the columns that Flight SQL fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from farrow._native import __version__
from farrow.flight._messages import GetTables
from farrow.flight._prepared import IDLE_SECONDS

if TYPE_CHECKING:
    from farrow.flight._engine import TableSource
    from farrow.flight._messages import Command
    from farrow.flight._protobuf import Message

__all__ = ["answer", "is_question", "schema_of"]

# Where DuckDB has the tables of a connection.
_CATALOG, _SCHEMA, _TYPE = "temp", "main", "TABLE"


def _columns(text: str) -> pa.Schema:
    """A schema as ``name type``, with a ``!`` where a column has no nulls."""
    types = {"utf8": pa.string(), "int32": pa.int32(), "uint8": pa.uint8(), "bool": pa.bool_()}
    types |= {"bytes": pa.binary(), "texts": pa.list_(pa.field("item", pa.string(), False))}
    fields = [column.split() for column in text.split(",")]
    return pa.schema(
        [pa.field(name, types[kind.rstrip("!")], not kind.endswith("!")) for name, kind in fields]
    )


_KEYS = _columns(
    "pk_catalog_name utf8, pk_db_schema_name utf8, pk_table_name utf8!, pk_column_name utf8!, "
    "fk_catalog_name utf8, fk_db_schema_name utf8, fk_table_name utf8!, fk_column_name utf8!, "
    "key_sequence int32!, fk_key_name utf8, pk_key_name utf8, update_rule uint8!, "
    "delete_rule uint8!"
)
_TABLES = "catalog_name utf8, db_schema_name utf8, table_name utf8!, table_type utf8!"
_INFO = pa.schema(
    [
        pa.field("info_name", pa.uint32(), False),
        pa.field(
            "value",
            pa.dense_union(
                [
                    pa.field("string_value", pa.string()),
                    pa.field("bool_value", pa.bool_()),
                    pa.field("bigint_value", pa.int64()),
                    pa.field("int32_bitmask", pa.int32()),
                    pa.field("string_list", pa.list_(pa.string())),
                    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
                ]
            ),
            False,
        ),
    ]
)
_SCHEMAS = {
    "CommandGetCatalogs": _columns("catalog_name utf8!"),
    "CommandGetDbSchemas": _columns("catalog_name utf8, db_schema_name utf8!"),
    "CommandGetTableTypes": _columns("table_type utf8!"),
    "CommandGetPrimaryKeys": _columns(
        "catalog_name utf8, db_schema_name utf8, table_name utf8!, column_name utf8!, "
        "key_name utf8, key_sequence int32!"
    ),
    "CommandGetExportedKeys": _KEYS,
    "CommandGetImportedKeys": _KEYS,
    "CommandGetCrossReference": _KEYS,
    "CommandGetXdbcTypeInfo": _columns(
        "type_name utf8!, data_type int32!, column_size int32, literal_prefix utf8, "
        "literal_suffix utf8, create_params texts, nullable int32!, case_sensitive bool!, "
        "searchable int32!, unsigned_attribute bool, fixed_prec_scale bool!, "
        "auto_increment bool, local_type_name utf8, minimum_scale int32, maximum_scale int32, "
        "sql_data_type int32!, datetime_subcode int32, num_prec_radix int32, "
        "interval_precision int32"
    ),
    "CommandGetSqlInfo": _INFO,
}
_GET_TABLES = "CommandGetTables"


def is_question(name: str) -> bool:
    """Whether a command asks about the server or its tables."""
    return name == _GET_TABLES or name in _SCHEMAS


def schema_of(command: Command) -> pa.Schema:
    """The columns of an answer."""
    if command.name == _GET_TABLES:
        has_schema = GetTables.of(command.message).has_schema
        return _columns(_TABLES + (", table_schema bytes!" if has_schema else ""))
    return _SCHEMAS[command.name]


def answer(command: Command, tables: TableSource) -> pa.Table:
    """The answer to a question; there are no keys."""
    schema = schema_of(command)
    message = command.message
    if command.name == _GET_TABLES:
        return _tables(GetTables.of(message), tables, schema)
    if command.name == "CommandGetSqlInfo":
        return _info(message)
    rows: list[dict[str, Any]] = []
    if command.name == "CommandGetCatalogs":
        rows = [{"catalog_name": _CATALOG}]
    elif command.name == "CommandGetTableTypes":
        rows = [{"table_type": _TYPE}]
    elif command.name == "CommandGetDbSchemas" and _is_here(
        message.optional_text(1), message.optional_text(2)
    ):
        rows = [{"catalog_name": _CATALOG, "db_schema_name": _SCHEMA}]
    return pa.Table.from_pylist(rows, schema=schema)


def _is_here(catalog: str | None, schema_pattern: str | None) -> bool:
    return catalog in (None, _CATALOG) and bool(_like([_SCHEMA], schema_pattern))


def _like(names: list[str], pattern: str | None) -> list[str]:
    """The names that match a pattern of LIKE; Arrow's search takes linear time."""
    if pattern is None or not names:
        return names
    listed = pa.array(names)
    found: list[str] = listed.filter(pc.match_like(listed, pattern)).to_pylist()
    return found


def _tables(wanted: GetTables, tables: TableSource, schema: pa.Schema) -> pa.Table:
    rows = []
    is_here = _is_here(wanted.catalog, wanted.schema_pattern)
    if is_here and (not wanted.types or _TYPE in wanted.types):
        for name in _like(tables.names(), wanted.table_pattern):
            row: dict[str, Any] = {
                "catalog_name": _CATALOG,
                "db_schema_name": _SCHEMA,
                "table_name": name,
                "table_type": _TYPE,
            }
            if wanted.has_schema:
                columns = tables.schema(name)
                if columns is None:
                    # Deleted since it was listed, or on a node that is lost.
                    continue
                row["table_schema"] = columns.remove_metadata().serialize().to_pybytes()
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema)


def _facts() -> dict[int, str | bool | int]:
    """Numbers of ``SqlInfo``, and what holds here."""
    return {
        0: "Farrow",
        1: __version__,
        2: pa.__version__,
        3: True,  # read-only
        4: True,  # SQL
        5: False,  # Substrait
        8: 0,  # no transactions
        9: True,  # queries can be cancelled
        100: int(IDLE_SECONDS * 1000),  # of a prepared statement
        101: 0,  # of a transaction
        500: False,  # CREATE of a catalog, a schema, a table
        501: False,
        502: False,
        503: 1,  # names are case-insensitive
        504: '"',
        505: 1,  # quoted ones as well
        506: True,  # all tables can be selected
        507: 3,  # nulls are sorted at the end
        513: "\\",
        515: True,  # aliases of columns
        529: "schema",
        530: "procedure",
        531: "catalog",
        532: True,  # the catalog is the first part of a name
        536: False,  # SELECT FOR UPDATE
        537: False,  # stored procedures
        539: True,  # correlated subqueries
        563: False,  # transactions
        572: False,  # batch updates
        573: False,  # savepoints
        574: True,  # named parameters
    }


def _info(message: Message) -> pa.Table:
    """The facts that were asked for, as a union of their types; an unknown number has no row."""
    facts = _facts()
    requested = message.integers(1) or list(facts)
    numbers = [number for number in dict.fromkeys(requested) if number in facts]
    children: list[list[Any]] = [[], [], [], [], [], []]
    kinds, offsets = [], []
    for number in numbers:
        fact = facts[number]
        kind = 0 if isinstance(fact, str) else 1 if isinstance(fact, bool) else 3
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(fact)
    union = _INFO.field("value").type
    value = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(child, union.field(kind).type) for kind, child in enumerate(children)],
        [union.field(kind).name for kind in range(len(children))],
    )
    return pa.Table.from_arrays([pa.array(numbers, pa.uint32()), value], schema=_INFO)
