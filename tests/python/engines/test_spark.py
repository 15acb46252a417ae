"""Spark: its tasks read chunks of a table, and write tables, as the data source ``farrow``.

Spark is large and needs Java, so these tests run by ``make test-spark``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farrow

if TYPE_CHECKING:
    from conftest import Node

REQUIRED = os.environ.get("FARROW_SPARK") == "require"

PROGRAM = """
import datetime as dt, decimal, json, os, sys
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, functions as F
import farrow, farrow.spark

address = sys.argv[1]
client = farrow.connect(address)
ROWS = 5_000
def part(number):
    n = pa.array(range(number * ROWS, (number + 1) * ROWS))
    return pa.table({"n": n, "k": pa.array([one.as_py() % 7 for one in n], pa.int32()),
                     "price": pc.cast(n, pa.float64()),
                     "name": pa.array([f"name {one % 3}" for one in range(ROWS)])})
trades = client.huge_table("trades", part(0).schema)
for number in range(6):
    trades.append(part(number))
whole = trades.table()

spark = (SparkSession.builder.master("local[2]").appName("farrow")
    .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(farrow.spark.FarrowDataSource)
def load(name, **options):
    return spark.read.format("farrow").option("address", address).options(**options).load(name)
def refuses(action, text):
    try:
        action()
    except Exception as error:
        assert text in str(error), (text, error)
    else:
        raise AssertionError(text)

# Rows, by partitions of contiguous chunks.
frame = load("trades", tasks="3")
assert [field.simpleString() for field in frame.schema] == [
    "n:bigint", "k:int", "price:double", "name:string"]
assert frame.rdd.getNumPartitions() == 3
found = frame.groupBy("k").agg(F.sum("n").alias("s")).orderBy("k").collect()
wanted = whole.group_by("k").aggregate([("n", "sum")]).sort_by("k")
assert [row.k for row in found] == wanted["k"].to_pylist()
assert [row.s for row in found] == wanted["n_sum"].to_pylist()
assert frame.count() == 6 * ROWS
assert frame.select("name").distinct().count() == 3

# A frame that is used again: a filter of one query must not be in the next one.
assert frame.filter("n < 10").count() == 10
assert frame.count() == 6 * ROWS
assert frame.filter("n >= 10").count() == 6 * ROWS - 10
assert frame.filter("n < 15 and k = 3").count() == 2

# Columns and rows of the options; chunks without such rows are in no partition.
some = load("trades", columns="price,n", filters=json.dumps([["n", ">=", 5 * ROWS + 100]]))
assert some.columns == ["price", "n"]
assert (some.count(), some.rdd.getNumPartitions()) == (ROWS - 100, 1)
either = load("trades", filters=json.dumps([[["n", "<", 5]], [["n", "in", [29_999, -1]]]]))
assert sorted(row.n for row in either.collect()) == [0, 1, 2, 3, 4, 29_999]
assert load("trades", filters='[["n", "<", 0]]').count() == 0
assert load("trades", version="2").count() == 2 * ROWS
refuses(lambda: load("nothing").count(), "NotFound")
refuses(lambda: load("trades", columns="missing").count(), "no column")
refuses(lambda: load("trades", colums="n").count(), "no options")
refuses(lambda: load("trades", filters="n > 5").count(), "filters")

# A view, as SQL.
frame.createOrReplaceTempView("trades")
assert spark.sql("select count(*) from trades where price = 7.0").first()[0] == 1

# Types that Spark does not have, and nulls.
when = dt.datetime(2024, 2, 29, 12, 30, 15, 250)
mixed = pa.table({
    "u8": pa.array([255, None], pa.uint8()), "u64": pa.array([2**64 - 1, None], pa.uint64()),
    "half": pa.array([1.5, None], pa.float16()), "kind": pa.array(["x", None]).dictionary_encode(),
    "view": pa.array(["v", None], pa.string_view()),
    "large": pa.array(["l", None], pa.large_string()),
    "data": pa.array([b"ab", None], pa.binary(2)), "day": pa.array([when.date(), None]),
    "naive": pa.array([when, None], pa.timestamp("ns")),
    "utc": pa.array([when, None], pa.timestamp("ms", "Europe/Amsterdam")),
    "money": pa.array([decimal.Decimal("12.34"), None], pa.decimal128(10, 2)),
    "list": [[1, None], None], "struct": [{"a": 1}, None], "flag": [True, None],
})
client.put(mixed, "mixed")
first, second = load("mixed").collect()
assert (first.u8, first.u64, first.half, first.kind) == (255, 2**64 - 1, 1.5, "x")
assert (first.view, first.large, bytes(first.data), first.day) == ("v", "l", b"ab", when.date())
assert (first.naive, first.money, first.list) == (when, decimal.Decimal("12.34"), [1, None])
assert (first.struct.a, first.flag) == (1, True)
utc = load("mixed").select(F.date_format("utc", "yyyy-MM-dd HH:mm:ss").alias("t")).first().t
assert utc == (when.strftime("%Y-%m-%d %H:%M:%S")), utc
assert all(value is None for value in second)
client.put(pa.table({"t": pa.array([1], pa.time64("us"))}), "times")
refuses(lambda: load("times"), "column 't'")
client.put(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), "nanoseconds")
refuses(lambda: load("nanoseconds").collect(), "would lose data")

