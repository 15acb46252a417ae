"""Readers that follow a graph of the cluster, and forks of its writer, whatever the writer does."""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import pytest

import farrow
from cluster_graph_cases import SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS, Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import _reader, attach

if TYPE_CHECKING:
    from typing import Any

    from farrow.graph.cluster._objects import LogEntry


@pytest.fixture
def writer(nodes: Cluster) -> Any:
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    yield features
    features.close()


def test_a_follower_continues_with_a_graph_that_is_fitted_again(
    nodes: Cluster,
    writer: GraphFeatures,
) -> None:
    """It skipped all calls until the new graph had more rows than the former one."""
    matrix = stream(2000)
    writer.fit(matrix[:1000])
    reader = attach("payments", nodes.nodes["b"].socket)
    seen = reader.follow(timeout=LIMIT_SECONDS)
    writer.transform(matrix[1000:1100])
    assert next(seen)[0].num_rows == 100
    writer.fit(matrix[:10])
    computed = {rows["id"][0].as_py(): rows.num_rows for rows, _ in [next(seen)]}
    for batch in batches(matrix[10:310]):
        writer.transform(batch)
        rows, _ = next(seen)
        computed[rows["id"][0].as_py()] = rows.num_rows
    assert computed == {0: 10, 10: 100, 110: 100, 210: 100}
    assert reader.stats()["rows"] == 310


def test_a_follower_goes_on_when_the_graph_has_a_writer_on_another_node(
    nodes: Cluster,
) -> None:
    """The log follows the writer, and no event of its node came."""
    matrix = stream(1500)
    writer = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    writer.fit(matrix[:900])
    reader = attach("payments", nodes.nodes["c"].socket)
    seen = reader.follow(timeout=LIMIT_SECONDS)
    writer.transform(matrix[900:1000])
    assert next(seen)[0].num_rows == 100
    writer.close()
    other = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
    assert other.partial_fit(matrix[:0]).stats()["rows"] == 1000, "of the whole graph"
    found = []
    for batch in batches(matrix[1000:]):
        other.transform(batch)
        found.append(next(seen)[0]["id"][0].as_py())
    assert found == [1000, 1100, 1200, 1300, 1400]
    assert reader.stats()["rows"] == other.stats()["rows"] == 1500
    other.close()


