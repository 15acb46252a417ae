"""One self-contained HTML page about a run.  It loads no external script, font or image."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from farrow._pages import _charts, _page
from farrow.cli._output import human_bytes, human_ns
from farrow.lab._analyse import DECIDED, histogram
from farrow.lab._pairs import compared_by, in_region, pattern_speeds, place, with_huge_pages
from farrow.lab._plan import TYPICAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from farrow.lab._analyse import Choice, Figures
    from farrow.lab._measure import Run
    from farrow.lab._pairs import Pair
    from farrow.lab._plan import Series

__all__ = ["page"]

# Sizes with a histogram of samples.
_SHOWN = (64, 4096, 1 << 20)
_PARTS = {"lines": "lines", "threads": "threads", "region": "region", "patterns": "access"}
_PAGES = {"small": "4 KiB pages", "huge": "2 MiB pages"}


def page(run: Run, figures: Figures) -> str:
    """The page as HTML text."""
    worst = figures.worst
    over = [choice for choice in figures.decided if choice.ratio > 1.1]
    tiles = [
        ("cache line", f"{run.machine['line_bytes']} B"),
        ("cores", str(run.machine["cores"])),
        ("series", f"{len(figures.costs):,}"),
        ("samples", f"{sum(cost.count for cost in figures.costs):,}"),
        ("picked over best, worst", f"{worst.ratio:.2f}" if worst else "-"),
        ("choices over 1.1", f"{len(over)} of {len(figures.decided)}"),
    ]
    sections = [
        _page.tiles(tiles),
        _facts(run),
        "<h2>The best way, and the one Farrow takes</h2>"
        "<p>For each size: publish of lines that were stored to, up to a page with the next store"
        " to each, since those are control words; refresh of lines that are cached; write of bytes"
        " from elsewhere with their publish. Lower quartiles over rounds in which all ways took"
        " turns.</p>" + _choices(figures.decided),
        "<details><summary>What the profile does not look at: several threads at a time, each on"
        " ranges of its own; publish of small ranges without the next store</summary>"
        + _choices(choice for choice in figures.choices if not choice.is_decided)
        + "</details>",
        "<h2>Cost by size</h2><p>Median of a call, fences included.</p>" + _by_size(figures),
        "<h2>A call and a line</h2><p>Least squares of relative errors over all sizes.</p>"
        + _models(figures),
        "<h2>How samples lie</h2><p>Above the 99.9th percentile they are one bin.</p>"
        + _histograms(run),
        "<h2>Threads</h2><p>Each on ranges of its own; bytes of all of them.</p>"
        + _threads(figures),
        "<h2>Huge pages</h2><p>The same in pages of 4 KiB and of 2 MiB, which are contiguous"
        " memory: by the way that is best in small ones; and sequential and strided access."
        f" {html.escape(_huge_said(run))}</p>" + _huge(figures),
        "<h2>In another node's memory</h2>"
        f"<p>Private memory of this process against {html.escape(run.region)}.</p>"
        + _region(figures),
        "<h2>Access patterns</h2>"
        f"<p>{html.escape(human_bytes(run.settings.pattern_bytes))} for each thread, refreshed"
        f" before; private memory, by the size of its pages, against {html.escape(run.region)}."
        " Bandwidth of the elements that are touched.</p>" + _patterns(figures),
        "<h2>All figures</h2>" + _all(figures, run.machine["line_bytes"]),
    ]
    return _page.document("Farrow: what coherence costs here", sections)


def _facts(run: Run) -> str:
    profile = run.profile
    origin = profile["origin"] + (f", {profile['path']}" if profile["path"] else "")
    rows = [*run.machine.items(), ("profile", origin), ("seconds", f"{run.seconds:.0f}")]
    rows += [
        (f"in huge pages, {kind}", "not said" if count is None else human_bytes(count))
        for kind, count in run.huge_bytes.items()
    ]
    return _page.facts(
        "Machine and settings", [(str(name).replace("_", " "), value) for name, value in rows]
    )


def _choices(choices: Iterable[Choice]) -> str:
    rows = [
        (
            choice.work, human_bytes(choice.nbytes), _PAGES[choice.pages], str(choice.threads),
            choice.best, human_ns(choice.best_ns), choice.picked, human_ns(choice.picked_ns),
            f"{choice.ratio:.2f}",
        )
        for choice in sorted(
            choices, key=lambda one: (DECIDED.index(one.work), one.threads, one.pages, one.nbytes)
        )
    ]  # fmt: skip
    heads = ("", "size", "pages", ">threads", "best", ">", "picked", ">", ">picked / best")
    return _page.table(heads, rows, marked=lambda row: float(row[-1]) > 1.1)


def _by_size(figures: Figures) -> str:
    lines: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "lines":
            chart = lines.setdefault((one.work, one.state, one.pages), {})
            chart.setdefault(one.method, []).append((one.nbytes, cost.p50))
    return _page.figures(
        (
            f"{work}, {state}",
            _PAGES[pages],
            _charts.curves(chart, x_text=human_bytes, y_text=human_ns),
        )
        for (work, state, pages), chart in lines.items()
    )


def _models(figures: Figures) -> str:
    rows = [
        (
            model.work, model.method, model.state, _PAGES[model.pages], f"{model.fixed_ns:.0f} ns",
            f"{model.line_ns:.2f} ns", f"{model.error:.0%}",
        )
        for model in figures.models
    ]  # fmt: skip
    return _page.table(("", "by", "lines are", "pages", ">a call", ">a line", ">error"), rows)


def _histograms(run: Run) -> str:
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for series, rounds in run.samples:
        is_shown = series.part == "lines" and series.pages == "small" and series.nbytes in _SHOWN
        if is_shown and series.state == TYPICAL[series.work]:
            chart = found.setdefault((series.work, series.nbytes), {})
            chart[series.method] = [value for taken in rounds for value in taken]
    return _page.figures(
        (
            f"{work}, {TYPICAL[work]}, {human_bytes(nbytes)}",
            _PAGES["small"],
            _charts.histograms(
                {name: histogram(values) for name, values in chart.items()}, x_text=human_ns
            ),
        )
        for (work, nbytes), chart in found.items()
    )


def _threads(figures: Figures) -> str:
    rows = [
        (
            cost.series.work, cost.series.method, human_bytes(cost.series.nbytes),
            _PAGES[cost.series.pages], str(cost.series.threads), human_ns(cost.p50),
            f"{cost.gib_per_s:.2f}",
        )
        for cost in figures.costs if cost.series.part == "threads"
    ]  # fmt: skip
    lines: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "threads":
            chart = lines.setdefault((one.work, one.pages), {})
            name = f"{one.method}, {human_bytes(one.nbytes)}"
            chart.setdefault(name, []).append((one.threads, cost.gib_per_s))
    charts = _page.figures(
        (work, _PAGES[pages], _charts.curves(chart, x_text=_whole, y_text=_speed))
        for (work, pages), chart in lines.items()
    )
    heads = ("", "by", "each", "pages", ">threads", ">median", ">GiB/s")
    return charts + _page.table(heads, rows)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _speed(value: float) -> str:
    return f"{value:.3g} GiB/s"


def _huge_said(run: Run) -> str:
    """Whether the kernel provided the requested huge pages."""
    had = run.huge_bytes.get("private huge")
    if had is None:
        return "The kernel does not report the memory in huge pages."
    return f"{human_bytes(had)} of the requested memory were in huge pages."


def _huge(figures: Figures) -> str:
    pairs = with_huge_pages(figures)
    heads = ("", "by", ">size", ">4 KiB pages", ">2 MiB pages", ">time with huge / without")
    return _pairs(heads, pairs) + _pairs(
        ("", "element", "order", ">4 KiB pages", ">2 MiB pages", ">time with huge / without"),
        compared_by(figures, "private", "private, huge pages"),
    )


def _region(figures: Figures) -> str:
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "region":
            chart = lines.setdefault(one.work, {})
            chart.setdefault(one.method, []).append((one.nbytes, cost.p50))
    charts = _page.figures(
        (work, "region", _charts.curves(chart, x_text=human_bytes, y_text=human_ns))
        for work, chart in lines.items()
    )
    heads = ("", "by", ">size", ">private", ">region", ">time in region / private")
    return charts + _pairs(heads, in_region(figures))


def _pairs(heads: Sequence[str], pairs: Iterable[Pair]) -> str:
    return _page.table(heads, [pair.cells for pair in pairs])


def _patterns(figures: Figures) -> str:
    places = ("private", "private, huge pages", "region")
    rows = []
    for (work, width, stride, threads), found in pattern_speeds(figures).items():
        if {"private", "region"} <= found.keys():
            order = "sequential" if stride == width else f"every {stride} B"
            speeds = (f"{found[one]:.3g}" if one in found else "-" for one in places)
            ratio = f"{found['region'] / found['private']:.2f}"
            rows.append((work, f"{8 * width} bit", order, str(threads), *speeds, ratio))
    heads = ("", "element", "order", ">threads", ">private GiB/s", ">in huge pages GiB/s",
             ">region GiB/s", ">region / private")  # fmt: skip
    return _strides(figures) + _page.table(heads, rows)


def _strides(figures: Figures) -> str:
    """Bandwidth of one thread by the distance of the elements."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (work, width, stride, threads), found in pattern_speeds(figures).items():
        if threads == 1:
            for where, speed in found.items():
                chart = lines.setdefault(work, {})
                chart.setdefault(f"{8 * width} bit, {where}", []).append((stride, speed))
    return _page.figures(
        (work, "one thread, by stride", _charts.curves(chart, x_text=human_bytes, y_text=_speed))
        for work, chart in lines.items()
    )


def _order(series: Series) -> str:
    """Order of the elements, in loads and stores."""
    if series.part != "patterns":
        return ""
    width = f"{8 * series.width} bit"
    if series.stride == series.width:
        return f"{width}, sequential"
    return f"{width}, every {series.stride} B"


def _all(figures: Figures, line_bytes: int) -> str:
    rows = [
        (
            _PARTS[cost.series.part], cost.series.work, cost.series.method, cost.series.state,
            str(cost.series.threads), _order(cost.series), place(cost.series),
            human_bytes(cost.series.nbytes), _PAGES[cost.series.pages], str(cost.count),
            *(human_ns(value) for value in (cost.p25, cost.p50, cost.p75, cost.p99)),
            f"{cost.line_ns(line_bytes):.2f} ns", f"{cost.gib_per_s:.2f}",
        )
        for cost in figures.costs
    ]  # fmt: skip
    heads = (
        "part", "", "by", "lines are", ">threads", "order", "memory", ">size", "pages", ">samples",
        ">p25", ">p50", ">p75", ">p99", ">a line", ">GiB/s",
    )  # fmt: skip
    return "<details><summary>Every series</summary>" + _page.table(heads, rows) + "</details>"
