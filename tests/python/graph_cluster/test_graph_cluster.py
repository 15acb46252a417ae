"""A graph in cluster memory against one in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from cluster_graph_cases import DAY, SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS, Cluster, wait_until
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, DaysLost, _objects, attach

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


@pytest.mark.parametrize("mode", ["causal", "batch"])
@pytest.mark.parametrize("placement", ["local", "round-robin", "most-free", "c"])
def test_segments_on_any_node_change_nothing(nodes: Cluster, mode: str, placement: str) -> None:
    late = 0.05 if placement == "round-robin" else 0.0
    matrix = stream(3000, seed=len(placement), late=late)
    features = GraphFeatures(**SETTINGS, mode=mode, cluster=on(nodes, "a", placement=placement))
    client = nodes.client("a")
    if placement == "most-free":
        for fuller in "ac":
            client.put(bytes(32 << 20), f"ballast {fuller}", node=fuller)
    for number, (batch, want) in enumerate(
        zip(batches(matrix), plain(matrix, mode=mode), strict=True)
    ):
        assert np.array_equal(features.transform(batch), want), number
        features._stream.engine.settle(LIMIT_SECONDS)
    reader = attach("payments", nodes.nodes["b"].socket)
    where = set(reader.segments()["node"].to_pylist())
    wanted = {"local": {"a"}, "c": {"c"}, "round-robin": {"a", "b", "c"}}
    wanted["most-free"] = {"b"}
    assert where == wanted[placement]
    stats = features.stats()
    assert stats["segments"] == reader.segments().num_rows >= 5
    # What left the window has left the cluster, too.
    assert stats["segments"] <= 7
    names = nodes.client("a").list("graph/payments/segment/", all_nodes=True)["name"].to_pylist()
    assert sorted(names) == sorted(reader.segments()["name"].to_pylist())
    features.close()


@pytest.mark.parametrize("placement", ["local", "c"])
def test_offline_mode_out_of_segments(nodes: Cluster, placement: str) -> None:
    """All rows are in segments, wherever these lie, before the first gets its features."""
    matrix = stream(3000, seed=9, late=0.02 if placement == "c" else 0.0)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", placement=placement))
    wanted = plain(matrix)
    assert np.array_equal(features.transform(matrix[:100]), wanted[0])
    parts = features.offline(matrix[100:], batch=100)
    features._stream.engine.settle(LIMIT_SECONDS)
    # 15 spans, of which a window holds 6.
    assert features.stats()["segments"] == 14
    for number, (part, want) in enumerate(zip(parts, wanted[1:], strict=True)):
        assert np.array_equal(part, want), number
    features._stream.engine.settle(LIMIT_SECONDS)
    assert features.stats()["segments"] <= 7
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix)
    more = stream(3100)[3000:]
    assert np.array_equal(features.transform(more), whole.transform(more))
    # Whoever comes next goes on from there.
    features.close()
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    more = stream(3200)[3100:]
    assert np.array_equal(again.transform(more), whole.transform(more))
    again.close()


def test_readers_see_what_the_writer_sees(nodes: Cluster) -> None:
    matrix = stream(2000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", placement="round-robin"))
    parts = list(batches(matrix))
    for batch in parts[:12]:
        features.transform(batch)
        features._stream.engine.settle(LIMIT_SECONDS)
    reader = attach("payments", nodes.nodes["b"].socket)
    assert reader.stats()["segments"] == features.stats()["segments"] > 3
    wanted = plain(matrix)
    seen = reader.follow(timeout=LIMIT_SECONDS)
    for batch, want in zip(parts[12:], wanted[12:], strict=True):
        features.transform(batch)
        rows, computed = next(seen)
        assert rows["id"].to_numpy().tolist() == batch[:, 0].tolist()
        assert np.array_equal(computed, want[:, 5:])
    assert reader.refresh() == 0
    # The edges of one account, wherever they lie.
    edges = reader.edges_of(7, start=320, end=930)
    inside = (matrix[:, 3] >= 320) & (matrix[:, 3] <= 930)
    out = matrix[inside & (matrix[:, 1] == 7) & (matrix[:, 2] != 7)]
    got = edges.filter(pa.compute.equal(edges["direction"], "out"))
    assert got["account"].to_pylist() == out[:, 2].tolist()
    assert got["timestamp"].to_pylist() == out[:, 3].tolist()
    features.close()


def test_a_reader_that_is_too_slow_leaves_calls_out(nodes: Cluster) -> None:
    """The log's entries went into segments before it came to read them: that was an error."""
    matrix = stream(2400)
    rows = list(batches(matrix))
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(rows[0])
    reader = attach("payments", nodes.nodes["b"].socket)
    seen = reader.follow(timeout=1)
    for batch in rows[1:-1]:
        features.transform(batch)
    features._stream.engine.settle(LIMIT_SECONDS)
    computed = sum(len(found) for _, found in seen)
    assert computed < len(matrix) - 200, "nothing went into a segment: this shows nothing"
    assert reader._engine.next_number() == len(matrix) - 100
    assert np.array_equal(reader.preview(rows[-1]), features.preview(rows[-1]))
    features.close()