def test_a_forked_child_of_the_writer_is_refused(writer: GraphFeatures) -> None:
    """It waited for a thread that is the parent's only."""
    matrix = stream(300)
    writer.fit(matrix[:100])
    child = os.fork()
    if child == 0:
        signal.alarm(int(LIMIT_SECONDS))
        try:
            writer.transform(matrix[100:200])
        except farrow.Disconnected:
            writer.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(writer.transform(matrix[100:200])) == 100


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_a_busy_follower_attaches_segments(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It looked for them only while no rows came, so its memory held the whole window."""
    monkeypatch.setattr(_reader, "_LOOK_SECONDS", 0.0)
    matrix = stream(3000, seed=8, late=0.02)
    writer = GraphFeatures(**SETTINGS, mode=mode, cluster=on(nodes, "a"))
    parts = list(batches(matrix))
    writer.transform(parts[0])
    reader = attach("payments", nodes.nodes["b"].socket)
    seen = reader.follow(timeout=LIMIT_SECONDS)
    for number, (batch, want) in enumerate(
        zip(parts[1:], plain(matrix, mode=mode)[1:], strict=True)
    ):
        writer.transform(batch)
        writer._stream.engine.settle(LIMIT_SECONDS)
        assert np.array_equal(next(seen)[1], want[:, 5:]), number
    stats = reader.stats()
    # The last batch began before the last segments.
    assert stats["segments"] >= writer.stats()["segments"] - 1 > 3
    assert stats["sealed"] > 2 * (stats["edges"] - stats["sealed"])
    writer.close()


class Lagging:
    """A worker in this process, which does its tasks when their results are taken."""

    count = 1

    def __init__(self, nodes: Cluster) -> None:
        self.reader = attach("payments", nodes.nodes["b"].socket)
        self.tasks: deque[tuple[str, Any]] = deque()

    def ask(self, entry: LogEntry) -> None:
        self.tasks.append(("share", entry))

    def ask_one(self, owner: int, entry: LogEntry) -> None:
        self.tasks.append(("learn" if owner else "whole", entry))

    def attach(self, manifest: str) -> None:
        self.tasks.append(("attach", manifest))

    def refresh(self) -> None:
        self.tasks.clear()
        self.reader.refresh()

    def gather(self, _: Any, own: Any) -> Any:
        self.take(None, 0, own)
        return own

    def take(self, _: Any, owner: int, features: Any) -> None:
        assert owner == 0
        while True:
            kind, what = self.tasks.popleft()
            if kind == "attach":
                self.reader.attach_of(what)
            elif kind == "learn":
                self.reader.learn(what)
            else:
                part = (1, 2) if kind == "share" else (0, 1)
                features += self.reader.compute(what, part)[1]
                return

    def close(self) -> None:
        self.tasks.clear()


def lagging(nodes: Cluster, mode: str) -> tuple[GraphFeatures, Lagging]:
    """A writer with such a worker."""
    features = GraphFeatures(**SETTINGS, mode=mode, cluster=on(nodes, "a", workers=1))
    features.partial_fit(stream(0))
    engine = features._stream.engine
    engine._writer.workers.close()
    engine._writer.workers = worker = Lagging(nodes)
    return features, worker


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_workers_attach_segments_while_they_keep_up(nodes: Cluster, mode: str) -> None:
    """They attached none after their start, so the memory of each held the whole window."""
    matrix = stream(3000, seed=3, late=0.02)
    features, worker = lagging(nodes, mode)
    for batch, want in zip(batches(matrix), plain(matrix, mode=mode), strict=True):
        assert np.array_equal(features.transform(batch), want)
        features._stream.engine.settle(LIMIT_SECONDS)
    stats = worker.reader.stats()
    assert stats["segments"] >= features.stats()["segments"] - 1 > 3
    assert stats["sealed"] > 2 * (stats["edges"] - stats["sealed"])
    features.close()


def test_a_follower_that_missed_a_segment_hides_no_edges(nodes: Cluster) -> None:
    """The manifest lists the segments of the writer's window.  A reader that is a little behind
    needs edges of one more.  If it has not attached that one, the next ones must wait."""
    settings = {**SETTINGS, "window": 550}
    matrix, whole = stream(2000, seed=6), GraphFeatures(**settings)
    writer = GraphFeatures(**settings, cluster=on(nodes, "a"))
    wanted = [writer.transform(matrix[:10])]
    engine, entries = writer._stream.engine, []
    reader = attach("payments", nodes.nodes["b"].socket)

    def to(time: int) -> None:
        """Rows before a time, in calls of five units of it."""
        for begin in range(10 * len(wanted), 2 * time, 10):
            wanted.append(writer.transform(matrix[begin : begin + 10]))
            entries.append(engine._writer.entries[-1])
            if engine._sealing._trouble is None:
                engine.settle(LIMIT_SECONDS)
            if time < 700:
                reader.learn(entries.pop(0))

    to(690)
    # From here on no segment is made, until the second one has left the writer's window.
    engine._sealing._trouble = (1e12, "a test")
    to(760)
    while reader._engine.next_number() < 2 * 705:
        reader.learn(entries.pop(0))
    engine._sealing._trouble = None
    engine.settle(LIMIT_SECONDS)
    segments = engine._writer.manifest.segments
    assert [one["about"]["base"] for one in segments] == [200, 300, 400, 500, 600]
    found, attached = [], []
    for entry in entries:
        reader._look()
        attached.append(reader.stats()["segments"])
        found.append(reader.compute(entry)[1])
    assert np.array_equal(np.vstack(found), np.vstack(wanted[-len(found) :])[:, 5:])
    # Its last edge left the reader's window at time 750.
    assert (attached[0], attached[-1]) == (0, 5)
    assert np.array_equal(np.vstack(wanted), whole.transform(matrix[: 2 * 760]))
    more = matrix[2 * 760 : 2 * 760 + 100]
    assert np.array_equal(reader.preview(more), whole.preview(more))
    writer.close()
