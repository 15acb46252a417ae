"""The judge of Plasma's own tests, which `make test-plasma` downloads and runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

import plasma_own  # noqa: E402

AS_DOCUMENTED = {"test_put": "passed", plasma_own.MAY_BE_SKIPPED: "skipped"} | dict.fromkeys(
    plasma_own.DIFFERENCES, "failed"
)
SOURCE = """import pyarrow as pa

def test_all():
    import pyarrow.plasma as plasma
    command = "from pyarrow import plasma; print(plasma)"
    assert pa.plasma.ObjectNotAvailable
"""


def test_documented_differences_are_no_problem() -> None:
    assert plasma_own.judge(AS_DOCUMENTED) == []


@pytest.mark.parametrize(
    ("test", "outcome", "problem"),
    [
        ("test_put", "failed", "test_put fails, and is not among"),
        ("test_put", "skipped", "test_put was skipped"),
        ("test_store_capacity", "passed", "test_store_capacity passes: remove it"),
        ("test_store_capacity", "skipped", "test_store_capacity was skipped"),
    ],
)
def test_an_outcome_that_is_not_documented_is_one(test: str, outcome: str, problem: str) -> None:
    [found] = plasma_own.judge(AS_DOCUMENTED | {test: outcome})
    assert found.startswith(problem)


def test_a_documented_test_that_is_missing_is_one() -> None:
    without = {test: how for test, how in AS_DOCUMENTED.items() if test != "test_store_capacity"}
    assert plasma_own.judge(without) == ["test_store_capacity: there is no such test"]
    assert plasma_own.judge({}) == ["no test was run"]


def test_each_form_of_the_import_is_changed() -> None:
    changed = plasma_own.changed(SOURCE)
    assert "pyarrow.plasma" not in changed
    assert "pa.plasma" not in changed
    assert "from farrow.compat import plasma; print(plasma)" in changed
    assert changed.startswith("import farrow.compat.plasma\nimport pyarrow as pa\n")
    with pytest.raises(ValueError, match="has nothing like"):
        plasma_own.changed("import pyarrow as pa\n")
    with pytest.raises(ValueError, match=r"not changed: import pyarrow\.plasma$"):
        plasma_own.changed(SOURCE + "import pyarrow.plasma\n")


def test_a_test_without_an_end_is_ended() -> None:
    with pytest.raises(TimeoutError, match="1 s"), plasma_own.limited(1):
        while True:
            pass


@pytest.mark.parametrize("difference", sorted(set(plasma_own.DIFFERENCES.values())))
def test_a_page_names_each_difference(difference: str) -> None:
    page = (ROOT / "docs/coming-from/plasma.md").read_text()
    shown = page.partition("these differences:\n")[2].partition("Further differences:")[0]
    assert f"- **{difference}" in shown
