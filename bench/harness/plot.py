"""One picture of a run: Farrow and its peers, side by side, on logarithmic axes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.tasks import Sample

__all__ = ["draw"]

_PANELS = (
    ("Hand over a large table", ("put large", "get large first", "get large")),
    ("Hand over a medium table", ("put medium", "get medium first", "get medium")),
    (
        "Objects of 1 kB, from Python",
        ("put small, named", "get small, by name", "put small", "get small"),
    ),
    ("Pass over the large table", ("pass bytes first", "pass bytes later", "pass bytes private")),
)
_PEERS = ("farrow", "plasma", "ipc_shm", "flight")
_COLOURS = {"farrow": "#0b6e4f", "plasma": "#c9a227", "ipc_shm": "#5b7db1", "flight": "#a4508b"}
_HEIGHT = 0.2


def draw(samples: Sequence[Sample], variant: str, title: str, target: Path) -> bool:
    """Draw a PNG; False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    table = {
        (s.case, s.peer): median(s.samples) for s in samples if s.variant == variant and s.samples
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 7.5), layout="constrained")
    for axis, (heading, cases) in zip(axes.flat, _PANELS, strict=True):
        for place, case in enumerate(cases):
            for rank, peer in enumerate(_PEERS):
                value = table.get((case, peer))
                if value is None:
                    continue
                height = place + (rank - 1.5) * _HEIGHT
                axis.barh(height, value * 1e3, _HEIGHT * 0.9, color=_COLOURS[peer])
                axis.text(value * 1e3, height, f" {value * 1e3:.3g}", va="center", fontsize=7)
        axis.set_yticks(range(len(cases)), cases)
        axis.invert_yaxis()
        # Passes differ little: a linear axis shows that; other cases differ by factors.
        axis.set_xscale("linear" if "pass" in cases[0] else "log")
        axis.margins(x=0.15)
        axis.set_xlabel("milliseconds, median (less is better)")
        axis.set_title(heading, loc="left", fontsize=10, fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    present = [peer for peer in _PEERS if any(key[1] == peer for key in table)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[peer]) for peer in present]
    figure.legend(handles, present, loc="outside upper right", ncols=len(present), frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
    return True
