"""One self-contained HTML page about a run.  No script, no font, no image comes from elsewhere."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from farrow.cli._output import human_bytes, human_ns
from farrow.lab import _svg
from farrow.lab._analyse import DECIDED, TYPICAL, histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from farrow.lab._analyse import Figures
    from farrow.lab._measure import Run

__all__ = ["page"]

# Sizes whose samples are shown one by one.
_SHOWN = (64, 4096, 1 << 20)
_PAGES = {"small": "4 KiB pages", "huge": "2 MiB pages"}


def page(run: Run, figures: Figures) -> str:
    """The page as HTML text."""
    worst = figures.worst
    over = [choice for choice in figures.choices if choice.ratio > 1.1]
    tiles = [
        ("cache line", f"{run.machine['line_bytes']} B"),
        ("cores", str(run.machine["cores"])),
        ("series", f"{len(figures.costs):,}"),
        ("samples", f"{sum(cost.count for cost in figures.costs):,}"),
        ("picked over best, worst", f"{worst.ratio:.2f}" if worst else "-"),
        ("choices over 1.1", f"{len(over)} of {len(figures.choices)}"),
    ]
    sections = [
        "<div class=tiles>" + "".join(_tile(*tile) for tile in tiles) + "</div>",
        _facts(run),
        "<h2>The best way, and the one Farrow takes</h2>"
        "<p>For each size: publish of lines that were stored to, refresh of lines that are cached,"
        " write of bytes from elsewhere with their publish. Lower quartiles over rounds in which"
        " all ways took turns.</p>" + _choices(figures),
        "<h2>Cost by size</h2><p>Median of a call, fences included.</p>" + _by_size(figures),
        "<h2>A call and a line</h2><p>Least squares of relative errors over all sizes.</p>"
        + _models(figures),
        "<h2>How samples lie</h2><p>Above the 99.9th percentile they are one bin.</p>"
        + _histograms(run, figures),
        "<h2>Threads</h2><p>Each on ranges of its own; bytes of all of them.</p>"
        + _threads(figures),
        "<h2>Access patterns</h2>"
        f"<p>{html.escape(human_bytes(run.settings.pattern_bytes))} for each thread, refreshed"
        f" before; private memory against {html.escape(run.region)}. Bandwidth of the elements that"
        " are touched.</p>" + _patterns(figures),
        "<h2>All figures</h2>" + _all(figures, run.machine["line_bytes"]),
    ]
    return _PAGE.format(title="Farrow: what coherence costs here", body="\n".join(sections))


def _facts(run: Run) -> str:
    profile = run.profile
    origin = profile["origin"] + (f", {profile['path']}" if profile["path"] else "")
    rows = [*run.machine.items(), ("profile", origin), ("seconds", f"{run.seconds:.0f}")]
    rows += [
        (f"in huge pages, {kind}", "not said" if count is None else human_bytes(count))
        for kind, count in run.huge_bytes.items()
    ]
    body = [(str(name).replace("_", " "), str(value)) for name, value in rows]
    return "<details><summary>Machine and settings</summary>" + _table((), body) + "</details>"


def _choices(figures: Figures) -> str:
    rows = [
        (
            choice.work,
            human_bytes(choice.nbytes),
            _PAGES[choice.pages],
            choice.best,
            human_ns(choice.best_ns),
            choice.picked,
            human_ns(choice.picked_ns),
            f"{choice.ratio:.2f}",
        )
        for choice in sorted(
            figures.choices, key=lambda one: (DECIDED.index(one.work), one.pages, one.nbytes)
        )
    ]
    heads = ("", "size", "pages", "best", ">", "picked", ">", ">picked / best")
    return _table(heads, rows, marked=lambda row: float(row[-1]) > 1.1)


def _by_size(figures: Figures) -> str:
    lines: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "lines":
            chart = lines.setdefault((one.work, one.state, one.pages), {})
            chart.setdefault(one.method, []).append((one.nbytes, cost.p50))
    return _grid(
        (f"{work}, {state}", _PAGES[pages], _svg.curves(chart, x_text=human_bytes, y_text=human_ns))
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
    return _table(("", "by", "lines are", "pages", ">a call", ">a line", ">error"), rows)


def _histograms(run: Run, figures: Figures) -> str:
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for series, rounds in run.samples:
        is_shown = series.part == "lines" and series.pages == "small" and series.nbytes in _SHOWN
        if is_shown and series.state == TYPICAL[series.work]:
            chart = found.setdefault((series.work, series.nbytes), {})
            chart[series.method] = [value for taken in rounds for value in taken]
    return _grid(
        (
            f"{work}, {TYPICAL[work]}, {human_bytes(nbytes)}",
            _PAGES["small"],
            _svg.histograms(
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
    return _table(("", "by", "each", "pages", ">threads", ">median", ">GiB/s"), rows)


def _patterns(figures: Figures) -> str:
    speeds: dict[tuple[str, int, int, int], dict[str, float]] = {}
    for cost in figures.costs:
        one = cost.series
        if one.part == "patterns":
            key = (one.work, one.width, one.stride, one.threads)
            speeds.setdefault(key, {})[one.memory] = cost.gib_per_s
    rows = [
        (
            work, f"{8 * width} bit", "sequential" if stride == width else f"every {stride} B",
            str(threads), f"{found['private']:.3g}", f"{found['region']:.3g}",
            f"{found['region'] / found['private']:.2f}",
        )
        for (work, width, stride, threads), found in speeds.items()
        if {"private", "region"} <= found.keys()
    ]  # fmt: skip
    heads = ("", "element", "order", ">threads", ">private GiB/s", ">region GiB/s", ">ratio")
    return _table(heads, rows)


def _all(figures: Figures, line_bytes: int) -> str:
    rows = [
        (
            cost.series.work, cost.series.method, cost.series.state,
            human_bytes(cost.series.nbytes), _PAGES[cost.series.pages], str(cost.count),
            *(human_ns(value) for value in (cost.p25, cost.p50, cost.p75, cost.p99)),
            f"{cost.line_ns(line_bytes):.2f} ns", f"{cost.gib_per_s:.2f}",
        )
        for cost in figures.costs if cost.series.part == "lines"
    ]  # fmt: skip
    heads = ("", "by", "lines are", ">size", "pages", ">samples", ">p25", ">p50", ">p75", ">p99",
             ">a line", ">GiB/s")  # fmt: skip
    return "<details><summary>Every series</summary>" + _table(heads, rows) + "</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], marked: object = None) -> str:
    """Plain cells; a column whose head begins with ``>`` is aligned right."""
    right = [head.startswith(">") for head in heads]
    top = "".join(f"<th>{html.escape(head.lstrip('>'))}</th>" for head in heads)
    body = []
    for row in rows:
        cells = "".join(
            f"<td{' class=right' if place < len(right) and right[place] else ''}>"
            f"{html.escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        mark = " class=mark" if callable(marked) and marked(row) else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table>{f'<tr>{top}</tr>' if heads else ''}{''.join(body)}</table>"


def _grid(figures: Iterable[tuple[str, str, str]]) -> str:
    return "<div class=charts>" + "".join(
        f"<figure><figcaption><b>{html.escape(title)}</b><span>{html.escape(note)}</span>"
        f"</figcaption>{chart}</figure>"
        for title, note, chart in figures
    ) + "</div>"  # fmt: skip


def _tile(name: str, value: str) -> str:
    return f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ --ink: #1d2733; --soft: #667585; --rule: #e2e7ec; --back: #fff; --card: #f7f9fb;
  --mark: #c8442c; --k0: #2f6f9f; --k1: #c8442c; --k2: #0b6e4f; --k3: #a06a00; --k4: #7a4fa3;
  --k5: #56707f; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #dfe6ec; --soft: #93a1af; --rule: #2c3742;
  --back: #141a20; --card: #1b232b; --mark: #f07a5f; --k0: #63a6d8; --k1: #f07a5f; --k2: #4fc79b;
  --k3: #e0b04f; --k4: #bb93e0; --k5: #9db5c2; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1080px; margin: 2.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin: 0 0 1rem; }}
h2 {{ font-size: 1.1rem; margin: 2.2rem 0 .3rem; }}
p {{ color: var(--soft); margin: 0 0 .8rem; }}
.tiles {{ display: flex; flex-wrap: wrap; gap: .7rem; margin-bottom: 1rem; }}
.tiles div {{ background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .55rem .9rem; min-width: 6.5rem; }}
.tiles b {{ display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; }}
.tiles span, figcaption span {{ color: var(--soft); font-size: .8rem; }}
table {{ border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .12rem 1rem .12rem 0;
  font-size: .85rem; }}
th {{ color: var(--soft); font-weight: 500; }}
.right {{ text-align: right; }}
.mark td {{ color: var(--mark); font-weight: 600; }}
summary {{ cursor: pointer; color: var(--soft); }}
figure {{ margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem .7rem; min-width: 0; }}
figcaption {{ display: flex; justify-content: space-between; align-items: baseline; gap: .5rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr));
  gap: .8rem; }}
svg {{ width: 100%; height: auto; display: block; }}
svg text {{ fill: var(--soft); font: 10.5px system-ui, sans-serif; }}
.grid {{ stroke: var(--rule); }}
.line {{ fill: none; stroke: var(--c); stroke-width: 1.6; }}
.dot {{ fill: var(--c); }} .bar {{ fill: var(--c); opacity: .6; }}
.k0 {{ --c: var(--k0); }} .k1 {{ --c: var(--k1); }} .k2 {{ --c: var(--k2); }}
.k3 {{ --c: var(--k3); }} .k4 {{ --c: var(--k4); }} .k5 {{ --c: var(--k5); }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem .9rem; font-size: .8rem;
  color: var(--soft); }}
.legend i {{ display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  background: var(--c); margin-right: .35rem; }}
</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
