"""Output of the demo's measurements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from farrow.cli._output import grid, human_bytes, human_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from farrow.demo._measure import Memory
    from farrow.demo._questions import Answer, Roles

__all__ = ["Holder", "Way", "answers", "buffers", "memory", "step", "ways"]

_BARS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 50
_BUFFERS_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to transfer a table; seconds, and bytes of new memory in the receiver."""

    name: str
    hand_over: float
    first_pass: float
    second_pass: float
    new_memory: int


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process with the table: its memory before and after it received and read it."""

    label: str
    before: Memory
    after: Memory


def step(out: Console, label: str, seconds: float | None, note: str = "") -> None:
    """Print one step and its time."""
    time = human_seconds(seconds) if seconds is not None else ""
    tail = f"   [dim]{escape(note)}[/dim]" if note else ""
    out.print(f"  {escape(label):<{_LABEL_WIDTH}} [bold]{time:>9}[/bold]{tail}", soft_wrap=True)


def ways(out: Console, rows: Sequence[Way]) -> None:
    """Print the comparison; the first row is Farrow's."""
    ours = rows[0]
    cells = [
        (
            way.name,
            human_seconds(way.hand_over),
            "1" if way is ours else f"{way.hand_over / ours.hand_over:,.0f}",
            human_seconds(way.first_pass),
            human_seconds(way.second_pass),
            human_bytes(max(way.new_memory, 0)),
        )
        for way in rows
    ]
    titles = (
        "the table handed to another process",
        ">time",
        ">times ours",
        ">first pass",
        ">second",
        ">new memory",
    )
    out.print(grid(titles, cells))


def memory(out: Console, holders: Sequence[Holder], one_copy: int) -> None:
    """Print proportional set sizes, compared with private copies."""
    cells = []
    for holder in holders:
        own = holder.after.private - holder.before.private
        tables = holder.after.page_tables - holder.before.page_tables
        cells.append(
            (
                holder.label,
                human_bytes(holder.after.private),
                human_bytes(holder.after.shared),
                human_bytes(holder.after.total),
                human_bytes(max(own, 0) + max(tables, 0)),
            )
        )
    total = sum(holder.after.total for holder in holders)
    shared = sum(holder.after.shared for holder in holders)
    cells.append(
        ("together", human_bytes(total - shared), human_bytes(shared), human_bytes(total), "")
    )
    titles = (
        "memory (proportional set size)",
        ">own",
        ">share of the region",
        ">sum",
        ">own, by the table",
    )
    out.print(grid(titles, cells))
    readers = holders[-2:]
    extra = sum(_growth(holder) for holder in readers)
    users = len(holders) - 1  # all but the node use the table
    out.print(
        f"  One copy of the table is {human_bytes(one_copy)}; {users} private copies would be"
        f" {human_bytes(users * one_copy)}. The two readers cost"
        f" {human_bytes(extra)} beyond the one copy ({_percent(extra / max(one_copy, 1))}).\n"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.1 else 0}f} %"


def _growth(holder: Holder) -> int:
    """Private memory and page tables that a process gained; never below zero."""
    own = holder.after.private - holder.before.private
    tables = holder.after.page_tables - holder.before.page_tables
    return max(own, 0) + max(tables, 0)


def buffers(
    out: Console,
    built: Sequence[dict[str, Any]],
    readers: Sequence[Sequence[dict[str, Any]]],
) -> None:
    """Print the location of the first chunk's buffers in a reader, and a summary of all.

    A buffer is in place if it is at the offset where the loader built it.  Bitmaps without nulls
    are not stored, so readers lack them.
    """
    origin = {(place["offset"], place["bytes"]): place["address"] for place in built}
    places = readers[0]
    in_place = [(place["offset"], place["bytes"]) in origin for place in places]
    first = min((int(place["chunk"]) for place in places), default=0)
    cells = [
        (
            str(place["column"]),
            str(place["buffer"]),
            f"{place['address']:#x}",
            f"{place['offset']:#x}" if place["offset"] is not None else "-",
            f"{place['bytes']:,}",
            "yes" if stays else "NO",
        )
        for place, stays in zip(places, in_place, strict=True)
        if place["chunk"] == first
    ][:_BUFFERS_SHOWN]
    titles = ("where each buffer lies", ">buffer", ">address", ">offset", ">bytes", "in place")
    out.print(grid(titles, cells))
    rest = len(places) - len(cells)
    more = f"{rest} more like these; " if rest else ""
    same = all(_places(other) == _places(places) for other in readers)
    addresses = {
        origin.get((place["offset"], place["bytes"]), place["address"]) == place["address"]
        for other in readers
        for place in other
    }
    at = "at the same addresses" if addresses == {True} else "at addresses of their own"
    bytes_word = "the same bytes" if same else "OTHER BYTES"
    out.print(
        f"  {more}{sum(in_place)} of {len(places)} lie where process 1 built them;"
        f" all three processes use {bytes_word}, {at}.\n"
    )


def _places(buffers: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(place["offset"], place["bytes"]) for place in buffers]


def answers(out: Console, roles: Roles | None, found: Sequence[tuple[str, Answer]]) -> None:
    """Print the answers of the engines, and whether they agree."""
    if roles is None:
        titles = ("column", "type", ">nulls", ">smallest", ">largest", ">distinct")
        keys = ("column", "type", "nulls", "smallest", "largest", "distinct")
        columns = found[0][1].columns
        out.print(grid(titles, [tuple(_short(row[key]) for key in keys) for row in columns[:30]]))
    else:
        top, histogram = roles.head()
        answer = found[0][1]
        best = ", ".join(f"{name} {volume:,.0f}" for name, volume in answer.top[:3])
        out.print(f"  {escape(top)}: {escape(best)} ...", soft_wrap=True)
        out.print(f"  {escape(histogram)}: {_bars(answer.histogram)}")
    if len(found) > 1:
        names = list(dict.fromkeys(name for name, _ in found))
        *most, last = names
        engines = f"{', '.join(most)} and {last}" if most else "both processes"
        word = "agree" if _agree([answer for _, answer in found]) else "DO NOT AGREE"
        out.print(f"  [dim]{engines} {word}[/dim]\n")


def _short(text: str) -> str:
    return text if len(text) <= 28 else text[:27] + "…"


def _bars(counts: Sequence[int]) -> str:
    top = max([*counts, 1])
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // top)] for count in counts)


def _agree(found: Sequence[Answer]) -> bool:
    """Whether all answers are equal, up to the order of floating-point additions."""
    first = found[0]
    for other in found[1:]:
        if other.histogram != first.histogram or other.columns != first.columns:
            return False
        for (_, mine), (_, yours) in zip(first.top, other.top, strict=True):
            if abs(mine - yours) > 1e-9 * max(abs(mine), abs(yours), 1.0):
                return False
    return True
