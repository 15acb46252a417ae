"""GraphFeatures as a user of scikit-learn and of tables meets it."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from farrow.graph import GraphFeatures, data
from graph_features_cases import features, rows_of, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_worked_example():
    """Three payers of one account, the third within the window of the first."""
    rows = np.array([[0, 1, 9, 1], [1, 2, 9, 2], [2, 3, 9, 3]], dtype=float)
    causal = GraphFeatures(patterns=("fan",), window=10, bins=[2, 3])
    assert causal.fit_transform(rows)[:, 4:6].tolist() == [[0, 0], [1, 0], [0, 1]]
    batch = clone(causal).set_params(mode="batch")
    assert batch.fit_transform(rows)[:, 4:6].tolist() == [[1, 1], [1, 1], [0, 1]]
    assert list(batch.get_feature_names_out())[:5] == [
        "edge_id", "source", "target", "timestamp", "fan_in[2]",
    ]  # fmt: skip


@pytest.mark.parametrize(("cycle_length", "found"), [(10, 0), (12, 1), (sys.maxsize, 1)])
def test_a_cycle_may_have_any_length(cycle_length: int, found: int):
    """A ring of twelve accounts is longer than the default limit."""
    ends = np.arange(12)
    rows = np.c_[ends, ends, (ends + 1) % 12, ends].astype(float)
    one = GraphFeatures(patterns=("lc-cycle",), window=60, cycle_length=cycle_length)
    assert one.fit_transform(rows)[:, 4:].sum() == found


@pytest.mark.parametrize("size", [1, 7, 501])
def test_the_cut_into_calls_and_threads_change_nothing(size: int):
    rows = rows_of(1500)
    whole = features().fit_transform(rows)
    cut = features(threads=2)
    parts = [cut.transform(rows[at : at + size]) for at in range(0, len(rows), size)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole[:, 5:].any(axis=0).sum() > 20


def test_scikit_learn_takes_it_for_one_of_its_own():
    rows = rows_of(400)
    pipeline = make_pipeline(features(), StandardScaler())
    assert pipeline.fit(rows[:300]).transform(rows[300:]).shape == (
        100,
        len(pipeline[0].get_feature_names_out()),
    )
    twin = clone(features(window="10m", bins={"fan": [2, 5]}))
    assert twin.get_params()["window"] == "10m"
    with pytest.raises(NotFittedError):
        twin.get_feature_names_out()
    # A changed parameter empties the graph.
    twin.fit(rows)
    assert twin.stats()["rows"] == 400
    twin.set_params(window=60).partial_fit(rows[:3])
    assert twin.stats()["rows"] == 3


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_a_graph_that_is_retained_goes_on_where_it_stopped(tmp_path, mode: str):
    rows = rows_of(900)
    table = table_of(rows)
    for first, rest in ((rows[:600], rows[600:]), (table.slice(0, 600), table.slice(600))):
        one = features(mode=mode, evidence=True, edges_max=100)
        one.partial_fit(first)
        one.save(tmp_path / "graph.arrow")
        twins = [pickle.loads(pickle.dumps(one)), GraphFeatures.load(tmp_path / "graph.arrow")]
        result, found = one.patterns_of(rest)
        for twin in twins:
            again, patterns = twin.patterns_of(rest)
            np.testing.assert_array_equal(np.array(again), np.array(result))
            assert patterns.equals(found)
            assert twin.stats()["rows"] == 900
    assert found.num_rows > 0


def test_a_file_that_is_no_graph(tmp_path):
    path = tmp_path / "other.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([])) as _:
        pass
    with pytest.raises(ValueError, match="holds no graph features"):
        GraphFeatures.load(path)
    with pytest.raises(FileNotFoundError):
        GraphFeatures.load(tmp_path / "missing")


def test_tables_give_what_arrays_give():
    rows = rows_of(800)
    wanted = features().fit_transform(rows)[:, 5:]
    table = table_of(rows)
    result = features().fit_transform(table)
    assert result.column_names[:5] == table.column_names
    assert result.select(table.column_names).equals(table)
    # Accounts that are strings have other numbers, by which lc-cycle puts one instant in order.
    names = result.column_names[5:]
    same = [at for at, name in enumerate(names) if not name.startswith("lc-cycle")]
    found = np.column_stack([result[names[at]].to_numpy() for at in same])
    np.testing.assert_array_equal(found, wanted[:, same])
    assert "source_out_mean(amount)" in names


def test_a_later_table_means_what_the_first_did():
    """Another unit of time is taken as such; another kind of value is refused."""
    table = table_of(rows_of(400))

    def timed(part, unit):
        times = part["timestamp"].cast(pa.timestamp("s")).cast(pa.timestamp(unit))
        return part.set_column(3, "timestamp", times)

    first, rest = table.slice(0, 200), table.slice(200)
    one, other = features(), features()
    one.fit(timed(first, "s"))
    other.fit(timed(first, "s"))
    names = one.get_feature_names_out()[5:]
    wanted = one.transform(timed(rest, "s")).select(list(names))
    assert other.transform(timed(rest, "ns")).select(list(names)).equals(wanted)
    odd = timed(rest, "ns")["timestamp"].cast(pa.int64()).to_numpy() + 1
    odd = pa.array(odd).cast(pa.timestamp("ns"))
    edges = other.stats()["edges"]
    with pytest.raises(ValueError, match=r"'timestamp' \(timestamp\): .* would lose data"):
        other.transform(rest.set_column(3, "timestamp", odd))
    with pytest.raises(TypeError, match="holds numbers, but timestamps without a time zone came"):
        other.transform(rest.set_column(3, "timestamp", rest["timestamp"].cast(pa.int64())))
    numbers = timed(rest, "s").set_column(1, "source", pa.array(range(200)))
    with pytest.raises(TypeError, match=r"'source' \(source\) holds numbers, but strings came"):
        other.transform(numbers)
    assert other.stats()["edges"] == edges
    nobody = first.set_column(2, "target", pa.array([None, *["a"] * 199]))
    with pytest.raises(ValueError, match=r"'target' \(target\) has 1 nulls"):
        features().fit(nobody)


@pytest.mark.parametrize("value", [np.nan, np.inf, None])
def test_what_cannot_be_measured_is_refused(value):
    """It would stay in the sums of its accounts."""
    rows = rows_of(100)
    table = table_of(rows)
    one, other = features(), features()
    one.fit(rows)
    other.fit(table)
    edges = one.stats()["edges"]
    bad = rows_of(10)
    bad[3, 4] = np.nan if value is None else value
    with pytest.raises(ValueError, match=r"column 4 is (NaN|inf) in row 3"):
        one.transform(bad)
    amounts = [1.0] * 3 + [value] + [1.0] * 6
    bad = table.slice(0, 10).set_column(4, "amount", pa.array(amounts))
    with pytest.raises(ValueError, match=r"'amount' (is (nan|inf) in row 3|has 1 nulls)"):
        other.transform(bad)
    assert one.stats()["edges"] == other.stats()["edges"] == edges


def test_polars_and_pandas_come_back_as_they_came():
    polars = pytest.importorskip("polars")
    pandas = pytest.importorskip("pandas")
    table = table_of(rows_of(200))
    wanted = features(window="10m").fit_transform(table)
    frame = features(window="10m").fit_transform(polars.from_arrow(table))
    assert isinstance(frame, polars.DataFrame)
    assert frame["fan_in[2]"].to_list() == wanted["fan_in[2]"].to_pylist()
    frame = features(window="10m").fit_transform(table.to_pandas())
    assert isinstance(frame, pandas.DataFrame)
    assert frame["fan_in[2]"].tolist() == wanted["fan_in[2]"].to_pylist()


def test_a_table_without_ids_with_its_own_names():
    rows = rows_of(300)
    table = pa.table(
        {
            "payer": rows[:, 1].astype(int),
            "payee": rows[:, 2].astype(int),
            "at": rows[:, 3].astype(int),
        }
    )
    names = {"source": "payer", "target": "payee", "timestamp": "at"}
    given = features(patterns=("degree",), columns=names, evidence=True)
    wanted = features(patterns=("degree",)).fit_transform(rows)[:, 5:]
    result, found = given.patterns_of(table)
    assert np.array_equal(np.column_stack(result.columns[3:]), wanted)
    assert set(found["trigger"].to_pylist()) <= set(range(300))
    with pytest.raises(ValueError, match="no column 'who' for the source"):
        features(columns={"source": "who"}).fit(table)


def test_evidence_names_edges_and_accounts():
    table = pa.table(
        {
            "source": ["u", "u", "x", "y"],
            "target": ["x", "y", "w", "w"],
            "timestamp": [1, 2, 3, 4],
        }
    )
    one = GraphFeatures(patterns=("scatter-gather",), window=10, evidence=True)
    result, found = one.patterns_of(table)
    assert result["scatter-gather[2]"].to_pylist() == [0, 0, 0, 1]
    (pattern,) = found.to_pylist()
    *ends, first, second = pattern.pop("accounts")
    assert (ends, {first, second}) == (["u", "w"], {"x", "y"})
    assert pattern == {
        "pattern": 0,
        "kind": "scatter-gather",
        "size": 2,
        "trigger": 3,
        "edges": [0, 1, 2, 3],
    }
    few = GraphFeatures(patterns=("fan",), window=10, evidence=True, evidence_max=1)
    _, found = few.patterns_of(table)
    assert (found.num_rows, found.schema.metadata[b"dropped"]) == (1, b"1")
    with pytest.raises(ValueError, match="keeps_ids"):
        GraphFeatures(patterns=("fan",), window=10).patterns_of(table)


def test_names_of_accounts_that_left_are_forgotten(monkeypatch):
    monkeypatch.setattr("farrow.graph._rows._NAMES_MIN", 10)
    one = GraphFeatures(patterns=("fan",), window=5)
    for step in range(100):
        one.transform(
            pa.table({"source": [f"s{step}"], "target": [f"t{step}"], "timestamp": [step * 10]})
        )
    assert len(one._stream.accounts.names) <= 12
    assert one.stats()["accounts"] <= 4


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"window": "0h"}, ValueError, "window of fan"),
        ({"window": 0}, ValueError, "window of fan must be at least 1, not 0"),
        ({"window": -5}, ValueError, "window of fan"),
        ({"window": "soon"}, ValueError, "window of fan"),
        ({"window": 1.5}, TypeError, "window of fan must be an integer, not 1.5"),
        ({"window": {"degree": 3}}, ValueError, "window has nothing for fan"),
        ({"bins": []}, ValueError, "bins of fan is empty"),
        ({"bins": [3, 2]}, ValueError, "2 follows 3"),
        ({"bins": "abc"}, TypeError, "bins of fan"),
        ({"bins": {"pan": [2]}}, ValueError, "'pan'"),
        ({"patterns": ()}, ValueError, "patterns is empty"),
        ({"patterns": ("fans",)}, ValueError, "'fans'"),
        ({"statistics": ("average",)}, ValueError, "'average'"),
        ({"statistics_columns": [9]}, ValueError, "statistics_columns must be at most 4, not 9"),
        ({"mode": "both"}, ValueError, "'both'"),
        ({"threads": 0}, ValueError, "threads must be at least 1, not 0"),
        ({"edges_max": 0}, ValueError, "edges_max"),
        ({"cycle_length": 1}, ValueError, "cycle_length must be at least 2, not 1"),
        ({"evidence": "yes"}, TypeError, "evidence"),
    ],
)
def test_parameters_that_make_no_sense(change, kind, words: str):
    with pytest.raises(kind, match=words):
        features(**change).fit(rows_of(5))


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda rows: rows[:, :3], ValueError, "3 columns"),
        (lambda rows: rows[:, :4], ValueError, "4 columns, but 5 came before"),
        (lambda rows: rows[0], ValueError, "two-dimensional"),
        (lambda rows: np.where(rows == rows[3, 0], np.nan, rows), ValueError, "row 3 is NaN"),
        (lambda rows: np.where(rows == rows[3, 0], np.inf, rows), ValueError, "row 3 is inf"),
        (lambda rows: rows + np.array([0.5, 0, 0, 0, 0]), ValueError, "edge id in row 0"),
        (lambda rows: rows - np.array([0, 100, 0, 0, 0]), ValueError, "source account in row 0"),
        (lambda rows: rows + np.array([0, 0, 2.0**53, 0, 0]), ValueError, "target account in row"),
        (lambda rows: rows.astype(str).astype(object) + "x", TypeError, "X must hold numbers"),
        (lambda rows: table_of(rows), TypeError, "arrays came before"),
    ],
)
def test_rows_that_make_no_sense_leave_the_graph_as_it_was(spoil, kind, words: str):
    rows = rows_of(60)
    one, untouched = features().fit(rows[:40]), features().fit(rows[:40])
    bad = rows[40:].copy()
    with pytest.raises(kind, match=words):
        one.transform(spoil(bad))
    np.testing.assert_array_equal(one.transform(rows[40:]), untouched.transform(rows[40:]))


@pytest.mark.parametrize(
    ("column", "values", "kind", "words"),
    [
        ("source", pa.array([1.5, 2.0]), TypeError, "must hold integers"),
        ("source", pa.array([1, None]), ValueError, "1 nulls"),
        ("source", pa.array(["a", "b"]), TypeError, "strings, but 'target' .target. numbers"),
        ("target", pa.array([-1, 2]), ValueError, "-1 in row 0"),
        ("timestamp", pa.array(["x", "y"]), TypeError, "must hold integers"),
        ("amount", pa.array(["x", "y"]), TypeError, "measured"),
    ],
)
def test_columns_that_make_no_sense(column: str, values: pa.Array, kind, words: str):
    columns = {"source": [1, 2], "target": [2, 3], "timestamp": [1, 2], "amount": [1.0, 2.0]}
    table = pa.table({**columns, column: values})
    with pytest.raises(kind, match=words):
        features(columns={"amounts": ["amount"]}).fit(table)


def test_a_long_call_leaves_the_interpreter_to_other_threads():
    """Regression test: a thread transformed rows, and another one asked for ``stats``.  It waited
    with the GIL, so that no thread of the program ran until the end of the call."""
    count, seconds = 1000, 0.0
    while seconds < 1.0:
        count *= 2
        rows = rows_of(count)
        began = time.perf_counter()
        features(threads=1).transform(rows)
        seconds = time.perf_counter() - began
    graph = features(threads=1).fit(rows[:1])
    ended, ticks, most = threading.Event(), 0, 0

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.001):
            ticks += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    transforming = threading.Thread(target=graph.transform, args=(rows[1:],))
    transforming.start()
    try:
        while transforming.is_alive():
            before = ticks
            graph.stats()
            most = max(most, ticks - before)
    finally:
        transforming.join()
        ended.set()
        ticking.join()
    assert most > 10, "of a thousand"


def test_64_bits_from_end_to_end():
    """Times in nanoseconds and accounts beyond 2^53 keep their last digit."""
    big = (1 << 62) + 1
    table = pa.table(
        {
            "source": [big, big + 1, big],
            "target": [7, 7, 7],
            "timestamp": pa.array([big, big + 1, big + 3], pa.int64()),
        }
    )
    one = GraphFeatures(patterns=("fan", "degree"), window=3, bins=[2, 3])
    result = one.fit_transform(table)
    assert result["fan_in[2]"].to_pylist() == [0, 1, 1]
    # The first is three before the last: just outside.
    assert result["degree_in[2]"].to_pylist() == [0, 1, 1]
    assert one.stats()["now"] == big + 3


def test_no_rows_at_all():
    one = features()
    assert one.fit_transform(rows_of(3)[:0]).shape[0] == 0
    assert one.transform(rows_of(3)).shape[0] == 3


def test_a_huge_amount_leaves_the_statistics_when_it_leaves_the_window() -> None:
    """Windows of accounts with many edges are carried on, and NaN stayed in their sums."""
    settings: dict[str, Any] = {
        "patterns": ["vertex-stats"],
        "window": 100,
        "statistics": ("mean", "variance", "skewness", "kurtosis"),
    }
    random = np.random.default_rng(1)
    count = 400
    matrix = np.column_stack(
        [np.arange(count), np.arange(count) + 10, np.zeros(count), np.arange(count) + 1,
         random.integers(1, 50, count)]
    ).astype(float)  # fmt: skip
    matrix[120, 4] = 1e160
    carried = GraphFeatures(**settings).transform(matrix)
    scanned = GraphFeatures(**settings).fit(matrix[250:399]).transform(matrix[399:])
    assert np.isfinite(carried[221:]).all()
    np.testing.assert_allclose(carried[399:], scanned, rtol=1e-12)


def test_rates_count_the_rows_that_were_added():
    one = features()
    one.partial_fit(rows_of(40)[:30])
    one.preview(rows_of(40)[30:])
    with pytest.raises(ValueError, match="row"):
        one.transform(-rows_of(40)[30:])
    rates = one.stats()["rates"]
    assert (rates["calls"], rates["rows"], rates["last_rows"]) == (1, 30, 30)
    one.transform(rows_of(40)[30:])
    rates = one.stats()["rates"]
    assert (rates["calls"], rates["rows"], rates["last_rows"]) == (2, 40, 10)
    assert 0 < rates["last_seconds"] < rates["seconds"]
    assert rates["rows_per_second"] == 40 / rates["seconds"]
    assert rates["last_rows_per_second"] == 10 / rates["last_seconds"]
    one.fit(rows_of(40))
    assert one.stats()["rates"]["rows"] == 40
    assert pickle.loads(pickle.dumps(one)).stats()["rates"]["rows"] == 0


def test_columns_are_found_as_the_command_finds_them() -> None:
    """A frame with the columns of SNAP or PaySim copies had to be renamed for GraphFeatures,
    although ``farrow graph features`` read it as it is."""
    times = [0, 60, 120]
    named = pa.table(
        {"source": ["a", "b", "a"], "target": ["b", "c", "c"], "timestamp": times, "x": [1.0] * 3}
    )
    expected = GraphFeatures().transform(named)
    for names in (
        ["sender", "receiver", "time", "x"],
        ["src", "dst", "Timestamp", "x"],
        ["from_account", "to_account", "timestamp", "x"],
    ):
        found = GraphFeatures().transform(named.rename_columns(names))
        assert found.column_names[:4] == names
        assert found.select(range(4, found.num_columns)).equals(
            expected.select(range(4, expected.num_columns))
        )
    # A role that is said counts for itself.
    other = named.rename_columns(["payer", "receiver", "time", "x"])
    with pytest.raises(ValueError, match="no column 'source' for the source"):
        GraphFeatures().transform(other)
    GraphFeatures(columns={"source": "payer", "target": "receiver", "timestamp": "time"}).transform(
        other
    )


def test_rows_that_must_be_converted_first_are_refused() -> None:
    """The accounts of an IBM file are numbered by bank: the account alone names several."""
    names = ["From Bank", "Account", "To Bank", "Account.1", "timestamp"]
    table = pa.table([["1"], ["a"], ["2"], ["b"], [0]], names)
    with pytest.raises(ValueError, match=r"several banks: pass farrow\.graph\.data\.from_table"):
        GraphFeatures().transform(table)
    steps = pa.table([[0], ["a"], ["b"]], ["step", "nameOrig", "nameDest"])
    with pytest.raises(ValueError, match="times that are no seconds"):
        GraphFeatures().transform(steps)


def test_what_data_read_returns_is_accepted(tmp_path: Path) -> None:
    """``GraphFeatures().transform(data.read(path))`` was a TypeError."""
    path = tmp_path / "t.csv"
    path.write_text(
        "From Bank,Account,To Bank,Account,timestamp,amount\n1,a,2,a,60,1.5\n2,a,1,b,0,2\n"
    )
    transactions = data.read(path)
    result = GraphFeatures().transform(transactions)
    assert result.equals(GraphFeatures().transform(transactions.table))
    assert result["timestamp"].to_pylist() == [0, 60]


def test_a_null_is_named_with_its_row() -> None:
    table = pa.table({"source": ["a", None, None], "target": ["b"] * 3, "timestamp": [0, 1, 2]})
    with pytest.raises(ValueError, match=r"'source' \(source\) has 2 nulls, the first in row 1"):
        GraphFeatures().transform(table)
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int8()), ["a", None])
    with pytest.raises(ValueError, match=r"'source' \(source\) has 2 nulls, the first in row 1"):
        GraphFeatures().transform(table.set_column(0, "source", names))
