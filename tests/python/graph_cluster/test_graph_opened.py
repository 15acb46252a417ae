"""A process that opens a graph of the cluster: what it takes over, and what it leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError

import farrow
from cluster_graph_cases import SETTINGS, on, stream
from conftest import Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import _objects, attach

if TYPE_CHECKING:
    from collections.abc import Callable


def workers() -> list[str]:
    """Worker processes of this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if parent == os.getpid() and "_workers" in command:
            found.append(command)
    return found


@pytest.fixture
def writer(nodes: Cluster) -> Any:
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(stream(10))
    yield features
    features.close()


OPENING: dict[str, Callable[[GraphFeatures, Any], Any]] = {
    "fit": lambda features, rows: features.fit(rows),
    "fit_transform": lambda features, rows: features.fit_transform(rows),
    "partial_fit": lambda features, rows: features.partial_fit(rows),
    "transform": lambda features, rows: features.transform(rows),
    "transform_each": lambda features, rows: list(features.transform_each([rows])),
    "offline": lambda features, rows: list(features.offline(rows)),
}


@pytest.mark.parametrize("call", OPENING)
@pytest.mark.parametrize("is_table", [False, True])
def test_invalid_rows_leave_a_graph_to_its_writer(
    nodes: Cluster, writer: GraphFeatures, call: str, is_table: bool
) -> None:
    """They took the graph over before they were checked, and the worker processes stayed until the
    error was collected."""
    rows: Any = stream(20)[10:]
    rows[3, 1] = -1
    if is_table:
        names = ["edge_id", "source", "target", "timestamp"]
        columns = dict(zip(names, rows[:, :4].astype(np.int64).T, strict=True))
        rows = pa.table({**columns, "amount": rows[:, 4]})
    other = GraphFeatures(**SETTINGS, cluster=on(nodes, "b", workers=1))
    with pytest.raises(ValueError, match="in row 3"):
        OPENING[call](other, rows)
    assert not workers()
    writer.transform(stream(20)[10:])
    assert writer.stats()["rows"] == 20


def test_a_first_call_that_fails_leaves_no_worker(
    nodes: Cluster, writer: GraphFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing closed a stream that was dropped."""
    other = GraphFeatures(**SETTINGS, cluster=on(nodes, "b", workers=1))

    def full(*_: Any) -> None:
        raise farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")

    monkeypatch.setattr("farrow.graph.cluster._call_log.log", full)
    with pytest.raises(farrow.OutOfMemory) as retained:
        other.transform(stream(20)[10:])
    assert not workers()
    assert retained.tb is not None


def test_any_number_of_threads_writes_and_reads_a_graph(
    nodes: Cluster, writer: GraphFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph was refused to a machine with another number of processors, although results do not
    depend on it."""
    writer.close()
    made: list[int] = []

    def engine(**parameters: Any) -> Any:
        made.append(parameters["threads"])
        return real(**parameters)

    real = _objects.GraphEngine
    monkeypatch.setattr(_objects, "GraphEngine", engine)
    matrix, whole = stream(300), GraphFeatures(**SETTINGS)
    whole.transform(stream(10))
    for number, threads in enumerate((3, 1, 2), 1):
        other = GraphFeatures(**SETTINGS, threads=threads, cluster=on(nodes, "b"))
        more = matrix[100 * (number - 1) :][:100] if number > 1 else matrix[10:100]
        assert np.array_equal(other.transform(more), whole.transform(more))
        assert set(made) == {threads}
        made.clear()
        other.close()
    # No more than this process may use.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    attach("payments", nodes.nodes["c"].socket)
    assert set(made) == {1}


def test_the_message_for_a_graph_with_other_settings_says_how_to_begin_again(
    nodes: Cluster, writer: GraphFeatures
) -> None:
    writer.close()
    client = nodes.client("a")
    other = GraphFeatures(**{**SETTINGS, "window": 77}, cluster=on(nodes, "a"))
    with pytest.raises(ValueError, match="delete the objects whose names begin with 'graph/pay"):
        other.fit(stream(10))
    client.delete(client.list("graph/payments/", all_nodes=True)["name"].to_pylist())
    assert other.fit(stream(10)).stats()["rows"] == 10
    other.close()


def test_an_unopened_graph_says_how_it_is_opened(nodes: Cluster, writer: GraphFeatures) -> None:
    """The message was that no rows had come, of a graph with rows."""
    other = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
    for call in (other.stats, other.get_feature_names_out, lambda: other.preview(stream(10))):
        with pytest.raises(NotFittedError, match=r"call partial_fit, .* empty batch"):
            call()
    assert attach("payments", nodes.nodes["b"].socket).stats()["rows"] == 10
    assert other.partial_fit(stream(0)).stats()["rows"] == 10
    other.close()
    with pytest.raises(NotFittedError, match="no rows have come"):
        GraphFeatures().stats()
