"""The benchmark of dataframes: its ways compute the same sums, and its table is whole."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import dataframes

if TYPE_CHECKING:
    import numpy as np


def test_dask_sums_the_same_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dataframes, "CHUNK_ROWS", 5000)
    monkeypatch.setattr(dataframes, "measure_ray", lambda *_: None)
    run, size, _ = dataframes.measure(4, 1)
    assert size == 4 * 5000 * 20
    assert set(run.seconds) == {("Dask", "Farrow"), ("Dask", "Parquet")}
    text = dataframes.report(run, size)
    assert text.count("| Dask |") == 2
    assert text.splitlines()[-1].endswith("| 1 |")


def test_other_sums_are_an_error() -> None:
    wanted = dataframes.in_order([0, 1], [1.0, 2.0])

    def wrong() -> np.ndarray:
        return dataframes.in_order([0, 1], [1.0, 2.5])

    run = dataframes.Run(wanted, 1)
    run.measure("an engine", {"right": lambda: wanted})
    with pytest.raises(AssertionError, match="an engine over wrong: other sums"):
        run.measure("an engine", {"wrong": wrong})
