"""Features that leave the graph as it was: previews, and offline mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from sklearn.exceptions import NotFittedError

from farrow.graph import GraphFeatures, data, generate
from graph_features_cases import ALL, features, rows_of, table_of

if TYPE_CHECKING:
    pass


#: A unit in the last place of a statistic, and what the sums of the others may round off it.
LAST_DIGIT = 1e-15


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_a_preview_is_what_transform_would_give_and_leaves_no_trace(mode: str) -> None:
    rows = rows_of(600)
    looked, plain = features(mode=mode, evidence=True), features(mode=mode, evidence=True)
    with pytest.raises(NotFittedError):
        looked.preview(rows[:1])
    for start in range(0, 600, 100):
        batch = rows[start : start + 100]
        if start:
            # Room that was made stays.
            stats = {**looked.stats(), "bytes": 0}
            looked.preview(rows[start + 7 : start + 60] + np.array([10_000, 0, 0, 50, 1]))
            seen, found = looked.preview_patterns(batch)
            assert {**looked.stats(), "bytes": 0} == stats
        result, patterns = looked.patterns_of(batch)
        np.testing.assert_array_equal(result, plain.transform(batch))
        if start:
            np.testing.assert_allclose(seen, result, rtol=1e-6, atol=1e-9)
            assert found.equals(patterns)
            assert found.num_rows > 0
    with pytest.raises(ValueError, match="ids"):
        features(patterns=("fan",)).fit(rows).preview_patterns(rows)


def test_a_preview_of_a_table_is_a_table() -> None:
    table = table_of(rows_of(300))
    one = features(mode="causal").fit(table.slice(0, 200))
    rows = table.slice(200)
    seen = one.preview(rows)
    assert seen.column_names == list(one.get_feature_names_out())
    result = one.transform(rows)
    for name in seen.column_names[5:]:
        np.testing.assert_allclose(seen[name], result[name], rtol=1e-6, atol=1e-9)
    with pytest.raises(TypeError, match="tables came before"):
        one.preview(rows_of(3))


def _equal(found: Any, wanted: Any) -> bool:
    """Whether counts are the same, and statistics but for their last digit."""
    if isinstance(wanted, pa.Table):
        pairs = zip(found.itercolumns(), wanted.itercolumns(), strict=True)
        return found.schema.equals(wanted.schema) and all(
            np.allclose(one, other, rtol=LAST_DIGIT, atol=LAST_DIGIT)
            if pa.types.is_floating(one.type)
            else one.equals(other)
            for one, other in pairs
        )
    return np.allclose(found, wanted, rtol=LAST_DIGIT, atol=LAST_DIGIT)


def test_offline_mode_gives_what_real_time_does() -> None:
    """On a generated stream, whose rows come late now and then: arrays and tables."""
    table = generate.transactions(6000, days=10, accounts=300, seed=5)
    random = np.random.default_rng(5)
    names = ("edge_id", "source", "target", "timestamp")
    matrix = np.column_stack(
        [data.from_table(table).table[name].to_numpy().astype(np.float64) for name in names]
    )
    late = matrix.copy()
    late[random.random(len(late)) < 0.02, 3] -= 2 * 86_400
    settings: dict[str, Any] = {"patterns": (*ALL, "vertex-stats"), "window": "48h"}
    for rows in (matrix, late, data.from_table(table).table):
        online, offline = GraphFeatures(**settings), GraphFeatures(**settings)
        first, rest = rows[:1000], rows[1000:]
        assert _equal(offline.transform(first), online.transform(first))
        parts = offline.offline(rest, batch=700)
        # All are there before the first is computed, and nothing is evicted before the last is.
        assert offline.stats()["rows"] == len(rows)
        assert offline.stats()["edges"] > len(rest)
        with pytest.raises(ValueError, match="5000 rows that were learned ahead have no features"):
            offline.transform(first)
        count = 0
        for part in parts:
            wanted = online.transform(rest[count : count + 700])
            assert _equal(part, wanted), count
            count += len(part)
        assert count == len(rest)
        own = {name: offline.stats()[name] for name in ("bytes", "rates")}
        assert offline.stats() == {**online.stats(), **own}
        assert _equal(offline.transform(first), online.transform(first))


def test_offline_mode_that_is_left_early() -> None:
    features, other = GraphFeatures(window=100), GraphFeatures(window=100)
    matrix = rows_of(200)
    for taken in (0, 1):
        parts = features.offline(matrix, batch=10)
        for _ in range(taken):
            next(parts)
        parts.close()
        other.partial_fit(matrix)
        assert features.stats()["edges"] == other.stats()["edges"]
    assert np.array_equal(features.transform(matrix), other.transform(matrix))
    with pytest.raises(ValueError, match="mode must be causal"):
        GraphFeatures(mode="batch").offline(matrix)
    with pytest.raises(ValueError, match="batch"):
        features.offline(matrix, batch=0)
    assert list(features.offline(matrix[:0])) == []


def test_offline_mode_begins_again_only_after_its_end() -> None:
    """A second iteration got the features of the first one's rows, or none."""
    matrix = rows_of(200)
    for taken in (0, 1):
        features = GraphFeatures(window=100)
        first = features.offline(matrix[:100], batch=60)
        for _ in range(taken):
            next(first)
        left = 100 - 60 * taken
        for rows in (matrix[100:], matrix[:0]):
            with pytest.raises(ValueError, match=f"^{left} rows that were learned ahead"):
                features.offline(rows)
        assert features.stats()["rows"] == 100
        wanted = GraphFeatures(window=100)
        parts = [*list(first), *features.offline(matrix[100:])]
        assert np.array_equal(np.vstack(parts), wanted.transform(matrix)[60 * taken :])
    # One whose rows all have features does not end the next.
    features = GraphFeatures(window=100)
    first = features.offline(matrix[:100], batch=100)
    next(first)
    second = features.offline(matrix[100:], batch=60)
    assert list(first) == []
    assert sum(map(len, second)) == 100
    # An iteration without a reference has ended.
    features.offline(matrix)
    assert len(list(features.offline(matrix))) == 1
