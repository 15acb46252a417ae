"""The table of the store benchmark: Farrow, each peer, the ratio, and the goals of issue 3."""

from __future__ import annotations

import dataclasses
import re
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.report import human
from harness.store_tasks import CLASSES, QUICK_CLASSES, class_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.tasks import Sample

__all__ = [
    "HUGE",
    "ORDINARY",
    "OWN",
    "PEERS",
    "Row",
    "cells",
    "limits",
    "markdown",
    "peers_of",
    "rows",
    "same_pages",
    "titles",
]

# Peers of Farrow, in the order of the columns.
PEERS = ("plasma", "ray", "vineyard", "iceoryx2", "mooncake", "redis", "lmdb", "ipc_shm")
_QUICK = ", quick: a part of the data, not for citing"
# Variants: the pages that each peer takes by itself, then all on the same ones.
OWN, ORDINARY, HUGE = "own pages", "ordinary pages", "huge pages"
# All objects of these have names: their figures stand beside Farrow's objects with names.
_NAMES_ONLY = ("plasma", "mooncake", "redis", "lmdb", "ipc_shm")
_NAMED = re.compile(r"^(write|get batch|get_many|get|put_many|put|rate|memory per) ")
_MORE_IS_BETTER = {"1/s", "x"}
# 1000 bytes round up to 1024; the goal counts from there.
_ROUNDING_BYTES = 24
# Sizes from here on are shown with their bandwidth.
_BANDWIDTH_BYTES_MIN = 1_000_000
_P99 = 0.99

# The scaling from one process to two that share nothing.
_COMPUTE = ("compute 1 process", "compute 2 processes")

_Figures = dict[tuple[str, str], "Sample"]


@dataclasses.dataclass
class Row:
    """One line: a case and a statistic of it."""

    title: str
    unit: str
    ours: float | None
    bytes: int
    peers: dict[str, float]
    goal: str = ""
    met: bool | None = None


def rows(samples: Sequence[Sample]) -> list[Row]:
    """All lines with at least one figure, of the first variant."""
    table: _Figures = {}
    samples = [sample for sample in samples if sample.variant == samples[0].variant]
    for sample in samples:
        key = sample.case, sample.peer
        # A case may have been measured on several servers.
        before = table[key].samples if key in table else []
        if sample.samples:
            table[key] = dataclasses.replace(sample, samples=[*before, *sample.samples])
    present = list(dict.fromkeys(sample.case for sample in samples if sample.samples))
    found: list[Row] = []
    for lead in ("write", "get", "get batch", "scan first", "scan later", "scan private"):
        for case in present:
            title = case.removeprefix(f"{lead} ")
            if not case.startswith(f"{lead} ") or title not in _SIZES:
                continue
            found.append(_row(table, case, f"{_LEADS[lead]} {title}"))
            _judge_class(found[-1], table, lead, case)
            if _has_named(table, case):
                found.append(_row(table, _named(case), f"{_LEADS[lead]} {title}, by name"))
                _judge_class(found[-1], table, lead, case)
    for case, title, quantile, at_most in _SMALL:
        row = _row(table, case, title, quantile)
        if at_most is not None and row.ours is not None:
            row.goal, row.met = f"at most {human(at_most, 's')}", row.ours <= at_most
        found.append(row)
    for case in ("rate 1 client", "rate 2 clients"):
        found.append(_row(table, case, case))
        found.append(_row(table, _named(case), f"{case}, by name"))
    found += [_scaling(table, ""), _scaling(table, "named ")]
    for case in ("table put first", "table put", "table get first", "table get"):
        found.append(_row(table, case, case.replace("table ", "table of int64, int8, uint16: ")))
    named = _row(table, "memory per named object", "memory per object with a name, beyond them")
    found += [_memory(table), named, _idle(table)]
    return [row for row in found if row.ours is not None or row.peers]


# Bytes of each object, by the title of its class.
_SIZES = {class_title(*one): one[1] for one in (*CLASSES, *QUICK_CLASSES)}
_LEADS = {
    "write": "create+write+seal",
    "get": "get one by one",
    "get batch": "get in a batch",
    "scan first": "get and read all, first time",
    "scan later": "get and read all, again",
    "scan private": "read private memory, same process",
}
# Case, title, quantile, goal in seconds.
_SMALL = (
    ("put 1 kB", "put 1 kB, p50", 0.5, 3e-6),
    ("put 1 kB", "put 1 kB, p99", _P99, None),
    ("put named 1 kB", "put 1 kB under a name, p50", 0.5, None),
    ("put named 1 kB", "put 1 kB under a name, p99", _P99, None),
    ("get 1 kB", "get 1 kB, p50", 0.5, 1.5e-6),
    ("get 1 kB", "get 1 kB, p99", _P99, 3e-6),
    ("get named 1 kB", "get 1 kB by name, p50", 0.5, None),
    ("get named 1 kB", "get 1 kB by name, p99", _P99, None),
    ("put_many 1 kB each", "put_many 1 kB, each", 0.5, 1e-6),
    ("put_many named 1 kB each", "put_many 1 kB under names, each", 0.5, None),
    ("get_many 1 kB each", "get_many 1 kB, each", 0.5, 0.5e-6),
    ("get_many named 1 kB each", "get_many 1 kB by name, each", 0.5, None),
)


