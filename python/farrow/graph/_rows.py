"""Conversion of a table's rows to the engine's arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farrow.graph._columns import layout_of
from farrow.graph.data import Transactions

if TYPE_CHECKING:
    import numpy.typing as npt

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_ROLES = ("id", "source", "target", "timestamp", "amounts")
_DEFAULTS = {"id": "edge_id", "source": "source", "target": "target", "timestamp": "timestamp"}
# Up to this number, float64 represents every integer, and Arrow converts it.
_EXACT_MAX = 1 << 53
# Names are pruned when they number more than this and more than twice the accounts.
_NAMES_MIN = 100_000


class AccountNumbers:
    """Numbers for accounts that are named by strings.

    A number is a hash of the name, so it does not depend on the order of the names.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.names: dict[int, str] = {}

    def encode(self, column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """The numbers of a column of names."""
        encoded = pc.dictionary_encode(column.combine_chunks())
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        table = np.array([self._number(name) for name in encoded.dictionary.to_pylist()], np.int64)
        numbers: npt.NDArray[np.int64] = table[encoded.indices.to_numpy(zero_copy_only=False)]
        return numbers

    def _number(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is None:
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            number = int.from_bytes(digest, "little") >> 1
            while self.names.get(number, name) != name:
                number = (number + 1) & ((1 << 63) - 1)
            self.numbers[name] = number
            self.names[number] = name
        return number

    def forget(self, engine: Any) -> None:
        """Drop names of accounts that are not in the graph, once there are many."""
        if len(self.names) < _NAMES_MIN or len(self.names) < 2 * engine.stats()["accounts"]:
            return
        numbers = np.fromiter(self.names, np.int64, len(self.names))
        for number in numbers[~engine.knows(numbers)].tolist():
            del self.numbers[self.names.pop(number)]


class Layout:
    """The roles of a table's columns."""

    # Empty for a layout from an old file: then tables are not checked.
    kinds: Mapping[str, str] = {}
    # The units of measured timestamps in other columns than the rows' own. Stored only if there are
    # any, so that the layouts of older graphs are equal.
    units: Mapping[str, str] = {}

    def __init__(self, table: pa.Table, columns: Mapping[str, Any] | None) -> None:
        given = dict(columns or {})
        for role in given:
            if role not in _ROLES:
                raise ValueError(f"columns has {role!r}, which is none of {', '.join(_ROLES)}")
        present = table.column_names
        self.names = _names(present, given)
        self.is_numbered = "id" not in given and self.names["id"] not in present
        for role, name in self.names.items():
            if present.count(name) != 1 and not (role == "id" and self.is_numbered):
                found = "no column" if name not in present else "more than one column"
                raise ValueError(f"the table has {found} {name!r} for the {role}")
        kind = table.schema.field(self.names["timestamp"]).type
        self.ticks = _TICKS[kind.unit] if pa.types.is_timestamp(kind) else 1
        amounts = given.get("amounts")
        if amounts is None:
            taken = set(self.names.values())
            fields = [field for field in table.schema if pa.types.is_floating(field.type)]
            amounts = [field.name for field in fields if field.name not in taken]
        self.amounts = [amounts] if isinstance(amounts, str) else list(amounts)
        self.columns = list(present)
        self.kinds = self._kinds(table.schema)
        if self.kinds["source"] != self.kinds["target"]:
            raise TypeError(
                f"column {self.names['source']!r} (source) holds {self.kinds['source']}, but "
                f"{self.names['target']!r} (target) {self.kinds['target']}"
            )

    def _kinds(self, schema: pa.Schema) -> dict[str, str]:
        """The kinds of the columns in which another kind of value would change the meaning."""
        kinds = {}
        for role in ("source", "target", "timestamp"):
            kind = schema.field(self.names[role]).type
            if pa.types.is_timestamp(kind):
                # Between the two, the same moment is off by the offset of the zone.
                zone = "with" if kind.tz is not None else "without"
                kinds[role] = f"timestamps {zone} a time zone"
            else:
                kinds[role] = "strings" if _is_text(kind) else "numbers"
        return kinds

    def check(self, table: pa.Table) -> None:
        """Check that a later table's columns have the kinds of the first table's.

        Raises:
            TypeError: they differ; the message names the column.
        """
        for role, kind in self._kinds(table.schema).items():
            before = self.kinds.get(role, kind)
            # Graphs of earlier versions have no word about zones.
            if kind != before and not (before == "timestamps" and kind.startswith(before)):
                name = self.names[role]
                raise TypeError(f"column {name!r} ({role}) holds {kind}, but {before} came before")

    def measure(self, schema: pa.Schema, measured: Sequence[str]) -> None:
        """Note the units of measured timestamps, to which later tables are converted."""
        fields = [field for field in schema if field.name in measured]
        units = {one.name: one.type.unit for one in fields if pa.types.is_timestamp(one.type)}
        units.pop(self.names["timestamp"], None)
        if units:
            self.units = units

    def unit_of(self, name: str) -> str | None:
        """The unit of a column of timestamps; None: its own."""
        if name == self.names["timestamp"]:
            return next(unit for unit, ticks in _TICKS.items() if ticks == self.ticks)
        return self.units.get(name)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Layout:
        """The layout with these attributes."""
        layout = cls.__new__(cls)
        vars(layout).update(state)
        return layout


def _names(present: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The column of each role: the given one, else the one of the role's name, else the one that
    known files have for the role.

    Raises:
        ValueError: the roles were found in a file whose rows must be converted first.
    """
    names = {role: given.get(role, name) for role, name in _DEFAULTS.items()}
    needed = [role for role in _DEFAULTS if role != "id" and role not in given]
    if all(names[role] in present for role in needed):
        return names
    try:
        known = layout_of(list(present))
    except ValueError:
        # The check of the names reports what is missing.
        return names
    if known.source_bank is not None or known.time_unit != 1:
        what = "accounts of several banks" if known.source_bank else "times that are no seconds"
        raise ValueError(
            f"the table has {what}: pass farrow.graph.data.from_table(table) instead of it, or say"
            " columns="
        )
    found = {"source": known.source, "target": known.target, "timestamp": known.timestamp}
    if known.edge_id is not None:
        found["id"] = known.edge_id
    return {**names, **found, **given}


def _check_no_nulls(column: pa.ChunkedArray, what: str) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise ValueError(f"{what} has {column.null_count} nulls, the first in row {row}")


def _whole(table: pa.Table, name: str, role: str) -> npt.NDArray[np.int64]:
    """A column of integers, without a copy if it is one chunk of int64."""
    column = table.column(name)
    _check_no_nulls(column, f"column {name!r} ({role})")
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise TypeError(f"column {name!r} ({role}) must hold integers, not {kind}")
    try:
        array = column.cast(pa.int64()).combine_chunks()
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r} ({role}): {error}") from None
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], pa.int64())
    numbers: npt.NDArray[np.int64] = array.to_numpy(zero_copy_only=False)
    return numbers


def _times(table: pa.Table, layout: Layout) -> npt.NDArray[np.int64]:
    """The timestamps, in the unit of the first table."""
    name = layout.names["timestamp"]
    column = table.column(name)
    times = _in_unit(column, layout.unit_of(name), f"column {name!r} (timestamp)")
    if times is not column:
        table = table.set_column(table.column_names.index(name), name, times)
    return _whole(table, name, "timestamp")


def _in_unit(column: pa.ChunkedArray, unit: str | None, what: str) -> pa.ChunkedArray:
    """Timestamps in a unit; None: their own. Other columns are returned as they are."""
    kind = column.type
    if unit is None or not pa.types.is_timestamp(kind) or kind.unit == unit:
        return column
    try:
        return column.cast(pa.timestamp(unit, kind.tz))
    except pa.ArrowInvalid as error:
        raise ValueError(f"{what}: {error}") from None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # By their names: pyarrow 15 has no views.
    return str(kind) in ("string", "large_string", "string_view")


class Rows:
    """Rows of one table: ``ends`` are ids, sources, targets and timestamps."""

    def __init__(
        self,
        table: pa.Table,
        layout: Layout,
        measured: Sequence[str],
        accounts: AccountNumbers,
        first_id: int,
    ) -> None:
        ids = (
            np.arange(first_id, first_id + table.num_rows, dtype=np.int64)
            if layout.is_numbered
            else self._positive(table, layout.names["id"], "id")
        )
        source, target = (
            self._account(table, layout.names[role], role, accounts)
            for role in ("source", "target")
        )
        times = _times(table, layout)
        self.ends = [np.ascontiguousarray(one) for one in (ids, source, target, times)]
        self.measured = [_amounts(table, name, layout) for name in measured]

    def _positive(self, table: pa.Table, name: str, role: str) -> npt.NDArray[np.int64]:
        numbers = _whole(table, name, role)
        if numbers.size and numbers.min() < 0:
            row = int(numbers.argmin())
            raise ValueError(f"column {name!r} ({role}) has {numbers[row]} in row {row}")
        return numbers

    def _account(
        self, table: pa.Table, name: str, role: str, accounts: AccountNumbers
    ) -> npt.NDArray[np.int64]:
        column = table.column(name)
        if not _is_text(column.type):
            return self._positive(table, name, role)
        if pa.types.is_dictionary(column.type):
            # Also a name in the dictionary can be null.
            column = column.cast(column.type.value_type)
        _check_no_nulls(column, f"column {name!r} ({role})")
        return accounts.encode(column)


def _amounts(table: pa.Table, name: str, layout: Layout) -> npt.NDArray[np.float64]:
    if table.column_names.count(name) != 1:
        raise ValueError(f"the table has no column {name!r}, or more than one, to measure")
    column = table.column(name)
    _check_no_nulls(column, f"column {name!r}")
    if pa.types.is_timestamp(column.type):
        column = _in_unit(column, layout.unit_of(name), f"column {name!r}").cast(pa.int64())
    elif name in layout.units:
        raise TypeError(f"column {name!r} holds {column.type}, but timestamps came before")
    try:
        column = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if pa.types.is_integer(column.type):
            raise _too_large(column, name) from None
        raise TypeError(f"column {name!r} must hold numbers to be measured: {error}") from None
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], pa.float64())
    values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"column {name!r} is {values[row]} in row {row}: it must be finite")
    return values


def _too_large(column: pa.ChunkedArray, name: str) -> ValueError:
    """The error of integers that float64 cannot represent."""
    numbers = column.to_numpy()
    row = int(np.flatnonzero((numbers > _EXACT_MAX) | (numbers < -_EXACT_MAX))[0])
    return ValueError(
        f"column {name!r} is {numbers[row]} in row {row}: it is measured as float64, which has "
        "all integers only up to 2**53"
    )


def table_of(rows: Any) -> tuple[pa.Table, str] | None:
    """The table and the name of its kind, or None if ``rows`` is no table."""
    # A fast path for single rows.
    if type(rows) is np.ndarray:
        return None
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows]), "arrow"
    if isinstance(rows, pa.Table):
        return rows, "arrow"
    kind = type(rows).__module__.split(".")[0]
    if kind == "polars" and hasattr(rows, "to_arrow"):
        return rows.to_arrow(), "polars"
    if kind == "pandas" and hasattr(rows, "columns"):
        return pa.Table.from_pandas(rows, preserve_index=False), "pandas"
    if isinstance(rows, Transactions):
        return rows.table, "arrow"
    return None


def like(table: pa.Table, kind: str, rows: Any, start: int = 0) -> Any:
    """A table converted to the kind of the input, of which it has the rows from ``start`` on."""
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    if kind == "pandas":
        frame = table.to_pandas()
        frame.index = rows.index[start : start + len(frame)]
        return frame
    return table
