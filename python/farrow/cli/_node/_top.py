"""``farrow top``: the activity of a node, updated every second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from farrow.cli._node._nodes import COST_TITLES, costs
from farrow.cli._output import console, grid, human_bytes, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run"]

# Kinds of memory in a cell: key in the overview, letter, color.
_KINDS = (("free", ".", "dim"), ("granted", "+", "yellow"), ("used", "#", "blue"))
_HELD = ("held", "@", "green")
_MAP_ROWS = 6
_CLIENTS_MAX = 20
_QUIT = ("q", "Q", "\x03", "\x1b")


def run(client: Any, *, interval: float, once: bool) -> int:
    """Show frames until ``q`` is pressed, or one frame.

    Args:
        client: a client of the node.
        interval: seconds between frames.
        once: print one frame and end.

    Raises:
        Disconnected: no node served the socket for longer than the client's timeout.
    """
    out = console()
    watch = _Watch(client)
    if once:
        out.print(watch.frame(out.width))
        return 0
    if not out.is_terminal:
        # A pipe: print frames one below the other, until the reader closes it.
        while True:
            out.print(watch.frame(out.width))
            sys.stdout.flush()
            time.sleep(interval)
    with (
        _keys() as pressed,
        Live(watch.frame(out.width), console=out, screen=True, auto_refresh=False) as live,
    ):
        while not pressed(interval):
            live.update(watch.frame(out.width), refresh=True)
    return 0


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for some seconds and returns whether the user wants to quit."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([fd], [], [], seconds)
        if not ready:
            return False
        keys = os.read(fd, 64).decode(errors="replace")
        return not keys or any(key in _QUIT for key in keys)

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _Watch:
    """Frames of one node; rates are differences between consecutive frames."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._before: tuple[float, dict[str, Any]] | None = None

    def frame(self, width: int) -> Group:
        """One frame, ``width`` characters wide."""
        columns = max(10, min(width - 1, 120))
        stats = self._client.stats()
        overview = self._client._overview(columns * _MAP_ROWS)
        now = time.monotonic()
        rates = self._rates(now, stats)
        self._before = (now, stats)
        return Group(
            _head(stats),
            grid(("memory", ">", "objects", ">", "a second", ">"), _figures(stats, rates)),
            _map(overview["cells"], columns),
            _legend(),
            _clients(overview["clients"]),
            *_nodes(self._client.nodes()),
        )

    def _rates(self, now: float, stats: dict[str, Any]) -> dict[str, str]:
        keys = ("requests", "sealed_total", "deleted_total", "turns_total")
        # A node that was replaced counts from zero.
        if self._before is None or self._before[1]["pid"] != stats["pid"]:
            return dict.fromkeys(keys, "-")
        then, before = self._before
        seconds = max(now - then, 1e-3)
        return {key: f"{(stats[key] - before[key]) / seconds:,.0f}" for key in keys}


def _head(stats: dict[str, Any]) -> Text:
    minutes, seconds = divmod(stats["uptime_ms"] // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return Text(
        f"farrow node {stats['pid']}, up {hours}:{minutes:02}:{seconds:02},"
        f" {stats['fabric']} {visible(stats['memory'])}",
        style="bold",
    )


def _figures(stats: dict[str, Any], rates: dict[str, str]) -> list[tuple[str, ...]]:
    def size(key: str) -> str:
        return human_bytes(stats[key])

    def share(key: str) -> str:
        return f"{size(key)} {100 * stats[key] / max(stats['capacity'], 1):3.0f} %"

    return [
        ("capacity", size("capacity"), "sealed", f"{stats['objects']:,}", "requests",
         rates["requests"]),
        ("used", share("used"), "most", f"{stats['objects_max']:,}", "sealed",
         rates["sealed_total"]),
        ("granted", share("granted"), "retiring", f"{stats['objects_retiring']:,}", "deleted",
         rates["deleted_total"]),
        ("free", share("free"), "holds", f"{stats['holds']:,}", "turns", rates["turns_total"]),
        ("longest free", size("largest_free"), "clients", f"{stats['clients']:,}", "", ""),
    ]  # fmt: skip


def _map(cells: list[dict[str, int]], columns: int) -> Text:
    """The heap from left to right and top to bottom, a character for each part."""
    text = Text()
    for number, cell in enumerate(cells):
        # A single held byte marks the whole cell.
        kinds = (_HELD,) if cell["held"] else _KINDS
        _, letter, style = max(kinds, key=lambda kind: cell[kind[0]])
        if not any(cell[kind[0]] for kind in (*_KINDS, _HELD)):
            # Memory that the node does not lend at present.
            letter, style = " ", ""
        text.append(letter, style=style)
        if (number + 1) % columns == 0:
            text.append("\n")
    return text


def _legend() -> Text:
    text = Text()
    for name, letter, style in (*_KINDS, _HELD):
        text.append(f"{letter} {name}   ", style=style)
    return text


def _clients(clients: list[dict[str, Any]]) -> Any:
    clients = sorted(clients, key=lambda client: (-client["granted"], client["slot"]))
    rows = [
        (
            str(client["slot"]),
            str(client["pid"]),
            human_bytes(client["granted"]),
            f"{client['holds']:,}",
            "yes" if client["is_connected"] else "no",
        )
        for client in clients[:_CLIENTS_MAX]
    ]
    more = len(clients) - len(rows)
    title = f"clients (and {more} more)" if more else "clients"
    return grid((">place", ">process", ">granted", ">holds", "connected"), rows, title=title)


def _nodes(nodes: list[Any]) -> list[Any]:
    """The other nodes of the cluster: reachability of each, and how its memory is mapped."""
    rows = [
        (
            visible(node.name),
            visible(node.address),
            node.reach,
            node.fabric or "-",
            node.coherence or visible(node.why_not) or "-",
            human_bytes(node.capacity),
            *costs(node),
        )
        for node in nodes
        if not node.is_own
    ]
    if not rows:
        return []
    titles = ("node", "address", "reach", "fabric", "coherence", ">lends", *COST_TITLES)
    return [grid(titles, rows, title="other nodes")]
