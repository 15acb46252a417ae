"""Tables of a GraphFeatures: the units of their timestamps, their index, the names in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from farrow.graph import GraphFeatures, _rows

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000}


def timed(unit: str, times: Sequence[int], due_unit: str) -> pa.Table:
    """Payments to account 9 at times in seconds, each due a minute later."""
    due = [(time + 60) * TICKS[due_unit] for time in times]
    return pa.table(
        {
            "source": [1] * len(times),
            "target": [9] * len(times),
            "timestamp": pa.array([time * TICKS[unit] for time in times], pa.timestamp(unit)),
            "due": pa.array(due, pa.timestamp(due_unit)),
        }
    )


def measuring(*columns: str) -> GraphFeatures:
    return GraphFeatures(
        patterns=["vertex-stats"],
        window="1h",
        statistics=("mean", "max"),
        statistics_columns=columns,
    )


def test_measured_timestamps_of_a_later_table_are_in_the_unit_of_the_first():
    """They were averaged as they came: 100 s with 300,000 ms."""
    one, other = measuring("timestamp", "due"), measuring("timestamp", "due")
    for features in (one, other):
        features.fit(timed("s", [100, 200], "ms"))
    wanted = one.transform(timed("s", [300], "ms"))
    found = other.transform(timed("ms", [300], "us"))
    names = one.get_feature_names_out()[4:].tolist()
    assert found.select(names).equals(wanted.select(names))
    assert wanted["target_in_mean(timestamp)"].to_pylist() == [200]
    assert wanted["target_in_max(due)"].to_pylist() == [360_000]
    rows = other.stats()["rows"]
    odd = timed("s", [400], "us")
    odd = odd.set_column(3, "due", pa.array([460_000_001], pa.timestamp("us")))
    with pytest.raises(ValueError, match=r"'due': .* would lose data"):
        other.transform(odd)
    with pytest.raises(TypeError, match="'due' holds int64, but timestamps came before"):
        other.transform(odd.set_column(3, "due", pa.array([460])))
    assert other.stats()["rows"] == rows


def test_units_of_measured_timestamps_are_saved(tmp_path):
    features = measuring("due").fit(timed("s", [100, 200], "ms"))
    features.save(tmp_path / "graph")
    loaded = GraphFeatures.load(tmp_path / "graph")
    found = loaded.transform(timed("s", [300], "s"))
    assert found["target_in_max(due)"].to_pylist() == [360_000]


def test_the_layout_of_other_tables_is_that_of_older_graphs():
    """A graph in a cluster is resumed only by rows of its layout, byte for byte."""
    for features in (measuring("timestamp"), GraphFeatures(patterns=["fan"], window="1h")):
        features.fit(timed("s", [100], "ms"))
        assert "units" not in features._stream.state()["layout"]


@pytest.mark.parametrize("index", ["numbers", "text", "two levels"])
def test_frames_of_pandas_retain_their_index(index):
    """A column assigned from the result went to other rows, or nowhere."""
    pandas = pytest.importorskip("pandas")
    numbers = np.array([5, 9, 12, 7, 7])
    labels = {
        "numbers": pandas.Index(numbers, name="at"),
        "text": pandas.Index([f"row {n}" for n in numbers]),
        "two levels": pandas.MultiIndex.from_arrays([numbers, list("abcde")]),
    }[index]
    given = {"source": [1, 2, 3, 4, 5], "target": [9] * 5, "timestamp": [1, 2, 3, 4, 5]}
    frame = pandas.DataFrame(given, index=labels)
    settings = {"patterns": ["fan"], "window": 10, "bins": [2, 9], "evidence": True}
    features = GraphFeatures(**settings)
    found = features.fit_transform(frame)
    pandas.testing.assert_index_equal(found.index, labels)
    assert found["fan_in[2]"].tolist() == [0, 1, 0, 0, 0]
    for part in (frame[1:3], frame[:0]):
        pandas.testing.assert_index_equal(features.preview(part).index, part.index)
        pandas.testing.assert_index_equal(features.patterns_of(part)[0].index, part.index)
    parts = list(GraphFeatures(**settings).offline(frame, batch=2))
    assert [len(part) for part in parts] == [2, 2, 1]
    pandas.testing.assert_frame_equal(pandas.concat(parts), found)
    (part,) = GraphFeatures(**settings).transform_each([frame])
    pandas.testing.assert_frame_equal(part, found)


def test_patterns_name_accounts_that_leave_with_the_call(monkeypatch):
    """Their names were forgotten before the table of patterns was made, and hashes were in it."""
    monkeypatch.setattr("farrow.graph._rows._NAMES_MIN", 4)
    features = GraphFeatures(patterns=["fan"], window=10, bins=[2], evidence=True)
    table = pa.table(
        {"source": list("abcde"), "target": list("xxyzw"), "timestamp": [1, 2, 100, 200, 300]}
    )
    _, found = features.patterns_of(table)
    assert found["accounts"].to_pylist() == [["x"]]
    assert "x" not in features._stream.accounts.numbers


def test_patterns_of_named_accounts_hold_text_though_no_name_is_known(monkeypatch):
    """The type of the column depended on the names that this process had seen."""
    features = GraphFeatures(patterns=["fan"], window=10, bins=[2], evidence=True)
    table = pa.table({"source": ["a", "b"], "target": ["x", "x"], "timestamp": [1, 2]})
    features.fit(table[:1])
    stream = features._stream
    found = stream._evidence(([], [], [], [], [], 0))
    assert found["accounts"].type == pa.list_(pa.string())
    # As in a cluster, where an earlier process has added the account.
    stream.accounts.names.clear()
    found = stream._evidence((["fan-in"], [2], [1], [[7]], [[0, 1]], 0))
    assert found["accounts"].type == pa.list_(pa.string())
    assert found["accounts"].to_pylist() == [["7"]]


def test_previews_leave_no_names_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that only previews grew with each account that it ever saw."""
    monkeypatch.setattr(_rows, "_NAMES_MIN", 1_000)
    rows = pa.table({"source": ["a", "b"], "target": ["x", "x"], "timestamp": [1, 2]})
    features = GraphFeatures(patterns=["fan"], window=10).fit(rows)
    for first in range(0, 10_000, 500):
        names = [f"n{number}" for number in range(first, first + 500)]
        more = pa.table({"source": names, "target": ["x"] * 500, "timestamp": [3] * 500})
        assert len(features.preview(more)) == 500
    assert len(features._stream.accounts.names) < 2_000
    # Those of the graph stay.
    assert {"a", "b", "x"} <= set(features._stream.accounts.names.values())
    assert features.transform(rows.slice(0, 1)).num_rows == 1


