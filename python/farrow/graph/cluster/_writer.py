"""The writing process of a graph: its epoch, its manifest, and its engine."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, TypeVar

import farrow
from farrow.graph.cluster._objects import (
    GraphManifest,
    LogEntry,
    begin_epoch,
    drop,
    engine_of,
    fence,
    names_of,
    newest,
    root,
    tidy,
)
from farrow.graph.cluster._placement import check
from farrow.graph.cluster._progress import LogProgress
from farrow.graph.cluster._ray import RayWorkers
from farrow.graph.cluster._replay import adopt, counted, missing, replay
from farrow.graph.cluster._workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from farrow.graph.cluster._config import ClusterGraph

_Result = TypeVar("_Result")
# A replaced writer commits at most the segment that it has already built.
_TAKEOVERS_MAX = 5


class GraphWriter:
    """What the calls and the segments of a writing process share.

    Attributes:
        config: the graph's name, and where its objects are.
        client: a client of the writer's node.
        engine: the engine, with all rows.
        manifest: the graph's, as last put.
        epoch: the writer's.
        entries: the log of the rows in no segment, oldest first.
        workers: processes that share the work of a batch, if there are any.
        progress: how far the workers have read the log.
    """

    def __init__(self, config: ClusterGraph, manifest: GraphManifest) -> None:
        # In the form read back from the store: lists, no tuples.
        for name in ("stream", "parameters"):
            setattr(manifest, name, json.loads(json.dumps(getattr(manifest, name))))
        self._threads = manifest.parameters["threads"]
        self.engine = engine_of(manifest, self._threads)
        self.config = config
        self._pid = os.getpid()
        self.client = farrow.connect(config.address)
        check(self.client, config.placement, config.log_node)
        self.entries: list[LogEntry] = []
        self._failed: str | None = None
        # Another process has taken the graph over.
        self._is_replaced = False
        found = newest(self.client, config.name)
        if found is None:
            self.manifest = manifest
            self.manifest.number = 1
            self.manifest.home = config.log_node or self.client.node
            self.epoch = begin_epoch(self.client, config.name, self.manifest.home)
            self.manifest.writers = [[self.epoch, 0]]
            self.manifest.put(self.client, config.name)
        else:
            self._resume(found, manifest)
        self.workers: Workers | RayWorkers | None = None
        if config.addresses():
            self.workers = RayWorkers(config) if config.ray else Workers(config)
        self.progress = LogProgress(len(config.addresses()), self.engine.next_number())

    def _resume(self, found: GraphManifest, wanted: GraphManifest) -> None:
        name, home = self.config.name, self.config.log_node or self.client.node
        for what in ("parameters", "stream", "segment"):
            ours, theirs = getattr(wanted, what), getattr(found, what)
            if what == "parameters":
                # Results do not depend on the number of threads.
                ours, theirs = ({**one, "threads": self._threads} for one in (ours, theirs))
            if ours != theirs:
                raise ValueError(
                    f"graph {name!r} is there with other {what}: {theirs}, not {ours}; to begin "
                    f"again, delete the objects whose names begin with {root(name)!r}"
                )
        # Before any read: from here on the former writer acknowledges nothing.
        self.epoch = begin_epoch(self.client, name, home)
        for attempt in range(_TAKEOVERS_MAX):
            # Includes commits made before the fence existed, or concurrently.
            self.manifest = newest(self.client, name) or found
            self.manifest.home = home
            self.manifest.parameters["threads"] = self._threads
            self.engine = engine_of(self.manifest, self._threads)
            without_lost = self.config.without_lost
            try:
                adopt(self.client, name, self.engine, self.manifest, without_lost=without_lost)
                log = counted(self.client, name, self.manifest)
                self.entries = replay(self.client, name, self.engine, log)
                self.manifest.check_rows(name, self.engine.next_number())
                self.manifest.begin_epoch(self.epoch, self.engine.next_number())
                self.manifest.number += 1
                self.manifest.put(self.client, name)
            except (farrow.AlreadyExists, farrow.NotFound) as error:
                # The former writer committed a segment meanwhile.
                if attempt < _TAKEOVERS_MAX - 1:
                    continue
                if isinstance(error, farrow.NotFound):
                    raise missing(self.client, error) from None
                raise
            break
        tidy(self.client, name, self.manifest)

    @property
    def columns(self) -> int:
        """The number of measured columns of a row."""
        statistics = self.manifest.parameters["statistics"]
        return 0 if statistics is None else sum(column != 3 for column in statistics[1])

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the writer."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Check that this process writes the graph, and that no earlier call failed.

        Raises:
            farrow.Disconnected: the process was forked.
            farrow.AlreadyExists: another process writes the graph.
            RuntimeError: an earlier call failed.
        """
        if self.is_forked:
            # Its threads, and the pipes of its workers, are the parent's.
            raise farrow.Disconnected(
                f"this graph is written by process {self._pid}; attach it after a fork"
            )
        if self._is_replaced:
            raise farrow.AlreadyExists(
                f"another process writes graph {self.config.name!r} ({self._failed}): this "
                "GraphFeatures adds nothing more"
            )
        if self._failed is not None:
            raise RuntimeError(
                f"an earlier call on graph {self.config.name!r} failed ({self._failed}): "
                "make a new GraphFeatures and call its partial_fit with an empty batch; then its "
                "stats()['rows'] says how many rows the graph has"
            )

    def run(
        self, call: Callable[[], _Result], harmless: tuple[type[BaseException], ...] = ()
    ) -> _Result:
        """Change graph or log: after a failure they may differ, except for harmless errors."""
        try:
            return call()
        except harmless:
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Record that graph and log may differ; the graph still has all acknowledged rows."""
        self.engine.undo()
        self._failed = f"{type(error).__name__}: {error}"
        self._is_replaced = isinstance(error, farrow.AlreadyExists)

    def check_fence(self, consequence: str = "") -> None:
        """Check that no other process has taken the graph over.

        Raises:
            farrow.AlreadyExists: the fence of the next epoch exists.
        """
        after = fence(self.config.name, self.epoch + 1)
        if self.client.contains(after):
            raise farrow.AlreadyExists(
                f"another process writes graph {self.config.name!r}: {after} is there{consequence}"
            )

    def begin_epoch(self) -> None:
        """Begin this writer's next epoch.

        Raises:
            farrow.AlreadyExists: another process has taken the graph over.
        """
        name, home = self.config.name, self.manifest.home
        self.epoch = self.run(lambda: begin_epoch(self.client, name, home, self.epoch))

    def clear(self) -> None:
        """Empty the graph and delete its objects."""
        before = self.manifest
        self.begin_epoch()
        self.manifest = GraphManifest(
            before.number + 1, before.stream, before.parameters, before.segment, before.home
        )
        self.manifest.writers = [[self.epoch, 0]]
        # Without this manifest, no row of the new epoch counts.
        self.run(lambda: self.manifest.put(self.client, self.config.name))
        self.entries = []
        self.engine = engine_of(self.manifest, self._threads)
        names = self.client.list(root(self.config.name), all_nodes=True)["name"].to_pylist()
        mine = self.manifest.name(self.config.name)
        fences = f"{root(self.config.name)}writer/"
        drop(self.client, [one for one in names if one != mine and not one.startswith(fences)])

    def close(self) -> None:
        """End the workers, and delete what they put."""
        if self.workers is None:
            return
        self.workers.close()
        with contextlib.suppress(farrow.FarrowError):
            shares = names_of(self.client, f"{root(self.config.name)}share/")
            # A writer that was replaced leaves those of its successor.
            own = [one for one in shares if f"-{self.epoch}." in one]
            drop(self.client, own)
