"""A graph takes a call's rows while its log does: what becomes of them when one of both fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from cluster_graph_cases import SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS, Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import _call_log, _objects, attach

if TYPE_CHECKING:
    from collections.abc import Callable


class Failing:
    """The log, until it fails: before it has the rows, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.is_there = False
        monkeypatch.setattr(_call_log, "log", self)

    def __call__(self, *arguments: Any) -> Any:
        if self.error is None:
            return _objects.log(*arguments)
        error, self.error = self.error, None
        if self.is_there:
            _objects.log(*arguments)
        raise error


CALLS: dict[str, Callable[[GraphFeatures, Any], Any]] = {
    "transform": lambda features, rows: features.transform(rows),
    "partial_fit": lambda features, rows: features.partial_fit(rows),
    "patterns": lambda features, rows: features.patterns_of(rows)[0],
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_what_the_log_has_no_room_for_leaves_the_graph(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, mode: str, call: str
) -> None:
    """As often as it is tried; then the graph goes on as if nothing had been."""
    failing, matrix = Failing(monkeypatch), stream(1500)
    settings = {**SETTINGS, "mode": mode, "evidence": call == "patterns"}
    features = GraphFeatures(**settings, cluster=on(nodes, "a"))
    whole = GraphFeatures(**settings)
    for number, batch in enumerate(batches(matrix)):
        before = features.stats() if number else None
        for _ in range(number % 3):
            failing.error = farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")
            # Accounts that nobody has heard of, and times far ahead.
            strange = np.add(batch, [10_000, 1000, 1000, 10_000, 0])
            with pytest.raises(farrow.OutOfMemory):
                CALLS[call](features, strange)
            after = features.stats()
            for name in ("edges", "accounts", "now", "rows"):
                assert before is None or after[name] == before[name], name
        want = CALLS[call](whole, batch)
        found = CALLS[call](features, batch)
        if call != "partial_fit":
            assert np.array_equal(found, want)
    reader, writer = attach("payments", nodes.nodes["b"].socket), features._stream.engine
    assert reader._engine.next_number() == len(matrix)
    # Rows that were removed leave no account behind.
    strange = np.arange(1000, 1500)
    assert not writer.knows(strange).any()
    assert not reader._engine.knows(strange).any()
    assert writer.knows(strange - 1000).any()
    features.close()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_log_that_may_have_rows_or_not_is_looked_at_by_who_comes_next(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    failing, matrix = Failing(monkeypatch), stream(600)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(matrix[:200])
    failing.error, failing.is_there = farrow.Disconnected("the node is gone"), is_there
    with pytest.raises(farrow.Disconnected):
        features.transform(matrix[200:300])
    assert features.stats()["rows"] == 200
    with pytest.raises(RuntimeError, match="make a new GraphFeatures"):
        features.transform(matrix[200:300])
    features.close()
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    done = 300 if is_there else 200
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:done])
    more = matrix[done : done + 100]
    assert np.array_equal(features.transform(more), whole.transform(more))
    features.close()


def test_an_entry_that_cannot_be_pinned_may_have_been_read_and_ends_the_writer(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the pin is of a class that, of a put, means that the log has nothing."""
    matrix = stream(600)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(matrix[:200])
    engine = features._stream.engine

    class Unpinning:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def pin(self, _: Any) -> None:
            raise farrow.LimitReached("65536 objects are pinned")

    real, engine._writer.client = engine._writer.client, Unpinning()
    with pytest.raises(RuntimeError, match="is in the log and not pinned: 65536 objects"):
        features.transform(matrix[200:300])
    engine._writer.client = real
    with pytest.raises(RuntimeError, match="make a new GraphFeatures"):
        features.transform(matrix[200:250])
    features.close()
    assert attach("payments", nodes.nodes["b"].socket)._engine.next_number() == 300


def test_a_graph_that_could_not_be_emptied_takes_no_rows_that_would_not_count(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next epoch has begun, and no manifest names it."""
    matrix = stream(600)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(matrix[:200])

    def full(*_: Any) -> None:
        raise farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")

    with monkeypatch.context() as patch, pytest.raises(farrow.OutOfMemory):
        patch.setattr(_objects.GraphManifest, "put", full)
        features._stream.engine.clear()
    with pytest.raises(RuntimeError, match="make a new GraphFeatures"):
        features.transform(matrix[200:300])
    features.close()
    again, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:200])
    more = matrix[200:300]
    assert np.array_equal(again.transform(more), whole.transform(more))
    again.close()


