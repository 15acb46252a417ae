"""Batches of a graph that workers compute as a whole, several at once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from cluster_graph_cases import SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, _objects, attach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Cluster


def test_without_workers_each_batch_is_returned_before_the_next_is_taken() -> None:
    matrix, taken = stream(1000), []

    def parts() -> Iterator[Any]:
        for number, batch in enumerate(batches(matrix)):
            taken.append(number)
            yield batch

    features = GraphFeatures(**SETTINGS)
    for number, (found, want) in enumerate(
        zip(features.transform_each(parts()), plain(matrix), strict=True)
    ):
        assert taken[-1] == number
        assert np.array_equal(found, want)
    assert features.stats()["rates"]["rows"] == 1000


@pytest.mark.parametrize("mode", ["causal", "batch"])
@pytest.mark.parametrize("where", ["b", "bc"])
def test_results_are_those_of_transform(nodes: Cluster, mode: str, where: str) -> None:
    """Between calls of other kinds, too: a worker gets the rows of those from the log."""
    matrix = stream(3000, seed=6, late=0.02)
    if mode == "batch":
        # In batch mode a call keeps the first row of each id.
        matrix[5::50, 0] = matrix[4::50, 0]
    workers = tuple(nodes.nodes[name].socket for name in where)
    config = on(nodes, "a", placement="round-robin", workers=workers)
    features = GraphFeatures(**SETTINGS, mode=mode, cluster=config)
    whole, parts = GraphFeatures(**SETTINGS, mode=mode), list(batches(matrix))
    try:
        for start in (0, 12, 24):
            some = parts[start : start + 11]
            for number, found in enumerate(features.transform_each(some), start):
                assert np.array_equal(found, whole.transform(parts[number])), number
            for one in parts[start + 11 : start + 12]:
                assert np.array_equal(features.transform(one), whole.transform(one))
        features._stream.engine.settle(LIMIT_SECONDS)
        assert features.stats()["segments"] > 0
        assert features.stats()["rates"]["rows"] == 3000
        assert nodes.client("a").list("graph/payments/share/", all_nodes=True).num_rows <= 1
    finally:
        features.close()


def test_tables_are_returned_as_tables(nodes: Cluster) -> None:
    matrix = stream(800)
    names = ("edge_id", "source", "target", "timestamp", "amount")
    whole_numbers = [column.astype(np.int64) for column in matrix.T[:4]]
    rows = pa.table(dict(zip(names, [*whole_numbers, matrix[:, 4]], strict=True)))
    parts = [rows.slice(start, 100) for start in range(0, 800, 100)]
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    whole = GraphFeatures(**SETTINGS)
    try:
        for part, found in zip(parts, features.transform_each(parts), strict=True):
            assert found.equals(whole.transform(part))
    finally:
        features.close()


def test_batches_that_no_caller_takes_are_in_the_graph(nodes: Cluster) -> None:
    matrix, taken = stream(1500), []

    def parts() -> Iterator[Any]:
        for number, batch in enumerate(batches(matrix)):
            taken.append(number)
            yield batch

    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    wanted = plain(matrix)
    try:
        found = features.transform_each(parts())
        assert np.array_equal(next(found), wanted[0])
        # Two for each process.
        assert taken == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="1 batches of transform_each have no features"):
            features.transform(matrix[400:500])
        found.close()
        assert np.array_equal(features.transform(matrix[400:500]), wanted[4])
        more = features.transform_each(batches(matrix[500:]))
        for number, one in enumerate(more, 5):
            assert np.array_equal(one, wanted[number])
        assert attach("payments", nodes.nodes["b"].socket)._engine.next_number() == 1500
    finally:
        features.close()


def test_a_batch_that_is_refused_ends_the_iteration_and_nothing_else(nodes: Cluster) -> None:
    matrix = stream(900)
    wanted, bad = plain(matrix), stream(1000)[900:]
    bad[3, 3] = np.nan
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    try:
        found = features.transform_each([*batches(matrix[:500]), bad])
        # Batches that are in the graph lose no features to the one that is refused.
        for number in range(5):
            assert np.array_equal(next(found), wanted[number])
        with pytest.raises(ValueError, match="NaN"):
            next(found)
        assert features.stats()["rows"] == 500
        for number, one in enumerate(features.transform_each(batches(matrix[500:])), 5):
            assert np.array_equal(one, wanted[number])
    finally:
        features.close()


def test_a_share_of_more_cells_than_32_bits_count_has_wider_places(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places from 2^32 on were taken modulo 2^32, and their features were added to other cells."""
    client, entry = nodes.client("a"), _objects.LogEntry("", 7, 4, 1)
    features = np.zeros((4, 5))
    features[0, 1], features[3, 4] = 2, 7
    for worker, (narrow_max, kind) in enumerate([(19, pa.int64()), (20, pa.uint32())]):
        monkeypatch.setattr(_objects, "_NARROW_MAX", narrow_max)
        name = _objects.share(client, "payments", entry, worker, features)
        assert client.get(name)["place"].type == kind
        found = np.ones((4, 5))
        _objects.add_share(client, name, found)
        assert np.array_equal(found, features + 1)
        _objects.drop_shares(client, [name])


