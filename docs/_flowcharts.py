"""Flowcharts of the documentation: read, told as numbered steps, and drawn as SVG.

A browser would need a script from elsewhere for the original text.  The charts are small, so a
layered layout is enough: nodes in layers by their longest path, an order with few crossings, and
places near the neighbours.  Called by ``_hooks.py``.
"""

from __future__ import annotations

import html
import itertools
import re
from dataclasses import dataclass, field
from typing import NamedTuple

_NODE = re.compile(r"(\w+)(?:([\[{])\"([^\"]+)\"[\]}])?")
_ARROW = re.compile(r" (?:-- \"([^\"]+)\" )?(-->|-\.->) ")
_GROUP = re.compile(r"subgraph \w+ \[\"?([^\]\"]+)\"?\]")
_HEAD = re.compile(r"flowchart (TD|LR)")

# Sizes in units of CSS pixels.
_CODE_PX, _TEXT_PX, _LABEL_PX = 11.5, 12.5, 11.5
_LINE = 16.0
_PAD = 9.0
# Widths of a character, as parts of the font size: exact for code, an average for text.
_CODE_WIDTH, _TEXT_WIDTH = 0.602, 0.53
_CODE_CHARS_MAX, _TEXT_CHARS_MAX = 26, 30
_BETWEEN_NODES, _BETWEEN_LAYERS, _FOR_LABEL = 18.0, 30.0, 20.0
_MARGIN = 6.0
# Smaller than this part of its size a chart scrolls instead.
_SCALE_MIN = 0.8
_ROUNDS = 24


class FlowNode(NamedTuple):
    """A box: its text, whether it is a question, and the title of its group ("" for none)."""

    text: str
    is_question: bool
    group: str


class FlowEdge(NamedTuple):
    """An arrow, with its label ("" for none)."""

    start: str
    end: str
    label: str
    is_dashed: bool


@dataclass
class Flowchart:
    """The content of a chart."""

    is_horizontal: bool = False
    nodes: dict[str, FlowNode] = field(default_factory=dict)
    edges: list[FlowEdge] = field(default_factory=list)


def parsed(text: str) -> Flowchart:
    """Read a flowchart.

    Raises:
        ValueError: a line is of no known form.
    """
    head, *lines = text.strip().splitlines()
    kind = _HEAD.fullmatch(head.strip())
    if kind is None:
        raise ValueError(f"no flowchart: {head!r}")
    chart = Flowchart(is_horizontal=kind[1] == "LR")
    group = ""
    for line in map(str.strip, lines):
        if line == "end":
            group = ""
        elif found := _GROUP.fullmatch(line):
            group = found[1]
        else:
            _read_line(line, group, chart)
    return chart


def _read_line(line: str, group: str, chart: Flowchart) -> None:
    """The nodes of a line, and the arrows between them."""
    # Nodes, each followed by the label and the kind of the arrow to the next one.
    parts = _ARROW.split(line)
    names = []
    for part in parts[::3]:
        node = _NODE.fullmatch(part)
        if node is None:
            raise ValueError(f"no line of a flowchart: {line!r}")
        if node[3] is not None or node[1] not in chart.nodes:
            chart.nodes[node[1]] = FlowNode(node[3] or node[1], node[2] == "{", group)
        names.append(node[1])
    for (start, end), label, kind in zip(
        itertools.pairwise(names), parts[1::3], parts[2::3], strict=True
    ):
        chart.edges.append(FlowEdge(start, end, label or "", kind == "-.->"))