def test_a_large_call_is_logged_first_and_leaves_the_log_again(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, matrix = Failing(monkeypatch), stream(600)
    monkeypatch.setattr(_call_log, "_ROWS_MAX", 50)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for batch, want in zip(batches(matrix), plain(matrix), strict=True):
        failing.error = farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")
        with pytest.raises(farrow.OutOfMemory):
            features.transform(batch)
        assert np.array_equal(features.transform(batch), want)
    features.close()


# The scribe sees the graph's lock free, and the number moved, once the graph has the rows.
_KILLED = """
import os, signal, sys, time
from cluster_graph_cases import SETTINGS, batches, stream
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, _call_log

features = GraphFeatures(**SETTINGS, cluster=ClusterGraph("payments", sys.argv[1], segment=100))
done, last, log = int(sys.argv[2]), int(sys.argv[3]), _call_log.log

def killed(client, graph, first, batch, home, epoch):
    if first >= last:
        if sys.argv[4] == "logged":
            log(client, graph, first, batch, home, epoch)
        while features._stream.engine.rows == first:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    return log(client, graph, first, batch, home, epoch)

_call_log.log = killed
for batch in batches(stream(2000)[done:]):
    features.transform(batch)
"""


@pytest.mark.parametrize("moment", ["logged", "not logged"])
def test_a_writer_that_is_killed_while_it_logs_leaves_all_of_a_call_or_nothing(
    nodes: Cluster, moment: str
) -> None:
    """The graph of the writer had the rows, and the call had not returned."""
    matrix, done, folder = stream(2000), 0, str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    for last in (300, 900, 1500):
        command = [sys.executable, "-c", _KILLED, nodes.nodes["a"].socket, str(done), str(last)]
        ended = subprocess.run([*command, moment], env=env, timeout=LIMIT_SECONDS, check=False)
        assert ended.returncode == -9
        done = attach("payments", nodes.nodes["b"].socket)._engine.next_number()
        assert done == (last + 100 if moment == "logged" else last)
    features, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:done])
    more = matrix[done : done + 100]
    assert np.array_equal(features.transform(more), whole.transform(more))
    features.close()


