"""Segments of the writing process: a thread builds one, which is attached between two calls."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import farrow
from farrow.graph.cluster._objects import drop, elsewhere, failed_parts, keep, root
from farrow.graph.cluster._placement import nodes
from farrow.graph.cluster._segments import opened, sealed

if TYPE_CHECKING:
    from farrow._native import GraphFrozen, GraphPlan, GraphSegment
    from farrow.graph.cluster._writer import GraphWriter

# Time to the next attempt after a segment found no room.
_RETRY_SECONDS = 10.0


class Sealing:
    """The next segment of a graph, and the replacement of edges and entries by segments."""

    def __init__(self, writer: GraphWriter) -> None:
        self._writer = writer
        self._pending: Future[tuple[str, str | None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farrow-graph-seal")
        self._expired: set[int] = set()
        self._trouble: tuple[float, str] | None = None
        # Failed attempts to make the next segment.
        self._attempts = 0

    @property
    def is_pending(self) -> bool:
        """Whether a segment is being built."""
        return self._pending is not None

    @property
    def trouble(self) -> str | None:
        """Why the last segment failed."""
        return self._trouble[1] if self._trouble else None

    def advance(self) -> None:
        """Attach a finished segment, and begin the next one."""
        writer = self._writer
        self._expired |= {int(about["first"]) for about in writer.engine.expired()}
        if self._pending is not None:
            if not self._pending.done():
                return
            # A manifest or a deletion by a replaced writer would be one of its successor's graph.
            writer.run(writer.check_fence)
            pending, self._pending = self._pending, None
            try:
                name, node = pending.result()
                segment = opened(writer.client.get(name))
                accounts = self._keep_accounts(segment)
            except (farrow.FarrowError, pa.ArrowException, MemoryError, OSError) as error:
                # The rows stay in this process and in the log: nothing is lost.
                self._attempts += 1
                self._trouble = (time.monotonic(), f"{type(error).__name__}: {error}")
            else:
                self._trouble = None
                self._commit(
                    {"name": name, "node": node or writer.client.node or ""}, segment, accounts
                )
                self._attempts = 0
        if self._trouble and time.monotonic() < self._trouble[0] + _RETRY_SECONDS:
            return
        frozen = writer.engine.freeze()
        if frozen is not None:
            self._pending = self._thread.submit(self._seal, frozen, writer.manifest.made)

    def settle(self, timeout: float) -> None:
        """Wait until all full spans have their segments.

        Raises:
            TimeoutError: after ``timeout`` seconds.
        """
        writer = self._writer
        end = time.monotonic() + timeout
        none = np.zeros(0, np.int64)
        while True:
            writer.check()
            self.advance()
            if time.monotonic() > end:
                raise TimeoutError(f"segments are not made after {timeout} s")
            if self._pending is None:
                if self._trouble or not writer.engine.is_draining():
                    return
                # Each call removes some sealed edges from this process.
                writer.engine.learn_columns([none] * 4, [none.astype(float)] * writer.columns)
                continue
            try:
                self._pending.exception(max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"a segment is not made after {timeout} s") from None

    def forget(self) -> None:
        """Wait for the segment that is being built, and forget it: the graph is emptied."""
        if self._pending is not None:
            self._pending.exception()
            self._pending = None
        self._expired.clear()

    def close(self) -> None:
        """End the thread.  A segment that no manifest names is deleted."""
        self._thread.shutdown(wait=True)
        if self._pending is not None and self._pending.exception() is None:
            # No manifest names it: the next writer makes it again.
            drop(self._writer.client, [self._pending.result()[0]])

    def _seal(self, frozen: GraphFrozen, turn: int) -> tuple[str, str | None]:
        """Build a segment on a node with room for it; runs on its own thread."""
        client, placement = self._writer.client, self._writer.config.placement
        plan: GraphPlan = frozen.plan()
        failure: Exception | None = None
        for node in nodes(client, placement, turn):
            name = self._part("segment", plan.about()["first"])
            try:
                sealed(client, plan, name, node)
            except (farrow.FarrowError, pa.ArrowException) as error:
                self._attempts += 1
                failure = error
                continue
            return name, node
        raise failure or farrow.NodeLost("no node can be reached")

    def _part(self, kind: str, first: int) -> str:
        """A name that no object has: neither one of a replaced writer, nor one of an earlier
        attempt, which may be there although the attempt failed."""
        attempt = f".{self._attempts}" if self._attempts else ""
        return f"{root(self._writer.config.name)}{kind}/{first:020d}-{self._writer.epoch}{attempt}"

    def _keep_accounts(self, segment: GraphSegment) -> tuple[str, int]:
        """Put the accounts that a segment needs and the manifest lacks; returns the name of their
        object and their number.  There are none, unless numbers of accounts are permanent."""
        manifest, client = self._writer.manifest, self._writer.client
        more = self._writer.engine.accounts(manifest.known)
        more = more[: max(0, segment.about()["accounts"] - manifest.known)]
        name = self._part("accounts", manifest.known)
        if len(more):
            keep(client, more, name, elsewhere(client, manifest.home))
        return name, len(more)

    def _commit(
        self, where: dict[str, Any], segment: GraphSegment, accounts: tuple[str, int]
    ) -> None:
        """Replace edges by their segment, in this process and for all readers."""
        writer = self._writer
        manifest, client, graph = writer.manifest, writer.client, writer.config.name
        if accounts[1]:
            manifest.accounts.append(accounts[0])
            manifest.known += accounts[1]
        writer.run(lambda: writer.engine.attach(segment))
        expired = [one for one in manifest.segments if one["about"]["first"] in self._expired]
        manifest.segments = [one for one in manifest.segments if one not in expired]
        manifest.segments.append({**where, "about": segment.about(), "named": True})
        manifest.made += 1
        is_permanent = manifest.known > 0 and len(writer.engine.accounts(manifest.known - 1)) > 0
        unneeded = [] if is_permanent else manifest.take_accounts()
        manifest.late = writer.engine.stragglers()
        before, manifest.number = manifest.name(graph), manifest.number + 1
        writer.run(lambda: manifest.put(client, graph))
        # A take-over before the put may not know this manifest, and needs the objects that it
        # replaces; a later one reads it.
        writer.run(writer.check_fence)
        # From here on the rows of the segment are needed nowhere else, except by workers that have
        # yet to read them: such entries are deleted with the next segment.
        self._expired.clear()
        if writer.workers is not None:
            # Between the entries, so that they have the rows of all segments of this manifest.
            writer.workers.attach(manifest.name(graph))
        needs, end = writer.progress.needs, manifest.end()
        over = {one.name: one for one in writer.entries if one.end <= end and not needs(one)}
        writer.entries = [one for one in writer.entries if one.name not in over]
        drop(client, [before, *(one["name"] for one in expired), *over, *unneeded])
        if self._attempts:
            drop(client, failed_parts(client, graph, manifest, writer.epoch))
