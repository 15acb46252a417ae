"""Huge tables that keep an order and partitions: what an append may not do, and who knows of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
from conftest import LIMIT_SECONDS, run_python

if TYPE_CHECKING:
    from conftest import Cluster, Node

SCHEMA = pa.schema({"country": pa.string(), "ts": pa.int64(), "price": pa.float64()})


def rows(first: int, last: int, country: str | None = "nl") -> pa.Table:
    ts = list(range(first, last))
    return pa.table(
        {"country": [country] * len(ts), "ts": ts, "price": [one / 2 for one in ts]}, SCHEMA
    )


def test_an_append_that_breaks_the_order_is_refused(client: farrow.Client) -> None:
    table = client.huge_table("t", SCHEMA, sort_by="ts")
    table.append(rows(100, 200))
    table.append(rows(199, 300))  # 199 again: the order is not strict
    with pytest.raises(farrow.InvalidArgument, match=r"begin with 298, and row 200 .* has 299"):
        table.append(rows(298, 400))
    with pytest.raises(farrow.InvalidArgument, match='3 rows do not ascend by "ts"'):
        table.append(pa.table({"country": ["a"] * 3, "ts": [500, 499, 501], "price": [0.0] * 3}))
    with pytest.raises(farrow.InvalidArgument, match="1 are null"):
        nulls = {"country": ["a"] * 2, "ts": [500, None], "price": [0.0] * 2}
        table.append(pa.table(nulls, SCHEMA))
    with pytest.raises(farrow.InvalidArgument, match="without statistics"):
        table.append(rows(400, 500), statistics=False)
    # A position before rows that exist: its last row counts too.
    table.append(rows(900, 1000), position=1000)
    with pytest.raises(farrow.InvalidArgument, match=r"end with 950, and row 1000 behind .* 900"):
        table.append(rows(850, 951), position=500)
    table.append(rows(850, 901), position=500)
    # What was refused left nothing.
    assert table.version == 4
    assert client.list("t/").num_rows == 4 + 1


def test_an_order_belongs_to_a_partition(client: farrow.Client) -> None:
    table = client.huge_table("t", SCHEMA, sort_by="ts", partition_by=["country"])
    table.append(rows(100, 200, "nl"))
    table.append(rows(0, 50, "de"))
    table.append(rows(0, 10, None))
    table.append(rows(200, 300, "nl"))
    table.append(rows(50, 60, "de"))
    with pytest.raises(farrow.InvalidArgument, match=r"begin with 40, and row .* has 59"):
        table.append(rows(40, 70, "de"))
    with pytest.raises(farrow.InvalidArgument, match="has 9"):
        table.append(rows(5, 7, None))
    two = pa.concat_tables([rows(400, 401, "nl"), rows(402, 403, "de")])
    with pytest.raises(farrow.InvalidArgument, match=r"several values in 2 rows"):
        table.append(two)
    with pytest.raises(farrow.InvalidArgument, match="32 B"):
        table.append(rows(400, 401, "x" * 33))
    dataset = table.dataset()
    country = pc.field("country")
    assert [part.version for part in dataset.partitions(country == "de")] == [2, 5]
    assert [part.version for part in dataset.partitions(country != "nl")] == [2, 5]
    assert [part.version for part in dataset.partitions(country.is_null())] == [3]
    assert dataset.count_rows(filter=(country == "nl") & (pc.field("ts") < 150)) == 50


def test_the_order_is_the_tables(client: farrow.Client, node: Node) -> None:
    table = client.huge_table("t", SCHEMA, sort_by="ts", partition_by=["country"])
    assert (table.sort_by, table.partition_by) == ("ts", ("country",))
    table.append(rows(10, 20))
    node.restart()
    script = """
import sys, farrow, pyarrow as pa
table = farrow.connect(sys.argv[1]).huge_table("t")
print(table.sort_by, *table.partition_by)
try:
    table.append(pa.table({"country": ["nl"], "ts": [5], "price": [0.0]}, table.schema))
except farrow.InvalidArgument as error:
    print(error)
