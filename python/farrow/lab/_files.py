"""Output files of a run: raw samples as Parquet, figures as JSON, one page, pictures."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from farrow.lab import _plots, _report

if TYPE_CHECKING:
    from pathlib import Path

    from farrow.lab._analyse import Figures
    from farrow.lab._measure import Run

__all__ = ["samples_table", "write"]

SAMPLES = "samples.parquet"
FIGURES = "figures.json"
PAGE = "report.html"


def write(run: Run, figures: Figures, folder: Path) -> tuple[list[Path], bool]:
    """Write all files.

    Returns:
        The files, and whether they include pictures, which need matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(samples_table(run), folder / SAMPLES, compression="zstd")
    (folder / FIGURES).write_text(json.dumps(_document(run, figures), indent=1) + "\n")
    (folder / PAGE).write_text(_report.page(run, figures))
    pictures = _plots.draw(run, figures, folder)
    names = [SAMPLES, FIGURES, PAGE]
    return [folder / name for name in names] + (pictures or []), pictures is not None


def samples_table(run: Run) -> pa.Table:
    """All samples, one row each: the series, the round, and nanoseconds for each range."""
    rows = [
        (series, number, value)
        for series, rounds in run.samples
        for number, taken in enumerate(rounds)
        for value in taken
    ]
    texts = ("part", "work", "method", "state", "memory", "pages")
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(series, name) for series, _, _ in rows]).dictionary_encode()
        for name in texts
    }
    for name, kind in (
        ("nbytes", pa.int64()),
        ("threads", pa.int32()),
        ("width", pa.int8()),
        ("stride", pa.int32()),
    ):
        columns[name] = pa.array([getattr(series, name) for series, _, _ in rows], kind)
    columns["round"] = pa.array([number for _, number, _ in rows], pa.int16())
    columns["ns"] = pa.array([value for _, _, value in rows], pa.float64())
    facts = json.dumps({"machine": run.machine, "profile": run.profile})
    return pa.table(columns).replace_schema_metadata({"farrow.lab": facts})


def _document(run: Run, figures: Figures) -> dict[str, object]:
    line = run.machine["line_bytes"]
    return {
        "format": 2,
        "machine": run.machine,
        "profile": run.profile,
        "settings": dataclasses.asdict(run.settings),
        "seconds": round(run.seconds, 1),
        "huge_bytes": run.huge_bytes,
        "region": run.region,
        "costs": [
            {
                **dataclasses.asdict(cost.series),
                "count": cost.count,
                **{name: _short(getattr(cost, name)) for name in ("p25", "p50", "p75", "p99")},
                "line_ns": _short(cost.line_ns(line)),
                "gib_per_s": _short(cost.gib_per_s),
            }
            for cost in figures.costs
        ],
        "models": [dataclasses.asdict(model) for model in figures.models],
        "choices": [
            {
                **dataclasses.asdict(choice),
                "ratio": _short(choice.ratio),
                "is_decided": choice.is_decided,
            }
            for choice in figures.choices
        ],
        "decided_over_1.1": sum(choice.ratio > 1.1 for choice in figures.decided),
    }


def _short(value: float) -> float:
    """Round to four digits, more than the precision of the clock."""
    return float(f"{value:.4g}")
