"""The judge of pyarrow's own tests, which `make test-pool` runs with Farrow's memory pool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

import pyarrow_own  # noqa: E402

OWN = {f"test_array.py::test_{number}": "passed" for number in range(pyarrow_own.PASSED_MIN)}
OWN |= {"test_gcs": "failed", "test_cuda": "skipped"}


def test_the_same_outcomes_are_no_problem() -> None:
    assert pyarrow_own.judge(OWN, OWN) == []
    # It fails with both.
    assert pyarrow_own.judge(OWN, OWN | {"test_gcs": "skipped"}) == []


@pytest.mark.parametrize("outcome", ["failed", "skipped", None])
def test_what_the_pool_changes_is_one(outcome: str | None) -> None:
    test = "test_array.py::test_7"
    found = {key: value for key, value in OWN.items() if key != test}
    if outcome is not None:
        found[test] = outcome
    assert pyarrow_own.judge(OWN, found) == [f"{test}: {outcome or 'not run'} with Farrow's pool"]


def test_a_named_difference_has_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    test = "test_array.py::test_7"
    monkeypatch.setattr(pyarrow_own, "DIFFERENCES", {test: "a reason"})
    assert pyarrow_own.judge(OWN, OWN | {test: "failed"}) == []
    assert pyarrow_own.judge(OWN, OWN) == [f"{test} passes: remove it from the differences"]


def test_few_tests_are_one() -> None:
    few = dict(list(OWN.items())[1:])
    assert pyarrow_own.judge(few, few) == ["only 99 tests pass with pyarrow's own pool"]
