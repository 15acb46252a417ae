"""Segments of a graph in cluster memory that cannot be built, or not where they should be."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from cluster_graph_cases import DAY, SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS, Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, _sealing, _segments, attach

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node


def test_a_segment_whose_node_is_lost_before_it_counts_is_made_again(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    opened = _sealing.opened

    def lost(table: pa.Table) -> Any:
        seen.append("")
        if len(seen) == 1:
            raise farrow.NodeLost("node c is lost")
        return opened(table)

    monkeypatch.setattr(_sealing, "opened", lost)
    monkeypatch.setattr(_sealing, "_RETRY_SECONDS", 0.0)
    matrix = stream(600)
    features, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    for batch in batches(matrix):
        assert np.array_equal(features.transform(batch), whole.transform(batch))
        features._stream.engine.settle(LIMIT_SECONDS)
    assert len(seen) > 2
    assert features.stats()["segments"] > 0
    assert attach("payments", nodes.nodes["b"].socket).stats()["edges"] == whole.stats()["edges"]
    features.close()


def test_a_segment_that_may_be_there_although_it_failed_is_made_under_another_name(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put and its pin failed, so its name was taken and no segment was made any more."""
    keep, retained = _segments.keep, []

    def failing(client: farrow.Client, table: pa.Table, name: str, node: str | None) -> None:
        retained.append(name)
        if len(retained) <= 2:
            client.put(table, name, node=node)
            raise farrow.NodeLost("the node was lost before the pin")
        keep(client, table, name, node)

    monkeypatch.setattr(_segments, "keep", failing)
    monkeypatch.setattr(_sealing, "_RETRY_SECONDS", 0.0)
    matrix = stream(1000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for batch, want in zip(batches(matrix), plain(matrix), strict=True):
        assert np.array_equal(features.transform(batch), want)
        pending = features._stream.engine._sealing._pending
        if pending is not None:
            pending.exception(LIMIT_SECONDS)
    features._stream.engine.settle(LIMIT_SECONDS)
    assert features.stats()["trouble"] is None
    assert features.stats()["segments"] == 4
    # What failed attempts left is gone.
    names = nodes.client("a").list("graph/payments/segment/", all_nodes=True)["name"].to_pylist()
    reader = attach("payments", nodes.nodes["b"].socket)
    assert sorted(names) == sorted(reader.segments()["name"].to_pylist())
    features.close()


def test_a_segment_that_a_replaced_writer_still_makes_does_not_stop_its_successor(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both make the same span; the successor found the name taken, again and again."""
    sealed, may_seal, is_sealed = _sealing.sealed, threading.Event(), threading.Event()
    names: list[str] = []

    def slowly(client: farrow.Client, plan: Any, name: str, node: str | None) -> None:
        names.append(name)
        (may_seal if len(names) == 1 else is_sealed).wait(LIMIT_SECONDS)
        sealed(client, plan, name, node)
        is_sealed.set()

    monkeypatch.setattr(_sealing, "sealed", slowly)
    matrix, rows = stream(1000), 0
    first = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    while not names:
        first.partial_fit(matrix[rows : rows + 50])
        rows += 50
        assert rows < 500
    second = GraphFeatures(**SETTINGS, cluster=on(nodes, "b")).partial_fit(matrix[:0])
    second.partial_fit(matrix[rows : rows + 50])
    may_seal.set()
    second._stream.engine.settle(LIMIT_SECONDS)
    assert second.stats()["trouble"] is None
    assert second.stats()["segments"] == 1
    with pytest.raises(farrow.AlreadyExists, match="another process writes"):
        first.partial_fit(matrix[rows : rows + 50])
    first.close()
    # The replaced writer deletes its own.
    left = nodes.client("a").list("graph/payments/segment/", all_nodes=True)["name"].to_pylist()
    reader = attach("payments", nodes.nodes["c"].socket)
    assert left == reader.segments()["name"].to_pylist()
    second.close()


def test_a_full_node_keeps_no_client_waiting(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that find no room stay in the process until there is some; calls go on."""
    matrix, sealed, tried = stream(2000), _sealing.sealed, []

    def full(client: farrow.Client, plan: Any, name: str, node: str | None) -> None:
        tried.append(name)
        if len(tried) <= 3:
            raise farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")
        sealed(client, plan, name, node)

    monkeypatch.setattr(_sealing, "sealed", full)
    monkeypatch.setattr(_sealing, "_RETRY_SECONDS", 0.0)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    troubles = []
    for batch, want in zip(batches(matrix), plain(matrix), strict=True):
        assert np.array_equal(features.transform(batch), want)
        pending = features._stream.engine._sealing._pending
        if pending is not None:
            pending.exception(LIMIT_SECONDS)
        troubles.append(features.stats()["trouble"])
    assert "OutOfMemory: the region is full: asked 4096 B, 0 B free" in troubles
    # The first span was tried until it found room, then the others followed.
    spans = [name.partition("-")[0] for name in tried]
    assert spans[0] == spans[3] != spans[4]
    assert len(set(tried)) == len(tried)
    assert troubles[-1] is None
    assert features.stats()["segments"] >= 1
    features.close()


def test_a_full_node_evicts_no_graph(make_node: Callable[..., Node]) -> None:
    node = make_node("--memory", "16MiB", "--evict", "lru")
    matrix, client = stream(1200), farrow.connect(node.socket)
    config = ClusterGraph("payments", node.socket, segment=DAY)
    features = GraphFeatures(**SETTINGS, cluster=config)
    for batch in batches(matrix[:1000]):
        features.transform(batch)
        features._stream.engine.settle(LIMIT_SECONDS)
    stats = features.stats()
    # Nothing holds the objects any more, and others need the room.
    features.close()
    del features
    for _ in range(100):
        client.put(bytes(1 << 20))
    again = GraphFeatures(**SETTINGS, cluster=config)
    assert np.array_equal(again.transform(matrix[1000:1100]), plain(matrix)[10])
    assert again.stats()["segments"] == stats["segments"] >= 2
    again.close()
