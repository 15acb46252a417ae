"""Run a file's transactions through the features batch by batch, and collect data for a report.

Called by the commands ``farrow graph features``, ``patterns`` and ``report``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from farrow.graph.report import Distributions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from farrow.graph.data import Transactions

__all__ = ["BatchResult", "add_to", "batches", "edges_of", "named", "values"]


class BatchResult(NamedTuple):
    """One batch and its results."""

    begin: int
    rows: pa.Table
    """The columns that the features take: edge id, source, target, timestamp, amounts."""
    features: pa.Table
    """The features alone."""
    found: pa.Table | None
    """Patterns that the rows completed, if they are wanted."""
    seconds: float
    """For the features, without reading and writing."""


def batches(features: Any, read: Transactions, rows: int, *, found: bool) -> Iterator[BatchResult]:
    """Transform all transactions, ``rows`` at a time, in order.

    Args:
        features: a ``GraphFeatures``; its graph grows.
        read: the transactions.
        rows: rows of a batch, 1 or more.
        found: also return the patterns; requires features created with ``evidence``.
    """
    if rows < 1:
        raise ValueError(f"batch is {rows}; it must be 1 or more")
    table = edges_of(read)
    for begin in range(0, table.num_rows, rows):
        piece = table.slice(begin, rows).combine_chunks()
        began = time.perf_counter()
        if found:
            output, patterns = features.patterns_of(piece)
        else:
            output, patterns = features.transform(piece), None
        seconds = time.perf_counter() - began
        own = output.select(output.column_names[piece.num_columns :])
        yield BatchResult(begin, piece, own, patterns, seconds)


def edges_of(read: Transactions) -> pa.Table:
    """The input columns of the features."""
    return read.table.select(["edge_id", "source", "target", "timestamp", *read.amounts])


def named(read: Transactions, batch: BatchResult) -> pa.Table:
    """The batch for output: accounts by name, label and extra columns, features."""
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


def add_to(counts: Distributions | None, batch: BatchResult) -> Distributions:
    """Count a batch; None begins a new count."""
    counts = counts or Distributions(batch.features.column_names)
    if batch.features.num_columns:
        counts.add(values(batch.features))
    else:
        counts.rows += batch.rows.num_rows
    return counts
