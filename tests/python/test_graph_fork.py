"""A GraphFeatures with threads in a forked child, which has none of them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sklearn")

from conftest import LIMIT_SECONDS, run_python

SCRIPT = """
import json, os, select, signal, sys
import numpy as np
from farrow.graph import GraphFeatures

random = np.random.default_rng(3)
rows = np.zeros((4000, 4))
rows[:, 0] = rows[:, 3] = np.arange(4000)
rows[:, 1:3] = random.integers(0, 50, (4000, 2))
features = GraphFeatures(patterns=["fan", "degree"], window=500, bins=[2, 9], threads=2)
features.fit(rows[:3000])
wanted = features.preview(rows[3000:])

def in_child(work):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], float(sys.argv[1]))
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(os.read(reader, 1 << 16)) if ready else "no answer"

def same():
    return bool(np.array_equal(features.preview(rows[3000:]), wanted))

def grandchild():
    return [same(), in_child(same)]

def added():
    features.partial_fit(rows[3000:])
    features.close()
    return 0

print(json.dumps([in_child(same), in_child(grandchild), in_child(added), same()]))
"""


def test_a_forked_child_has_threads_of_its_own():
    """It waited for threads that only its parent has."""
    found = json.loads(run_python(SCRIPT, str(LIMIT_SECONDS)))
    assert found == [True, [True, True], 0, True]
