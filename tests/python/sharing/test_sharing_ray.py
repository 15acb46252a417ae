"""Ray: tasks read and aggregate tables of Farrow beside their chunks, and write such tables.

Ray is large, so these tests run by ``make test-ray``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

PROGRAM = """
import gc, sys, time
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.cluster_utils import Cluster
import farrow, farrow.ray, farrow.sharing
from farrow.sharing import _references

address = sys.argv[1]
client = farrow.connect(address)
ROWS = 20_000
def part(start):
    n = np.arange(start, start + ROWS)
    return pa.table({"k": n % 7, "n": n, "price": pa.array(n / 4, mask=n % 5 == 0)})
trades = client.huge_table("trades", part(0).schema)
for number in range(4):
    trades.append(part(number * ROWS), node="ab"[number % 2])
whole = trades.table()

cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 2, "resources": {"farrow:a": 1}, "object_store_memory": 100 << 20})
try:
    cluster.add_node(num_cpus=2, resources={"farrow:b": 1}, object_store_memory=100 << 20)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    cluster.wait_for_nodes()
    ray.data.DataContext.get_current().enable_progress_bars = False

    # Aggregates, with one task on each node.
    pairs = [("n", "sum"), ("price", "count"), ("price", "mean"), ("n", "min"), ("n", "max")]
    found = farrow.ray.aggregate("trades", ["k"], pairs, address=address).sort_by("k")
    wanted = whole.group_by("k").aggregate(pairs).sort_by("k")
    for name in found.column_names:
        assert np.allclose(found[name].to_numpy(), wanted[name].to_numpy()), name
    total = farrow.ray.aggregate("trades", [], [("n", "sum")], address=address)
    assert total["n_sum"].to_pylist() == [sum(range(4 * ROWS))]
    for wrong in [("price", "median")], [("missing", "sum")]:
        try:
            farrow.ray.aggregate("trades", ["k"], wrong, address=address)
        except farrow.InvalidArgument:
            continue
        raise AssertionError(wrong)

    # A dataset.
    data = farrow.ray.read_farrow("trades", columns=["n"], filter=pc.field("k") == 3,
                                  address=address)
    assert data.sum("n") == pc.sum(whole.filter(pc.field("k") == 3)["n"]).as_py()
    assert data.columns() == ["n"]
    assert farrow.ray.read_farrow("trades", address=address).count() == 4 * ROWS
    assert farrow.ray.read_farrow("trades", version=1, address=address).count() == ROWS
    # Chunks that cannot match have no task.
    sources = []
    plain = ray.data.read_datasource
    ray.data.read_datasource = lambda source, **options: sources.append(source) or plain(
        source, **options)
    last = farrow.ray.read_farrow("trades", filter=pc.field("n") >= 3 * ROWS, address=address)
    ray.data.read_datasource = plain
    assert last.count() == ROWS
    assert [len(one.get_read_tasks(8)) for one in sources] == [1]

    # Written back, in order.
    copy = farrow.ray.read_farrow("trades", address=address)
    copy = copy.map_batches(lambda t: t.set_column(1, "n", pc.multiply(t["n"], 2)),
                            batch_format="pyarrow")
    copy.write_datasink(farrow.ray.FarrowDatasink("copy", address=address))
    back = client.huge_table("copy").table()
    assert sorted(back["n"].to_pylist()) == list(range(0, 8 * ROWS, 2))

    # Blocks of other columns, found when one is appended, leave no table that is not whole.
    class Written:
        write_returns = [(0, "a", [pa.table({"x": [1]})]), (1, "a", [pa.table({"y": [2]})])]
    try:
        farrow.ray.FarrowDatasink("broken", address=address).on_write_complete(Written)
    except KeyError:
        assert not client.contains("broken")
    else:
        raise AssertionError("a block without a column was written")

    # Arguments by reference; Ray stores them longer than the driver has the value.
    farrow.sharing.install(lease=0.05)
    @ray.remote
    def inside(table):
        client = next(iter(_references._state.clients.values()), None)
        # Ray may keep buffers of 100 KB and more out of band: none is left to keep.
        return client is not None, pc.sum(table["n"]).as_py()
    assert ray.get(inside.remote(whole)) == (True, sum(range(4 * ROWS)))
    stored = ray.put(whole.slice(0, 50_000))
    gc.collect()
    time.sleep(1.0)
    client.evict(10**9)
    assert ray.get(inside.remote(stored)) == (True, sum(range(50_000)))
    assert ray.get(stored).equals(whole.slice(0, 50_000))
    plain = pa.table({"n": np.arange(100_000)})
    assert ray.get(inside.remote(plain))[1] == sum(range(100_000))

    # Results of tasks pass as before: Ray may store them longer than their worker lives.
    @ray.remote
    def half(table):
        return table.slice(0, table.num_rows // 2)
    result = half.remote(whole)
    ray.wait([result])
    assert ray.get(result).equals(whole.slice(0, 2 * ROWS))
    print("done")
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def test_ray(make_cluster: type[Cluster]) -> None:
    pytest.importorskip("ray")
    cluster = make_cluster(2)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    env["RAY_USAGE_STATS_ENABLED"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.nodes["a"].socket],
        capture_output=True, text=True, env=env, timeout=600,
    )  # fmt: skip
    assert "done" in done.stdout, done.stdout[-2000:] + done.stderr[-5000:]
