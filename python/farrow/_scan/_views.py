"""Strings and bytes as views: Arrow reads them in place, but has no kernels that select their rows.

polars and DataFusion have such columns.  Where rows are selected, views become the types with
offsets, ``large_string`` and ``large_binary``, which copies them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

__all__ = ["check_selectable", "has_views", "scanner", "schema_without_views", "without_views"]

# By their names: pyarrow 15 has no views.
_OFFSET_TYPES = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
# pyarrow 16 and 17 have views and no casts from them: there, views stay as they are.
_HAS_CASTS = int(pa.__version__.partition(".")[0]) >= 18
# A column that says whether a row is selected.
_MARK = "__farrow_is_selected"


def has_views(schema: pa.Schema) -> bool:
    """Whether Arrow cannot select rows of a column, since there are views in it."""
    return any(_has_views(field.type) for field in schema)


def _has_views(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_views(data_type.storage_type)
    # Of a dictionary and of views of lists, no values are selected.
    if str(data_type).startswith(("dictionary", "list_view", "large_list_view")):
        return False
    if str(data_type) in _OFFSET_TYPES:
        return True
    return any(_has_views(data_type.field(n).type) for n in range(data_type.num_fields))


def _with_offsets(field: pa.Field) -> pa.Field:
    """The field without views, except for those in an extension type, which Arrow cannot cast."""
    data_type = field.type
    types = pa.types
    is_extension = isinstance(data_type, pa.BaseExtensionType)
    if not _HAS_CASTS or is_extension or not _has_views(data_type):
        return field
    if str(data_type) in _OFFSET_TYPES:
        return field.with_type(_OFFSET_TYPES[str(data_type)])
    if types.is_struct(data_type):
        return field.with_type(pa.struct([_with_offsets(child) for child in data_type]))
    if types.is_map(data_type):
        pair = _with_offsets(data_type.key_field), _with_offsets(data_type.item_field)
        return field.with_type(pa.map_(*pair))
    if types.is_list(data_type):
        return field.with_type(pa.list_(_with_offsets(data_type.value_field)))
    if types.is_large_list(data_type):
        return field.with_type(pa.large_list(_with_offsets(data_type.value_field)))
    if types.is_fixed_size_list(data_type):
        values = _with_offsets(data_type.value_field)
        return field.with_type(pa.list_(values, data_type.list_size))
    return field


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """The schema of :func:`without_views`."""
    return pa.schema([_with_offsets(field) for field in schema], metadata=schema.metadata)


def without_views(table: pa.Table) -> pa.Table:
    """The table with offsets in place of views: these columns are copied.

    Views in an extension type remain.
    """
    return table.cast(schema_without_views(table.schema)) if has_views(table.schema) else table


def check_selectable(schema: pa.Schema) -> None:
    """Check that Arrow can select rows of all columns, once they are without views.

    Raises:
        UnsupportedType: a column has views in an extension type, or pyarrow is older than 18.
    """
    from farrow.exceptions import UnsupportedType

    for field in schema_without_views(schema):
        if _has_views(field.type):
            raise UnsupportedType(
                f"pyarrow {pa.__version__} cannot select rows of the column {field.name!r}, "
                f"{field.type}: select other columns, or read all rows"
            )


def scanner(
    batches: list[pa.RecordBatch], schema: pa.Schema, selection: dict[str, Any]
) -> ds.Scanner:
    """A scanner of batches, also where a filter selects rows of columns with views.

    Args:
        batches: the rows.
        schema: their schema.
        selection: arguments of ``pyarrow.dataset.Dataset.scanner``.

    Raises:
        UnsupportedType: there is a filter, and a column has views in an extension type, or any
            views where pyarrow is older than 18.
    """
    filter = selection.get("filter")
    if filter is None or not has_views(schema):
        return ds.InMemoryDataset(batches, schema=schema).scanner(**selection)
    check_selectable(schema)
    columns = selection.get("columns")
    if not isinstance(columns, dict):
        columns = {name: pc.field(name) for name in (schema.names if columns is None else columns)}
    plain = without_views(pa.Table.from_batches(batches, schema))
    before, now = (
        ds.InMemoryDataset(pa.Table.from_batches([], one)) for one in (schema, plain.schema)
    )
    # The rows that remain are views again.
    selection = {
        **selection,
        "columns": {name: _cast(value, before, now) for name, value in columns.items()},
    }
    try:
        return ds.InMemoryDataset(plain).scanner(**selection)
    except pa.ArrowException as error:
        # DataFusion compares with constants that are views: only views compare with these.
        try:
            marks = ds.InMemoryDataset(batches, schema=schema).to_table(columns={_MARK: filter})
        except pa.ArrowException:
            raise error from None
        rows = ds.InMemoryDataset(plain.append_column(_MARK, marks[_MARK]))
        return rows.scanner(**{**selection, "filter": pc.field(_MARK)})


def _cast(value: pc.Expression, before: ds.Dataset, now: ds.Dataset) -> pc.Expression:
    """An expression over rows without views, with the type that it has over rows with views."""
    types = []
    for rows in (before, now):
        try:
            types += rows.scanner(columns={"value": value}).projected_schema.types
        except pa.ArrowException:
            # It has a type over one of both.
            return value
    return value if types[0] == types[1] else value.cast(types[0])
