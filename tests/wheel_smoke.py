"""What a fresh installation of the wheel must do: run by tests/wheel.sh, and under an emulator.

python wheel_smoke.py first    put, and the first get in another process
python wheel_smoke.py all      also the memory pool, and features of a graph
python wheel_smoke.py all LAUNCHER    where LAUNCHER is the command that runs Python
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc

import farrow

OTHER = "import farrow; print(farrow.connect(timeout=60).get('numbers', timeout=60)['n'][-1])"


def start_node(python: str) -> subprocess.Popen[bytes]:
    """A node by itself: under an emulator a supervisor cannot restart its own program."""
    run = "import sys; from farrow._native import node_main; sys.exit(node_main(sys.argv[1:]))"
    memory = os.environ.get("FARROW_MEMORY", "64MiB")
    return subprocess.Popen([python, "-c", run, "--unsupervised", "--memory", memory])


def connect(limit: float) -> farrow.Client:
    """The client of a node that starts just now."""
    address = os.path.join(os.environ["XDG_RUNTIME_DIR"], "farrow", "node.sock")
    end = time.monotonic() + limit
    while True:
        try:
            return farrow.connect(address, timeout=limit)
        except farrow.Disconnected:
            assert time.monotonic() < end, f"no node within {limit} s"
            time.sleep(0.05)


def check_first(client: farrow.Client, python: str) -> None:
    client.put(pa.table({"n": range(100_000)}), "numbers")
    done = subprocess.run([python, "-c", OTHER], capture_output=True, text=True, check=False)
    assert done.stdout == "99999\n", done
    client.delete("numbers")


def check_pool(client: farrow.Client) -> None:
    pool = client.memory_pool()
    assert pool.backend_name == "farrow"
    built = pc.multiply(pa.array(range(100_000), pa.float64()), 1.5, memory_pool=pool)
    client.put(pa.table({"x": built}), "built")
    assert all(place["in_region"] for place in client.locate(built))
    assert client.get("built")["x"][-1].as_py() == 149998.5


def check_graph() -> None:
    import numpy as np

    from farrow.graph import GraphFeatures

    rows = np.array([[0, 1, 9, 1], [1, 2, 9, 2], [2, 3, 9, 3]], dtype=float)
    features = GraphFeatures(patterns=("fan",), window=10, bins=[2, 3])
    found = features.fit_transform(rows)[:, 4:].tolist()
    assert found == [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]], found


def main(what: str, launcher: str = "") -> None:
    node = start_node(launcher) if launcher else None
    try:
        client = connect(120) if launcher else farrow.connect()
        check_first(client, launcher or sys.executable)
        if what == "all":
            check_pool(client)
            check_graph()
    finally:
        if node is not None:
            node.terminate()
            node.wait(60)
    print(f"wheel: {what}: passed with Python {sys.version.split()[0]}, pyarrow {pa.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
