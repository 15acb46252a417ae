"""Small charts as SVG text: curves on logarithmic axes, histograms, bars side by side.

Called by the reports that use ``_page``.  Classes select the colours of its style sheet; texts are
escaped here.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["COLOURS", "bars", "curves", "histograms", "svg", "text"]

# Number of colour classes k0, k1, ... in the style sheet.
COLOURS = 6
_LEFT, _BOTTOM, _TOP, _RIGHT = 48, 30, 10, 22
# Height of a bar with its gap, width of a letter of a label, and letters that fit.
_BAR, _LETTER, _LABEL_MAX = 11, 6, 32
# Beyond this ratio of lengths a linear axis is unreadable.
_LINEAR_MAX = 30.0


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
    x_text: Callable[[float], str],
    width: int = 460,
) -> str:
    """Bars to the right, below each other in named groups; each has its value as a tooltip.

    A name has the same colour in all groups.  The axis begins at zero, or is logarithmic if the
    values differ by more than a factor of ``_LINEAR_MAX``; values of zero or less are left out.
    """
    values = [value for found in groups.values() for value in found.values() if value > 0]
    if not values:
        return ""
    names = list(dict.fromkeys(name for found in groups.values() for name in found))
    low, high = min(values), max(values)
    # The shortest bar must be visible, too.
    span = None if high / low <= _LINEAR_MAX else _decades([low / 2, high], 10.0)
    left = 8 + min(_LABEL_MAX, max(len(group) for group in groups)) * _LETTER
    across = width - left - _RIGHT - 16

    def place(value: float) -> float:
        return left + across * (value / high if span is None else _share(value, span))

    parts: list[str] = []
    y = float(_TOP)
    for group, found in groups.items():
        middle = y + len(found) * _BAR / 2
        parts.append(text(left - 6, middle + 3.5, _cut(group), "end"))
        for name, value in found.items():
            if value > 0:
                kind = f"k{names.index(name) % COLOURS}"
                title = html.escape(f"{group}, {name}: {x_text(value)}")
                parts.append(
                    f'<rect class="bar {kind}" x="{left}" y="{y:.1f}" '
                    f'width="{max(1.0, place(value) - left):.1f}" height="{_BAR - 2}">'
                    f"<title>{title}</title></rect>"
                )
            y += _BAR
        y += _BAR / 2
    ticks = [0.0, high / 2, high] if span is None else _ticks(span, 10.0)
    for tick in ticks:
        x = place(tick)
        parts.insert(0, f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y:.1f}"/>')
        parts.append(text(x, y + 12, x_text(tick), "middle"))
    return svg(width, round(y) + 18, parts) + _legend(names)


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_MAX else f"{label[: _LABEL_MAX - 1]}\u2026"


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
    """Text at a position; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """A drawing of parts."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">{"".join(parts)}</svg>'
    )