def test_a_list_that_misses_what_is_replaced_is_not_the_end(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list can have neither of two manifests of which one comes and the other goes."""
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(next(iter(batches(stream(100)))))
    missed, names_of = [], _objects.names_of

    def misses(client: farrow.Client, prefix: str) -> list[str]:
        if prefix.endswith("manifest/") and len(missed) < 3:
            missed.append(prefix)
            return []
        return names_of(client, prefix)

    monkeypatch.setattr(_objects, "names_of", misses)
    assert attach("payments", nodes.nodes["b"].socket).stats()["edges"] == 100
    assert len(missed) == 3
    features.close()


def test_readers_look_at_rows_before_they_come(nodes: Cluster) -> None:
    """On another node than the writer's and the segments', from arrays and from tables."""
    matrix = stream(2000, late=0.02)
    names = ("edge_id", "source", "target", "timestamp", "amount")

    def table(rows: npt.NDArray[np.float64]) -> pa.Table:
        columns = dict(zip(names, rows.T, strict=True))
        ends = {name: columns[name].astype(np.int64) for name in ("edge_id", "timestamp")}
        accounts = {name: [f"a{int(one)}" for one in columns[name]] for name in names[1:3]}
        return pa.table({**columns, **ends, **accounts})

    for kind in (lambda rows: rows, table):
        cluster = ClusterGraph(f"kind-{kind is table}", nodes.nodes["a"].socket, segment=DAY,
                               placement="c")  # fmt: skip
        writer = GraphFeatures(**SETTINGS, evidence=True, cluster=cluster)
        writer.fit(kind(matrix[:1500]))
        writer._stream.engine.settle(LIMIT_SECONDS)
        reader = attach(cluster.name, nodes.nodes["b"].socket)
        # Room that was made stays.
        before = {**reader.stats(), "bytes": 0}
        assert before["segments"] > 0
        batch = kind(matrix[1500:1600])
        reader.preview(kind(matrix[1600:]))
        seen, found = reader.preview_patterns(batch)
        assert {**reader.stats(), "bytes": 0} == before
        result, patterns = writer.patterns_of(batch)
        if kind is table:
            assert seen.column_names == result.column_names == list(writer.get_feature_names_out())
            seen, result = (
                np.column_stack([one[name].to_numpy() for name in one.column_names[5:]])
                for one in (seen, result)
            )
            # A reader knows the numbers of accounts, not their names: it has them as text.
            assert found["accounts"].type == patterns["accounts"].type == pa.list_(pa.string())
            found, patterns = found.drop_columns("accounts"), patterns.drop_columns("accounts")
        np.testing.assert_allclose(seen, result, rtol=1e-6, atol=1e-9)
        assert found.equals(patterns)
        writer.close()


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_workers_share_a_batch(nodes: Cluster, mode: str) -> None:
    matrix = stream(1500, seed=3)
    workers = tuple(nodes.nodes[name].socket for name in "bc")
    config = on(nodes, "a", placement="round-robin", workers=workers)
    features = GraphFeatures(**SETTINGS, mode=mode, cluster=config)
    try:
        for batch, want in zip(batches(matrix), plain(matrix, mode=mode), strict=True):
            assert np.array_equal(features.transform(batch), want)
    finally:
        features.close()


def test_shares_that_were_evicted_after_their_call_do_not_fail_later_calls(nodes: Cluster) -> None:
    matrix = stream(600, seed=5)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=2))
    client = nodes.client("a")
    try:
        for number, (batch, want) in enumerate(zip(batches(matrix), plain(matrix), strict=True)):
            assert np.array_equal(features.transform(batch), want)
            shares = client.list("graph/payments/share/", all_nodes=True)["name"].to_pylist()
            assert len(shares) == 2
            # As a full node would: one of them, both, none.
            client.delete(shares[: number % 3])
    finally:
        features.close()


def test_a_worker_that_dies_is_an_error_and_nothing_is_lost(nodes: Cluster) -> None:
    matrix = stream(1000, seed=4)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", workers=1))
    parts, wanted = list(batches(matrix)), plain(matrix)
    features.transform(parts[0])
    process = features._stream.engine._writer.workers._processes[0]
    process.kill()
    process.wait(LIMIT_SECONDS)
    with pytest.raises(RuntimeError, match="worker 0"):
        features.transform(parts[1])
    with pytest.raises(RuntimeError, match=r"an earlier call .* failed"):
        features.transform(parts[2])
    features.close()
    # The rows of the call that failed were kept; it is not known whether the caller saw it.
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    assert np.array_equal(again.transform(parts[2]), wanted[2])
    again.close()


def test_one_process_writes(nodes: Cluster) -> None:
    matrix = stream(400)
    first = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    first.transform(matrix[:100])
    second = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
    second.transform(matrix[100:200])
    with pytest.raises(farrow.AlreadyExists):
        first.transform(matrix[100:200])
    want = plain(matrix)[2]
    assert np.array_equal(second.transform(matrix[200:300]), want)
    first.close()
    second.close()


@pytest.mark.parametrize("rows", [50, 100])
def test_the_former_writer_is_named_whatever_the_length_of_a_call(
    nodes: Cluster, rows: int
) -> None:
    """Entries of the log were told apart by their lengths, so both calls were acknowledged and one
    was lost."""
    matrix = stream(400)
    first = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    first.transform(matrix[:100])
    second = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
    second.transform(matrix[100 : 100 + rows])
    for _ in range(2):
        with pytest.raises(farrow.AlreadyExists):
            first.transform(matrix[100:175])
    first.close()
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[: 100 + rows])
    assert np.array_equal(second.transform(matrix[200:300]), whole.transform(matrix[200:300]))
    second.close()
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "c"))
    assert np.array_equal(again.transform(matrix[300:]), whole.transform(matrix[300:]))
    again.close()


def test_fit_begins_again(nodes: Cluster) -> None:
    matrix = stream(1000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for batch in batches(matrix):
        features.transform(batch)
    reader = attach("payments", nodes.nodes["b"].socket)
    features.fit(matrix[:100])
    assert np.array_equal(features.transform(matrix[100:200]), plain(matrix)[1])
    reader.refresh()
    assert reader.stats()["edges"] == features.stats()["edges"] == 200
    features.close()


def test_large_calls_are_logged_in_pieces(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from farrow.graph.cluster import _call_log

    monkeypatch.setattr(_call_log, "_ROWS_MAX", 64)
    monkeypatch.setattr(_call_log, "_ENTRIES_MAX", 4)
    matrix = stream(500)
    for mode in ("causal", "batch"):
        features = GraphFeatures(**SETTINGS, mode=mode, cluster=on(nodes, "a"))
        features.fit(matrix[300::-1])
        whole = GraphFeatures(**SETTINGS, mode=mode)
        whole.fit(matrix[300::-1])
        for part in (matrix[301:400], matrix[400:]):
            assert np.array_equal(features.transform(part), whole.transform(part))
        features.close()
        # What joined pieces and short ones hold is all there, once.
        reader = attach("payments", nodes.nodes["b"].socket)
        assert reader.stats()["edges"] == whole.stats()["edges"]
        client = nodes.client("a")
        client.delete(client.list("graph/", all_nodes=True)["id"].to_pylist())


def test_other_settings_are_refused(nodes: Cluster) -> None:
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.transform(stream(10))
    features.close()
    other = GraphFeatures(**{**SETTINGS, "window": 3 * DAY}, cluster=on(nodes, "a"))
    with pytest.raises(ValueError, match="graph 'payments' is there with other parameters"):
        other.transform(stream(10))
    with pytest.raises(TypeError, match="lies in cluster memory"):
        features.save("nowhere")
    with pytest.raises(farrow.NotFound, match="there is no graph 'receipts'"):
        attach("receipts", nodes.nodes["a"].socket)
    bad = GraphFeatures(**SETTINGS, cluster=ClusterGraph("a/b", nodes.nodes["a"].socket))
    with pytest.raises(ValueError, match="without a slash"):
        bad.transform(stream(10))
    lost = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", placement="nobody"))
    with pytest.raises(ValueError, match=r"placement is 'nobody', .* nodes \(a, b, c\)"):
        lost.transform(stream(10))
    lost = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", log_node="nobody"))
    with pytest.raises(ValueError, match=r"log_node is 'nobody', .* nodes \(a, b, c\)"):
        lost.transform(stream(10))


_INGEST = """
import sys
import numpy as np
from cluster_graph_cases import SETTINGS, batches, stream
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph
features = GraphFeatures(**SETTINGS, cluster=ClusterGraph("payments", sys.argv[1], segment=100))
done = int(sys.argv[2])
for batch in batches(stream(6000)[done:], 20):
    features.transform(batch)
    done += len(batch)
    print(done, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_acknowledged(nodes: Cluster) -> None:
    """Killed at random moments: whoever comes next has all rows whose call returned."""
    random = np.random.default_rng()
    matrix, done = stream(6000), 0
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", _INGEST, nodes.nodes["a"].socket, str(done)],
            stdout=subprocess.PIPE,
            env=env,
        )
        assert process.stdout is not None
        for _ in range(int(random.integers(1, 60))):
            line = process.stdout.readline()
            assert line, "the writer ended by itself"
        time.sleep(float(random.random()) * 0.01)
        os.kill(process.pid, signal.SIGKILL)
        lines = [line, *process.stdout.read().splitlines()]
        process.wait(LIMIT_SECONDS)
        acknowledged = int(lines[-1])
        reader = attach("payments", nodes.nodes["b"].socket)
        done = reader._engine.next_number()
        # At most the call that was under way when it was killed came on top.
        assert acknowledged <= done <= acknowledged + 20
    # The graph is what it would be without all this.
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:done])
    more = matrix[done : done + 100]
    assert np.array_equal(features.transform(more), whole.transform(more))
    features.close()


