"""Parts of self-contained HTML pages: tiles, tables, figures, and the page with its style sheet.

Called by ``farrow graph report``, ``farrow lab coherence`` and ``bench/reproduce.py``.
A page loads no external script, font or image.  Texts are escaped here, except arguments that are
documented as HTML.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["document", "facts", "figures", "table", "tiles"]


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """The main figures: (name, value)."""
    return (
        "<div class=tiles>"
        + "".join(
            f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
            for name, value in pairs
        )
        + "</div>"
    )


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    marked: Callable[[Sequence[str]], bool] | None = None,
) -> str:
    """Plain cells; a column whose head begins with ``>`` is aligned right, ``marked`` rows are
    highlighted."""
    right = [head.startswith(">") for head in heads]

    def cell(kind: str, place: int, words: str) -> str:
        style = " class=right" if place < len(right) and right[place] else ""
        return f"<{kind}{style}>{html.escape(words)}</{kind}>"

    top = "".join(cell("th", place, head.lstrip(">")) for place, head in enumerate(heads))
    body = []
    for row in rows:
        cells = "".join(cell("td", place, words) for place, words in enumerate(row))
        mark = " class=mark" if marked is not None and marked(row) else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table>{f'<tr>{top}</tr>' if heads else ''}{''.join(body)}</table>"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values in a collapsed section."""
    cells = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in pairs
    )
    return f"<details><summary>{html.escape(title)}</summary><table>{cells}</table></details>"


def figures(charts: Iterable[tuple[str, str, str]]) -> str:
    """Charts beside each other: (title, note, the chart as HTML)."""
    return (
        "<div class=charts>"
        + "".join(
            f"<figure><figcaption><b>{html.escape(title)}</b><span>{html.escape(note)}</span>"
            f"</figcaption>{chart}</figure>"
            for title, note, chart in charts
        )
        + "</div>"
    )


def document(title: str, sections: Iterable[str], style: str = "") -> str:
    """The page: sections of HTML, and additional CSS."""
    body = "\n".join(sections)
    return _PAGE.format(title=html.escape(title), style=_STYLE + style, body=body)


_STYLE = """
:root { --ink: #1d2733; --soft: #667585; --rule: #e2e7ec; --back: #fff; --card: #f7f9fb;
  --mark: #c8442c; --k0: #2f6f9f; --k1: #c8442c; --k2: #0b6e4f; --k3: #a06a00; --k4: #7a4fa3;
  --k5: #56707f; --c: var(--k0); }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe6ec; --soft: #93a1af; --rule: #2c3742;
  --back: #141a20; --card: #1b232b; --mark: #f07a5f; --k0: #63a6d8; --k1: #f07a5f; --k2: #4fc79b;
  --k3: #e0b04f; --k4: #bb93e0; --k5: #9db5c2; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1080px; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { color: var(--soft); margin: 0 0 .8rem; }
.small { font-size: .8rem; margin: .2rem 0 0; }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin-bottom: 1rem; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .55rem .9rem; min-width: 6.5rem; }
.tiles b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.tiles span, figcaption span { color: var(--soft); font-size: .8rem; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .12rem 1rem .12rem 0;
  font-size: .85rem; }
th { color: var(--soft); font-weight: 500; }
td.right, th.right { text-align: right; }
.mark td { color: var(--mark); font-weight: 600; }
summary { cursor: pointer; color: var(--soft); }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem .7rem; min-width: 0; }
figcaption { display: flex; justify-content: space-between; align-items: baseline; gap: .5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr));
  gap: .8rem; margin-bottom: .8rem; align-items: start; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 10.5px system-ui, sans-serif; }
.grid { stroke: var(--rule); }
.line { fill: none; stroke: var(--c); stroke-width: 1.6; }
.dot, .bar { fill: var(--c); } .bar.pale { opacity: .6; }
.k0 { --c: var(--k0); } .k1 { --c: var(--k1); } .k2 { --c: var(--k2); }
.k3 { --c: var(--k3); } .k4 { --c: var(--k4); } .k5 { --c: var(--k5); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem .9rem; font-size: .8rem;
  color: var(--soft); }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  background: var(--c); margin-right: .35rem; }
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