# Writing appends, in order of the tasks, to a new table and to an existing one.
def save(rows, name, mode="append", **options):
    rows.write.format("farrow").option("address", address).options(**options).mode(mode).save(name)
doubled = frame.selectExpr("n * 2 as n", "name")
save(doubled, "copy")
copy = client.huge_table("copy")
assert copy.table()["n"].to_pylist() == list(range(0, 12 * ROWS, 2))
assert copy.table()["name"].to_pylist() == whole["name"].to_pylist()
save(doubled.limit(3), "copy")
assert copy.rows == 6 * ROWS + 3
assert load("copy").count() == 6 * ROWS + 3
# Larger blocks are divided, and a job without rows adds none.
save(spark.range(0, 12_000_000, 1, 2), "large")
large = client.huge_table("large")
assert large.rows == 12_000_000 and len(large.partitions()) >= 2
assert pc.sum(large.table()["id"]).as_py() == sum(range(12_000_000))
large.drop()
save(doubled.filter("n < 0"), "none")
assert not client.contains("none")
refuses(lambda: save(doubled, "copy", mode="overwrite"), "overwrite")
refuses(lambda: save(doubled.selectExpr("name as other"), "copy"), "other")

# A job that fails adds no row, and leaves no memory behind.
before = client.stats()["used"]
def broken(batches):
    for batch in batches:
        if pc.max(batch["n"]).as_py() > 50_000:
            raise RuntimeError("broken on purpose")
        yield batch
fails = doubled.mapInArrow(broken, "n long, name string")
refuses(lambda: save(fails, "copy"), "broken on purpose")
assert copy.rows == 6 * ROWS + 3
assert client.stats()["used"] <= before, (client.stats()["used"], before)

spark.stop()
print("done")
"""


@pytest.fixture
def has_spark() -> None:
    found = shutil.which("java") is not None
    try:
        import pyspark  # noqa: F401
    except ImportError:
        found = False
    if not found:
        assert not REQUIRED, "pyspark or java is not installed"
        pytest.skip("pyspark or java is not installed: make test-spark")


@pytest.mark.usefixtures("has_spark")
def test_spark_reads_and_writes(node: Node, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        # Spark's Python processes must find this package.
        "PYTHONPATH": os.pathsep.join([str(Path(farrow.__file__).parents[1]), *sys.path]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, node.socket],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-8000:]}"
    assert done.stdout.endswith("done\n")
