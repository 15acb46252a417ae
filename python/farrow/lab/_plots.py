"""Pictures of a run as PNG, if matplotlib is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow.cli._output import human_bytes
from farrow.lab._pairs import pattern_speeds, with_huge_pages
from farrow.lab._plan import TYPICAL

if TYPE_CHECKING:
    from collections.abc import Callable
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
    """Draw the pictures; None if matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = []
    sketches: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("cost.png", lambda plots: _costs(plots, figures)),
        ("samples.png", lambda plots: _samples(plots, run)),
        ("threads.png", lambda plots: _threads(plots, figures)),
        ("pages.png", lambda plots: _pages(plots, figures)),
        ("patterns.png", lambda plots: _patterns(plots, figures)),
    )
    for name, sketch in sketches:
        figure = sketch(pyplot)
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


def _samples(pyplot: Any, run: Run) -> Any:
    """Distribution of single samples at three sizes, without those above p99."""
    figure, axes = pyplot.subplots(3, 3, figsize=(13, 9), layout="constrained")
    for row, work in zip(axes, ("publish", "refresh", "write"), strict=True):
        for axis, nbytes in zip(row, (64, 4096, 1 << 20), strict=True):
            names: list[str] = []
            for series, rounds in run.samples:
                wanted = ("lines", work, TYPICAL[work], "small", nbytes)
                one = (series.part, series.work, series.state, series.pages, series.nbytes)
                values = sorted(value for taken in rounds for value in taken)
                if one == wanted and values:
                    shown = values[: max(1, len(values) * 99 // 100)]
                    colour = _COLOURS[len(names) % len(_COLOURS)]
                    axis.hist(shown, bins=60, color=colour, alpha=0.55, label=series.method)
                    names.append(series.method)
            axis.set_title(
                f"{work}, lines {TYPICAL[work]}, {human_bytes(nbytes)}", loc="left", fontsize=10
            )
            axis.set_xlabel("nanoseconds")
            axis.spines[["top", "right"]].set_visible(False)
            if names:
                axis.set_xscale("log")
                axis.legend(frameon=False, fontsize=8)
    return figure


def _threads(pyplot: Any, figures: Figures) -> Any:
    """Throughput of all threads, by their number."""
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.5), layout="constrained")
    for axis, work in zip(axes, ("publish", "refresh", "write"), strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for cost in figures.costs:
            one = cost.series
            if (one.part, one.work, one.pages) == ("threads", work, "small"):
                name = f"{one.method}, {human_bytes(one.nbytes)}"
                lines.setdefault(name, []).append((one.threads, cost.gib_per_s))
        for number, (name, points) in enumerate(lines.items()):
            counts, speeds = zip(*sorted(points), strict=True)
            colour = _COLOURS[number % len(_COLOURS)]
            style = ("-", "--", ":")[number // len(_COLOURS) % 3]
            axis.plot(counts, speeds, style, marker=".", color=colour, label=name)
            axis.set_xticks(counts)
        axis.set_title(work, loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("threads, each on ranges of its own")
        axis.set_ylabel("GiB/s of all")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        if lines:
            axis.legend(frameon=False, fontsize=7)
    return figure


def _pages(pyplot: Any, figures: Figures) -> Any:
    """Time in huge pages over that in small ones."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for pair in with_huge_pages(figures):
        work, method, size = pair.words
        lines.setdefault(f"{work}, {method}", []).append((size, pair.ratio))
    figure, axis = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    sizes = list(dict.fromkeys(human_bytes(cost.series.nbytes) for cost in figures.costs))
    for number, (name, points) in enumerate(lines.items()):
        places = [sizes.index(size) for size, _ in points]
        ratios = [ratio for _, ratio in points]
        axis.plot(places, ratios, marker=".", color=_COLOURS[number % len(_COLOURS)], label=name)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(sizes)), sizes, rotation=35, ha="right", fontsize=8)
    axis.set_ylabel("time in 2 MiB pages / in 4 KiB pages")
    axis.spines[["top", "right"]].set_visible(False)
    if lines:
        axis.legend(frameon=False, fontsize=8)
    return figure


def _patterns(pyplot: Any, figures: Figures) -> Any:
    """Bandwidth of access patterns: private memory, by the size of its pages, and a region."""
    found = pattern_speeds(figures)
    height = max(4.0, 0.3 * len(found))
    figure, axis = pyplot.subplots(figsize=(9, height), layout="constrained")
    for number, name in enumerate(("private", "private, huge pages", "region")):
        values = [speeds.get(name, 0.0) for speeds in found.values()]
        places = [index + 0.27 * (number - 1) for index in range(len(found))]
        axis.barh(places, values, 0.25, label=name, color=_COLOURS[number])
    names = [
        f"{work}, {8 * width} bit, {'sequential' if stride == width else f'every {stride} B'}, "
        f"{threads} threads"
        for work, width, stride, threads in found
    ]
    axis.set_yticks(range(len(found)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("GiB/s of the elements touched")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure
