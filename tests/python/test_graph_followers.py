"""Readers that follow a graph of the cluster, and forks of its writer, whatever the writer does."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import attach
from test_graph_cluster import SETTINGS, batches, on, stream

if TYPE_CHECKING:
    from typing import Any


@pytest.fixture
def writer(nodes: Cluster) -> Any:
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    yield features
    features.close()


def test_a_follower_goes_on_with_a_graph_that_is_fitted_anew(
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