def steps(chart: Flowchart) -> list[str]:
    """The chart in words: a step for each node, with the ways from it."""
    ways: dict[str, list[tuple[str, str]]] = {}
    for edge in chart.edges:
        words = edge.label or ("for its tests" if edge.is_dashed else "")
        ways.setdefault(edge.start, []).append((words, edge.end))
    all_ways = list(ways.values())
    # A walk is read from top to bottom; of other charts each edge is told.
    labels = {label for some in all_ways for label, _ in some} - {"", "for its tests"}
    is_walk = bool(labels) or max(map(len, all_ways)) == 1
    names = list(chart.nodes)
    lines = []
    for number, name in enumerate(names, 1):
        node, own = chart.nodes[name], ways.get(name, [])
        text = node.text + (f" ({node.group})" if node.group else "")
        words = ", then done" if is_walk and not own and number < len(names) else ""
        if own and not (is_walk and own == [("", names[min(number, len(names) - 1)])]):
            short = [(label, chart.nodes[to].text.partition(":")[0]) for label, to in own]
            words = " → " + "; ".join(f"{label}: {to}" if label else to for label, to in short)
        lines.append(text + words)
    return lines


class _Line(NamedTuple):
    text: str
    is_code: bool

    @property
    def width(self) -> float:
        size = _CODE_PX * _CODE_WIDTH if self.is_code else _TEXT_PX * _TEXT_WIDTH
        return len(self.text) * size


def _wrapped(text: str, most: int, after: str) -> list[str]:
    """Lines of at most ``most`` characters, broken after one of these characters if possible."""
    lines, rest = [], text
    while len(rest) > most:
        cut = max(rest.rfind(one, 0, most) for one in after) + 1 or most
        lines.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*lines, rest]


def _lines(node: FlowNode) -> list[_Line]:
    """The lines of a box: names of files as code, then what they do."""
    files, colon, words = node.text.partition(": ")
    lines = []
    if "/" in files:
        for name in files.split(", "):
            lines += [_Line(one, True) for one in _wrapped(name, _CODE_CHARS_MAX, "/")]
    else:
        words = node.text if not colon or "/" not in files else words
    lines += [_Line(one, False) for one in _wrapped(words, _TEXT_CHARS_MAX, " ") if one]
    return [*lines, _Line(node.group, False)] if node.group else lines


@dataclass
class _Box:
    """A place in a layer: a node, or the way of an edge through the layer."""

    lines: list[_Line]
    is_question: bool = False
    across: float = 12.0
    along: float = 0.0
    # Its centre across the layers, and its layer.
    at: float = 0.0
    layer: int = 0
    before: list[_Box] = field(default_factory=list)
    behind: list[_Box] = field(default_factory=list)


def _layers_of(chart: Flowchart) -> dict[str, int]:
    """The layer of each node: the longest path to it. Edges that close a circle are left out."""
    behind: dict[str, list[str]] = {name: [] for name in chart.nodes}
    for edge in chart.edges:
        behind[edge.start].append(edge.end)
    order: list[str] = []
    seen: dict[str, bool] = {}

    def visit(name: str) -> None:
        seen[name] = False
        for one in behind[name]:
            if one not in seen:
                visit(one)
        seen[name] = True
        order.append(name)

    for name in chart.nodes:
        if name not in seen:
            visit(name)
    layers = dict.fromkeys(chart.nodes, 0)
    place = {name: number for number, name in enumerate(reversed(order))}
    for name in reversed(order):
        for one in behind[name]:
            if place[one] > place[name]:
                layers[one] = max(layers[one], layers[name] + 1)
    return layers