def test_a_worker_that_dies_is_an_error_and_nothing_is_lost(nodes: Cluster) -> None:
    matrix = stream(1000, seed=4)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    parts, wanted = list(batches(matrix)), plain(matrix)
    found = features.transform_each(parts)
    assert np.array_equal(next(found), wanted[0])
    process = features._stream.engine._writer.workers._processes[0]
    process.kill()
    process.wait(LIMIT_SECONDS)
    with pytest.raises(RuntimeError, match="worker 0"):
        list(found)
    with pytest.raises(RuntimeError, match=r"an earlier call .* failed"):
        features.transform(parts[9])
    features.close()
    done = attach("payments", nodes.nodes["b"].socket)._engine.next_number()
    assert done % 100 == 0
    assert done >= 400
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    assert np.array_equal(again.transform(matrix[done : done + 100]), wanted[done // 100])
    again.close()


@pytest.mark.parametrize("where", ["b", "bc"])
def test_a_long_log_is_joined_while_workers_read_it(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Entries that were still queued at workers were joined, too, and were an error there."""
    from farrow.graph.cluster import _call_log

    limit, joined, joins = 24, _call_log.joined, []
    monkeypatch.setattr(_call_log, "_ENTRIES_MAX", limit)
    monkeypatch.setattr(
        _call_log, "joined", lambda *given: (joins.append(len(given[1])), joined(*given))[1]
    )
    matrix = stream(800, seed=7)
    workers = tuple(nodes.nodes[name].socket for name in where)
    # No span is full, so no segment shortens the log.
    config = ClusterGraph("payments", nodes.nodes["a"].socket, segment=1000, workers=workers)
    features, whole = GraphFeatures(**SETTINGS, cluster=config), GraphFeatures(**SETTINGS)
    parts, longest = list(batches(matrix[:500], 5)), 0
    try:
        for part, found in zip(parts, features.transform_each(parts), strict=True):
            assert np.array_equal(found, whole.transform(part))
            longest = max(longest, features.stats()["log"])
        assert len(joins) > 5
        assert min(joins) > 1
        assert longest <= limit
        # The last batches were learned without an answer; later calls are joined all the same.
        for part in batches(matrix[500:790], 5):
            features.partial_fit(part)
            whole.partial_fit(part)
            assert features.stats()["log"] <= limit
        assert np.array_equal(features.transform(matrix[790:]), whole.transform(matrix[790:]))
    finally:
        features.close()
    assert attach("payments", nodes.nodes["b"].socket)._engine.next_number() == 800


@pytest.mark.parametrize("what", ["entries are joined", "segments are made"])
def test_a_worker_may_read_what_it_was_asked_for_late(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It stands still from its first entry on until the result is awaited.  Entries were joined or
    deleted meanwhile, or segments of its window were."""
    from farrow.graph.cluster import _call_log

    if what == "entries are joined":
        monkeypatch.setattr(_call_log, "_ENTRIES_MAX", 4)
    rows = 5 if what == "entries are joined" else 300
    matrix = stream(11 * rows, seed=8)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    whole, parts = GraphFeatures(**SETTINGS), list(batches(matrix, rows))
    try:
        for part in parts[:3]:
            features.partial_fit(part)
            whole.partial_fit(part)
        engine = features._stream.engine
        workers = engine._writer.workers
        process, ask, take = workers._processes[0].pid, workers.ask_one, workers.take

        def stopped(*arguments: Any) -> None:
            os.kill(process, signal.SIGSTOP)
            ask(*arguments)

        def resumed(*arguments: Any) -> None:
            os.kill(process, signal.SIGCONT)
            take(*arguments)

        def slowly() -> Iterator[Any]:
            for part in parts[3:]:
                if engine._sealing._pending is not None:
                    engine._sealing._pending.result(LIMIT_SECONDS)
                yield part

        monkeypatch.setattr(workers, "ask_one", stopped)
        monkeypatch.setattr(workers, "take", resumed)
        for part, found in zip(parts[3:], features.transform_each(slowly()), strict=True):
            assert np.array_equal(found, whole.transform(part))
        if what == "segments are made":
            features._stream.engine.settle(LIMIT_SECONDS)
            assert features.stats()["segments"] > 3
            names = nodes.client("a").list("graph/payments/log/", all_nodes=True)
            assert names.num_rows == features.stats()["log"] < 8
    finally:
        os.kill(process, signal.SIGCONT)
        features.close()


@pytest.mark.parametrize("where", ["b", "bc"])
def test_rows_and_batches_in_any_order_are_those_of_one_graph(nodes: Cluster, where: str) -> None:
    """Rows that workers were not given are added while their results are awaited; a graph begins
    anew with as many rows as they have of the old one."""
    matrix = stream(1800, seed=9)
    workers = tuple(nodes.nodes[name].socket for name in where)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=workers))
    try:
        for first, rows in ((20, matrix[:600]), (600, matrix[600:])):
            whole = GraphFeatures(**SETTINGS)
            features.fit(rows[:first])
            whole.fit(rows[:first])
            wanted: list[Any] = []
            begun: list[Any] = []
            for number, part in enumerate(batches(rows[first:], 20)):
                if number % 5 == 3:
                    features.partial_fit(part)
                    whole.partial_fit(part)
                else:
                    begun.append(features._stream.begin(part))
                    wanted.append(whole.transform(part))
                if len(begun) == 4:
                    assert np.array_equal(begun.pop(0)(), wanted.pop(0))
            for found, want in zip(begun, wanted, strict=True):
                assert np.array_equal(found(), want)
    finally:
        features.close()


def test_a_log_without_room_ends_the_iteration(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farrow.graph.cluster import _call_log

    log, fails = _call_log.log, []

    def full(*arguments: Any) -> Any:
        if arguments[2] == 600 and not fails:
            fails.append(1)
            raise farrow.OutOfMemory("the region is full: asked 4096 B, 0 B free")
        return log(*arguments)

    monkeypatch.setattr(_call_log, "log", full)
    matrix = stream(1000)
    wanted = plain(matrix)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    try:
        found = features.transform_each(batches(matrix))
        with pytest.raises(farrow.OutOfMemory):
            list(found)
        for number, one in enumerate(features.transform_each(batches(matrix[600:])), 6):
            assert np.array_equal(one, wanted[number])
    finally:
        features.close()