"""
    found = run_python(script, node.socket).splitlines()
    assert found[0] == "ts country"
    assert "has 19" in found[1]
    again = farrow.connect(node.socket)
    assert again.huge_table("t", SCHEMA).sort_by == "ts"
    assert again.huge_table("t", SCHEMA, sort_by="ts", partition_by=["country"]).rows == 10
    for options in ({"sort_by": "ts"}, {"partition_by": ["country"]}):
        with pytest.raises(farrow.InvalidArgument, match='huge table "t" has sort_by'):
            again.huge_table("t", SCHEMA, **options)
    plain = again.huge_table("plain", SCHEMA)
    assert (plain.sort_by, plain.partition_by) == (None, ())
    with pytest.raises(farrow.InvalidArgument, match="has sort_by None"):
        again.huge_table("plain", sort_by="ts")


def test_what_cannot_have_an_order_is_refused(client: farrow.Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sort_by": "price"}, "Float64"),
        ({"sort_by": "country"}, "Utf8"),
        ({"sort_by": "none"}, "no column"),
        ({"partition_by": ["none"]}, "no column"),
    ]
    for options, message in wrong:
        with pytest.raises(farrow.InvalidArgument, match=message):
            client.huge_table("t", SCHEMA, **options)
    with pytest.raises(TypeError, match="partition_by"):
        client.huge_table("t", SCHEMA, partition_by="country")
    wide = pa.schema([(f"column {number}", pa.string()) for number in range(100)])
    with pytest.raises(farrow.InvalidArgument, match="move it to the front"):
        client.huge_table("t", wide, partition_by=["column 99"])
    assert not client.contains("t")


def test_types_that_ascend(client: farrow.Client) -> None:
    moments = [dt.datetime(2024, 1, day) for day in (1, 2, 3)]
    columns = [
        pa.array(moments, pa.timestamp("us", "Europe/Berlin")),
        pa.array([one.date() for one in moments]),
        pa.array([-1, 0, 1], pa.int8()),
        pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
        pa.array([dt.time(1), dt.time(2), dt.time(3)], pa.time64("ns")),
    ]
    for number, column in enumerate(columns):
        name = f"t{number}"
        table = client.huge_table(name, pa.schema({"k": column.type}), sort_by="k")
        table.append(pa.table({"k": column[:2]}))
        with pytest.raises(farrow.InvalidArgument, match="ascends by"):
            table.append(pa.table({"k": column[:1]}))
        table.append(pa.table({"k": column[1:]}))


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())]
)
def test_both_zeros_are_one_partition(client: farrow.Client, kind: pa.DataType) -> None:
    table = client.huge_table("strikes", pa.schema({"strike": kind}), partition_by=["strike"])

    def rows(values: list[float]) -> pa.Table:
        if pa.types.is_dictionary(kind):
            indices = pa.array(range(len(values)), pa.int8())
            return pa.table({"strike": pa.DictionaryArray.from_arrays(indices, pa.array(values))})
        return pa.table({"strike": pa.array(values, kind)})

    for values in ([0.0, 0.0], [-0.0], [0.0, -0.0], [1.5]):
        table.append(rows(values))
    assert table.rows == 6
    with pytest.raises(farrow.InvalidArgument, match="NaN"):
        table.append(rows([math.nan]))


def test_appends_that_race_keep_the_order(nodes: Cluster) -> None:
    """Of appends that race for one version the loser compares with the winner's rows."""
    tables = [
        client.huge_table("race", SCHEMA, sort_by="ts", partition_by=["country"])
        for client in nodes.clients()
    ]

    def append(number: int) -> int:
        done = 0
        for start in range(0, 200, 10):
            table = tables[number % 3]
            with contextlib.suppress(farrow.InvalidArgument):
                table.append(rows(start, start + 10, "ab"[number % 2]), timeout=LIMIT_SECONDS)
                done += 1
        return done

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        done = sum(threads.map(append, range(6)))
    found = tables[0].table()
    assert found.num_rows == 10 * done
    for country in "ab":
        ts = found.filter(pc.field("country") == country)["ts"].to_pylist()
        assert ts == sorted(ts)
        assert ts[-1] == 199
    tables[0].drop()
