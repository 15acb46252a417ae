"""The comparison of two versions says which one is quicker, for times and for rates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import versions  # noqa: E402
from harness.tasks import Sample  # noqa: E402


def test_a_ratio_above_one_means_that_the_new_version_is_quicker() -> None:
    samples = [
        Sample("put", "old", "store", "s", [4.0, 2.0, 3.0]),
        Sample("put", "new", "store", "s", [2.0, 1.0, 1.0]),
        Sample("rate", "old", "store", "1/s", [100.0, 100.0]),
        Sample("rate", "new", "store", "1/s", [150.0, 50.0]),
        # A case of one version alone has no ratio.
        Sample("sum", "new", "store", "s", [1.0]),
    ]
    lines = versions.table(samples).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [one[0] for one in cells] == ["store: put", "store: rate"]
    assert [one[4] for one in cells] == ["2.000", "1.000"]
    assert [one[6] for one in cells] == ["3", "2"]
    assert cells[0][2:4] == ["3", "1"]
