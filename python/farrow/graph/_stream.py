"""Run a file's transactions through the features batch by batch, and keep what a report shows.

Called by the commands ``farrow graph features``, ``patterns`` and ``report``.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farrow.graph._svg import Hop
from farrow.graph.report import Distributions, Drawn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from farrow.graph.data import Transactions

__all__ = ["Batch", "Largest", "add_to", "batches", "drawn", "features", "named"]

# Seconds before this (3 March 1973) are steps of a simulation rather than dates.
_DATES_FROM = 100_000_000
_PAYMENTS_NAMED = 6


class Batch(NamedTuple):
    """One batch on its way through."""

    begin: int
    rows: pa.Table
    """The columns that the features take: edge id, source, target, timestamp, amounts."""
    features: pa.Table
    """The features alone."""
    found: pa.Table | None
    """Patterns that the rows completed, if they are wanted."""
    seconds: float
    """For the features, without reading and writing."""


def features(settings: Mapping[str, Any], *, found: bool) -> Any:
    """A ``GraphFeatures`` with these settings; ``found``: one that tells the patterns too."""
    from farrow.graph import GraphFeatures

    return GraphFeatures(**settings, evidence=found)


def batches(features: Any, read: Transactions, rows: int, *, found: bool) -> Iterator[Batch]:
    """Transform all transactions, ``rows`` at a time, in order.

    Args:
        features: a ``GraphFeatures``; its graph grows.
        read: the transactions.
        rows: of a batch, 1 or more.
        found: also give the patterns; the features must have been made with ``evidence``.
    """
    if rows < 1:
        raise ValueError(f"batch is {rows}; it must be 1 or more")
    table = read.table.select(["edge_id", "source", "target", "timestamp", *read.amounts])
    for begin in range(0, table.num_rows, rows):
        piece = table.slice(begin, rows).combine_chunks()
        began = time.perf_counter()
        output = features.transform(piece)
        seconds = time.perf_counter() - began
        patterns = features.evidence_ if found else None
        own = output.select(output.column_names[piece.num_columns :])
        yield Batch(begin, piece, own, patterns, seconds)


def named(read: Transactions, batch: Batch) -> pa.Table:
    """The batch as it is written: accounts by their names, label and extra columns, features."""
    rows = read.table.slice(batch.begin, batch.rows.num_rows)
    for place, end in enumerate(("source", "target"), start=1):
        names = read.accounts.of(rows[end].to_numpy())
        rows = rows.set_column(place, end, names)
    for name in batch.features.column_names:
        rows = rows.append_column(name, batch.features[name])
    return rows


def values(table: pa.Table) -> Any:
    """A table of numbers as float64 of shape (rows, columns)."""
    return np.column_stack([column.to_numpy() for column in table.columns])


def add_to(counts: Distributions | None, batch: Batch) -> Distributions:
    """Count a batch; None begins a new count."""
    counts = counts or Distributions(batch.features.column_names)
    if batch.features.num_columns:
        counts.add(values(batch.features))
    else:
        counts.rows += batch.rows.num_rows
    return counts


class Largest:
    """The largest patterns of each kind, one for each centre: a fan that grows is one fan."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._kinds: dict[str, dict[Any, tuple[int, int, dict[str, Any]]]] = {}
        self._count = itertools.count()

    def add(self, found: pa.Table) -> None:
        """Look at the patterns of a batch."""
        for kind in pc.unique(found["kind"]).to_pylist():
            of_kind = found.filter(pc.equal(found["kind"], kind))
            kept = self._kinds.setdefault(kind, {})
            # More than enough to fill the places, also where many share a centre.
            top = pc.select_k_unstable(of_kind, self._each * 64, [("size", "descending")])
            for row in of_kind.take(top).to_pylist():
                self._keep(kept, kind, row)

    def _keep(self, kept: dict[Any, Any], kind: str, row: dict[str, Any]) -> None:
        key = _key(kind, row["accounts"])
        if key not in kept or kept[key][0] < row["size"]:
            kept[key] = (row["size"], -next(self._count), row)
        if len(kept) > self._each:
            del kept[min(kept, key=lambda one: kept[one][:2])]

    def all(self) -> list[dict[str, Any]]:
        """Patterns as dictionaries, kind by kind, the largest first."""
        return [
            row
            for _, kept in sorted(self._kinds.items())
            for _, _, row in heapq.nlargest(self._each, kept.values(), key=lambda one: one[:2])
        ]


def _key(kind: str, accounts: Sequence[int]) -> Any:
    """What makes two patterns of a kind the same one, grown."""
    if kind.endswith("cycle"):
        return frozenset(accounts)
    return tuple(accounts[:2]) if kind == "scatter-gather" else accounts[0]


def drawn(read: Transactions, rows: Sequence[dict[str, Any]]) -> list[Drawn]:
    """Patterns with the payments that form them, to be drawn."""
    wanted = pa.array(sorted({edge for row in rows for edge in row["edges"]}), pa.int64())
    table = read.table.filter(pc.is_in(read.table["edge_id"], value_set=wanted))
    payments = {payment["edge_id"]: payment for payment in table.to_pylist()}
    return [_drawn(read, row, payments) for row in rows]


def _drawn(read: Transactions, row: dict[str, Any], payments: dict[int, Any]) -> Drawn:
    edges = [payments[edge] for edge in row["edges"] if edge in payments]
    codes = list(dict.fromkeys([*row["accounts"], *_ends(edges)]))
    names = dict(zip(codes, map(str, read.accounts.of(codes).to_pylist()), strict=True))
    grouped: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for edge in edges:
        grouped.setdefault((edge["source"], edge["target"]), []).append(edge)
    hops = tuple(
        Hop(
            names[source],
            names[target],
            _label(names[source], names[target], several, read.amounts),
            len(several),
            any(edge["edge_id"] == row["trigger"] for edge in several),
        )
        for (source, target), several in grouped.items()
    )
    accounts = tuple(names[code] for code in codes)
    times = [edge["timestamp"] for edge in edges]
    caption = f"{len(edges)} payments, {len(accounts)} accounts"
    if times:
        caption += f"; {_moment(min(times))} to {_moment(max(times))}"
    return Drawn(row["kind"], row["size"], accounts, hops, caption)


def _ends(edges: Sequence[dict[str, Any]]) -> Iterator[int]:
    for edge in edges:
        yield edge["source"]
        yield edge["target"]


def _label(source: str, target: str, edges: Sequence[dict[str, Any]], amounts: Any) -> str:
    lines = [f"{source} to {target}"]
    for edge in edges[:_PAYMENTS_NAMED]:
        money = ", ".join(f"{edge[name]:,.2f}" for name in amounts)
        lines.append(f"{_moment(edge['timestamp'])}  {money}")
    if len(edges) > _PAYMENTS_NAMED:
        lines.append(f"and {len(edges) - _PAYMENTS_NAMED} more")
    return "\n".join(lines)


def _moment(seconds: int) -> str:
    if seconds < _DATES_FROM:
        return f"t = {seconds:,}"
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"t = {seconds:,}"
    return f"{when:%Y-%m-%d %H:%M}"