class _Layout:
    """Boxes with their places."""

    def __init__(self, chart: Flowchart) -> None:
        self.chart = chart
        self.boxes: dict[str, _Box] = {}
        layers = _layers_of(chart)
        self.layers: list[list[_Box]] = [[] for _ in range(max(layers.values()) + 1)]
        for name, node in chart.nodes.items():
            lines = _lines(node)
            width = max(line.width for line in lines) + 2 * _PAD
            height = len(lines) * _LINE + 2 * _PAD
            sizes = (height, width) if chart.is_horizontal else (width, height)
            box = _Box(lines, node.is_question, *sizes, layer=layers[name])
            self.boxes[name] = box
            self.layers[box.layer].append(box)
        self.ways = [self._way(edge) for edge in chart.edges]
        self._order()
        self._place()
        self.starts: list[float] = []
        self.ends: list[float] = []
        at = _MARGIN
        for number, layer in enumerate(self.layers):
            self.starts.append(at)
            self.ends.append(at + max(box.along for box in layer))
            labelled = any(
                edge.label and self.boxes[edge.start].layer == number for edge in chart.edges
            )
            # Labels beside horizontal arrows take the room of their text.
            at = self.ends[-1] + _BETWEEN_LAYERS + (_FOR_LABEL if labelled else 0.0)
        self.along = self.ends[-1] + _MARGIN

    def _way(self, edge: FlowEdge) -> list[_Box]:
        """The boxes of an edge: its ends, and a place in each layer between them."""
        start, end = self.boxes[edge.start], self.boxes[edge.end]
        way = [start]
        for layer in range(start.layer + 1, end.layer):
            way.append(_Box([], layer=layer))
            self.layers[layer].append(way[-1])
        way.append(end)
        for one, next_one in itertools.pairwise(way):
            one.behind.append(next_one)
            next_one.before.append(one)
        return way

    def _crossings(self) -> int:
        count = 0
        for layer in self.layers[1:]:
            pairs = [(one.at, box.at) for box in layer for one in box.before]
            for (a, b), (c, d) in itertools.combinations(pairs, 2):
                count += (a - c) * (b - d) < 0
        return count

    def _order(self) -> None:
        """Sort each layer by the mean place of the neighbours, down and up, and keep the best."""
        best: tuple[int, list[list[_Box]]] | None = None
        for number in range(_ROUNDS):
            for layer in self.layers if number % 2 == 0 else reversed(self.layers):
                if number:
                    layer.sort(key=lambda box: self._mean(box, number % 2 == 0))
                for place, box in enumerate(layer):
                    box.at = float(place)
            crossings = self._crossings()
            if best is None or crossings < best[0]:
                best = crossings, [list(layer) for layer in self.layers]
        assert best is not None
        self.layers = best[1]

    @staticmethod
    def _mean(box: _Box, is_down: bool) -> float:
        near = box.before if is_down else box.behind
        return sum(one.at for one in near) / len(near) if near else box.at

    def _place(self) -> None:
        """Give each box a place near its neighbours, without an overlap."""
        for layer in self.layers:
            at = 0.0
            for box in layer:
                box.at = at + box.across / 2
                at += box.across + _BETWEEN_NODES
        for number in range(_ROUNDS + 1):
            # Down at last: chains are straight, and branches lie evenly below their box.
            is_down = number % 2 == 0
            for layer in self.layers if is_down else reversed(self.layers):
                _spread(layer, [self._mean(box, is_down) for box in layer])
        every = [box for layer in self.layers for box in layer]
        least = min(box.at - box.across / 2 for box in every) - _MARGIN
        for box in every:
            box.at -= least
        self.across = max(box.at + box.across / 2 for box in every) + _MARGIN


