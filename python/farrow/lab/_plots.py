"""Pictures of a run as PNG, where matplotlib is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from farrow.lab._analyse import Figures
    from farrow.lab._measure import Run

__all__ = ["draw"]

_COLOURS = ("#2f6f9f", "#c8442c", "#0b6e4f", "#a06a00", "#7a4fa3", "#56707f")
_PANELS = (
    ("publish", "dirty"), ("publish", "cached"), ("publish", "uncached"),
    ("refresh", "cached"), ("refresh", "uncached"), ("write", "uncached"),
)  # fmt: skip


def draw(run: Run, figures: Figures, folder: Path) -> list[Path] | None:
    """Draw the pictures; None if matplotlib is not there."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = []
    for name, sketch in (("cost.png", _costs), ("patterns.png", _patterns)):
        figure = sketch(pyplot, figures)
        figure.suptitle(run.machine["processor"], x=0.01, ha="left", fontsize=9)
        figure.savefig(folder / name, dpi=120)
        pyplot.close(figure)
        made.append(folder / name)
    return made


def _costs(pyplot: Any, figures: Figures) -> Any:
    """Nanoseconds a line by size: one panel for each kind of work and state."""
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for axis, (work, state) in zip(axes.flat, _PANELS, strict=True):
        lines: dict[str, list[tuple[int, float, float, float]]] = {}
        for cost in figures.costs:
            one = cost.series
            if (one.part, one.work, one.state, one.pages) == ("lines", work, state, "small"):
                point = (one.nbytes, cost.p25, cost.p50, cost.p75)
                lines.setdefault(one.method, []).append(point)
        for number, (name, points) in enumerate(lines.items()):
            sizes, low, middle, high = zip(*points, strict=True)
            colour = _COLOURS[number % len(_COLOURS)]
            axis.plot(sizes, middle, marker=".", color=colour, label=name)
            axis.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("bytes")
        axis.set_ylabel("nanoseconds, p25 to p75")
        axis.set_title(f"{work}, lines {state}", loc="left", fontsize=10, fontweight="bold")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if lines:
            axis.legend(frameon=False, fontsize=8)
    return figure


def _patterns(pyplot: Any, figures: Figures) -> Any:
    """Bandwidth of access patterns, private memory beside a region."""
    found: dict[str, dict[str, float]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "patterns":
            order = "sequential" if one.stride == one.width else f"every {one.stride} B"
            name = f"{one.work}, {8 * one.width} bit, {order}, {one.threads} threads"
            found.setdefault(name, {})[one.memory] = cost.gib_per_s
    height = max(4.0, 0.22 * len(found))
    figure, axis = pyplot.subplots(figsize=(9, height), layout="constrained")
    for shift, memory in ((-0.2, "private"), (0.2, "region")):
        values = [speeds.get(memory, 0.0) for speeds in found.values()]
        places = [place + shift for place in range(len(found))]
        axis.barh(places, values, 0.38, label=memory, color=_COLOURS[int(shift > 0)])
    axis.set_yticks(range(len(found)), list(found), fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("GiB/s of the elements touched")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure
