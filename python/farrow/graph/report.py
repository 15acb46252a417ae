"""One self-contained HTML page about a run: speed over the stream, features, found patterns.

Called by ``farrow graph report``.  The page loads no external script, font or image.
"""

from __future__ import annotations

import dataclasses
import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from farrow._pages import _page
from farrow.graph import _svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Distributions", "Drawn", "StreamRun", "block_of", "page"]

_POINTS_MAX = 150
# The displayed statistics of the graph, with their titles.
_STATS = {
    "edges": "edges in the graph",
    "accounts": "accounts in the graph",
    "bytes": "bytes of the graph",
}


def block_of(name: str) -> tuple[str, str]:
    """Block and label of a feature.

    Args:
        name: a name of ``GraphFeatures.get_feature_names_out``.

    Returns:
        ``fan_in[2]`` is ``2`` of ``fan_in``; ``source_out_fan`` is ``fan`` of ``source_out``.

    Examples:
        >>> from farrow.graph import report
        >>> report.block_of("fan_in[2]")
        ('fan_in', '2')
    """
    block, bracket, label = name.partition("[")
    if bracket:
        return block, label.rstrip("]")
    parts = name.split("_", 2)
    return ("_".join(parts[:2]), parts[2]) if len(parts) == 3 else (name, name)


class Distributions:
    """Counts over a stream, by block: rows with each feature, and its sum and maximum.

    Examples:
        >>> from farrow.graph import report
        >>> found = report.Distributions(["fan_in[2]", "fan_out[2]"])
        >>> found.add(np.array([[1.0, 0.0], [2.0, 0.0]]))
        >>> found.nonzero.tolist(), found.largest.tolist()
        ([2, 0], [2.0, 0.0])
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.rows = 0
        self.nonzero = np.zeros(len(self.names), dtype=np.int64)
        self.largest = np.full(len(self.names), -math.inf)
        self.sums = np.zeros(len(self.names))

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count rows.

        Args:
            values: features, float64 of shape (rows, features).

        Raises:
            ValueError: there are more or fewer columns than names.

        Examples:
            >>> from farrow.graph import report
            >>> found = report.Distributions(["fan_in[2]"])
            >>> found.add(np.array([[1.0], [0.0]]))
            >>> found.rows
            2
        """
        if values.shape[1] != len(self.names):
            raise ValueError(f"{values.shape[1]} columns where {len(self.names)} belong")
        if not len(values):
            return
        self.rows += len(values)
        self.nonzero += np.count_nonzero(values, axis=0)
        np.maximum(self.largest, values.max(axis=0), out=self.largest)
        self.sums += values.sum(axis=0)

    def blocks(self) -> dict[str, list[int]]:
        """The features of each block.

        Returns:
            Indices of the features by block (``block_of``).

        Examples:
            >>> from farrow.graph import report
            >>> report.Distributions(["fan_in[2]", "fan_in[3]", "fan_out[2]"]).blocks()
            {'fan_in': [0, 1], 'fan_out': [2]}
        """
        found: dict[str, list[int]] = {}
        for place, name in enumerate(self.names):
            found.setdefault(block_of(name)[0], []).append(place)
        return found


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A found pattern, ready to draw."""

    kind: str
    size: int
    accounts: tuple[str, ...]
    hops: tuple[_svg.Hop, ...]
    caption: str


@dataclasses.dataclass
class StreamRun:
    """The results of one run over a stream."""

    title: str
    settings: Mapping[str, object]
    distributions: Distributions
    rates: list[tuple[int, float]]
    """(rows so far, seconds of the batch that ended there), batch by batch."""
    stats: Mapping[str, Any]
    drawn: Sequence[Drawn] = ()


def page(run: StreamRun) -> str:
    """The page of a run.

    Args:
        run: its results.

    Returns:
        The page as HTML text.

    Examples:
        >>> from farrow.graph import report
        >>> found = report.Distributions(["fan_in[2]"])
        >>> found.add(np.array([[1.0], [0.0]]))
        >>> run = report.StreamRun("Payments", {"window": "24h"}, found, [(2, 0.5)], {"edges": 2})
        >>> report.page(run).startswith("<!doctype html>")
        True
    """
    rows = run.distributions.rows
    seconds = sum(time for _, time in run.rates)
    covered = run.rates[-1][0] if run.rates else rows
    tiles = [("rows", f"{rows:,}")]
    if seconds > 0:
        tiles.append(("rows a second", f"{covered / seconds:,.0f}"))
    tiles.append(("features", f"{len(run.distributions.names):,}"))
    tiles += [
        (label, _svg.human(run.stats[name]))
        for name, label in _STATS.items()
        if isinstance(run.stats.get(name), (int, float))
    ]
    cut_short = run.stats.get("cut_short")
    if isinstance(cut_short, dict) and any(cut_short.values()):
        tiles.append(("searches cut short", _svg.human(sum(cut_short.values()))))
    sections = [
        _page.tiles(tiles),
        _page.facts("Settings", run.settings.items()),
        "<h2>Throughput over the stream</h2>"
        "<p>Rows a second against rows so far; the graph fills its windows from the left.</p>"
        + _svg.line(_rates(run.rates)),
        "<h2>Features</h2>"
        "<p>For each feature, in how many rows it is not zero (logarithmic scale).</p>"
        + _features(run.distributions),
    ]
    sections.append("<h2>Largest found patterns</h2>" + _patterns(run.drawn))
    return _page.document(run.title, sections, _STYLE)


def _rates(rates: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most ``_POINTS_MAX`` points of (rows, rows a second), each over the same number of
    batches."""
    group = max(1, math.ceil(len(rates) / _POINTS_MAX))
    points: list[tuple[float, float]] = []
    before = 0
    for begin in range(0, len(rates), group):
        part = rates[begin : begin + group]
        rows, seconds = part[-1][0], sum(time for _, time in part)
        # Skip a much shorter last batch: its rate shows the cost of a call rather than of rows.
        if points and rows - before < points[0][0] / 2:
            break
        points.append((float(rows), (rows - before) / max(seconds, 1e-9)))
        before = rows
    return points


