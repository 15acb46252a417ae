"""The page: each experiment with charts and tables, published figures and ours, the machine."""

from __future__ import annotations

import dataclasses
import html
import math
from typing import TYPE_CHECKING, Any

from harness.tasks import Sample

from farrow._pages import _charts, _page
from farrow.cli._output import human_bytes, human_seconds
from reproduction.experiment import Cells, Experiment, View, number
from reproduction.theirs import DIFFERENCES, FIGURES, LEFT_OUT, PLACES, WORKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Outcome", "markdown", "page", "run_line"]

_NOT_MEASURED = "not measured in this run"


@dataclasses.dataclass
class Outcome:
    """The outcome of one experiment; ``failure`` has the reason of a failure."""

    experiment: Experiment
    samples: list[Sample]
    notes: list[str]
    seconds: float
    failure: str | None = None


def page(document: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page as HTML text; ``document`` is the run's ``document_of``."""
    about = document["machine"]
    failed = [one for one in outcomes if one.failure is not None]
    tiles = [
        ("cores", str(about["cores"])),
        ("memory", human_bytes(about["memory_bytes"])),
        ("experiments", str(len(outcomes))),
        ("failed", str(len(failed))),
        ("time", human_seconds(sum(one.seconds for one in outcomes))),
        ("date", document["date"]),
    ]
    head = (
        f"<p>{html.escape(run_line(document))} Our figures are medians of this run on"
        " this machine; rates of rows beside theirs are of the time of all rows. Theirs are of"
        " other machines: what can be compared are ratios, not which machine is faster. Raw"
        " samples stand in the JSON file of the same name.</p>"
    )
    sections = [
        head,
        _page.tiles(tiles),
        _page.facts("Machine and versions", _machine(document)),
        *(f"<p class=failure>{html.escape(_failure(one))}</p>" for one in failed),
        "<h2>Theirs and ours</h2>" + _page.table(_HEADS, _rows(outcomes, document["quick"])),
        "<h2>Differences</h2>" + _page.table(_DIFFERENCE_HEADS, DIFFERENCES.items()),
        *(_section(one) for one in outcomes),
        "<h2>Every table and figure of the works</h2>" + _page.table(_PLACE_HEADS, _places()),
        "<h2>The works</h2>" + _page.table(_WORK_HEADS, _works()),
        "<h2>What was left out</h2>"
        + _page.table(("what", "why"), [*LEFT_OUT, *((note, "") for note in document["notes"])]),
    ]
    return _page.document("Farrow: the thesis and the papers, run again", sections, _STYLE)


def run_line(document: dict[str, Any]) -> str:
    """One line: machine, commit, and whether the run was a quick one."""
    about = document["machine"]
    words = "quick run: for trying, not for citing" if document["quick"] else "full run"
    commit = (document["commit"]["id"] or "unknown")[:12]
    changed = ", files changed" if document["commit"]["changed"] else ""
    return (
        f"{about['processor']}, {about['cores']} cores, {human_bytes(about['memory_bytes'])},"
        f" Linux {about['kernel']}. Commit {commit}{changed}; {words}."
    )


def markdown(outcomes: Sequence[Outcome], is_quick: bool = False) -> str:
    """Published figures and ours, for a terminal and a file."""
    lines = _lines(_HEADS, _rows(outcomes, is_quick))
    for one in outcomes:
        lines += ["", *([_failure(one)] if one.failure is not None else [])]
        lines += [f"- {one.experiment.name}: {note}" for note in one.notes]
    lines += ["", *_lines(_DIFFERENCE_HEADS, DIFFERENCES.items())]
    lines += ["", *_lines(_PLACE_HEADS, _places()), "", *_lines(_WORK_HEADS, _works())]
    return "\n".join(lines) + "\n"


def _lines(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _failure(one: Outcome) -> str:
    return f"{one.experiment.name} failed: {one.failure}; what it measured before stands"


def _machine(document: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in document["machine"].items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name.replace("_", " "), value
    yield "load before the run", ", ".join(f"{one:.2f}" for one in document["load"])


_HEADS = ("experiment", "figure", "theirs", "ours", "differences", "conditions of theirs", "source")
_PLACE_HEADS = ("work", "place", "page", "shows", "run again by, or why not")
_DIFFERENCE_HEADS = ("difference", "between theirs and ours")
_WORK_HEADS = ("work", "title", "measured on", "pages")


def _rows(outcomes: Sequence[Outcome], is_quick: bool) -> Iterator[tuple[str, ...]]:
    """Each published figure of an experiment of this run; then those that none can have."""
    quick = " [quick: less data]" if is_quick else ""
    for one in outcomes:
        ours = one.experiment.ours(Cells(one.samples))
        for figure in FIGURES:
            if figure.experiment == one.experiment.name and figure.key is not None:
                found = ours[figure.key]
                yield (
                    one.experiment.name,
                    figure.what,
                    figure.text,
                    _NOT_MEASURED if found is None else found + quick,
                    ", ".join(figure.differs),
                    figure.conditions,
                    figure.source,
                )
    for figure in FIGURES:
        if figure.why_not is not None:
            yield (
                "", figure.what, figure.text, f"none: {figure.why_not}", "", figure.conditions,
                figure.source,
            )  # fmt: skip


def _places() -> Iterator[tuple[str, ...]]:
    for one in PLACES:
        yield WORKS[one.work].short, one.place, one.page, one.shows, one.run or one.why_not or ""


def _works() -> Iterator[tuple[str, ...]]:
    for one in WORKS.values():
        yield one.short, f"{one.author}: {one.title} ({one.kind})", one.hardware, one.pages


def _section(one: Outcome) -> str:
    experiment, cells = one.experiment, Cells(one.samples)
    parts = [
        f'<h2 id="{experiment.name}">{html.escape(experiment.title)}</h2>',
        f"<p>{html.escape(experiment.about)}</p>",
    ]
    if one.failure is not None:
        parts.append(f"<p class=failure>{html.escape(_failure(one))}</p>")
    shown = [(view, cells.of(view)) for view in experiment.views]
    shown = [(view, found) for view, found in shown if found]
    charts = [
        (view.title, view.unit + (f" by {view.across}" if view.across else ""), chart)
        for view, found in shown
        if (chart := _chart(view, found))
    ]
    if charts:
        parts.append(_page.figures(charts))
    tables = "".join(_table(view, found) for view, found in shown)
    parts.append(f"<div class=tables>{tables}</div>")
    parts += [f"<p class=small>{html.escape(note)}</p>" for note in one.notes]
    parts.append(f"<p class=small>{human_seconds(one.seconds)}</p>")
    return "\n".join(parts)


def _chart(view: View, found: dict[str, dict[str, float]]) -> str:
    if view.chart == "curves":
        lines: dict[str, list[tuple[float, float]]] = {}
        for case, values in found.items():
            for peer, value in values.items():
                # Axes are logarithmic.
                if value > 0 and number(case) > 0:
                    lines.setdefault(peer, []).append((number(case), value))
        return _charts.curves(
            {peer: sorted(points) for peer, points in lines.items()},
            x_text=human_bytes if view.across.startswith("bytes") else _short,
            y_text=_short,
        )
    if view.chart == "bars":
        return _charts.bars(found, x_text=_short)
    return ""


def _table(view: View, found: dict[str, dict[str, float]]) -> str:
    peers = list(dict.fromkeys(peer for values in found.values() for peer in values))
    rows = [
        (case, *(_text(values.get(peer), view.digits) for peer in peers))
        for case, values in found.items()
    ]
    unit = f", {html.escape(view.unit)}" if view.unit else ""
    table = _page.table(("", *(f">{peer}" for peer in peers)), rows)
    return f"<div><p class=small><b>{html.escape(view.title)}</b>{unit}</p>{table}</div>"


def _text(value: float | None, digits: int) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits}f}"


def _short(value: float) -> str:
    for suffix, scale in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


_STYLE = """
.failure { color: var(--mark); font-weight: 600; }
.tables { display: flex; flex-wrap: wrap; gap: .2rem 2.2rem; }
"""
