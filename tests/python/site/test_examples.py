"""The examples run, and their figures are computed right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def fraud() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fraud", EXAMPLES / "fraud.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fraud"] = module
    spec.loader.exec_module(module)
    return module


def test_figures(fraud: ModuleType) -> None:
    labels = np.array([1.0, 0.0, 1.0, 0.0])
    # By falling score: hit, miss, hit, miss.
    scores = np.array([0.9, 0.8, 0.7, 0.1])
    assert fraud.average_precision(labels, scores) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert fraud.best_threshold(labels, scores) == 0.7
    assert fraud.f1_score(labels, scores >= 0.7) == pytest.approx(0.8)
    # All of one score: precision is the share of hits.
    assert fraud.average_precision(labels, np.zeros(4)) == pytest.approx(0.5)
    assert fraud.f1_score(labels, np.zeros(4, dtype=bool)) == 0.0


def test_long_windows_help(fraud: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(fraud, "ROUNDS", 40)
    # Others may use the machine too: threads that spin for each other would crawl.
    monkeypatch.setattr(fraud, "THREADS", 1)
    options = ["--quick", "--models", "lightgbm"]
    results = []
    monkeypatch.setattr(fraud, "show", results.extend)
    assert fraud.main(options) == 0
    precision = {one.features: one.average_precision for one in results}
    assert list(precision) == ["row alone", "graph, 6 h", "graph, 24 h", "graph, 96 h"]
    assert precision["graph, 96 h"] > 1.2 * precision["row alone"]
    pytest.importorskip("matplotlib")
    fraud.plot(results, tmp_path / "fraud.png")
    assert (tmp_path / "fraud.png").stat().st_size > 5_000


def test_what_is_missing_is_said(fraud: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fraud.main(["--data", "nowhere.csv", "--models", ""]) == 1
    assert "nowhere.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fraud.main(["--models", "oracle"])
