"""A clean ``pip install farrow farrow-sql`` has neither pandas nor NumPy.

``to_pylist`` of times with nanoseconds needs pandas: queries of put tables, datasets of far ones
and drains failed there with a ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from conftest import Cluster, Node, run_python, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

# Nodes that map nothing of each other.
ONLY = ("--plaintext", "--net=only", "--no-prepare")

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ImportError("pandas is hidden")

sys.meta_path.insert(0, Hidden())
socket = sys.argv[1]
"""

DATASET = """
import farrow, farrow.dataset
client = farrow.connect(socket)
# Most times have nanoseconds that are not whole microseconds; the last is a table of this node.
for name in ["far 0", "far 1", "far 2", "near"]:
    found = farrow.dataset.dataset(name, client=client)
    print(found.to_table(columns=["a"])["a"].to_pylist())
"""

QUERY = """
import farrow
client = farrow.connect(socket)
for name in ["far 0", "far 1", "far 2", "near"]:
    print(farrow.sql(f'select sum(a) as s from "{name}"', client, timeout=60).to_pylist())
"""

DRAIN = """
from farrow.cli import main
sys.exit(main(["node", "drain", "--socket", socket]))
"""


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(2, *ONLY)
    a, b = cluster.clients()
    for name in ["far 0", "far 1", "far 2"]:
        b.put(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}), name)
    a.put(pa.table({"a": [1, 2, 3]}), "near")
    wait_until(lambda: a.contains("far 2"), "the names are known")
    return cluster


def test_datasets_of_put_tables(two: Cluster) -> None:
    found = run_python(HIDDEN + DATASET, two.nodes["a"].socket)
    assert found.split("\n")[:-1] == ["[1, 2, 3]"] * 4


def test_queries_of_put_tables(two: Cluster) -> None:
    pytest.importorskip("farrow_sql")
    found = run_python(HIDDEN + QUERY, two.nodes["a"].socket)
    assert found.split("\n")[:-1] == ["[{'s': 6}]"] * 4


def test_a_drain(two: Cluster) -> None:
    assert "3 objects" in run_python(HIDDEN + DRAIN, two.nodes["b"].socket)
    a, b = two.clients()
    assert b.list().num_rows == 0
    assert a.get("far 0")["b"].to_pylist() == [4, 5, 6]


WITHOUT_NUMPY = """
import array, farrow, pyarrow as pa

class Stream:
    def __arrow_c_stream__(self, schema=None):
        return pa.table({"a": [4]}).__arrow_c_stream__(schema)

client = farrow.connect(socket)
client.put(memoryview(b"abc"), "view")
client.put(array.array("b", [1, 2]), "array")
client.put(Stream(), "stream")
client.huge_table("huge", pa.schema({"a": pa.int64()})).append(pa.table({"a": [5]}))
print(bytes(client.get("view")), bytes(client.get("array")), client.get("stream")["a"].to_pylist())
print(client.huge_table("huge").table()["a"].to_pylist())
"""


def test_values_without_numpy(node: Node) -> None:
    """Neither Farrow nor pyarrow requires it: a put of a memoryview did."""
    hidden = HIDDEN.replace('== "pandas"', 'in ("numpy", "pandas")')
    assert hidden != HIDDEN
    out = run_python(hidden + WITHOUT_NUMPY, node.socket)
    assert out.splitlines() == ["b'abc' b'\\x01\\x02' [4]", "[5]"]
