"""Tables of other clients that SQL cannot query leave other queries alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Node, wait_until
from sql_cases import WORKERS, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")

UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])]
)
# Whose name is in each query.
ODD = {
    "two columns of one name": pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
    "no columns": pa.table({}),
    "a union": pa.table({"k": [1, 2], "u": UNION}),
    "a nested union": pa.table({"k": [1], "u": [[7]]}).set_column(
        1, "u", pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), UNION)
    ),
    "half floats": pa.table({"h": pa.array([1.5], pa.float16())}),
    "months": pa.table({"m": pa.array([pa.MonthDayNano([1, 2, 3])])}),
    "no name": pa.table({"": [1]}),
    "nulls": pa.table({"s": pa.array([None])}),
}


@pytest.fixture(scope="module", params=[0, 2])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[farrow.Client]:
    """A client of a node without workers, and with two."""
    node = Node(tmp_path_factory.mktemp("node"))
    client = farrow.connect(node.socket)
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--socket", node.socket]
    workers = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(request.param)]
    try:
        wait_until(lambda: client.list(WORKERS).num_rows == len(workers), "the workers")
        yield client
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(LIMIT_SECONDS)
        node.close()


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_table_breaks_only_queries_of_it(client: farrow.Client, kind: str) -> None:
    client.put(pa.table({"price": [1, 2]}), "trades")
    client.put(ODD[kind], "e")
    try:
        assert rows_of(farrow.sql("select sum(price) from trades", client, timeout=60)) == [(3,)]
        if kind == "two columns of one name":
            with pytest.raises(farrow.UnsupportedType, match="table 'e' cannot be queried by SQL"):
                farrow.sql("select * from e", client, timeout=60)
        else:
            found = farrow.sql("select * from e", client, timeout=60)
            assert found.to_pylist() == ODD[kind].to_pylist()
    finally:
        client.delete(["trades", "e"])


TYPED = pa.table(
    {
        "id": pa.array([b"%016d" % n for n in range(3)], pa.uuid()),
        "flag": pa.array([1, None, 0], pa.bool8()),
        "text": pa.array(["{}", None, "[1]"], pa.json_()),
        "kind": pa.array(["x", None, "x"]).dictionary_encode(),
        "view": pa.array(["x", None, "y"], pa.string_view()),
        "list": pa.array([[1], None, []], pa.list_(pa.int16())),
        "ids": pa.array([[b"%016d" % 1], None, []], pa.list_(pa.binary(16))).cast(
            pa.list_(pa.uuid())
        ),
    }
)


@pytest.mark.parametrize(
    "query",
    ["select * from typed", "select * from typed limit 2", "select * from typed where id is null"],
)
def test_types_are_the_same_wherever_a_query_runs(client: farrow.Client, query: str) -> None:
    client.put(TYPED, "typed")
    try:
        found = farrow.sql(query, client, timeout=60)
    finally:
        client.delete("typed")
    assert found.schema == TYPED.schema
    assert found.equals(TYPED.slice(0, found.num_rows))
