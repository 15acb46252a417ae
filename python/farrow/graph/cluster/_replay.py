"""The memory of a graph's engine, filled from the cluster: segments in place, rows from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import farrow
from farrow.graph.cluster._config import DaysLost
from farrow.graph.cluster._objects import (
    GraphManifest,
    LogEntry,
    all_named,
    entries,
    logged,
    unreachable,
)
from farrow.graph.cluster._segments import opened

if TYPE_CHECKING:
    import numpy.typing as npt

    from farrow._native import Client, GraphEngine, GraphSegment


def accounts_of(client: Client, manifest: GraphManifest) -> npt.NDArray[np.int64]:
    """The accounts that a manifest has, by internal number."""
    return np.concatenate([np.zeros(0, np.int64), *map(client.get, manifest.accounts)])


def segments_of(
    client: Client, graph: str, manifest: GraphManifest, *, without_lost: bool
) -> list[GraphSegment]:
    """The segments of a manifest, in place.

    Raises:
        DaysLost: some cannot be reached, and ``without_lost`` is not set.
    """
    found, lost, reason = [], [], ""
    known = None if all_named(manifest.segments) else accounts_of(client, manifest)
    for one in manifest.segments:
        try:
            found.append(opened(client.get(one["name"]), known))
        except (farrow.NodeLost, farrow.NotFound) as error:
            about = one["about"]
            lost.append((about["base"], about["base"] + about["span"], one["node"]))
            reason = str(error)
    if lost and not without_lost:
        raise DaysLost(graph, lost, reason)
    return found


def adopt(
    client: Client, graph: str, engine: GraphEngine, manifest: GraphManifest, *, without_lost: bool
) -> None:
    """Fill an empty engine with the accounts and segments of a manifest."""
    segments = segments_of(client, graph, manifest, without_lost=without_lost)
    engine.adopt(accounts_of(client, manifest), segments, manifest.late, manifest.end())


def counted(client: Client, graph: str, manifest: GraphManifest) -> list[LogEntry]:
    """The entries of the log that count."""
    return [one for one in entries(client, graph) if manifest.counts(one)]


def replay(client: Client, graph: str, engine: GraphEngine, log: list[LogEntry]) -> list[LogEntry]:
    """Add the rows of a log that an engine does not have; returns the log.

    Raises:
        farrow.NotFound: rows are missing.
    """
    for entry in log:
        add(client, graph, engine, entry)
    return log


def missing(client: Client, error: farrow.NotFound) -> farrow.FarrowError:
    """The error for rows that are missing though the manifest is the current one."""
    lost = unreachable(client)
    if not lost:
        return error
    return farrow.NodeLost(f"{error}; they may be on {lost}: start that node again")


def add(client: Client, graph: str, engine: GraphEngine, entry: LogEntry) -> None:
    """Add the rows of one entry that an engine does not have."""
    have = engine.next_number()
    if entry.end <= have:
        return
    if entry.first > have:
        missing = f"rows {have} to {entry.first - 1} of graph {graph!r} are in no log"
        raise farrow.NotFound(missing)
    ends, measured = logged(client, entry).arrivals()
    skip = have - entry.first
    engine.learn_columns([one[skip:] for one in ends], [one[skip:] for one in measured])