def _named(case: str) -> str:
    """The case of objects with names."""
    return _NAMED.sub(r"\1 named ", case)


def _has_named(table: _Figures, case: str) -> bool:
    """Whether Farrow's objects were measured without names and with."""
    return _named(case) != case and (_named(case), "farrow") in table


def _row(table: _Figures, case: str, title: str, quantile: float = 0.5) -> Row:
    ours = table.get((case, "farrow"))
    found: dict[str, Sample] = {}
    has_named = _has_named(table, case)
    for peer in PEERS:
        sample = table.get((case, peer))
        if peer in _NAMES_ONLY:
            plain = table.get((case.replace(" named ", " "), peer))
            sample = None if has_named and " named " not in case else sample or plain
        if sample is not None:
            found[peer] = sample
    some = ours or next(iter(found.values()), None)
    figures = {peer: _quantile(sample.samples, quantile) for peer, sample in found.items()}
    return Row(
        title,
        some.unit if some else "s",
        _quantile(ours.samples, quantile) if ours else None,
        some.bytes if some else 0,
        figures,
    )


def _quantile(samples: Sequence[float], quantile: float) -> float:
    """The median, or the smallest sample with at least this share of samples not above it."""
    if quantile == 0.5:
        return float(median(samples))
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def _judge_class(row: Row, table: _Figures, lead: str, case: str) -> None:
    """The goals of the Plasma paper's table."""
    if row.ours is None or row.ours <= 0:
        return
    size = _SIZES[case.removeprefix(f"{lead} ")]
    plasma = row.peers.get("plasma")
    wanted = {"get": 10.0, "get batch": 3.0, "write": 5.0 if size < 100_000 else None}.get(lead)
    if wanted is not None and plasma is not None:
        row.goal = f"{wanted:g} times Plasma: {plasma / row.ours:.3g}"
        row.met = plasma / row.ours >= wanted
    ours = table.get((case, "farrow"))
    copies = table.get((case.replace("write", "copy in turn"), "farrow"))
    if lead == "write" and ours is not None and copies is not None:
        # The bandwidth of a shared host varies by a factor of two within minutes.
        shares = _ratios(ours.samples, copies.samples)
        best = min(copies.samples) / min(ours.samples)
        row.goal = f"0.95 of the best copy, in turn: {_range(shares)}; best of each: {best:.2f}"
        row.met = median(shares) >= 0.95
    private = table.get((case.replace("first", "private"), "farrow"))
    if lead == "scan first" and private is not None:
        share = median(private.samples) / row.ours
        row.goal, row.met = f"0.9 of private memory: {share:.2f}", share >= 0.9


def _scaling(table: _Figures, word: str) -> Row:
    """The gain of a second client."""
    factors = {}
    has_named = ("rate named 1 client", "farrow") in table
    for peer in ("farrow", *PEERS):
        is_plain = peer in _NAMES_ONLY
        if is_plain and has_named and not word:
            continue
        own = "" if is_plain else word
        one, two = (table.get((f"rate {own}{count}", peer)) for count in ("1 client", "2 clients"))
        if one is not None and two is not None:
            factors[peer] = median(_ratios(one.samples, two.samples))
    ours = factors.pop("farrow", None)
    row = Row(f"rate of 2 clients over 1{', by name' if word else ''}", "x", ours, 0, factors)
    if ours is not None and not word:
        row.goal, row.met = "1.8 or more", ours >= 1.8
        one, two = (table.get((case, "farrow")) for case in _COMPUTE)
        if one is not None and two is not None:
            row.goal += f"; pure compute in turn: {_range(_ratios(one.samples, two.samples))}"
    return row


def _ratios(one: Sequence[float], two: Sequence[float]) -> list[float]:
    """The ratio of each sample to the one taken just before it."""
    return [after / before for before, after in zip(one, two, strict=False)]


def _range(ratios: Sequence[float]) -> str:
    """The median, minimum and maximum."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _memory(table: _Figures) -> Row:
    row = _row(table, "memory per object", "memory per object of 1000 B, beyond them")
    if row.ours is not None:
        row.goal = f"at most 128 B beyond 1024 B: {row.ours - _ROUNDING_BYTES:.0f} B"
        row.met = row.ours - _ROUNDING_BYTES <= 128
    return row


def _idle(table: _Figures) -> Row:
    row = _row(table, "idle", "processor time of the idle server, in a second")
    if row.ours is not None:
        row.goal, row.met = "none (below 0.1 ms)", row.ours < 1e-4
    return row


def figure(value: float, row: Row) -> str:
    """A figure in the row's unit; large objects with their bandwidth."""
    if row.unit == "bytes":
        return f"{value:.0f} B"
    if row.unit == "1/s":
        return f"{value:,.0f}/s"
    if row.unit == "x":
        return f"{value:.2f}"
    text = human(value, "s") if value > 0 else "0"
    if row.unit == "s" and _is_moved(row) and value > 0:
        text += f", {row.bytes / value / 2**30:.1f} GiB/s"
    return text


def _is_moved(row: Row) -> bool:
    """Whether all bytes were written or read, so that the bandwidth is meaningful."""
    if row.title.startswith(tuple(_LEADS.values())) and not row.title.startswith("get one"):
        size = next((size for title, size in _SIZES.items() if row.title.endswith(title)), 0)
        return size >= _BANDWIDTH_BYTES_MIN and not row.title.startswith("get in")
    return "table" in row.title and "put" in row.title


def cells(row: Row, peers: Sequence[str]) -> list[str]:
    """The row's text: title, ours, one cell for each peer, goal."""
    texts = [row.title, "" if row.ours is None else figure(row.ours, row)]
    for peer in peers:
        value = row.peers.get(peer)
        if value is None:
            texts.append("")
            continue
        ratio = ""
        if row.ours and row.unit not in ("x", "bytes") and value > 0 and "private" not in row.title:
            factor = row.ours / value if row.unit in _MORE_IS_BETTER else value / row.ours
            ratio = f" ({factor:.3g}x)"
        texts.append(figure(value, row) + ratio)
    mark = "" if row.met is None else ("yes: " if row.met else "NO: ")
    return [*texts, mark + row.goal]


def peers_of(samples: Sequence[Sample]) -> list[str]:
    """The peers that were measured, in a fixed order."""
    present = {sample.peer for sample in samples}
    return [name for name in PEERS if name in present]


def titles(peers: Sequence[str]) -> list[str]:
    """Names of the columns of ``cells``."""
    return ["measurement", "Farrow", *(f"{peer} (ratio)" for peer in peers), "wanted"]


def markdown(document: dict[str, Any], samples: Sequence[Sample]) -> str:
    """The whole report as Markdown, to accompany the raw samples."""
    machine, peers = document["machine"], peers_of(samples)
    own = [sample for sample in samples if sample.variant == samples[0].variant]
    text = [
        f"# Object stores, {document['date']}{_QUICK if document['quick'] else ''}",
        "",
        f"{machine['processor']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']};"
        f" commit {str(document['commit']['id'])[:12]}"
        f"{' with changes' if document['commit']['changed'] else ''}. Medians where nothing else"
        " is said; a ratio above 1 means that Farrow is so many times better. Plasma, Redis, LMDB"
        " and plain files (ipc_shm) have names for all objects: they stand beside Farrow's by name."
        " Of the largest objects and the table, Farrow's too have names.",
        "",
        *(f"{line}  " for line in limits(own)),
        "",
        "| " + " | ".join(titles(peers)) + " |",
        "|" + " --- |" * (len(peers) + 3),
        *("| " + " | ".join(cells(row, peers)) + " |" for row in rows(samples)),
        "",
        *same_pages(samples),
    ]
    for note in document["notes"]:
        text += ["", f"Note: {note}"]
    return "\n".join(text) + "\n"


def same_pages(samples: Sequence[Sample]) -> list[str]:
    """The largest objects and the table, with all peers on the same pages."""
    text = []
    for variant in (ORDINARY, HUGE):
        chosen = [sample for sample in samples if sample.variant == variant]
        if not chosen or samples[0].variant == variant:
            continue
        if variant == ORDINARY:
            # The peers have these pages by themselves.
            chosen += [
                dataclasses.replace(sample, variant=variant)
                for sample in samples
                if sample.variant == OWN and sample.peer in PEERS
            ]
        peers = peers_of(chosen)
        ours = {sample.case for sample in chosen if sample.peer == "farrow"}
        text += [f"All on {variant}:", "", "| " + " | ".join(titles(peers)) + " |"]
        text += ["|" + " --- |" * (len(peers) + 3)]
        large = [row for row in rows(chosen) if row.ours is not None or not ours]
        text += ["| " + " | ".join(cells(row, peers)) + " |" for row in large] + [""]
    return text


def limits(samples: Sequence[Sample]) -> list[str]:
    """The limits of the machine."""
    words = {
        "copy": "Best copy between private buffers, all cores, non-temporal",
        "read private": "Read of private memory, NumPy, one core",
    }
    found = []
    for sample in samples:
        if sample.peer == "limit":
            best = median(sample.samples)
            speed = f"{sample.bytes / best / 2**30:.1f} GiB/s"
            found.append(f"{words[sample.case]}: {human(sample.bytes, 'bytes')}, {speed}.")
    return found
