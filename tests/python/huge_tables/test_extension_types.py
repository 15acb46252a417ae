"""Datasets over huge tables whose columns have extension types: read, and pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset
from conftest import run_python

if TYPE_CHECKING:
    from conftest import Node

pytestmark = pytest.mark.skipif(not hasattr(pa, "opaque"), reason="pyarrow 18 or later")

DICTIONARY = pa.dictionary(pa.int8(), pa.string())


def opaque(values: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.opaque(values.type, "x", "y"), values)


def appended(client: farrow.Client, *arrays: pa.Array) -> farrow.HugeTable:
    """A huge table with a chunk for each array, in column ``x``, and the chunk's number."""
    schema = pa.schema({"x": arrays[0].type, "number": pa.int64()})
    table = client.huge_table("extended", schema)
    for number, array in enumerate(arrays):
        table.append(pa.table([array, pa.array([number] * len(array))], schema=schema))
    return table


def extended_arrays() -> list[pa.Array]:
    found = [
        opaque(pa.array(["a", "b"])),
        opaque(pa.array([b"a", b"b"], pa.binary(1))),
        opaque(pa.array([1, 2])),
        opaque(pa.array(["a", "b"], DICTIONARY)),
        opaque(pa.array([{"a": 1}, {"a": 2}])),
        opaque(pa.array([[1], [2, 3]])),
        opaque(pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))),
        opaque(pa.array([True, False])),
        opaque(pa.nulls(2)),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)),
        pa.array([{"a": 1}, {"a": 2}], pa.struct({"a": pa.int64()})),
    ]
    # In a struct and in a list.
    found.append(pa.StructArray.from_arrays([found[0], found[3]], names=["a", "b"]))
    found.append(pa.ListArray.from_arrays(pa.array([0, 1, 2]), found[0]))
    if hasattr(pa, "json_"):
        found.append(pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "[]"])))
    return found


@pytest.mark.parametrize("number", range(len(extended_arrays()) if hasattr(pa, "opaque") else 0))
def test_extension_types_have_datasets(client: farrow.Client, number: int) -> None:
    """A dataset of strings, views, lists or structs in an extension was an error."""
    array = extended_arrays()[number]
    table = appended(client, array, array.slice(1))
    rows = table.dataset()
    assert rows.to_table().equals(table.table())
    second = pc.field("number") == 1
    assert [part.position for part in rows.partitions(second)] == [2]
    assert rows.to_table(filter=second)["x"].combine_chunks().equals(array.slice(1))


def test_intervals_of_pandas_have_a_dataset(client: farrow.Client) -> None:
    pd: Any = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": pd.interval_range(0, 2)})
    [x] = pa.Table.from_pandas(frame)["x"].chunks
    rows = appended(client, x).dataset()
    assert rows.to_table().to_pandas()["x"].tolist() == frame["x"].tolist()


READ = """
import sys
import pyarrow.compute as pc
import farrow, farrow.dataset
table = farrow.connect(sys.argv[1]).huge_table("extended")
[chunk] = farrow.dataset.statistics(table)
found = chunk.columns[("x",)]
print(found.min, found.max, table.dataset().to_table(filter=pc.field("number") == 0).num_rows)
"""


def test_a_dictionary_in_an_extension_ends_no_process(client: farrow.Client, node: Node) -> None:
    """The bounds are values of the dictionary, of which Arrow made an array of the extension type:
    a failed check, and SIGABRT."""
    appended(client, opaque(pa.array(["u", "v"], DICTIONARY)))
    assert run_python(READ, node.socket).split() == ["u", "v", "2"]


def test_nan_in_an_extension_loses_no_rows(client: farrow.Client) -> None:
    """Bounds say nothing of a comparison with NaN, here as for plain columns."""
    table = appended(client, opaque(pa.array([1.0, 2.0])), opaque(pa.array([float("nan"), 3.0])))
    plain = pa.table({"x": [1.0, 2.0, float("nan"), 3.0], "number": [0, 0, 1, 1]})
    x, nan = pc.field("x").cast(pa.float64()), float("nan")
    for filter in (x > 2.5, x != 3.0, ~(x < nan), x != nan, pc.is_nan(x)):
        assert table.dataset().count_rows(filter=filter) == plain.filter(filter).num_rows
