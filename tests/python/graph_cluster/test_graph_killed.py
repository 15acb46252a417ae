"""Processes around a graph in cluster memory are killed at random moments."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cluster_graph_cases import DAY, SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS, Cluster, wait_until
from farrow.graph import GraphFeatures
from farrow.graph.cluster import attach

if TYPE_CHECKING:
    from collections.abc import Callable

# Spans of a stream of 4000 rows are 20, of which the window holds 6.
ROWS = 4000
# The latter keeps the accounts of all times, in their order; the former only those of its segments.
GRAPHS: dict[str, dict[str, Any]] = {
    "accounts of the window": SETTINGS,
    "all accounts": {
        **SETTINGS,
        "patterns": ("fan", "lc-cycle"),
        "window": {"fan": 5 * DAY, "lc-cycle": DAY // 100},
        "mode": "batch",
    },
}


class Process:
    """A script in a process of its own, which says line by line what it has done."""

    def __init__(self, script: str, *arguments: str) -> None:
        folder = str(Path(__file__).parent)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )

    def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_SECONDS)
        found = self.process.stdout.readline().decode() if ready else ""
        assert found, f"the process said nothing within {LIMIT_SECONDS} s, or ended: {self.ended()}"
        return found.strip()

    def ended(self) -> str:
        """Ends it; what it wrote to standard error."""
        self.process.kill()
        return self.process.communicate(timeout=LIMIT_SECONDS)[1].decode()[-2000:]

    def kill9(self) -> list[str]:
        """Kill it as a crash would; the lines that it had still said."""
        self.process.kill()
        out, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode == -9, errors.decode()[-2000:]
        return out.decode().splitlines()


_READ = """
import sys
import numpy as np
from cluster_graph_cases import SETTINGS, stream
from farrow.graph.cluster import attach
reader = attach("payments", sys.argv[1])
print(reader.stats()["segments"], flush=True)
rows = stream(50, seed=1)
if sys.argv[2] == "follow":
    for number, features in reader.follow(share=(0, 2)):
        print(reader.stats()["segments"], flush=True)
while True:
    reader.refresh()
    rows[:, 3] = reader.stats()["now"]
    reader.preview(rows)
    print(reader.stats()["segments"], flush=True)
"""


def held(cluster: Cluster) -> dict[str, list[int]]:
    """What each node keeps: objects, holds on them, bytes that are not free, and clients."""
    client = cluster.client("a")
    stats = {name: client.stats(node=name) for name in cluster.names}
    return {
        name: [one["objects"], one["holds"], one["clients"], one["capacity"] - one["free"]]
        for name, one in stats.items()
    }


def test_readers_that_are_killed_leave_nothing(make_cluster: Callable[..., Cluster]) -> None:
    """While the graph goes on sealing and dropping segments: all memory of dropped ones comes
    back, the writer computes what a graph in one process does, and so does who reads next."""
    nodes = make_cluster(2)
    chance, matrix = random.Random(), stream(ROWS)
    before = held(nodes)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a", placement="round-robin"))
    readers: list[Process] = []
    killed = seen = 0
    try:
        for number, (batch, want) in enumerate(zip(batches(matrix), plain(matrix), strict=True)):
            assert np.array_equal(features.transform(batch), want), number
            if chance.random() < 0.5:
                features._stream.engine.settle(LIMIT_SECONDS)
            if number < 10:
                continue
            while len(readers) < 2:
                way = chance.choice(["follow", "preview"])
                readers.append(Process(_READ, nodes.nodes[chance.choice("ab")].socket, way))
                # It has the graph, from here on it is killed at any moment.
                seen = max(seen, int(readers[-1].line()))
            if chance.random() < 0.15:
                time.sleep(chance.random() * 0.02)
                readers.pop(chance.randrange(2)).kill9()
                killed += 1
    finally:
        for one in readers:
            one.kill9()
    assert killed > 0
    assert seen > 0
    # Of 20 spans only those in the window are left, on all nodes.
    features._stream.engine.settle(LIMIT_SECONDS)
    again = attach("payments", nodes.nodes["b"].socket)
    stats = features.stats()
    assert again.stats()["edges"] == stats["edges"]
    assert again.stats()["segments"] == stats["segments"] <= 7
    more = stream(ROWS + 100)[ROWS:]
    assert np.array_equal(again.preview(more), features.preview(more))
    names = nodes.client("a").list("graph/payments/segment/", all_nodes=True)["name"].to_pylist()
    assert len(names) == stats["segments"]
    # Without the graph nothing is held by anybody.
    features._stream.engine.clear()
    features.close()
    del again, features
    left = nodes.client("a").list("graph/", all_nodes=True)["name"].to_pylist()
    assert {name.rsplit("/", 1)[0] for name in left} == {
        "graph/payments/manifest", "graph/payments/writer",
    }  # fmt: skip
    nodes.client("a").delete(left)
    wait_until(lambda: held(nodes) == before, f"{held(nodes)} to be {before}")


_SEAL = """
import os
import signal
import sys
from cluster_graph_cases import batches, stream
from test_graph_killed import GRAPHS
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, _objects, _sealing, _segments

