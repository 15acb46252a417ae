"""What a fresh installation of the wheel must do: run by tests/wheel.sh, and under an emulator.

python wheel_smoke.py first    put, and the first get in another process
python wheel_smoke.py all      also the memory pool, and features of a graph
"""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc

import farrow

OTHER = "import farrow; print(farrow.connect(timeout=60).get('numbers', timeout=60)['n'][-1])"


def check_first(client: farrow.Client) -> None:
    client.put(pa.table({"n": range(100_000)}), "numbers")
    done = subprocess.run(
        [sys.executable, "-c", OTHER], capture_output=True, text=True, check=False
    )
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


def main(what: str) -> None:
    client = farrow.connect(timeout=60)
    check_first(client)
    if what == "all":
        check_pool(client)
        check_graph()
    print(f"wheel: {what}: passed with Python {sys.version.split()[0]}, pyarrow {pa.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
