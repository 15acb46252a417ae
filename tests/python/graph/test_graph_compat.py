"""Batch mode by parameter names; its results are compared with the oracle in crates/graph/tests."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from farrow.graph.compat import GraphFeaturePreprocessor

ROWS = np.array([[0, 1, 9, 1], [1, 2, 9, 2], [2, 3, 9, 3]], dtype=float)


def made(**changes: object) -> GraphFeaturePreprocessor:
    given = {"vertex_stats": False, "fan_tw": 10, "fan_bins": [2, 3], **changes}
    return GraphFeaturePreprocessor().set_params(given)


def test_the_worked_example():
    one = made()
    assert one.transform(ROWS)[:, 4:6].tolist() == [[1, 1], [1, 1], [0, 1]]
    one = made()
    rows = [one.transform(ROWS[at : at + 1])[0, 4:6].tolist() for at in range(3)]
    assert rows == [[0, 0], [1, 0], [0, 1]]
    assert one.get_feature_names_out().tolist()[4:] == [
        "fan_in[2]", "fan_in[3]", "fan_out[2]", "fan_out[3]",
    ]  # fmt: skip


def test_what_comes_out_has_the_names_columns():
    one = GraphFeaturePreprocessor()
    everything = dict.fromkeys(("degree", "scatter-gather", "temp-cycle", "lc-cycle"), True)
    one.set_params(everything, vertex_stats_cols=[3, 4], vertex_stats_feats=range(11))
    result = one.fit_transform(np.c_[ROWS, [5, 6, 7]])
    assert result.shape == (3, len(one.get_feature_names_out()))


def test_parameters():
    one = made(num_threads=np.int64(2), fan_bins=np.array([2, 5]), degree=np.True_)
    assert one.get_params()["fan_bins"].tolist() == [2, 5]
    with pytest.raises(KeyError, match="fan_two"):
        one.set_params(fan_two=3)
    wrong = [
        ("time_window", 0, ValueError),
        ("time_window", -2, ValueError),
        ("max_no_edges", 0, ValueError),
        ("num_threads", 0, ValueError),
        ("fan_tw", 0, ValueError),
        ("fan_tw", 1 << 63, ValueError),
        ("fan_bins", [], ValueError),
        ("fan_bins", [2, 2], ValueError),
        ("fan_bins", [0, 2], ValueError),
        ("fan_bins", 3, TypeError),
        ("vertex_stats_feats", [11], ValueError),
        ("vertex_stats_cols", [-1], ValueError),
        ("lc-cycle_len", 1, ValueError),
        ("fan", 3, TypeError),
    ]
    before = one.get_params()
    for name, value, kind in wrong:
        with pytest.raises(kind, match=name):
            one.set_params({name: value})
    assert str(one.get_params()) == str(before)
    with pytest.raises(ValueError, match="time_window"):
        one.set_params(fan=False, degree=False)


def test_a_pickled_object_continues_with_its_graph():
    """The engine is no Python object, so pickle refused the whole."""
    rows = np.c_[ROWS, [5, 6, 7]]
    changes = {"vertex_stats": True, "vertex_stats_cols": [4], "lc-cycle": True, "max_no_edges": 2}
    one = made(**changes)
    one.transform(rows)
    other = pickle.loads(pickle.dumps(one))
    assert other.get_params() == one.get_params()
    later = rows + np.array([10, 5, 0, 3, 1])
    assert np.array_equal(other.transform(later), one.transform(later))
    # The object has its own graph.
    one.set_params(fan_bins=[2])
    assert other.get_params()["fan_bins"] == [2, 3]
    with pytest.raises(ValueError, match="X has 4 columns, but 5 came before"):
        other.transform(ROWS)
    empty = pickle.loads(pickle.dumps(made()))
    assert np.array_equal(empty.transform(ROWS), made().transform(ROWS))


def test_parameters_are_those_of_the_constructor_as_scikit_learn_wants_them():
    base = pytest.importorskip("sklearn.base")
    one = GraphFeaturePreprocessor(**{"vertex_stats": False, "fan_bins": [2, 5], "lc-cycle": True})
    one.fit(ROWS)
    other = base.clone(one)
    assert other.get_params() == one.get_params()
    assert other.get_params(deep=False)["fan_bins"] is not one.get_params(deep=False)["fan_bins"]
    # A clone has no rows.
    wanted = GraphFeaturePreprocessor(**one.get_params()).transform(ROWS)
    assert np.array_equal(other.transform(ROWS), wanted)
    with pytest.raises(KeyError, match="fan_two"):
        GraphFeaturePreprocessor(fan_two=3)
    with pytest.raises(ValueError, match="fan_bins"):
        GraphFeaturePreprocessor(fan_bins=[])


def test_rows_that_make_no_sense_leave_the_graph_as_it_was():
    one, untouched = made(), made()
    one.transform(ROWS[:2])
    untouched.transform(ROWS[:2])
    bad = [
        ROWS[:, :3],
        np.c_[ROWS, ROWS],
        np.where(ROWS == 9, np.nan, ROWS),
        ROWS - np.array([0, 5, 0, 0]),
        ROWS + np.array([0.5, 0, 0, 0]),
    ]
    for rows in bad:
        with pytest.raises(ValueError, match=r"column|row"):
            one.transform(rows)
    np.testing.assert_array_equal(one.transform(ROWS[2:]), untouched.transform(ROWS[2:]))


def test_random_streams_against_the_shared_oracle():
    """The oracle of the definitions, where it lies beside the project; ours is in Rust."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "graph"
    if not (folder / "compare.py").is_file():
        pytest.skip(f"no {folder / 'compare.py'}")
    sys.path.insert(0, str(folder))
    try:
        compare = importlib.import_module("compare")
        oracle = importlib.import_module("oracle")
    finally:
        sys.path.remove(str(folder))
    for case in range(150):
        random = np.random.default_rng([11, case])
        operations, in_order = compare.random_stream(random, "small" if case % 30 else "medium")
        parameters = compare.random_params(random, [], in_order, True)
        parameters["lc-cycle_len"] = min(parameters["lc-cycle_len"], 4)
        ours = compare.run(GraphFeaturePreprocessor(), parameters, operations)
        theirs = compare.run(oracle.GraphFeatureOracle(), parameters, operations)
        found, _, _ = compare.diff(ours, theirs, operations, parameters)
        assert found is None, f"case {case}: {found}"