_, address, graph, moment, left, done = sys.argv
left, done = int(left), int(done)
part, name = moment.split(".")
where = {"sealing": _sealing, "segments": _segments, "manifest": _objects.GraphManifest}[part]
real = getattr(where, name)

def dies(*arguments):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(where, name, dies)
features = GraphFeatures(**GRAPHS[graph], cluster=ClusterGraph("payments", address, segment=100))
for batch in batches(stream(4000)[done:], 50):
    features.transform(batch)
    done += len(batch)
    print(done, flush=True)
    features._stream.engine.settle(30)
"""


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_writer_that_is_killed_while_it_seals_loses_nothing(nodes: Cluster, graph: str) -> None:
    """When accounts are kept, when a segment is built and when it is sealed and nothing names it,
    when the manifest is written, and when it counts and what it replaces is still there."""
    chance, matrix, done = random.Random(), stream(ROWS), 0
    settings = GRAPHS[graph]
    moments = ["segments.keep", "sealing.opened", "manifest.put", "sealing.drop"]
    if graph == "all accounts":
        moments.insert(0, "sealing.keep")
    for moment in moments:
        # All accounts are there soon, and are kept once.
        left = "0" if moment == "sealing.keep" else str(chance.randrange(1, 4))
        process = Process(_SEAL, nodes.nodes["a"].socket, graph, moment, left, str(done))
        out, errors = process.process.communicate(timeout=2 * LIMIT_SECONDS)
        assert process.process.returncode == -9, (moment, errors.decode()[-2000:])
        acknowledged = int(out.decode().splitlines()[-1])
        reader = attach("payments", nodes.nodes["b"].socket)
        done = reader._engine.next_number()
        assert acknowledged <= done <= acknowledged + 50, moment
        del reader
    features, whole = GraphFeatures(**settings, cluster=on(nodes, "a")), GraphFeatures(**settings)
    whole.partial_fit(matrix[:done])
    more = matrix[done : done + 100]
    assert np.array_equal(features.transform(more), whole.transform(more))
    # What the killed ones left without a name in the manifest is gone: nothing is there twice.
    reader = attach("payments", nodes.nodes["b"].socket)
    names = nodes.client("a").list("graph/payments/", all_nodes=True)["name"].to_pylist()
    segments = {name for name in names if "/segment/" in name}
    assert segments == set(reader.segments()["name"].to_pylist())
    assert len([name for name in names if "/manifest/" in name]) == 1
    features.close()


def test_workers_that_are_killed_in_a_batch_are_an_error_and_nothing_hangs(nodes: Cluster) -> None:
    """Whoever goes on has all rows, and what dead workers had found leaves the nodes."""
    chance, matrix, done = random.Random(), stream(ROWS), 0
    wanted = plain(matrix)
    for _ in range(3):
        workers = tuple(nodes.nodes[name].socket for name in "bc")
        config = on(nodes, "a", placement="round-robin", workers=workers, timeout=LIMIT_SECONDS)
        features = GraphFeatures(**SETTINGS, cluster=config)
        features.partial_fit(matrix[:0])
        victim = features._stream.engine._writer.workers._processes[chance.randrange(2)]
        first, seconds = done // 100, 0.0
        for number in range(first, first + 2):
            began = time.monotonic()
            found = features.transform(matrix[number * 100 : number * 100 + 100])
            seconds = time.monotonic() - began
            assert np.array_equal(found, wanted[number]), number
        # Within one of the next three calls, of the thirteen or so that a round has.
        timer = threading.Timer(chance.random() * 3 * seconds, victim.kill)
        timer.start()
        try:
            with pytest.raises(RuntimeError, match=r"worker \d"):
                for number in range(first + 2, len(wanted)):
                    found = features.transform(matrix[number * 100 : number * 100 + 100])
                    assert np.array_equal(found, wanted[number]), number
        finally:
            timer.cancel()
            features.close()
        # The rows of the call that failed are kept.
        done = attach("payments", nodes.nodes["b"].socket)._engine.next_number()
        assert done == 100 * (number + 1)
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    assert np.array_equal(again.transform(matrix[done : done + 100]), wanted[done // 100])
    again.close()
    names = nodes.client("a").list(all_nodes=True)["name"].to_pylist()
    parts = {name and "/".join(name.split("/")[:3]) for name in names}
    assert parts <= {
        f"graph/payments/{kind}" for kind in ("manifest", "segment", "accounts", "log", "writer")
    }
