"""What new users write without reading: ``with``, ``in``, ``len``, notebooks, other libraries."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import farrow
from conftest import wait_until

if TYPE_CHECKING:
    from conftest import Node


def test_a_closed_client_lets_go_and_its_values_stay(node: Node) -> None:
    """``with farrow.connect() as client`` raised TypeError, and a client could not be closed: a
    server that kept a reference kept its place at the node."""
    watcher = farrow.connect(node.socket)
    with farrow.connect(node.socket) as client:
        client.put(pa.table({"n": [1, 2, 3]}), "kept")
        value = client.get("kept")
        pool = client.memory_pool()
        assert watcher.stats()["clients"] == 2
    for call in (
        lambda: client.get("kept"),
        lambda: client.put(b"x"),
        lambda: client.contains("kept"),
        lambda: client.memory_pool(),
        lambda: client.stats(),
    ):
        with pytest.raises(farrow.Disconnected, match="the client is closed"):
            call()
    assert client.address == node.socket
    assert "closed" in repr(client)
    assert "closed" in client._repr_html_()
    client.close()
    # The value and the pool keep the session.
    assert value["n"].to_pylist() == [1, 2, 3]
    assert watcher.stats()["clients"] == 2
    del value, pool
    gc.collect()
    wait_until(lambda: watcher.stats()["clients"] == 1, "the session to end")


def test_an_exception_passes_through(node: Node) -> None:
    with pytest.raises(KeyError), farrow.connect(node.socket) as client:
        raise KeyError("mine")
    with pytest.raises(farrow.Disconnected):
        client.stats()


def test_in_len_and_truth(node: Node) -> None:
    client = farrow.connect(node.socket)
    assert len(client) == 0
    assert client, "a client of an empty node is no false value"
    references = [client.put(b"hello"), client.put(b"hello", "named")]
    assert "named" in client
    assert references[0] in client
    assert references[0].id in client
    assert "other" not in client
    assert len(client) == 2
    client.create_namespace("team")
    team = farrow.connect(node.socket, namespace="team")
    assert len(team) == 0
    team.put(b"theirs", "named")
    assert (len(team), len(client)) == (1, 2)
    with pytest.raises(farrow.UnsupportedType):
        3 in client  # type: ignore[operator]  # noqa: B015


def test_a_notebook_shows_the_node(node: Node) -> None:
    client = farrow.connect(node.socket, namespace="")
    client.put(b"hello")
    page = client._repr_html_()
    assert f"<td>{node.socket}</td>" in page
    assert "<tr><th>objects</th><td>1</td></tr>" in page


def test_a_notebook_shows_statistics_with_units(node: Node) -> None:
    client = farrow.connect(node.socket)
    client.put(b"x" * 5000)
    stats = client.stats()
    page = stats._repr_html_()
    assert f"<tr><th>used</th><td>{stats['used']:,} B</td></tr>" in page
    assert f"<tr><th>uptime_ms</th><td>{stats['uptime_ms']:,} ms</td></tr>" in page
    assert f"<tr><th>pid</th><td>{stats['pid']}</td></tr>" in page
    assert page.count("<tr>") == len(stats)
    # It is a dictionary in all else.
    assert json.loads(json.dumps(stats)) == stats
    assert pickle.loads(pickle.dumps(stats)) == stats


NOTEBOOK = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import farrow, pyarrow as pa
def shown(value):
    return shell.display_formatter.format(value)[0].get("text/html")
client = farrow.connect(sys.argv[1])
print(json.dumps([shown(client.list()), shown(client.list("none")), shown(pa.table({"name": [1]})),
    shown(client.stats()), shown(client)]))
"""


def test_a_notebook_shows_the_list_of_objects(node: Node) -> None:
    client = farrow.connect(node.socket)
    # A name is text of somebody else.
    client.put(b"hello", "<script>alert(1)</script>", metadata={"k": "<b>"})
    for number in range(60):
        client.put(b"x" * 1234, f"zzz/{number}")
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, node.socket],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    listed, empty, foreign, stats, page = json.loads(done.stdout)
    assert "<caption>61 objects, the last 11 not shown</caption>" in listed
    assert listed.count("<tr>") == 51
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>" in listed
    assert "<td>k=&lt;b&gt;</td>" in listed
    assert "<td>1,234</td>" in listed
    assert "<script" not in listed + stats + page
    assert empty.count("<tr>") == 1
    # Every other table of pyarrow is as without farrow.
    assert foreign is None
    assert "statistics of the node" in stats


