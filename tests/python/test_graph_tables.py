"""Tables of a GraphFeatures: the units of their timestamps, their index, the names in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from farrow.graph import GraphFeatures

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
