"""A graph as those see it who do not write it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import farrow
from farrow.graph._form import Form
from farrow.graph._settings import STATISTICS, feature_names
from farrow.graph.cluster import DaysLost
from farrow.graph.cluster._objects import (
    Entry,
    Manifest,
    elsewhere,
    engine_of,
    entries,
    fence,
    logged,
    newest,
)
from farrow.graph.cluster._segments import opened

if TYPE_CHECKING:
    import numpy.typing as npt

    from farrow._native import Client, GraphEngine, GraphSegment


# A take-over reads the log and puts a manifest. One that takes longer was killed.
_TAKEOVER_SECONDS = 5.0
_TAKEOVER_PAUSE_SECONDS = 0.002


def segments_of(
    client: Client, graph: str, manifest: Manifest, *, without_lost: bool
) -> list[GraphSegment]:
    """The segments of a manifest, over the memory they lie in.

    Raises:
        DaysLost: some cannot be reached, unless they are to be left out.
    """
    found, lost, reason = [], [], ""
    for one in manifest.segments:
        try:
            found.append(opened(client.get(one["name"])))
        except (farrow.NodeLost, farrow.NotFound) as error:
            about = one["about"]
            lost.append((about["base"], about["base"] + about["span"], one["node"]))
            reason = str(error)
    if lost and not without_lost:
        raise DaysLost(graph, lost, reason)
    return found


def adopt(
    client: Client, graph: str, engine: GraphEngine, manifest: Manifest, *, without_lost: bool
) -> None:
    """Fill an empty engine with what a manifest names."""
    segments = segments_of(client, graph, manifest, without_lost=without_lost)
    parts = [client.get(name) for name in manifest.accounts]
    accounts = np.concatenate([np.zeros(0, np.int64), *parts])
    engine.adopt(accounts, segments, manifest.late, manifest.end())


def counted(client: Client, graph: str, manifest: Manifest) -> list[Entry]:
    """The log, without entries that do not count."""
    return [one for one in entries(client, graph) if manifest.counts(one)]


def replay(client: Client, graph: str, engine: GraphEngine, log: list[Entry]) -> list[Entry]:
    """Add the rows of a log that an engine does not have; gives the log.

    Raises:
        farrow.NotFound: rows are missing.
    """
    for entry in log:
        add(client, graph, engine, entry)
    return log


def add(client: Client, graph: str, engine: GraphEngine, entry: Entry) -> None:
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


class GraphReader:
    """A graph of the cluster, read-only: its segments where they lie, the newest span copied.

    From :func:`farrow.graph.cluster.attach`.
    """

    def __init__(
        self, name: str, address: str | None = None, *, without_lost: bool = False
    ) -> None:
        self.name = name
        self._client = farrow.connect(address)
        self._without_lost = without_lost
        # When a take-over was first seen that has not come to its end.
        self._taken_over_at: float | None = None
        self._engine, self._manifest = self._adopted()
        self._catch_up()

    def _adopted(self) -> tuple[GraphEngine, Manifest]:
        # Objects that a manifest names may go while they are read: then there is a newer one.
        for attempt in range(100):
            manifest = newest(self._client, self.name)
            if manifest is None:
                raise farrow.NotFound(f"there is no graph {self.name!r}")
            engine = engine_of(manifest)
            try:
                adopt(self._client, self.name, engine, manifest, without_lost=self._without_lost)
            except (DaysLost, farrow.NotFound):
                after = newest(self._client, self.name)
                if attempt == 99 or after is None or after.number == manifest.number:
                    raise
                continue
            return engine, manifest
        raise AssertionError("unreachable")

    def _catch_up(self) -> int:
        """Take up what the graph has and this copy has not; gives the number of rows."""
        before = self._engine.next_number()
        attempts = 0
        while attempts < 100:
            self._follow_manifest()
            log = counted(self._client, self.name, self._manifest)
            # What was there before a fence is read by whoever put that.
            if self._is_taken_over():
                continue
            attempts += 1
            try:
                replay(self._client, self.name, self._engine, log)
            except farrow.NotFound:
                # Rows went into a segment while the log was read.
                if not self._is_stale():
                    raise
                continue
            return self._engine.next_number() - before
        raise farrow.Timeout(f"graph {self.name!r} is written faster than it can be read")

    def _is_taken_over(self) -> bool:
        """Whether somebody takes the graph over at this moment: which of the rows in the log count
        is not said yet.  Waits a little; who does not say it in time was killed."""
        after = fence(self.name, self._manifest.writers[-1][0] + 1)
        if not self._client.contains(after):
            return False
        self._taken_over_at = self._taken_over_at or time.monotonic()
        if time.monotonic() > self._taken_over_at + _TAKEOVER_SECONDS:
            return False
        time.sleep(_TAKEOVER_PAUSE_SECONDS)
        return True

    def _is_stale(self) -> bool:
        manifest = newest(self._client, self.name)
        return manifest is None or manifest.number != self._manifest.number

    def _follow_manifest(self) -> None:
        """Take up segments that are new."""
        manifest = newest(self._client, self.name)
        if manifest is None:
            raise farrow.NotFound(f"there is no graph {self.name!r} any more")
        if manifest.number == self._manifest.number:
            return
        self._taken_over_at = None
        known = {one["name"] for one in self._manifest.segments}
        fresh = [one for one in manifest.segments if one["name"] not in known]
        have = self._engine.next_number()
        is_next = all(
            self._manifest.end() <= one["about"]["first"]
            and one["about"]["first"] + one["about"]["numbers"] <= have
            for one in fresh
        )
        # Rows of a former epoch that count no more.
        latest = self._manifest.writers[-1][0]
        is_void = any(first < have for epoch, first in manifest.writers if epoch > latest)
        is_behind = have < self._manifest.end() or manifest.end() < self._manifest.end()
        if not is_next or is_void or is_behind:
            self._engine, self._manifest = self._adopted()
            return
        try:
            for one in fresh:
                self._engine.attach(opened(self._client.get(one["name"])))
        except (farrow.NotFound, farrow.NodeLost):
            self._engine, self._manifest = self._adopted()
            return
        self._manifest = manifest

    def refresh(self) -> int:
        """Take up what was written since; gives the number of rows.

        Raises:
            DaysLost: segments lie on nodes that cannot be reached.
            farrow.NotFound: the graph is gone.
        """
        return self._catch_up()

    def follow(
        self, *, share: tuple[int, int] = (0, 1), timeout: float | None = None
    ) -> Iterator[tuple[pa.Table, npt.NDArray[np.float64]]]:
        """Compute features of what is written from this call on, call by call.

        A reader that is too slow for the writer leaves calls out: it takes their rows up without
        computing anything.

        Args:
            share: which part of the work, and of how many: the features of all shares add up.
            timeout: the iteration ends when nothing was written for so many seconds.

        Yields:
            The rows of one call, and an array with a row of features for each.
        """
        home = self._manifest.home
        node = elsewhere(self._client, home)
        prefix = f"graph/{self.name}/log/"
        events = self._client.subscribe(prefix, kinds=["sealed"], timeout=timeout, node=node)
        self._catch_up()
        return self._computed(events, share)

    def _computed(
        self, events: Any, share: tuple[int, int]
    ) -> Iterator[tuple[pa.Table, npt.NDArray[np.float64]]]:
        with events:
            for event in events:
                if not isinstance(event, farrow.events.Sealed) or event.name is None:
                    # A gap: more was written than the node's list of events holds.
                    self._catch_up()
                    continue
                entry = Entry.of(event.name)
                if entry.first < self._engine.next_number() or not self._counts(entry):
                    continue
                try:
                    computed = self.compute(entry, share)
                except farrow.NotFound:
                    # It was joined with others, or went into a segment, before it was read.
                    self._catch_up()
                    continue
                yield computed

    def _counts(self, entry: Entry) -> bool:
        """Whether an entry that was just put counts."""
        while self._is_taken_over():
            self._follow_manifest()
        if not self._manifest.counts(entry):
            # By somebody who took the graph over since.
            self._follow_manifest()
        return self._manifest.counts(entry)

    def compute(
        self, entry: Entry, share: tuple[int, int] = (0, 1)
    ) -> tuple[pa.Table, npt.NDArray[np.float64]]:
        """The rows of the log's next entry, and a share of their features."""
        if entry.first != self._engine.next_number():
            self._follow_manifest()
            for one in counted(self._client, self.name, self._manifest):
                if one.end <= entry.first:
                    add(self._client, self.name, self._engine, one)
        if entry.first != self._engine.next_number():
            have = self._engine.next_number()
            raise farrow.NotFound(f"rows {have} to {entry.first - 1} of graph {self.name!r}")
        batch = logged(self._client, entry)
        features = self._engine.transform_share(batch.ends, batch.measured, share)
        names = ("id", "source", "target", "timestamp")
        rows = pa.table(dict(zip(names, batch.ends, strict=True)))
        return rows, features

    def preview(self, X: Any) -> Any:
        """Rows with the features that they would get if they came now.

        Rows look as those of the graph do, and what comes back is of the same kind.  ``refresh``
        first to see all that was written.  The graph stays as it is, so any number of processes, on
        any nodes, can look at payments before they are made.

        Raises:
            TypeError, ValueError: as ``GraphFeatures.transform``.
        """
        return self._form().preview(X)

    def preview_patterns(self, X: Any, most: int = 1000) -> tuple[Any, pa.Table]:
        """As ``preview``, with up to ``most`` patterns that the rows would complete, as
        ``GraphFeatures.patterns_of`` names them.

        Raises:
            ValueError: the graph does not keep ids: ``GraphFeatures(evidence=True)``.
        """
        return self._form().preview_patterns(X, most)

    def _form(self) -> Form:
        """How this graph's rows look."""
        form, kept = Form(), self._manifest
        form.take(kept.stream)
        form.engine = self._engine
        form.rows = self._engine.next_number()
        statistics = kept.parameters["statistics"]
        made = None if statistics is None else [STATISTICS[code] for code in statistics[2]]
        form.has_statistics = made is not None
        form.names = feature_names(kept.parameters["patterns"], made, form.measured)
        return form

    def edges_of(
        self, account: int, *, start: int | None = None, end: int | None = None
    ) -> pa.Table:
        """The edges of an account between two times, both included.

        Returns:
            Columns ``direction`` ("out", "in", "self"), ``account`` (at the other end) and
            ``timestamp``, each direction in order of time.
        """
        limits = np.iinfo(np.int64)
        span = (limits.min if start is None else start, limits.max if end is None else end)
        tables = []
        for number, name in enumerate(("out", "in", "self")):
            others, times = self._engine.edges_of(account, number, *span)
            direction = pa.array([name] * len(times), pa.string())
            tables.append(pa.table({"direction": direction, "account": others, "timestamp": times}))
        return pa.concat_tables(tables)

    def segments(self) -> pa.Table:
        """The graph's segments: ``name``, ``node``, ``start``, ``end`` (times of the first and the
        last edge), ``edges``."""
        rows = [
            {
                "name": one["name"],
                "node": one["node"],
                "start": one["about"]["base"],
                "end": one["about"]["base"] + one["about"]["span"],
                "edges": one["about"]["edges"],
            }
            for one in self._manifest.segments
        ]
        kinds = [("name", pa.string()), ("node", pa.string())]
        kinds += [(name, pa.int64()) for name in ("start", "end", "edges")]
        return pa.Table.from_pylist(rows, pa.schema(kinds))

    def stats(self) -> dict[str, Any]:
        """What the graph holds, as ``GraphFeatures.stats`` says it."""
        return self._engine.stats()