@pytest.mark.parametrize("column", range(4))
def test_numbers_of_any_size_come_out_of_the_log_as_they_went_in(
    nodes: Cluster, column: int
) -> None:
    """They are kept as 32 bits from the least one on where that is enough."""
    client, limits = farrow.connect(nodes.nodes["a"].socket), np.iinfo(np.int64)
    wide = np.array([limits.min, 0, limits.max])
    for number, values in enumerate([wide, wide // 2**33, wide[:0], np.array([limits.min])]):
        ends = [np.arange(len(values), dtype=np.int64) for _ in range(4)]
        ends[column] = values
        batch = _objects.Batch(ends, [values.astype(float)])
        entry = _objects.log(client, f"sizes-{number}", 0, batch, None, 1)
        back = _objects.logged(client, entry)
        for one, two in zip(batch.ends + batch.measured, back.ends + back.measured, strict=True):
            assert one.dtype == two.dtype
            assert np.array_equal(one, two)


def test_rows_that_neither_graph_nor_log_can_take_change_nothing(nodes: Cluster) -> None:
    """They are looked at by both, each on a thread of its own."""
    matrix = stream(300)
    features, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    features.transform(matrix[:100])
    whole.transform(matrix[:100])
    bad = matrix[100:200].copy()
    bad[7, 1] = 0.5
    for call in (
        features._stream.engine.transform,
        lambda rows: features._stream.engine.patterns(rows, 5),
    ):
        with pytest.raises(ValueError, match="row 7"):
            call(bad)
    assert np.array_equal(features.transform(matrix[100:200]), whole.transform(matrix[100:200]))
    features.close()


@pytest.mark.parametrize("is_table", [False, True])
def test_offline_rows_without_room_in_the_log_leave_a_graph_that_goes_on(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, is_table: bool
) -> None:
    """Parts before the one that failed waited for their features: other calls were refused, and the
    next iteration returned the features of those rows."""
    monkeypatch.setattr(_call_log, "_ROWS_MAX", 100)
    logged: list[int] = []

    def full(*arguments: Any) -> Any:
        logged.append(1)
        if len(logged) == 3:
            raise farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")
        return _objects.log(*arguments)

    monkeypatch.setattr(_call_log, "log", full)
    matrix = stream(600)
    if is_table:
        # Without ids: these are the numbers of the rows.
        matrix[:, 0] = np.arange(len(matrix))

    def rows(begin: int, end: int) -> Any:
        part = matrix[begin:end]
        names = ["source", "target", "timestamp", "amount"]
        columns = [*part[:, 1:4].astype(np.int64).T, part[:, 4]]
        return pa.table(dict(zip(names, columns, strict=True))) if is_table else part

    def counts(found: Any) -> Any:
        return np.asarray(found)[:, -20:] if not is_table else found.to_pandas().to_numpy()[:, -20:]

    features, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    features.partial_fit(rows(0, 50))
    logged.clear()
    with pytest.raises(farrow.OutOfMemory):
        features.offline(rows(50, 400))
    assert features.stats()["rows"] == 250
    whole.partial_fit(rows(0, 250))
    assert np.array_equal(
        counts(features.transform(rows(250, 300))), counts(whole.transform(rows(250, 300)))
    )
    found = [counts(part) for part in features.offline(rows(300, 600), batch=50)]
    want = [counts(whole.transform(rows(start, start + 50))) for start in range(300, 600, 50)]
    assert len(found) == 6
    assert all(np.allclose(one, other) for one, other in zip(found, want, strict=True))
    features.close()


def one_row(number: int) -> Any:
    return np.array([[number, number % 7, number % 5, number, 1.0]])


@pytest.fixture
def long_log(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph whose log has as many entries as are joined, and the numbers of rows that it logs."""
    monkeypatch.setattr(_call_log, "_ENTRIES_MAX", 32)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for number in range(32):
        features.transform(one_row(number))
    yield features
    features.close()


def test_a_joined_entry_that_may_be_there_ends_the_writer(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, long_log: GraphFeatures
) -> None:
    """The answer to its put was lost.  The writer went on with the short entries, and each further
    call joined them again: the name was taken."""
    failing = Failing(monkeypatch)
    failing.error, failing.is_there = farrow.Disconnected("the node was restarted"), True
    with pytest.raises(farrow.Disconnected):
        long_log.transform(one_row(32))
    with pytest.raises(RuntimeError, match="an earlier call"):
        long_log.transform(one_row(32))
    again, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "b")), GraphFeatures(**SETTINGS)
    # As the message says.
    assert again.partial_fit(one_row(0)[:0]).stats()["rows"] == 32
    whole.partial_fit(np.vstack([one_row(number) for number in range(32)]))
    assert np.array_equal(again.transform(one_row(32)), whole.transform(one_row(32)))
    again.close()


def test_a_call_does_not_need_room_to_join_the_log(
    monkeypatch: pytest.MonkeyPatch, long_log: GraphFeatures
) -> None:
    """A call of one row was refused on a nearly full node: the joined entry had no room."""
    logged: list[int] = []

    def full(*arguments: Any) -> Any:
        logged.append(arguments[3].count)
        if arguments[3].count > 1:
            raise farrow.OutOfMemory("the region is full: asked 8196096 B, 3229696 B free")
        return _objects.log(*arguments)

    monkeypatch.setattr(_call_log, "log", full)
    for number in range(32, 40):
        long_log.transform(one_row(number))
    stats = long_log.stats()
    assert (stats["rows"], stats["log"]) == (40, 40)
    # It is tried again after a few calls.
    assert logged == [16, 1, 1, 1, 1, 16, 1, 1, 1, 1]
    monkeypatch.setattr(_call_log, "log", _objects.log)
    long_log.transform(one_row(40))
    assert long_log.stats()["log"] == 40 - 15 + 1