def _features(counts: Distributions) -> str:
    figures = []
    for block, places in counts.blocks().items():
        names = [block_of(counts.names[place])[1] for place in places]
        rows = [float(counts.nonzero[place]) for place in places]
        share = max(rows, default=0.0) / max(counts.rows, 1)
        figures.append(
            f"<figure><figcaption><b>{html.escape(block)}</b>"
            f"<span>up to {share:.2%} of rows</span></figcaption>{_svg.bars(names, rows)}</figure>"
        )
    return "<div class=grid3>" + "".join(figures) + "</div>"


def _patterns(drawn: Sequence[Drawn]) -> str:
    if not drawn:
        return "<p>None was looked for, or none was found.</p>"
    kinds: dict[str, list[str]] = {}
    for one in drawn:
        kinds.setdefault(one.kind, []).append(
            f"<figure><figcaption><b>{html.escape(one.kind)}</b><span>size {one.size}</span>"
            f"</figcaption>{_svg.drawing(one.kind, one.accounts, one.hops)}"
            f"<p class=small>{html.escape(one.caption)}</p></figure>"
        )
    note = (
        "<p>Of patterns beyond the last bin some moments are looked at, not all: one may have been"
        " larger. Rest the pointer on a dot for its account, on an arrow for its payments; thick"
        " arrows are several, the payment that completed the pattern is marked.</p>"
    )
    grids = ("<div class=grid4>" + "".join(figures) + "</div>" for figures in kinds.values())
    return note + "".join(grids)


_STYLE = """
th, td { padding: .15rem 1rem .15rem 0; }
.grid3, .grid4 { display: grid; gap: .8rem; margin-bottom: .8rem; }
.grid3 { grid-template-columns: repeat(auto-fill, minmax(310px, 1fr)); }
.grid4 { grid-template-columns: repeat(auto-fill, minmax(235px, 1fr)); }
.node { fill: var(--k0); } .centre { fill: var(--mark); }
.hop { stroke: var(--soft); fill: var(--soft); opacity: .75; }
.hop.trigger { stroke: var(--mark); fill: var(--mark); opacity: 1; }
.hop path { fill: none; } .hop polygon { stroke: none; }
"""