def test_rows_with_and_without_a_time_zone_are_not_mixed() -> None:
    """The same moment by the clock was off by the offset of the zone, without a word."""
    rows = {"source": [1], "target": [2]}
    at = pa.array([1_700_000_000], pa.timestamp("s", "Europe/Paris"))
    features = GraphFeatures(patterns=["fan"], window="1h").fit(pa.table({**rows, "timestamp": at}))
    naive = pa.table({**rows, "timestamp": at.cast(pa.timestamp("s"))})
    with pytest.raises(TypeError, match="without a time zone, but timestamps with a time zone"):
        features.transform(naive)
    other = at.cast(pa.timestamp("us", "UTC"))
    assert features.transform(pa.table({**rows, "timestamp": other})).num_rows == 1


@pytest.mark.parametrize("method", ["transform", "fit_transform"])
def test_pandas_is_the_output_for_tables_of_arrow_too(method: str) -> None:
    """scikit-learn refused the table when the rows were in the graph already."""
    pandas = pytest.importorskip("pandas")
    rows = pa.table({"source": [1, 2], "target": [3, 3], "timestamp": [1, 2]})
    plain = getattr(GraphFeatures(patterns=["fan"], window=10).fit(rows), method)(rows)
    features = GraphFeatures(patterns=["fan"], window=10).set_output(transform="pandas").fit(rows)
    found = getattr(features, method)(rows)
    assert isinstance(found, pandas.DataFrame)
    assert found.equals(plain.to_pandas())
    assert features.stats()["rows"] == (4 if method == "transform" else 2)
    frame = getattr(features, method)(rows.to_pandas())
    assert isinstance(frame, pandas.DataFrame)


@pytest.mark.parametrize("large", [2**60, -(2**53) - 1, 2**64 - 1])
def test_a_measured_integer_that_float64_cannot_hold_is_named(large):
    """The message was that the column must hold numbers."""
    kind = pa.uint64() if large > 2**63 else pa.int64()
    amounts = pa.array([5, large, 7], kind)
    ends = {"source": [1, 2, 3], "target": [2, 3, 4], "timestamp": [1, 2, 3]}
    features = GraphFeatures(patterns=["vertex-stats"], statistics_columns=["amount"])
    with pytest.raises(ValueError, match=rf"'amount' is {large} in row 1: .* up to 2\*\*53"):
        features.fit(pa.table({**ends, "amount": amounts}))
    with pytest.raises(TypeError, match="must hold numbers"):
        features.fit(pa.table({**ends, "amount": ["one", "two", "three"]}))
    exact = pa.array([5, 2**53, 7], kind)
    assert features.fit(pa.table({**ends, "amount": exact})).stats()["rows"] == 3
