"""Small drawings as SVG text: bars, a line over rows, and one found pattern.

Called only by ``report``.  Classes select the colours of the page's style sheet; texts are escaped
here.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, NamedTuple

from farrow._pages._charts import svg, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Hop", "bars", "drawing", "human", "line"]

_ARROW_PIXELS = 7.0
_NODE_PIXELS = 5.0
# A drawing shows at most this many nodes, and the total number.
_NODES_MAX = 24
# Margin for dots and for the caption.
_CAPTION_PIXELS = 20


class Hop(NamedTuple):
    """The payments from one account to another within a pattern."""

    source: str
    target: str
    label: str
    """Shown when the pointer rests on it."""
    payments: int
    is_trigger: bool = False


def human(value: float) -> str:
    """A number with three digits and a suffix: ``12.3 k``, ``4.56 M``."""
    for suffix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {suffix}"
    return f"{value:.3g}"


def bars(names: Sequence[str], counts: Sequence[float], *, width: int = 340) -> str:
    """Bars on a logarithmic scale, one for each name, with its count as a tooltip."""
    height, left, bottom, top = 130, 42, 22, 8
    across, up = width - left - 6, height - bottom - top
    highest = max([1.0, *counts])
    decades = max(1, math.ceil(math.log10(highest)))

    def level(count: float) -> float:
        return 0.0 if count < 1 else max(3.0, up * (math.log10(count) + 0.15) / (decades + 0.15))

    parts = []
    for decade in range(0, decades + 1, max(1, decades // 3)):
        y = height - bottom - up * (decade + 0.15) / (decades + 0.15)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(left - 5, y + 3.5, human(10.0**decade), "end"))
    step = across / max(len(names), 1)
    every = max(1, math.ceil(len(names) * 22 / across))
    for place, (name, count) in enumerate(zip(names, counts, strict=True)):
        tall = level(count)
        x, y = left + place * step, height - bottom - tall
        label = html.escape(f"{name}: {count:,.0f} rows")
        parts.append(
            f'<rect class="bar" x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}"'
            f' height="{tall:.1f}"><title>{label}</title></rect>'
        )
        if place % every == 0:
            parts.append(text(x + step / 2, height - 7, name, "middle"))
    return svg(width, height, parts)


def line(points: Sequence[tuple[float, float]], *, width: int = 1040) -> str:
    """A line of (rows so far, rows a second) points, from zero up."""
    height, left, bottom, top = 220, 60, 26, 10
    if not points:
        return svg(width, 20, [text(0, 14, "nothing was measured", "start")])
    most_x = (max(x for x, _ in points) or 1.0) * 1.02
    most_y = max(y for _, y in points) * 1.08 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (width - left - 10) * x / most_x,
            height - bottom - (height - bottom - top) * y / most_y,
        )

    parts = []
    for tick in _ticks(most_y):
        _, y = at(0, tick)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(text(left - 6, y + 3.5, human(tick), "end"))
    for tick in _ticks(most_x):
        x, _ = at(tick, 0)
        parts.append(text(x, height - 8, human(tick), "middle"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    if len(points) > 1:
        parts.append(f'<polyline class="line" points="{path}"/>')
    parts += [
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
        f"<title>{human(rows)} rows: {human(rate)} rows/s</title></circle>"
        for (rows, rate), (x, y) in ((point, at(*point)) for point in points)
        if len(points) <= 200
    ]
    return svg(width, height, parts)


def drawing(kind: str, accounts: Sequence[str], hops: Sequence[Hop], *, size: int = 250) -> str:
    """One pattern: accounts as dots with tooltips, payments as arrows.

    Args:
        kind: kind of the pattern, which determines the layout.
        accounts: accounts in the order of the pattern.
        hops: payments between them, each pair once.
        size: width and height, in pixels.
    """
    places = _layout(kind, accounts, hops, size)
    shown = [hop for hop in hops if hop.source in places and hop.target in places]
    both = {(hop.source, hop.target) for hop in shown}
    parts = [_arrow(hop, places, (hop.target, hop.source) in both) for hop in shown]
    centre = _centre(kind, accounts)
    for name, (x, y) in places.items():
        cls = "centre" if name in centre else "node"
        parts.append(
            f'<circle class="{cls}" cx="{x:.1f}" cy="{y:.1f}" r="{_NODE_PIXELS}">'
            f"<title>{html.escape(name)}</title></circle>"
        )
    hidden = len(set(accounts)) - len(places)
    if hidden > 0:
        parts.append(text(size / 2, size - 3, f"and {hidden} more accounts", "middle"))
    return svg(size, size, parts)


def _centre(kind: str, accounts: Sequence[str]) -> tuple[str, ...]:
    """The accounts around which a pattern is built."""
    if kind == "scatter-gather":
        return tuple(accounts[:2])
    return () if kind.endswith("cycle") else tuple(accounts[:1])


def _layout(
    kind: str, accounts: Sequence[str], hops: Sequence[Hop], size: int
) -> dict[str, tuple[float, float]]:
    """Positions of the accounts: a ring for cycles, else columns of payers, centre and payees."""
    names = list(dict.fromkeys(accounts))
    if kind.endswith("cycle"):
        return _ring(names[:_NODES_MAX], size)
    if kind == "scatter-gather":
        columns = [names[:1], names[2:][: _NODES_MAX - 2], names[1:2]]
    else:
        centre = names[:1]
        into = {hop.source for hop in hops if hop.target in centre}
        payers = [name for name in names[1:] if name in into]
        payees = [name for name in names[1:] if name not in into]
        # With one side only, the accounts surround the centre.
        if not payers or not payees:
            around = _ring((payers or payees)[: _NODES_MAX - 1], size)
            return {**dict.fromkeys(centre, (size / 2, size / 2)), **around}
        half = (_NODES_MAX - 1) // 2
        columns = [payers[:half], centre, payees[:half]]
    places = {}
    for column, inside in enumerate(columns):
        for row, name in enumerate(inside):
            y = (size - _CAPTION_PIXELS) * (row + 1) / (len(inside) + 1)
            places[name] = (20 + (size - 40) * column / 2, y)
    return places


def _ring(names: Sequence[str], size: int) -> dict[str, tuple[float, float]]:
    places = {}
    for number, name in enumerate(names):
        angle = 2 * math.pi * number / max(len(names), 1) - math.pi / 2
        reach = size / 2 - _CAPTION_PIXELS
        places[name] = (size / 2 + reach * math.cos(angle), size / 2 + reach * math.sin(angle))
    return places


def _arrow(hop: Hop, places: Mapping[str, tuple[float, float]], is_bent: bool) -> str:
    """One payment, from the rim of one dot to that of the other; bent if a reverse one exists."""
    (x0, y0), (x1, y1) = places[hop.source], places[hop.target]
    cls = "hop trigger" if hop.is_trigger else "hop"
    thick = min(1.0 + 0.6 * math.log2(max(hop.payments, 1)), 4.0)
    title = f"<title>{html.escape(hop.label)}</title>"
    length = math.hypot(x1 - x0, y1 - y0)
    if length < 1:  # a self-loop
        return (
            f'<circle class="{cls}" fill="none" stroke-width="{thick:.1f}" cx="{x0:.1f}"'
            f' cy="{y0 - 11:.1f}" r="9">{title}</circle>'
        )
    bend = 14.0 if is_bent else 0.0
    across, along = -(y1 - y0) / length, (x1 - x0) / length
    mx, my = (x0 + x1) / 2 + bend * across, (y0 + y1) / 2 + bend * along
    sx, sy = _toward(x0, y0, mx, my, _NODE_PIXELS)
    tx, ty = _toward(x1, y1, mx, my, _NODE_PIXELS + 1)
    bx, by = _toward(tx, ty, mx, my, _ARROW_PIXELS)
    gap = math.hypot(tx - bx, ty - by) or 1.0
    nx, ny = -(ty - by) / gap * 3.0, (tx - bx) / gap * 3.0
    head = f"{tx:.1f},{ty:.1f} {bx + nx:.1f},{by + ny:.1f} {bx - nx:.1f},{by - ny:.1f}"
    return (
        f'<g class="{cls}"><path fill="none" stroke-width="{thick:.1f}"'
        f' d="M{sx:.1f} {sy:.1f} Q{mx:.1f} {my:.1f} {bx:.1f} {by:.1f}"/>'
        f'<polygon points="{head}"/>{title}</g>'
    )


def _toward(x: float, y: float, to_x: float, to_y: float, pixels: float) -> tuple[float, float]:
    length = math.hypot(to_x - x, to_y - y) or 1.0
    return x + (to_x - x) / length * pixels, y + (to_y - y) / length * pixels


def _ticks(most: float) -> list[float]:
    """Round values from 0 up to ``most``, four to seven of them."""
    step = 10.0 ** math.floor(math.log10(most))
    for part in (0.1, 0.2, 0.25, 0.5, 1.0):
        if most / (step * part) <= 6:
            step *= part
            break
    return [step * number for number in range(int(most / step) + 1)]