def test_a_lost_node_is_an_error_that_names_the_days(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(3)
    matrix = stream(1200)
    features = GraphFeatures(**SETTINGS, cluster=on(cluster, "a", placement="c"))
    for batch in batches(matrix):
        features.transform(batch)
        features._stream.engine.settle(LIMIT_SECONDS)
    wanted = features.stats()["segments"]
    assert wanted >= 4
    cluster.nodes["c"].kill9()
    client = cluster.client("b")

    def is_lost() -> bool:
        return {one.name: one.reach for one in client.nodes()}["c"] == "lost"

    wait_until(is_lost, f"c is lost: {client.nodes()}")
    with pytest.raises(DaysLost, match="lacks the edges of times 0 to 99 on c; 100 to 199 on c"):
        attach("payments", cluster.nodes["b"].socket)
    reader = attach("payments", cluster.nodes["b"].socket, without_lost=True)
    # The log's rows, which no segment has, are there.
    assert (reader.stats()["segments"], reader.stats()["edges"] > 0) == (0, True)
    # Who mapped them before goes on: the memory is there for as long as it is mapped.
    before = GraphFeatures(**SETTINGS)
    before.partial_fit(matrix)
    more = stream(1300)[1200:]
    assert np.array_equal(features.transform(more), before.transform(more))
    features.close()
    # A writer that comes next is told as well, and may go on without them; its workers too.
    again = GraphFeatures(**SETTINGS, cluster=on(cluster, "a"))
    with pytest.raises(DaysLost, match="lacks the edges of times 0 to 99 on c"):
        again.transform(stream(1310)[1300:])
    again = GraphFeatures(**SETTINGS, cluster=on(cluster, "a", without_lost=True, workers=1))
    assert again.transform(stream(1310)[1300:]).shape[0] == 10
    again.close()
    # Where the writer's node is lost nobody takes a graph that is there for a new one.
    cluster.nodes["a"].kill9()
    client = cluster.client("b")
    wait_until(lambda: {one.name: one.reach for one in client.nodes()}["a"] != "live", "a is away")
    for look in (
        lambda: attach("payments", cluster.nodes["b"].socket),
        lambda: GraphFeatures(**SETTINGS, cluster=on(cluster, "b")).transform(matrix),
    ):
        with pytest.raises(farrow.NodeLost, match=r"graph 'payments' .* may be on (a, c|c, a),"):
            look()


def test_a_lost_writers_node_costs_nothing_that_is_retained_elsewhere(
    make_cluster: Callable[..., Cluster],
) -> None:
    """Manifest, accounts and log on b, segments on c: whoever goes on has every row."""
    cluster = make_cluster(3)
    matrix, wanted = stream(1500), plain(stream(1500))
    features = GraphFeatures(**SETTINGS, cluster=on(cluster, "a", placement="c", log_node="b"))
    reader = None
    for number, batch in enumerate(batches(matrix[:1200])):
        assert np.array_equal(features.transform(batch), wanted[number])
        features._stream.engine.settle(LIMIT_SECONDS)
        if reader is None:
            reader = attach("payments", cluster.nodes["c"].socket)
            seen = reader.follow(timeout=LIMIT_SECONDS)
        else:
            assert np.array_equal(next(seen)[1], wanted[number][:, 5:])
    listed = cluster.client("b").list("graph/", all_nodes=True)
    parts = zip(listed["name"].to_pylist(), listed["node"].to_pylist(), strict=True)
    assert {(name.split("/")[2], node) for name, node in parts} == {
        ("manifest", "b"), ("log", "b"), ("writer", "b"), ("segment", "c"),
    }  # fmt: skip
    cluster.nodes["a"].kill9()
    client = cluster.client("c")
    wait_until(lambda: {one.name: one.reach for one in client.nodes()}["a"] == "lost", "a is lost")
    features.close()
    again = GraphFeatures(**SETTINGS, cluster=on(cluster, "c", placement="c", log_node="b"))
    for number, batch in enumerate(batches(matrix[1200:1400]), 12):
        assert np.array_equal(again.transform(batch), wanted[number])
    # Without the node of the log nothing is acknowledged.
    rows = again.stats()["rows"]
    cluster.nodes["b"].kill9()
    wait_until(lambda: {one.name: one.reach for one in client.nodes()}["b"] != "live", "b is away")
    with pytest.raises((farrow.NodeLost, farrow.Disconnected, farrow.Timeout)):
        again.transform(matrix[1400:])
    assert again.stats()["rows"] == rows
    again.close()


def test_rows_that_are_refused_change_nothing(nodes: Cluster) -> None:
    """Not the graph, not its log, and not the graph that ``fit`` would have replaced."""
    matrix = stream(400)
    features, whole = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")), GraphFeatures(**SETTINGS)
    assert np.array_equal(features.transform(matrix[:200]), whole.transform(matrix[:200]))
    for column in (0, 3, 4):
        bad = matrix[200:210].copy()
        bad[5, column] = np.nan
        for call in (features.fit, features.transform, features.partial_fit):
            with pytest.raises(ValueError, match=r"(NaN in row 5|row 5 is NaN)"):
                call(bad)
    assert np.array_equal(features.transform(matrix[200:300]), whole.transform(matrix[200:300]))

    # What only the engine can refuse was logged before: it leaves the log again.
    engine = features._stream.engine

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def transform(self, *_: Any) -> Any:
            raise MemoryError("100 rows on top of 300 edges are more than a graph holds")

    real, engine._writer.engine = engine._writer.engine, Full()
    with pytest.raises(MemoryError, match="more than a graph holds"):
        features.transform(matrix[300:])
    engine._writer.engine = real
    assert np.array_equal(features.transform(matrix[300:]), whole.transform(matrix[300:]))
    features.close()
    assert attach("payments", nodes.nodes["b"].socket).stats()["edges"] == whole.stats()["edges"]


_RAY = """
import sys
import numpy as np
import ray
from ray.cluster_utils import Cluster
from cluster_graph_cases import SETTINGS, batches, plain, stream
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph

# Each has room for one worker.
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
try:
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    matrix = stream(1000)
    graph = ClusterGraph(
        "payments", sys.argv[1], segment=100, workers=tuple(sys.argv[2:]), ray=True
    )
    features = GraphFeatures(**SETTINGS, cluster=graph)
    for batch, want in zip(batches(matrix), plain(matrix), strict=True):
        assert np.array_equal(features.transform(batch), want)
    features.close()
    print("equal")
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def test_workers_on_two_nodes_of_ray(nodes: Cluster) -> None:
    pytest.importorskip("ray")
    sockets = [nodes.nodes[name].socket for name in "abc"]
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", _RAY, *sockets], capture_output=True, text=True, env=env, timeout=240
    )
    assert "equal" in done.stdout, done.stderr[-3000:]
