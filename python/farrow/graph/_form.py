"""The form of a stream's rows, and conversion of an engine's results to the same form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from farrow.graph._check import matrix_of
from farrow.graph._rows import AccountNumbers, Layout, Rows, like, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Engine(Protocol):
    """The calls of an engine that a form needs; ``GraphEngine`` and ``ClusterEngine`` have them."""

    def preview(self, matrix: npt.NDArray[np.float64], most: int | None) -> tuple[Any, Any]:
        """The rows with the features that they would get now, and up to ``most`` patterns."""

    def preview_columns(
        self, ends: Sequence[Any], measured: Sequence[Any], most: int | None
    ) -> tuple[Any, Any]:
        """As ``preview``, for rows by columns; the features alone."""


class Form:
    """Arrays with a fixed number of columns, or tables with fixed column names.

    Attributes:
        engine: the engine that computes the features.
        accounts: numbers of accounts that are named by strings.
        rows: number of rows so far, from which rows without ids are numbered.
        layout: roles of the columns; None for arrays.
        inputs: names of the columns of rows.
        measured: columns with statistics.
        numbers: the engine's column numbers of these.
        names: names of the features.
        has_statistics: whether statistics are computed.
    """

    engine: Engine
    accounts: AccountNumbers
    rows: int
    layout: Layout | None
    inputs: list[str]
    measured: list[str]
    numbers: list[int]
    names: list[str]
    has_statistics: bool

    def state(self) -> dict[str, Any]:
        """All attributes except the engine, as plain values."""
        layout = None if self.layout is None else vars(self.layout)
        names = sorted(self.accounts.numbers.items())
        saved = ("inputs", "measured", "numbers", "rows")
        return {"layout": layout, "names": names, **{name: getattr(self, name) for name in saved}}

    def take(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``; a cluster's graph has no names and rows in it."""
        self.accounts = AccountNumbers()
        for name, number in state.get("names", ()):
            self.accounts.numbers[name] = number
            self.accounts.names[number] = name
        self.layout = None if state["layout"] is None else Layout.restored(state["layout"])
        self.inputs, self.measured = list(state["inputs"]), list(state["measured"])
        self.numbers, self.rows = list(state["numbers"]), state.get("rows", 0)

    def preview(self, rows: Any) -> Any:
        """Rows with the features that they would get now."""
        try:
            return self._previewed(rows, None)[0]
        finally:
            # Names that only the preview has.
            self.accounts.forget(self.engine)

    def preview_patterns(self, rows: Any, most: int) -> tuple[Any, pa.Table]:
        """As ``preview``, with the patterns that the rows would complete."""
        try:
            result, found = self._previewed(rows, most)
            return result, self._evidence(found)
        finally:
            # Names that only the preview has.
            self.accounts.forget(self.engine)

    def _previewed(self, rows: Any, most: int | None) -> tuple[Any, Any]:
        table = self._table(rows)
        if table is None:
            return self.engine.preview(self._matrix(rows), most)
        columns = self._columns(table[0])
        features, found = self.engine.preview_columns(columns.ends, columns.measured, most)
        return like(self._joined(table[0], features), table[1], rows), found

    def _evidence(self, found: Any) -> pa.Table:
        kinds, sizes, triggers, accounts, edges, dropped = found
        names, layout = self.accounts.names, self.layout
        if names or (layout is not None and layout.kinds.get("source") == "strings"):
            # In a cluster, accounts of an earlier process have no names here.
            accounts = pa.array(
                [[names.get(one, str(one)) for one in each] for each in accounts],
                pa.list_(pa.string()),
            )
        else:
            accounts = pa.array(accounts, pa.list_(pa.int64()))
        table = pa.table(
            {
                "pattern": pa.array(range(len(kinds)), pa.int64()),
                "kind": pa.array(kinds, pa.string()),
                "size": pa.array(sizes, pa.int32()),
                "trigger": pa.array(triggers, pa.int64()),
                "edges": pa.array(edges, pa.list_(pa.int64())),
                "accounts": accounts,
            }
        )
        return table.replace_schema_metadata({"dropped": str(dropped)})

    def _table(self, rows: Any) -> tuple[pa.Table, str] | None:
        found = table_of(rows)
        if (found is None) != (self.layout is None):
            before = "arrays" if self.layout is None else "tables"
            raise TypeError(f"X is a {type(rows).__name__}, but {before} came before")
        if found is not None and list(found[0].column_names) != self.inputs:
            raise ValueError(f"X has the columns {found[0].column_names}, not {self.inputs}")
        if found is not None and self.layout is not None:
            self.layout.check(found[0])
        return found

    def _matrix(self, rows: Any) -> npt.NDArray[np.float64]:
        matrix = matrix_of(rows)
        if matrix.shape[1] != len(self.inputs):
            raise ValueError(f"X has {matrix.shape[1]} columns, but {len(self.inputs)} came before")
        return matrix

    def _columns(self, table: pa.Table) -> Rows:
        assert self.layout is not None
        measured = self.measured if self.has_statistics else []
        return Rows(table, self.layout, measured, self.accounts, self.rows)

    def _joined(self, table: pa.Table, features: npt.NDArray[np.float64]) -> pa.Table:
        columns = np.asfortranarray(features)
        for number, name in enumerate(self.names):
            table = table.append_column(name, pa.array(columns[:, number]))
        return table
