"""Farrow's tables as polars ``LazyFrame``: columns and filters reach the shared memory.

A scan takes the columns that a query needs and only the chunks that can have matching rows; polars
then applies the filter itself, so results are those of a ``DataFrame``.  Numbers, dates and times
stay in place; polars converts strings to its own layout, except ``string_view``, which also stays::

    import farrow.polars
    import polars as pl

    trades = farrow.polars.scan("trades")
    trades.filter(pl.col("day") == 1).select(pl.col("price").sum()).collect()
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from polars.io.plugins import register_io_source

from farrow._scan import _views
from farrow._values._convert import in_polars
from farrow.dataset import FarrowDataset, dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow import Client, HugeTable

__all__ = ["scan"]

_COMPARISONS = {
    "Eq": pc.Expression.__eq__,
    "NotEq": pc.Expression.__ne__,
    "Lt": pc.Expression.__lt__,
    "LtEq": pc.Expression.__le__,
    "Gt": pc.Expression.__gt__,
    "GtEq": pc.Expression.__ge__,
}
_BETWEEN = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}
_TYPES = {
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "Boolean": pa.bool_(),
    "Date": pa.date32(),
}
_UNITS = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}


def scan(
    source: str | HugeTable | FarrowDataset,
    client: Client | None = None,
    *,
    version: int | None = None,
) -> pl.LazyFrame:
    """Scan a table of Farrow.

    Args:
        source: the name of a huge table or of a put table; or a huge table; or a dataset of
            :func:`farrow.dataset.dataset`.
        client: the client that looks for the name; None: ``farrow.connect()``.
        version: a version of a huge table; None: the newest at the time of this call.

    Returns:
        A frame over the rows that exist now. It keeps them in memory while it exists.

    Raises:
        NotFound: there is no such name.
        RowsMissing: the huge table has gaps.
        NodeLost: a node that has rows of the table is lost.

    Examples:
        >>> import farrow.polars
        >>> import polars as pl
        >>> reference = client.put(pa.table({"day": [0, 1], "price": [1.5, 2.5]}), "polars/scan")
        >>> trades = farrow.polars.scan("polars/scan", client)
        >>> trades.filter(pl.col("day") == 1).select(pl.col("price").sum()).collect().item()
        2.5
    """
    rows = source
    if not isinstance(rows, FarrowDataset):
        rows = dataset(rows, client, version=version)
    found: FarrowDataset = rows

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        # The first rows are those before the filter: no chunk can be left out of their count.
        wanted = None
        if predicate is not None and most is None:
            wanted = _pruning_filter(predicate, found.schema)
        schema, chunks = found._read(found._with_filter(wanted), columns)
        # That of the dataset, which polars does not know.
        own_filter = found._with_filter(None)
        for batches in chunks:
            if own_filter is None:
                table = pa.Table.from_batches(batches, schema)
                chosen = table if columns is None else table.select(columns)
            else:
                selection = {"columns": columns, "filter": own_filter}
                chosen = _views.scanner(batches, schema, selection).to_table()
            if most is not None:
                chosen = chosen.slice(0, most)
                most -= chosen.num_rows
            frame = pl.DataFrame(in_polars(chosen))
            yield frame if predicate is None else frame.filter(predicate)
            if most == 0:
                return

    # Not ``empty_table()``, which has no arrays of unions.
    empty = pl.DataFrame(in_polars(pa.Table.from_batches([], found.schema)))
    return register_io_source(read, schema=empty.schema)


def _pruning_filter(predicate: pl.Expr, schema: pa.Schema) -> pc.Expression | None:
    """A filter of Arrow that no row misses for which the predicate is true; None if none is known.

    The tree of a predicate is not a stable interface: what is not understood is left out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = json.loads(predicate.meta.serialize(format="json"))
        except (pl.exceptions.PolarsError, ValueError, TypeError):
            return None
    return _translate(tree, schema)


def _translate(node: Any, schema: pa.Schema) -> pc.Expression | None:
    if not isinstance(node, dict) or len(node) != 1:
        return None
    [(kind, body)] = node.items()
    if kind == "BinaryExpr":
        return _binary(body, schema)
    if kind == "Function" and isinstance(body, dict):
        function = body.get("function")
        name = function.get("Boolean") if isinstance(function, dict) else None
        operands = [_operand(one, schema) for one in body.get("input", ())]
        if name == "IsNull" and len(operands) == 1:
            return None if operands[0] is None else operands[0].is_null()
        if (
            isinstance(name, dict)
            and "IsBetween" in name
            and all(one is not None for one in operands)
        ):
            first, second = _BETWEEN.get(name["IsBetween"].get("closed"), ("", ""))
            if len(operands) == 3 and first:
                value, low, high = operands
                return _COMPARISONS[first](value, low) & _COMPARISONS[second](value, high)
    return None


def _binary(body: Any, schema: pa.Schema) -> pc.Expression | None:
    operator = body.get("op")
    if operator in ("And", "Or"):
        sides = [_translate(body[side], schema) for side in ("left", "right")]
        known = [side for side in sides if side is not None]
        if len(known) == 2:
            return known[0] & known[1] if operator == "And" else known[0] | known[1]
        # One side of a conjunction alone lets more rows pass.
        return known[0] if operator == "And" and known else None
    compare = _COMPARISONS.get(operator)
    left, right = (_operand(body[side], schema) for side in ("left", "right"))
    if compare is None or left is None or right is None:
        return None
    return compare(left, right)


def _operand(node: Any, schema: pa.Schema) -> pc.Expression | None:
    """A column or a literal; None for anything else."""
    if not isinstance(node, dict):
        return None
    if isinstance(name := node.get("Column"), str):
        found = schema.get_all_field_indices(name)
        # The order of categories is polars' own.
        if len(found) != 1 or pa.types.is_dictionary(schema.field(found[0]).type):
            return None
        return pc.field(name)
    scalar = (
        node.get("Literal", {}).get("Scalar") if isinstance(node.get("Literal"), dict) else None
    )
    if not isinstance(scalar, dict) or len(scalar) != 1:
        return None
    [(kind, value)] = scalar.items()
    try:
        if kind in _TYPES and value is not None:
            return pc.scalar(pa.scalar(value, _TYPES[kind]))
        if kind == "Datetime":
            ticks, unit, zone = value
            zone = zone["inner"] if isinstance(zone, dict) else zone
            return pc.scalar(pa.scalar(ticks, pa.timestamp(_UNITS[unit], zone)))
    except (pa.ArrowException, TypeError, ValueError, KeyError):
        return None
    return None
