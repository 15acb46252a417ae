"""``farrow node drain``: move the objects of a node to other nodes before it leaves."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import farrow
from farrow._nodes._drain import Drain, Progress, Remaining
from farrow.cli._client import connect
from farrow.cli._output import CommandError, console, human_bytes, print_json, visible

if TYPE_CHECKING:
    import argparse

    from farrow import Client

__all__ = ["run"]

#: Objects that are listed one by one.
_LISTED_MAX = 20

#: Seconds between two lines of progress where the output is no terminal.
_LINE_SECONDS = 5.0


def run(options: argparse.Namespace) -> int:
    """Drain the node; 0 if it can end without a loss."""
    if not options.timeout >= 0:
        raise CommandError(f"--timeout {options.timeout}: 0 or more seconds")
    deadline = time.monotonic() + options.timeout
    options.timeout = 10.0
    client: Client = connect(options)
    own = client.node
    if own is None:
        raise CommandError("this node is in no cluster: there is no node to move its objects to")
    if options.node not in (None, own):
        raise CommandError(
            f"the node at {client.address} is {own!r}, not {options.node!r}: give the command on"
            " the machine of that node, or with its --socket"
        )
    if options.cancel:
        report = client._drain(False)
        if options.json:
            print_json(report)
        return 0
    address = client.address

    def connect_in(namespace: str) -> Client:
        if not namespace:
            return client
        return farrow.connect(address, timeout=options.timeout, namespace=namespace)

    line = _Line(own)
    drain = Drain(connect_in, targets=options.to, deadline=deadline, on_progress=line.show)
    try:
        remaining = drain.run()
    except farrow.Disconnected as error:
        raise CommandError(_of_ended(own, line.last, error)) from error
    finally:
        line.end()
    moved = (line.last.moved, line.last.moved_bytes)
    if options.json:
        print_json({"node": own, "moved": moved[0], "moved_bytes": moved[1], **vars(remaining)})
    else:
        _print(own, moved, remaining)
    return 0 if _is_empty(remaining, drop_unnamed=options.drop_unnamed) else 1


def _of_ended(node: str, last: Progress, error: Exception) -> str:
    """What an operator does if the node ended before its drain."""
    name = visible(node)
    return (
        f"node {name} ended before its drain ({error}). {last.moved:,} objects,"
        f" {human_bytes(last.moved_bytes)} are at other nodes; the rest is in its memory: do not"
        f" remove that. Start the node again with its options: it still drains if it was killed."
        f" Then give the command again. If it cannot start: farrow nodes forget {name}, and the"
        f" rest is lost"
    )


def _is_empty(left: Remaining, *, drop_unnamed: bool) -> bool:
    """Whether the node can end, and nothing that can be found is lost."""
    unnamed = left.unnamed and not drop_unnamed
    named = left.stuck or left.tables or left.writing or left.undone
    return not (named or left.retiring or left.untold or left.cancelled or unnamed)


class _Line:
    """A line of progress on standard error."""

    def __init__(self, node: str) -> None:
        self.last = Progress()
        self._node = node
        self._at = 0.0
        self._is_open = False

    def show(self, now: Progress) -> None:
        """Print the line, if the last one is some time ago."""
        self.last = now
        is_terminal = sys.stderr.isatty()
        if time.monotonic() - self._at < (0.1 if is_terminal else _LINE_SECONDS):
            return
        self._at = time.monotonic()
        text = (
            f"{visible(self._node)}: {now.moved:,} objects, {human_bytes(now.moved_bytes)} moved;"
            f" {now.left:,}, {human_bytes(now.left_bytes)} left"
        )
        if now.writing:
            text += f"; {now.writing:,} being written"
        if now.retiring:
            text += f"; {now.retiring:,} still read"
        sys.stderr.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        sys.stderr.flush()
        self._is_open = is_terminal

    def end(self) -> None:
        """End an open line."""
        if self._is_open:
            sys.stderr.write("\n")


def _print(node: str, moved: tuple[int, int], left: Remaining) -> None:
    out = console()

    def say(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    say(f"{moved[0]:,} objects, {human_bytes(moved[1])} moved away from node {visible(node)}")
    if left.cancelled:
        say(
            "the drain was cancelled by another command, or by the end of the node: it takes new"
            " objects"
        )
    for member, why in left.untold if not left.cancelled else []:
        say(f"node {visible(member)} does not know of the drain, so nothing moves: {visible(why)}")
    if left.stuck:
        say(f"{len(left.stuck):,} objects, {human_bytes(left.stuck_bytes)} have not moved:")
    for namespace, name, size, why in left.stuck[:_LISTED_MAX]:
        place = f" of namespace {visible(namespace)}" if namespace else ""
        say(f"  {visible(name)}{place}, {human_bytes(size)}: {visible(why)}")
    if len(left.stuck) > _LISTED_MAX:
        say(f"  and {len(left.stuck) - _LISTED_MAX:,} more")
    for namespace, table, parts, size, why in sorted(left.tables)[:_LISTED_MAX]:
        place = f" of namespace {visible(namespace)}" if namespace else ""
        what = (
            f"{parts:,} parts, {human_bytes(size)} have not moved" if parts else "names this node"
        )
        say(f"huge table {visible(table)}{place}: {what}: {visible(why)}")
    if len(left.tables) > _LISTED_MAX:
        say(f"  and {len(left.tables) - _LISTED_MAX:,} more huge tables")
    if left.unnamed:
        say(
            f"{left.unnamed:,} objects without a name, {human_bytes(left.unnamed_bytes)}, stay:"
            " only their ids, which name this node, lead to them. Delete them, or accept by"
            " --drop-unnamed that they end with the node"
        )
    for other in left.undone:
        say(
            f"node {visible(other)} was lost while an object moved to it: when it is back it"
            f" removes its copy. If it does not come back: farrow nodes forget {visible(other)}"
        )
    if left.writing:
        say(f"{left.writing:,} objects with a name are still being written by clients")
    if left.retiring:
        say(f"{left.retiring:,} objects that moved or were deleted are still read here")
        for pid, holds in left.readers[:_LISTED_MAX]:
            say(f"  process {pid} holds {holds:,} objects of this node")
    if _is_empty(left, drop_unnamed=True):
        say("the node can end: farrow stop, or SIGTERM")