def _spread(layer: list[_Box], wanted: list[float]) -> None:
    """The places next to the wanted ones (least squares) that keep order and distances."""
    offsets = [0.0]
    for one, next_one in itertools.pairwise(layer):
        offsets.append(offsets[-1] + (one.across + next_one.across) / 2 + _BETWEEN_NODES)
    # Pools of neighbours that touch: the sum of their wishes, and their number.
    pools: list[tuple[float, int]] = []
    for wish, offset in zip(wanted, offsets, strict=True):
        pools.append((wish - offset, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            (a, m), (b, n) = pools[-2:]
            pools[-2:] = [(a + b, m + n)]
    places = [total / count for total, count in pools for _ in range(count)]
    for box, place, offset in zip(layer, places, offsets, strict=True):
        box.at = place + offset


def svg(chart: Flowchart) -> str:
    """The drawing, in the colours of the text around it: one line without a script."""
    layout = _Layout(chart)
    swap = chart.is_horizontal

    def point(along: float, across: float) -> tuple[float, float]:
        return (along, across) if swap else (across, along)

    parts, labels = [], []
    for edge, way in zip(chart.edges, layout.ways, strict=True):
        points = _points(layout, way)
        path = "M{:.1f},{:.1f}".format(*point(*points[0]))
        for (a, b), (c, d) in itertools.pairwise(points):
            middle = (a + c) / 2
            path += "C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}".format(
                *point(middle, b), *point(middle, d), *point(c, d)
            )
        dashes = ' stroke-dasharray="5 4"' if edge.is_dashed else ""
        parts.append(f'<path d="{path}"{dashes} marker-end="url(#chart-arrow)"/>')
        if edge.label:
            (a, b), (c, d) = points[:2]
            x, y = point((a + c) / 2, (b + d) / 2)
            labels.append(
                f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">'
                f"{html.escape(edge.label)}</text>"
            )
    boxes = [_drawn(layout, box, swap) for box in layout.boxes.values()]
    width, height = (layout.along, layout.across) if swap else (layout.across, layout.along)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' style="display:block;margin:0 auto;width:100%;min-width:{width * _SCALE_MIN:.0f}px;'
        f'max-width:{width:.0f}px;height:auto" aria-hidden="true">'
        '<defs><marker id="chart-arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0,0.8L8,4L0,7.2Z" fill="currentColor"/></marker></defs>'
        '<g fill="none" stroke="currentColor" stroke-opacity="0.65">'
        + "".join(parts)
        + "</g>"
        + "".join(boxes)
        + f'<g font-size="{_LABEL_PX}" fill="currentColor" font-style="italic" stroke-width="5"'
        ' stroke="var(--md-default-bg-color, Canvas)" paint-order="stroke"'
        ' stroke-linejoin="round">' + "".join(labels) + "</g></svg>"
    )


def _points(layout: _Layout, way: list[_Box]) -> list[tuple[float, float]]:
    """The points of an edge: along and across the layers."""
    start, *between, end = way
    is_back = end.layer <= start.layer
    # Edges of one box leave and arrive beside each other, towards the other end.
    leave = _port(start, way[1])
    arrive = _port(end, way[-2])
    first = layout.starts[start.layer] + (0.0 if is_back else start.along)
    last = layout.starts[end.layer] + (end.along if is_back else 0.0)
    points = [(first, leave)]
    for box in between:
        # Straight through the layer, so that no box is crossed.
        points += [(layout.starts[box.layer], box.at), (layout.ends[box.layer], box.at)]
    return [*points, (last, arrive)]


def _port(box: _Box, other: _Box) -> float:
    most = box.across * 0.3
    return box.at + max(-most, min(most, (other.at - box.at) * 0.2))


def _drawn(layout: _Layout, box: _Box, swap: bool) -> str:
    along, across = layout.starts[box.layer], box.at - box.across / 2
    x, y = (along, across) if swap else (across, along)
    width, height = (box.along, box.across) if swap else (box.across, box.along)
    radius = height / 2 if box.is_question else 5
    drawn = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' rx="{radius:.1f}" fill="var(--md-code-bg-color, Canvas)" stroke="currentColor"'
        ' stroke-opacity="0.45"/>'
    )
    for number, line in enumerate(box.lines):
        font = f'font-size="{_TEXT_PX}"'
        if line.is_code:
            font = f'font-size="{_CODE_PX}" font-family="ui-monospace, monospace"'
        drawn += (
            f'<text x="{x + width / 2:.1f}" y="{y + _PAD + (number + 0.75) * _LINE:.1f}"'
            f' text-anchor="middle" fill="currentColor" {font}>{html.escape(line.text)}</text>'
        )
    return drawn


def figure(text: str) -> str:
    """A flowchart as HTML: the drawing, and the same in words."""
    chart = parsed(text)
    words = "".join(f"<li>{html.escape(step)}</li>" for step in steps(chart))
    return (
        f'<div style="overflow-x:auto" tabindex="0">{svg(chart)}</div>\n'
        f"<details><summary>The diagram in words</summary><ol>{words}</ol></details>\n"
    )
