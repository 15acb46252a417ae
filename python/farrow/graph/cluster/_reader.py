"""A graph of the cluster for readers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import farrow
from farrow.graph._form import Form
from farrow.graph._settings import STATISTICS, feature_names
from farrow.graph.cluster._config import DaysLost
from farrow.graph.cluster._objects import (
    GraphManifest,
    LogEntry,
    all_named,
    elsewhere,
    engine_of,
    fence,
    logged,
    newest,
)
from farrow.graph.cluster._replay import accounts_of, add, adopt, counted, missing, replay
from farrow.graph.cluster._segments import opened

if TYPE_CHECKING:
    import numpy.typing as npt

    from farrow._native import GraphEngine
    from farrow.events import Event, Subscription

    # The rows of a call, and their features.
    _Computed = tuple[pa.Table, npt.NDArray[np.float64]]


# A take-over reads the log and puts a manifest. If it takes longer, its process was killed.
_TAKEOVER_SECONDS = 5.0
_TAKEOVER_PAUSE_SECONDS = 0.002
# Pause between two looks for new segments, or for another writer.
_LOOK_SECONDS = 1.0


class GraphReader:
    """A read-only graph of the cluster: its segments in place, its newest span copied.

    Made by :func:`farrow.graph.cluster.attach`.
    """

    def __init__(
        self, name: str, address: str | None = None, *, without_lost: bool = False
    ) -> None:
        self.name = name
        self._client = farrow.connect(address)
        self._without_lost = without_lost
        # The time at which an unfinished take-over was first seen.
        self._taken_over_at: float | None = None
        self._engine, self._manifest = self._adopted()
        self._catch_up()

    def _adopted(self) -> tuple[GraphEngine, GraphManifest]:
        # Objects of a manifest may be deleted during the read: then a newer manifest exists.
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
        """Add the rows that this copy lacks; returns their number."""
        before = self._engine.next_number()
        attempts = 0
        while attempts < 100:
            self._follow_manifest()
            log = counted(self._client, self.name, self._manifest)
            # Entries older than a fence are read by the writer that put the fence.
            if self._is_taken_over():
                continue
            attempts += 1
            try:
                replay(self._client, self.name, self._engine, log)
                self._manifest.check_rows(self.name, self._engine.next_number())
            except farrow.NotFound as error:
                # Rows moved into a segment while the log was read, or into a joined entry, which
                # changes no manifest.
                if self._is_stale() or log != counted(self._client, self.name, self._manifest):
                    continue
                raise missing(self._client, error) from None
            return self._engine.next_number() - before
        raise farrow.Timeout(f"graph {self.name!r} is written faster than it can be read")

    def _is_taken_over(self) -> bool:
        """Whether a take-over is in progress: its manifest, which decides the rows that count, is
        missing.  Waits a short time; after a timeout the process was killed."""
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
        """Attach new segments; adopt the graph again if this copy lacks rows of them."""
        manifest = newest(self._client, self.name)
        if manifest is None:
            raise farrow.NotFound(f"there is no graph {self.name!r} any more")
        if manifest.number == self._manifest.number:
            return
        self._taken_over_at = None
        is_behind = self._engine.next_number() < self._manifest.end()
        if is_behind or self._is_void(manifest) or not self._attach(manifest):
            self._engine, self._manifest = self._adopted()

    def _is_void(self, manifest: GraphManifest) -> bool:
        """Whether rows of this copy no longer count by a newer manifest."""
        latest, have = self._manifest.writers[-1][0], self._engine.next_number()
        is_void = any(first < have for epoch, first in manifest.writers if epoch > latest)
        return is_void or manifest.end() < self._manifest.end()

    def _attach(self, manifest: GraphManifest) -> bool:
        """Attach the new segments of a manifest, up to the first whose rows this copy lacks, and
        adopt the manifest without the rest.

        Returns:
            Whether all are attached; the others are new at the next call too.
        """
        known = {one["name"] for one in self._manifest.segments}
        left = [one for one in manifest.segments if one["name"] not in known]
        made = self._manifest.made
        if self._follows(left, manifest.made - len(left)):
            self._attach_first(left, manifest)
            made = manifest.made - len(left)
        if made != manifest.made:
            manifest.number, manifest.made = self._manifest.number, made
            manifest.segments = [one for one in manifest.segments if one not in left]
        self._manifest = manifest
        return not left

    def _follows(self, segments: list[dict[str, Any]], made: int) -> bool:
        """Whether this copy may attach segments that have ``made`` others before them.

        If one of these was evicted before this copy attached it, only this copy has its edges, and
        later segments would hide them: they must have left the window.
        """
        if made <= self._manifest.made:
            return True
        now, window = self._engine.stats()["now"], self._manifest.parameters["time_window"]
        return bool(segments) and now is not None and segments[0]["about"]["base"] < now - window

    def _attach_first(self, segments: list[dict[str, Any]], manifest: GraphManifest) -> None:
        """Attach and remove the first segments whose rows this copy has."""
        have, accounts = self._engine.next_number(), None
        while segments and segments[0]["about"]["first"] + segments[0]["about"]["numbers"] <= have:
            one = segments[0]
            try:
                if accounts is None and not all_named([one]):
                    accounts = accounts_of(self._client, manifest)
                self._engine.attach(opened(self._client.get(one["name"]), accounts))
            except (farrow.NotFound, farrow.NodeLost, MemoryError, ValueError):
                # Deleted, out of reach, too large, or of a graph that was replaced.
                return
            segments.pop(0)

    def attach_of(self, name: str) -> None:
        """Attach the new segments of a manifest, an object with this name."""
        try:
            manifest = GraphManifest.of(self._client.get(name))
        except (farrow.NotFound, farrow.NodeLost):
            # A newer one has replaced it, or the next entry has the error.
            return
        if manifest.number > self._manifest.number and not self._is_void(manifest):
            self._attach(manifest)

    def _look(self) -> None:
        """Attach new segments between two calls of a busy writer; the memory would hold the whole
        window otherwise.  Unlike ``_follow_manifest``, this skips no calls."""
        manifest = newest(self._client, self.name)
        if manifest is None or self._is_void(manifest):
            self._follow_manifest()
        elif manifest.number != self._manifest.number:
            self._attach(manifest)

    def refresh(self) -> int:
        """Add the rows written since the last call; returns their number.

        Raises:
            DaysLost: segments are on nodes that cannot be reached.
            farrow.NodeLost: rows of the log are on such a node.
            farrow.NotFound: the graph was deleted.
        """
        return self._catch_up()

    def follow(
        self, *, share: tuple[int, int] = (0, 1), timeout: float | None = None
    ) -> Iterator[tuple[pa.Table, npt.NDArray[np.float64]]]:
        """Compute features of rows written from now on, call by call.

        A reader that is slower than the writer skips calls: it adds their rows without computing
        features.

        Args:
            share: number of this part of the work, and of all parts: the parts' features add up.
            timeout: the iteration ends after this many seconds without new rows.

        Yields:
            The rows of one call, and an array with a row of features for each.
        """
        events = self._subscribed()
        self._catch_up()
        return self._followed(events, share, timeout)

    def _subscribed(self) -> Subscription:
        """The events of the log, which is on the node of the writer."""
        node = elsewhere(self._client, self._manifest.home)
        return self._client.subscribe(f"graph/{self.name}/log/", kinds=["sealed"], node=node)

    def _followed(
        self, events: Subscription, share: tuple[int, int], timeout: float | None
    ) -> Iterator[_Computed]:
        home, last = self._manifest.home, time.monotonic()
        looked = last
        try:
            while True:
                left = _LOOK_SECONDS
                if timeout is not None:
                    left = min(left, last + timeout - time.monotonic())
                try:
                    computed = self._after(events.next(timeout=max(left, 0.0)), share)
                except farrow.Timeout:
                    if timeout is not None and time.monotonic() >= last + timeout:
                        return
                    # A writer on another node has its log there.
                    computed, looked = None, time.monotonic()
                    self._follow_manifest()
                if time.monotonic() >= looked + _LOOK_SECONDS:
                    self._look()
                    looked = time.monotonic()
                if computed is not None:
                    yield computed
                    last = time.monotonic()
                if self._manifest.home != home:
                    home = self._manifest.home
                    events.close()
                    events = self._subscribed()
                    for computed in self._computed_of_log(share):
                        yield computed
                        last = time.monotonic()
        finally:
            events.close()

    def _computed_of_log(self, share: tuple[int, int]) -> Iterator[_Computed]:
        """Each call of the log that this copy lacks."""
        for entry in counted(self._client, self.name, self._manifest):
            if entry.end <= self._engine.next_number():
                continue
            try:
                computed = self.compute(entry, share)
            except farrow.NotFound:
                # As in `_after`.
                self._catch_up()
                return
            yield computed

    def _after(self, event: Event, share: tuple[int, int]) -> _Computed | None:
        """What an event of the log brings; None if it brings no rows of a call."""
        if not isinstance(event, farrow.events.Sealed) or event.name is None:
            # A gap: the node's event list overflowed.
            self._catch_up()
            return None
        entry = LogEntry.of(event.name)
        if entry.epoch > self._manifest.writers[-1][0]:
            # Of a graph that was fitted again, whose rows begin with number 0.
            self._follow_manifest()
        if entry.first < self._engine.next_number() or not self._counts(entry):
            return None
        try:
            return self.compute(entry, share)
        except farrow.NotFound:
            # The entry was joined with others, or moved into a segment, before this read.
            self._catch_up()
            return None

    def _counts(self, entry: LogEntry) -> bool:
        """Whether a new entry counts."""
        while self._is_taken_over():
            self._follow_manifest()
        if not self._manifest.counts(entry):
            # Written by a process that took the graph over since.
            self._follow_manifest()
        return self._manifest.counts(entry)

    def compute(
        self, entry: LogEntry, share: tuple[int, int] = (0, 1)
    ) -> tuple[pa.Table, npt.NDArray[np.float64]]:
        """Add the rows of the log's next entry; returns them and a share of their features."""
        self._add_before(entry)
        batch = logged(self._client, entry)
        features = self._engine.transform_share(batch.ends, batch.measured, share)
        names = ("id", "source", "target", "timestamp")
        rows = pa.table(dict(zip(names, batch.ends, strict=True)))
        return rows, features

    def learn(self, entry: LogEntry) -> None:
        """Add the rows of the log's next entry without computing features."""
        self._add_before(entry)
        add(self._client, self.name, self._engine, entry)

    def _add_before(self, entry: LogEntry) -> None:
        """Add the rows before an entry that this copy lacks.

        Raises:
            farrow.NotFound: they are in no log, or this copy has rows of the entry already.
        """
        if entry.first != self._engine.next_number():
            self._follow_manifest()
            for one in counted(self._client, self.name, self._manifest):
                if one.end <= entry.first:
                    add(self._client, self.name, self._engine, one)
        if entry.first != self._engine.next_number():
            have = self._engine.next_number()
            raise farrow.NotFound(f"rows {have} to {entry.first - 1} of graph {self.name!r}")

    def preview(self, X: Any) -> Any:
        """Rows with the features that they would get now.

        Rows have the form of the graph's rows, and the result is of the same kind.  Call
        ``refresh`` first to include all written rows.  The graph does not change, so any number of
        processes, on any nodes, can check payments before they are made.

        Raises:
            TypeError, ValueError: as ``GraphFeatures.transform``.
        """
        return self._form().preview(X)

    def preview_patterns(self, X: Any, most: int = 1000) -> tuple[Any, pa.Table]:
        """As ``preview``, with up to ``most`` patterns that the rows would complete, in the form of
        ``GraphFeatures.patterns_of``.

        If accounts are strings, only those of ``X`` have names in it; the others are their numbers
        as text.

        Raises:
            ValueError: the graph does not store ids: it needs ``GraphFeatures(evidence=True)``.
        """
        return self._form().preview_patterns(X, most)

    def _form(self) -> Form:
        """The form of this graph's rows."""
        form, manifest = Form(), self._manifest
        form.take(manifest.stream)
        form.engine = self._engine
        form.rows = self._engine.next_number()
        statistics = manifest.parameters["statistics"]
        made = None if statistics is None else [STATISTICS[code] for code in statistics[2]]
        form.has_statistics = made is not None
        form.names = feature_names(manifest.parameters["patterns"], made, form.measured)
        return form

    def edges_of(
        self, account: int, *, start: int | None = None, end: int | None = None
    ) -> pa.Table:
        """The edges of an account between two times, inclusive.

        Returns:
            Columns ``direction`` ("out", "in", "self"), ``account`` (at the other end) and
            ``timestamp``, each direction in order of time.
        """
        limits = np.iinfo(np.int64)
        span = (limits.min if start is None else start, limits.max if end is None else end)
        tables = []
        for number, name in enumerate(("out", "in", "self")):
            accounts, times = self._engine.edges_of(account, number, *span)
            direction = pa.array([name] * len(times), pa.string())
            tables.append(
                pa.table({"direction": direction, "account": accounts, "timestamp": times})
            )
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
        """Contents of the graph, as in ``GraphFeatures.stats``."""
        return {**self._engine.stats(), "rows": self._engine.next_number()}
