"""Small charts as SVG text: curves on logarithmic axes, histograms, bars side by side.

Called by the reports that ``_page`` makes pages of.  Colours are those of its style sheet, by
classes; texts are escaped here.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["COLOURS", "bars", "curves", "histograms", "svg", "text"]

# As many classes k0, k1, ... has the style sheet.
COLOURS = 6
_LEFT, _BOTTOM, _TOP, _RIGHT = 48, 30, 10, 8


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    width: int = 460,
    height: int = 250,
) -> str:
    """Lines over points above zero, both axes logarithmic; each point has a tooltip."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    x_span = _decades([x for x, _ in points], 2.0)
    y_span = _decades([y for _, y in points], 10.0)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (width - _LEFT - _RIGHT) * _share(x, x_span),
            height - _BOTTOM - (height - _BOTTOM - _TOP) * _share(y, y_span),
        )

    parts = _axes(at, x_span, y_span, x_text, y_text)
    for number, (name, line) in enumerate(lines.items()):
        places = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        kind = f"k{number % COLOURS}"
        parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        parts += [
            f'<circle class="dot {kind}" cx="{px:.1f}" cy="{py:.1f}" r="2.6">'
            f"<title>{html.escape(name)}, {html.escape(x_text(x))}: "
            f"{html.escape(y_text(y))}</title></circle>"
            for (x, y), (px, py) in zip(line, places, strict=True)
        ]
    return svg(width, height, parts) + _legend(list(lines))


def histograms(
    bins: Mapping[str, Sequence[tuple[float, float, int]]],
    *,
    x_text: Callable[[float], str],
    width: int = 460,
    height: int = 170,
) -> str:
    """Shares of samples by bins (from, to, count), the horizontal axis logarithmic."""
    edges = [edge for one in bins.values() for low, high, _ in one for edge in (low, high)]
    if not edges:
        return ""
    span = _decades(edges, 2.0)
    shares: dict[str, list[tuple[float, float, float]]] = {}
    for name, counted in bins.items():
        total = max(1, sum(count for _, _, count in counted))
        shares[name] = [(low, high, count / total) for low, high, count in counted]
    highest = max(share for found in shares.values() for _, _, share in found) or 1.0
    base = height - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + (width - _LEFT - _RIGHT) * _share(x, span)

    parts = []
    for tick in _ticks(span, 2.0):
        parts.append(text(across(tick), height - 12, x_text(tick), "middle"))
    for number, (name, found) in enumerate(shares.items()):
        kind = f"k{number % COLOURS}"
        for low, high, share in found:
            tall = (base - _TOP) * share / highest
            title = html.escape(f"{name}, {x_text(low)}: {share:.1%}")
            parts.append(
                f'<rect class="bar pale {kind}" x="{across(low):.1f}" y="{base - tall:.1f}" '
                f'width="{max(1.0, across(high) - across(low)):.1f}" height="{tall:.1f}">'
                f"<title>{title}</title></rect>"
            )
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{base}" y2="{base}"/>')
    return svg(width, height, parts) + _legend(list(bins))


def bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    y_text: Callable[[float], str],
    width: int = 460,
    height: int = 250,
) -> str:
    """Bars above zero, side by side in named groups, the vertical axis logarithmic.

    A name has the same colour in all groups, and each bar its value as a tooltip; what is zero or
    less is left out.
    """
    shown = {
        group: {name: value for name, value in found.items() if value > 0}
        for group, found in groups.items()
    }
    values = [value for found in shown.values() for value in found.values()]
    if not values:
        return ""
    names = list(dict.fromkeys(name for found in groups.values() for name in found))
    # The lowest bar must be seen, too.
    low, high = _decades([min(values) / 2, max(values)], 10.0)
    base = height - _BOTTOM
    parts = []
    for tick in _ticks((low, high), 10.0):
        y = base - (base - _TOP) * _share(tick, (low, high))
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(text(_LEFT - 5, y + 3.5, y_text(tick), "end"))
    step = (width - _LEFT - _RIGHT) / len(shown)
    wide = 0.84 * step / len(names)
    for place, (group, found) in enumerate(shown.items()):
        left = _LEFT + step * (place + 0.08)
        for name, value in found.items():
            number = names.index(name)
            tall = (base - _TOP) * _share(value, (low, high))
            title = html.escape(f"{group}, {name}: {y_text(value)}")
            parts.append(
                f'<rect class="bar k{number % COLOURS}" x="{left + wide * number:.1f}" '
                f'y="{base - tall:.1f}" width="{wide * 0.92:.1f}" height="{tall:.1f}">'
                f"<title>{title}</title></rect>"
            )
        parts.append(text(_LEFT + step * (place + 0.5), base + 15, group, "middle"))
    return svg(width, height, parts) + _legend(names)


def _axes(
    at: Callable[[float, float], tuple[float, float]],
    x_span: tuple[float, float],
    y_span: tuple[float, float],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> list[str]:
    parts = []
    x0, y0 = at(x_span[0], y_span[0])
    x1, y1 = at(x_span[1], y_span[1])
    for tick in _ticks(y_span, 10.0):
        _, y = at(x_span[0], tick)
        parts.append(f'<line class="grid" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(x0 - 5, y + 3.5, y_text(tick), "end"))
    for tick in _ticks(x_span, 2.0):
        x, _ = at(tick, y_span[0])
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y0:.1f}"/>')
        parts.append(text(x, y0 + 15, x_text(tick), "middle"))
    return parts


def _decades(values: Sequence[float], base: float) -> tuple[float, float]:
    """From a power of the base to another one, around all values."""
    low = base ** math.floor(math.log(max(min(values), 1e-9), base) + 1e-9)
    high = base ** math.ceil(math.log(max(max(values), 1e-9), base) - 1e-9)
    return (low, high) if high > low else (low, low * base)


def _share(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return math.log(max(value, 1e-9) / low) / math.log(high / low)


def _ticks(span: tuple[float, float], base: float) -> list[float]:
    count = round(math.log(span[1] / span[0], base))
    step = max(1, math.ceil(count / 6))
    return [span[0] * base**power for power in range(0, count + 1, step)]


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<span><i class="k{number % COLOURS}"></i>{html.escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f"<div class=legend>{items}</div>"


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Words at a place; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """A drawing of parts."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">{"".join(parts)}</svg>'
    )
