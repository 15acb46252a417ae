"""The table of ratios: ours against each peer and against the machine's own limit."""

from __future__ import annotations

import dataclasses
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.tasks import Sample

__all__ = ["GOALS", "PEERS", "Goal", "Line", "lines", "markdown"]

# Peers of Farrow, in the order of the columns.
PEERS = ("plasma", "ipc_shm", "flight")
_QUICK = ", quick: a tenth of the data, not for citing"
_SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclasses.dataclass(frozen=True)
class Goal:
    """A goal of issue 2: a limit in seconds or bytes, or a least share of a machine limit."""

    at_most: float | None = None
    share_of: tuple[str, str] | None = None  # (case, peer) of the limit
    share: float = 0.0
    share_of_bytes: float | None = None


GOALS: dict[str, Goal] = {
    "put large": Goal(share_of=("copy", "limit"), share=0.9),
    "put built large": Goal(at_most=1e-3),
    "put built medium": Goal(at_most=1e-3),
    "get large": Goal(at_most=1e-4),
    "get medium": Goal(at_most=1e-4),
    "pass bytes first": Goal(share_of=("pass bytes private", "farrow"), share=0.9),
    "pass sum first": Goal(share_of=("pass sum private", "farrow"), share=0.9),
    "memory of readers beyond one copy": Goal(share_of_bytes=0.01),
    "get small": Goal(at_most=2e-6),
    "put small": Goal(at_most=15e-6),
    "micro describe 3 columns": Goal(at_most=5e-6),
    "micro rebuild 3 columns": Goal(at_most=10e-6),
    "micro describe 100 columns": Goal(at_most=150e-6),
    "micro rebuild 100 columns": Goal(at_most=200e-6),
}


@dataclasses.dataclass
class Line:
    """One row of the report."""

    case: str
    ours: float
    unit: str
    bytes: int
    peers: dict[str, float]  # peer -> median
    goal: str = ""
    met: bool | None = None


def lines(samples: Sequence[Sample], variant: str) -> list[Line]:
    """One line for each case measured with Farrow."""
    table = {(s.case, s.peer): s for s in samples if s.variant == variant and s.samples}
    result = []
    for (case, peer), sample in table.items():
        if peer != "farrow":
            continue
        others = {}
        for name in PEERS:
            other = table.get((case, name))
            if other is not None:
                others[name] = median(other.samples)
        line = Line(case, median(sample.samples), sample.unit, sample.bytes, others)
        _judge(line, table)
        result.append(line)
    return result


def _judge(line: Line, table: dict[tuple[str, str], Sample]) -> None:
    goal = GOALS.get(line.case)
    if goal is None:
        return
    if goal.at_most is not None:
        line.goal = f"at most {human(goal.at_most, 's')}"
        line.met = line.ours * _SCALES.get(line.unit, 1.0) <= goal.at_most
    elif goal.share_of_bytes is not None and line.bytes:
        share = line.ours / line.bytes
        line.goal = f"under {goal.share_of_bytes:.0%} of the table: {share:.2%}"
        line.met = share < goal.share_of_bytes
    elif goal.share_of is not None and goal.share_of in table:
        share = median(table[goal.share_of].samples) / line.ours
        what = " ".join(goal.share_of)
        line.goal = f"{goal.share} or more of {what}: {share:.2f}"
        line.met = share >= goal.share


def human(value: float, unit: str) -> str:
    """A figure with a suitable unit."""
    if unit == "bytes":
        for word in ("B", "KiB", "MiB"):
            if value < 1000:
                return f"{value:.3g} {word}"
            value /= 1024
        return f"{value:.3g} GiB"
    if unit not in _SCALES:
        return f"{value:.4g} {unit}"
    seconds = value * _SCALES[unit]
    for word, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            figure = seconds / scale
            return f"{figure:.0f} {word}" if figure >= 1000 else f"{figure:.3g} {word}"
    return f"{seconds / 1e-9:.2g} ns"


def cells(line: Line, peers: Sequence[str]) -> list[str]:
    """The row's text: case, ours, speed, one cell for each peer, goal."""
    speed = ""
    moves = line.unit == "s" and line.bytes > 1 << 20
    if moves and not line.case.startswith(("get", "put built")):
        speed = f"{line.bytes / line.ours / 2**30:.1f} GiB/s"
    row = [line.case, human(line.ours, line.unit), speed]
    for peer in peers:
        if peer in line.peers:
            ratio = line.peers[peer] / line.ours if line.ours > 0 else 0.0
            shown = f" ({ratio:.3g}x)" if line.ours > 0 else ""
            row.append(f"{human(line.peers[peer], line.unit)}{shown}")
        else:
            row.append("")
    mark = "" if line.met is None else ("yes: " if line.met else "NO: ")
    row.append(mark + line.goal)
    return row


def peers_of(samples: Sequence[Sample]) -> list[str]:
    """The peers that were measured, in a fixed order."""
    present = {sample.peer for sample in samples}
    return [name for name in PEERS if name in present]


def titles(peers: Sequence[str]) -> list[str]:
    """Names of the columns of ``cells``."""
    return ["measurement", "Farrow", "speed", *(f"{p} (ratio)" for p in peers), "wanted"]


def markdown(document: dict[str, Any], samples: Sequence[Sample]) -> str:
    """The whole report as Markdown, to accompany the raw samples."""
    machine = document["machine"]
    text = [
        f"# Benchmark of {document['date']}{_QUICK if document['quick'] else ''}",
        "",
        f"{machine['processor']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']};"
        f" commit {str(document['commit']['id'])[:12]}"
        f"{' with changes' if document['commit']['changed'] else ''}. Medians; a ratio above 1"
        " means that the peer takes so many times what Farrow takes.",
    ]
    for variant in dict.fromkeys(sample.variant for sample in samples):
        peers = peers_of([sample for sample in samples if sample.variant == variant])
        text += ["", f"## {variant}", ""]
        limits = [s for s in samples if s.variant == variant and s.case == "copy"]
        for limit in limits:
            best = median(limit.samples)
            word = "all cores, non-temporal" if limit.peer == "limit" else "NumPy, one core"
            text.append(
                f"Copy of {human(limit.bytes, 'bytes')} between private buffers, {word}:"
                f" {human(best, 's')}, {limit.bytes / best / 2**30:.1f} GiB/s.  "
            )
        head = titles(peers)
        text += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        text += ["| " + " | ".join(cells(line, peers)) + " |" for line in lines(samples, variant)]
    for note in document["notes"]:
        text += ["", f"Note: {note}"]
    return "\n".join(text) + "\n"
