"""Ray Direct Transport: actors pass tables and arrays by reference, for as long as Ray counts
references to them.

Ray is large, so this test runs by ``make test-ray``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

PROGRAM = """
import gc, sys, time
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import farrow, farrow.ray
from farrow.sharing import _ray_transport

ROWS = 200_000
client = farrow.connect()
client.put(pa.table({"n": np.arange(ROWS), "half": np.arange(ROWS) / 2}), "trades")
trades = client.get("trades")
_ray_transport._LEASE_SECONDS = 1.0

def objects():
    return client.stats()["objects"]

def wait_until(condition, what):
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, (what, objects())
        time.sleep(0.05)

ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False, object_store_memory=100 << 20)
farrow.ray.register_transport()
farrow.ray.register_transport()

@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    def __init__(self):
        _ray_transport._LEASE_SECONDS = 1.0
        # Borrowed for references: values of another client are in another mapping.
        self.client = farrow.connect()
    @ray.method(tensor_transport="farrow")
    def cut(self, start):
        return self.client.get("trades").slice(start)
    @ray.method(tensor_transport="farrow")
    def made(self, rows):
        return {"first": pa.table({"n": np.arange(rows)}), "second": [pa.table({"m": [rows]})]}
    @ray.method(tensor_transport="farrow_numpy")
    def array(self):
        return self.client.get("trades")["half"].chunk(0).to_numpy()[::2]
    def seen(self, value):
        # Whether it is in the memory of the node, and what it is.
        def is_inside(one):
            return all(b["in_region"] for b in self.client.locate(one) if b["bytes"] >= 4096)
        if isinstance(value, dict):
            parts = [value["first"], *value["second"]]
            return [is_inside(one) for one in parts], [one.to_pydict() for one in parts]
        if isinstance(value, np.ndarray):
            return is_inside(value), value.shape, value.flags.writeable, float(value.sum())
        return is_inside(value), len(value), pc.sum(value["n"]).as_py()

first, second = Actor.remote(), Actor.remote()
total = sum(range(ROWS))
before = objects()
ref = first.cut.remote(1000)
# Several receivers, one of them twice, and the driver.
for actor in second, first, second:
    assert ray.get(actor.seen.remote(ref)) == (True, ROWS - 1000, total - sum(range(1000)))
here = ray.get(ref)
assert here.equals(trades.slice(1000))
assert all(b["in_region"] for b in client.locate(here) if b["bytes"] >= 4096)
# The objects of a reference last as long as Ray counts references, longer than their lease.
time.sleep(2.5)
client.evict(10**9)
assert ray.get(second.seen.remote(ref))[0]
assert objects() == before + 1
del ref
gc.collect()
wait_until(lambda: objects() == before, "the reference of the slice ended")
assert here.equals(trades.slice(1000))
del here

# Values that are not in Farrow's memory, several of them, and a small one.
ref = first.made.remote(50_000)
inside, values = ray.get(second.seen.remote(ref))
assert inside == [True, True]
assert values == [{"n": list(range(50_000))}, {"m": [50_000]}]
assert ray.get(ref)["second"][0].equals(pa.table({"m": [50_000]}))
assert objects() == before + 2
empty = first.made.remote(0)
assert ray.get(second.seen.remote(empty))[1] == [{"n": []}, {"m": [0]}]
del ref, empty
gc.collect()
wait_until(lambda: objects() == before, "the copies ended")

ref = first.array.remote()
found = ray.get(second.seen.remote(ref))
assert found == (True, (ROWS // 2,), False, float(np.arange(0, ROWS, 2).sum()) / 2), found
assert (ray.get(ref) == np.arange(0, ROWS, 2) / 2).all()

# The driver is a source too.
mine = ray.put(trades.slice(7), _tensor_transport="farrow")
assert ray.get(second.seen.remote(mine)) == (True, ROWS - 7, total - 21)
del mine, ref
gc.collect()
wait_until(lambda: objects() == before, "the reference of the driver ended")

# The source dies: its references end with their lease.
ref = first.cut.remote(5)
assert ray.get(second.seen.remote(ref))[0]
ray.kill(first)
wait_until(lambda: objects() == before, "the references of a dead actor ended")
client.close()
ray.shutdown()
print("done")
"""


def test_ray_transport(make_node: Callable[..., Node]) -> None:
    pytest.importorskip("ray", minversion="2.60")
    node = make_node("--evict", "lru")
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "FARROW_SOCKET": node.socket}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=600
    )
    assert "done" in done.stdout, done.stdout[-2000:] + done.stderr[-5000:]
