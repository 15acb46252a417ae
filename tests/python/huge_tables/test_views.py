"""Columns of views, which polars puts: Arrow has no kernels that select their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
import farrow.dataset
from farrow._scan import _chunks

pytestmark = pytest.mark.skipif(
    int(pa.__version__.partition(".")[0]) < 18, reason="pyarrow 18 or later casts views"
)

NAMES = ["a", "a name that is longer than twelve bytes", None, "d"]


def rows() -> pa.Table:
    names = pa.array(NAMES).cast(pa.string_view())
    offsets = pa.array([0, 1, 2, 3, 4], pa.int32())
    keys = pa.array(["a", "b", "c", "d"]).cast(pa.string_view())
    return pa.table(
        {
            "name": names,
            "bytes": pa.array([b"a", None, b"c", b"d" * 20]).cast(pa.binary_view()),
            "list": pa.ListArray.from_arrays(offsets, names),
            "large": pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), names),
            "fixed": pa.FixedSizeListArray.from_arrays(names, 1),
            "struct": pa.StructArray.from_arrays([names, pa.array(range(4))], names=["s", "n"]),
            "map": pa.MapArray.from_arrays(offsets, keys, names),
            "codes": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3], pa.int8()), keys),
            "price": [1, 2, 1, 3],
        }
    )


@pytest.fixture(params=["put", "huge table"])
def dataset(client: farrow.Client, request: pytest.FixtureRequest) -> farrow.dataset.FarrowDataset:
    if request.param == "put":
        client.put(rows(), "n")
    else:
        table = client.huge_table("n", rows().schema)
        table.append(rows().slice(0, 2))
        table.append(rows().slice(2))
    return farrow.dataset.dataset("n", client)


def test_filters_select_views(dataset: farrow.dataset.FarrowDataset) -> None:
    price, name = pc.field("price"), pc.field("name")
    found = dataset.to_table(columns=["price"], filter=price == 1)
    assert found.to_pydict() == {"price": [1, 1]}
    found = dataset.to_table(filter=price == 1)
    assert found.schema == rows().schema
    assert found.to_pylist() == [rows().to_pylist()[n] for n in (0, 2)]
    found = dataset.to_table(columns=["name"], filter=name == NAMES[1])
    assert found["name"].to_pylist() == [NAMES[1]]
    assert dataset.count_rows(filter=name >= "b") == 1
    assert dataset.filter(price == 1).filter(name.is_null()).to_table()["price"].to_pylist() == [1]
    columns = {"twice": price * 2, "again": name, "is": name == "a"}
    found = dataset.to_table(columns=columns, filter=price < 3)
    assert found["again"].type == pa.string_view()
    assert found["again"].to_pylist() == NAMES[:3]
    assert found["twice"].to_pylist() == [2, 4, 2]
    scanner = dataset.scanner(columns=["name", "price"], filter=price == 3)
    # More than once, as any scanner of a dataset.
    for _ in range(2):
        assert scanner.to_table().to_pydict() == {"name": ["d"], "price": [3]}
    batches = list(dataset.to_batches(columns=["bytes"], filter=price == 3))
    assert [value.as_py() for batch in batches for value in batch["bytes"]] == [b"d" * 20]
    fragments = list(dataset.get_fragments(price == 3))
    assert sum(one.count_rows(filter=price == 3) for one in fragments) == 1


def test_views_are_in_place_without_filter(
    dataset: farrow.dataset.FarrowDataset, client: farrow.Client
) -> None:
    [first, *_] = dataset.to_table(columns=["name"])["name"].chunks
    views = first.buffers()[1]
    assert client._offset(views.address, views.size) is not None


def test_views_in_an_extension_are_an_error(client: farrow.Client) -> None:
    if not hasattr(pa, "opaque"):
        pytest.skip("pyarrow 18 or later")
    names = rows()["name"].chunk(0)
    x = pa.ExtensionArray.from_storage(pa.opaque(names.type, "x", "y"), names)
    table = client.huge_table("n", pa.schema({"x": x.type, "price": pa.int64()}))
    table.append(pa.table([x, rows()["price"]], schema=table.schema))
    dataset = table.dataset()
    assert dataset.to_table().equals(table.table())
    assert dataset.to_table(["price"], filter=pc.field("price") == 3).num_rows == 1
    with pytest.raises(farrow.UnsupportedType, match="column 'x', extension<"):
        dataset.to_table(filter=pc.field("price") == 3)
    # Chunks that engines read.
    schema, chunks = _chunks.chunks(client, "n")
    for columns, filter, count in ((["price"], pc.field("price") == 3, 1), (["x"], None, 4)):
        selection = _chunks.selection(schema, columns, filter)
        assert sum(selection.read(client, one.id).num_rows for one in chunks) == count
    selection = _chunks.selection(schema, ["x"], pc.field("price") == 3)
    with pytest.raises(farrow.UnsupportedType, match="column 'x', extension<"):
        selection.read(client, chunks[0].id)


@pytest.mark.usefixtures("dataset")
def test_datafusion_filters_tables_with_views(client: farrow.Client) -> None:
    datafusion: Any = pytest.importorskip("datafusion")
    from farrow.datafusion import attach

    context = datafusion.SessionContext()
    attach(context, client, ["n"])
    for where, prices in [("price = 1", [1, 1]), ("name = 'd'", [3]), ("name is null", [1])]:
        found = context.sql(f"select price, name, list from n where {where}").to_arrow_table()
        assert found["price"].to_pylist() == prices, where


@pytest.mark.usefixtures("dataset")
def test_duckdb_filters_tables_with_views(client: farrow.Client) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    from farrow.duckdb import attach

    connection = duckdb.connect()
    attach(connection, client, ["n"])
    assert connection.sql("select name from n where price = 3").fetchall() == [("d",)]
    assert connection.sql("select price from n where name = 'd'").fetchall() == [(3,)]


def test_polars_scans_filtered_views(dataset: farrow.dataset.FarrowDataset) -> None:
    pytest.importorskip("polars")
    from farrow.polars import scan

    frame = scan(dataset.filter(pc.field("price") == 1)).select("name", "price").collect()
    assert frame["name"].to_list() == ["a", None]


@pytest.mark.usefixtures("dataset")
def test_dask_reads_views(client: farrow.Client) -> None:
    pytest.importorskip("dask.dataframe")
    pytest.importorskip("distributed")
    import farrow.dask

    columns = ["name", "bytes", "price"]
    frame = farrow.dask.read_farrow("n", columns, address=client.address).compute()
    assert frame["price"].tolist() == [1, 2, 1, 3]
    assert frame["name"].dropna().tolist() == ["a", NAMES[1], "d"]
    filters = [("price", "==", 3)]
    some = farrow.dask.read_farrow("n", columns, filters, address=client.address).compute()
    assert some["name"].tolist() == ["d"]


def test_a_frame_of_polars_can_be_filtered(client: farrow.Client) -> None:
    pl: Any = pytest.importorskip("polars")
    client.put(pl.DataFrame({"name": ["a", "b"], "price": [1, 2]}), "n")
    found = farrow.dataset.dataset("n", client).to_table(filter=pc.field("price") == 1)
    assert found.to_pydict() == {"name": ["a"], "price": [1]}