def test_values_for_other_libraries(node: Node) -> None:
    client = farrow.connect(node.socket)
    table = pa.table({"n": np.arange(1000), "s": ["a", None] * 500})
    client.put(table, "t")
    frame = client.get("t", as_="pandas")
    assert isinstance(frame, pd.DataFrame)
    assert frame["n"].sum() == 499_500
    assert frame["s"].isna().sum() == 500
    assert client.get("t", as_="polars").equals(pl.from_arrow(table))
    columns = client.get("t", columns=["n"], rows=slice(0, 10), as_="numpy")
    assert columns["n"].tolist() == list(range(10))
    assert client.get("t", as_="duckdb").sum("n").fetchall() == [(499_500,)]
    client.put(pa.array([1.5, 2.5]), "a")
    array = client.get("a", as_="numpy")
    assert client.locate(array)[0]["in_region"], "in place"
    assert client.get("a", as_="polars").to_list() == [1.5, 2.5]
    assert client.get("a", as_="pandas").tolist() == [1.5, 2.5]
    client.put(b"abc", "b")
    assert client.get("b", as_="numpy").tolist() == [97, 98, 99]
    with pytest.raises(farrow.UnsupportedType, match="no pandas value of a Buffer"):
        client.get("b", as_="pandas")
    with pytest.raises(farrow.InvalidArgument, match="'spark', not one of pandas"):
        client.get("b", as_="spark")  # type: ignore[arg-type]
    client.put(pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]), "twice")
    with pytest.raises(farrow.UnsupportedType, match=r"several of its columns are called \['n'\]"):
        client.get("twice", as_="numpy")


def test_frames_lie_in_place(node: Node) -> None:
    """Numbers and strings of a pandas or polars frame are the node's memory, not a copy."""
    client = farrow.connect(node.socket)
    client.put(pa.table({"n": np.arange(100_000), "x": np.arange(100_000) / 7}), "t")
    frame = client.get("t", as_="pandas")
    for name in ("n", "x"):
        column = pa.chunked_array(frame[name].array.__arrow_array__())
        assert all(place["in_region"] for place in client.locate(column)), name
    polars = client.get("t", as_="polars")
    assert all(place["in_region"] for place in client.locate(polars.to_arrow()))


@pytest.mark.parametrize(
    ("value", "help_"),
    [
        (pl.LazyFrame({"a": [1]}), r"\.collect\(\)"),
        (object(), "put_object"),
        ({"a": 1}, "put_object"),
        ([1, 2, 3], "pyarrow.array|put_object"),
    ],
)
def test_what_is_refused_says_which_call_helps(node: Node, value: Any, help_: str) -> None:
    client = farrow.connect(node.socket)
    with pytest.raises(farrow.UnsupportedType, match=help_):
        client.put(value)


@pytest.mark.parametrize(
    ("frame", "reason", "help_"),
    [
        (pd.DataFrame({"a": [1, "x", None]}), r"'x'.*column a", "astype"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column", "rename"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "column a", "astype"),
        (pd.DataFrame({"a": [1 + 2j]}), "column a", "astype"),
        (pd.DataFrame({"a": [2**70]}), "too large", "astype"),
        (pd.Series([1, "x"]), "'x'", "astype"),
    ],
    ids=["mixed", "duplicate", "sparse", "complex", "large", "series"],
)
def test_frames_without_a_form_in_arrow_are_refused_with_what_helps(
    node: Node, frame: Any, reason: str, help_: str
) -> None:
    """Each was the error of pandas or pyarrow, of five classes, which named no way out."""
    client = farrow.connect(node.socket)
    with pytest.raises(farrow.UnsupportedType, match=reason) as refused:
        client.put(frame, "frame")
    assert help_ in str(refused.value)
    assert "farrow.put_object" in str(refused.value)
    assert refused.value.__cause__ is not None
    assert client.stats()["granted"] == client.stats()["objects"] == 0


class Broken(pd.DataFrame):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_of_an_export_is_no_refusal(node: Node) -> None:
    with pytest.raises(KeyboardInterrupt):
        farrow.connect(node.socket).put(Broken({"a": [1]}))


def test_datasets_are_refused_with_the_call_that_helps(node: Node) -> None:
    dataset = pytest.importorskip("pyarrow.dataset").dataset(pa.table({"a": [1]}))
    client = farrow.connect(node.socket)
    for lazy in (dataset, dataset.scanner()):
        with pytest.raises(farrow.UnsupportedType, match=r"\.to_table\(\)"):
            client.put(lazy)


class OnlyDlpack:
    """A tensor of a library that Farrow does not know."""

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("not asked")


def test_tensors_are_refused_with_the_call_that_helps(node: Node) -> None:
    client = farrow.connect(node.socket)
    with pytest.raises(farrow.UnsupportedType, match=r"numpy\.from_dlpack"):
        client.put(OnlyDlpack())
