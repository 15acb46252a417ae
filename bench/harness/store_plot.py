"""One picture of a store run: each peer and Farrow, on logarithmic axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.store_report import PEERS, rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.store_report import Row
    from harness.tasks import Sample

__all__ = ["draw"]

# Heading, how the rows' titles begin, factor from the unit, axis.
_PANELS: tuple[tuple[str, str | tuple[str, ...], float, str], ...] = (
    ("Create, write and seal", "create+write+seal ", 1e3, "milliseconds for all"),
    ("Get one by one", "get one by one ", 1e3, "milliseconds for all"),
    (
        "Objects of 1 kB, from Python",
        ("put 1 kB, p50", "put 1 kB under a name, p50", "get 1 kB, p50", "get 1 kB by name, p50"),
        1e6,
        "microseconds",
    ),
    ("Pairs of put and get of 1 kB", ("rate 1 client", "rate 2 clients"), 1e-3, "thousand/s"),
)
_COLOURS = dict(
    zip(
        ("farrow", *PEERS),
        ["#0b6e4f", "#c9a227", "#5b7db1", "#a4508b", "#d1603d", "#3d405b", "#8d99ae", "#6d597a",
         "#9c6644"],
        strict=True,
    )
)  # fmt: skip


def draw(samples: Sequence[Sample], title: str, target: Path) -> bool:
    """Draw a PNG; False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = rows(samples)
    figure, axes = pyplot.subplots(2, 2, figsize=(13, 10), layout="constrained")
    for axis, (heading, begins, factor, unit) in zip(axes.flat, _PANELS, strict=True):
        chosen = [row for row in found if row.title.startswith(begins)]
        _bars(axis, chosen, factor)
        names = [
            row.title.removeprefix(begins) if isinstance(begins, str) else row.title
            for row in chosen
        ]
        axis.set_yticks(range(len(chosen)), names)
        axis.invert_yaxis()
        if chosen:
            axis.set_xscale("log")
        axis.margins(x=0.15)
        axis.set_xlabel(unit)
        axis.set_title(heading, loc="left", fontsize=10, fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    present = [name for name in _COLOURS if any(sample.peer == name for sample in samples)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[name]) for name in present]
    figure.legend(handles, present, loc="outside upper right", ncols=len(present), frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(target, dpi=120)
    pyplot.close(figure)
    return True


def _bars(axis: object, chosen: Sequence[Row], factor: float) -> None:
    """A group of bars for each row."""
    height = 0.8 / len(_COLOURS)
    for place, row in enumerate(chosen):
        figures = dict(row.peers)
        if row.ours is not None:
            figures["farrow"] = row.ours
        for rank, (name, colour) in enumerate(_COLOURS.items()):
            if figures.get(name, 0.0) <= 0.0:
                continue
            at = place + (rank - (len(_COLOURS) - 1) / 2) * height
            value = figures[name] * factor
            axis.barh(at, value, height * 0.9, color=colour)  # type: ignore[attr-defined]
            axis.text(value, at, f" {value:.3g}", va="center", fontsize=6)  # type: ignore[attr-defined]
