"""Draining a node: its objects move to other nodes before it leaves.

The node decides about each move (``crates/cluster/src/protocol/drain.rs``).  This module chooses
the objects and their new nodes, and tries again what could not move, until a deadline.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farrow.exceptions import (
    Disconnected,
    FarrowError,
    InvalidArgument,
    LimitReached,
    NodeDraining,
    NodeLost,
    NotFound,
    NotGranted,
    OutOfMemory,
    PermissionDenied,
    QuotaExceeded,
    Timeout,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farrow import Client

__all__ = ["Drain", "Progress", "Remaining"]

#: Chunks and lists of nodes of a huge table: names end with the id of its root and a number.
_OF_HUGE_TABLE = re.compile(r"/[0-9a-f]{32}/(node/)?[0-9]{10}\Z")

#: Label of the root of a huge table.
_HUGE_TABLE = "farrow.huge_table"

#: Pause before what could not move is tried again.
_PAUSE_SECONDS = 0.2

#: One object moves for so long at most before others are tried.
_MOVE_SECONDS = 30.0

#: Most objects of which the reason is kept.
_REASONS_MAX = 1000

#: Errors of one target: another one may take the object.
_OF_TARGET = (
    OutOfMemory, QuotaExceeded, TooLarge, LimitReached, NodeLost, NodeDraining, NotGranted,
    PermissionDenied,
)  # fmt: skip


@dataclass
class Progress:
    """How far a drain is.

    Attributes:
        moved: objects that have moved.
        moved_bytes: their bytes.
        left: objects that can move and have not.
        left_bytes: their bytes.
        writing: names of objects that clients are still writing.
        retiring: objects that have moved or were deleted, and whose memory clients still read.
    """

    moved: int = 0
    moved_bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    writing: int = 0
    retiring: int = 0


@dataclass
class Remaining:
    """What is still at a node at the end of a drain.

    Attributes:
        stuck: objects with a name that did not move, each with the reason: (namespace, name, bytes,
            reason).
        stuck_bytes: bytes of all of them.
        tables: huge tables with parts here, each with the number of its parts and their bytes.
        unnamed: objects without a name.
        unnamed_bytes: their bytes.
        writing: names of objects that clients are still writing.
        retiring: objects that moved or were deleted and are still read.
        readers: processes that read objects of the node: (process id, number of its holds).
        untold: members that do not know of the drain, each with the reason.
        undone: nodes that were lost while an object moved to them.  Each removes its copy when it
            is back, if this node is still there.
    """

    stuck: list[tuple[str, str, int, str]] = field(default_factory=list)
    stuck_bytes: int = 0
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)
    unnamed: int = 0
    unnamed_bytes: int = 0
    writing: int = 0
    retiring: int = 0
    readers: list[tuple[int, int]] = field(default_factory=list)
    untold: list[tuple[str, str]] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)


@dataclass
class _Found:
    """The objects of one pass over the node."""

    movable: list[tuple[str, bytes, str, int]] = field(default_factory=list)
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)
    unnamed: int = 0
    unnamed_bytes: int = 0


class Drain:
    """Moves the objects of a client's node to other nodes.

    Args:
        connect: returns a client of the node in a namespace.
        targets: names of the nodes to use, in this order; empty: all, the most free memory first.
        deadline: time of the monotonic clock at which the drain gives up.
        on_progress: called after each object and while it waits.
    """

    def __init__(
        self,
        connect: Callable[[str], Client],
        *,
        targets: Sequence[str] = (),
        deadline: float,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._connect = connect
        self._client = connect("")
        self._clients = {"": self._client}
        self._targets = list(targets)
        self._deadline = deadline
        self._on_progress = on_progress
        self._progress = Progress()

    def run(self) -> Remaining:
        """Begin the drain, or go on with it, until nothing can move any more or the deadline.

        Returns:
            What is still at the node.

        Raises:
            InvalidArgument: a target is not a live member, or is the node itself.
            PermissionDenied: the node belongs to another user.
        """
        self._check_targets()
        self._client._drain(True)
        if untold := self._tell_all():
            return self._remaining(_Found(), {}, untold)
        reasons: dict[bytes, str] = {}
        while True:
            found = self._look()
            moved_any = self._move_all(found.movable, reasons)
            report = self._client._drain()
            self._progress.writing = report["reserved"]
            self._progress.retiring = self._client.stats()["objects_retiring"]
            self._on_progress(self._progress)
            found = self._look()
            waits = (
                found.movable or report["reserved"] or report["undone"] or self._progress.retiring
            )
            if not waits or time.monotonic() >= self._deadline:
                return self._remaining(found, reasons, [])
            if not moved_any:
                time.sleep(_PAUSE_SECONDS)

    def _check_targets(self) -> None:
        nodes = {node.name: node for node in self._client.nodes()}
        for name in self._targets:
            if name not in nodes or nodes[name].is_own or nodes[name].reach != "live":
                others = [one.name for one in nodes.values() if not one.is_own]
                live = [other for other in others if nodes[other].reach == "live"]
                raise InvalidArgument(f"--to {name}: the live other nodes are {live}")

    def _tell_all(self) -> list[tuple[str, str]]:
        """Wait until all members know of the drain; those that do not at the deadline."""
        while untold := self._client._drain()["untold"]:
            if time.monotonic() >= self._deadline:
                return [(node, why) for node, why in untold]
            time.sleep(0.05)
        return []

    def _look(self) -> _Found:
        """The objects of the node, of all namespaces."""
        found = _Found()
        for namespace in self._client.namespaces():
            client = self._at(namespace["name"])
            for row in client.list("").to_pylist():
                name, size, id = row["name"], row["bytes"], row["id"]
                if not name:
                    found.unnamed += 1
                    found.unnamed_bytes += size
                elif table := self._table_of(client, row):
                    parts, nbytes = found.tables.get(table, (0, 0))
                    found.tables[table] = (parts + 1, nbytes + size)
                else:
                    found.movable.append((namespace["name"], id, name, size))
        self._progress.left = len(found.movable)
        self._progress.left_bytes = sum(size for *_, size in found.movable)
        return found

    def _table_of(self, client: Client, row: dict[str, Any]) -> str:
        """The huge table of which an object is a part; "" if of none."""
        name: str = row["name"]
        if part := _OF_HUGE_TABLE.search(name):
            return name[: part.start()]
        if row["spilled"]:
            # Its labels are in the file.
            try:
                labels = client.metadata(row["id"])
            except FarrowError:
                return ""
        else:
            labels = dict(row["metadata"])
        return name if _HUGE_TABLE in labels else ""

    def _at(self, namespace: str) -> Client:
        if namespace not in self._clients:
            self._clients[namespace] = self._connect(namespace)
        return self._clients[namespace]

    def _move_all(
        self, movable: list[tuple[str, bytes, str, int]], reasons: dict[bytes, str]
    ) -> bool:
        """Move each object; whether any has moved."""
        moved_any = False
        for namespace, id, _, size in movable:
            if time.monotonic() >= self._deadline:
                break
            why = self._move(self._at(namespace), id, size)
            self._progress.left -= 1
            self._progress.left_bytes -= size
            if why is None:
                moved_any = True
                reasons.pop(id, None)
            elif len(reasons) < _REASONS_MAX:
                reasons[id] = why
            self._on_progress(self._progress)
        return moved_any

    def _move(self, client: Client, id: bytes, size: int) -> str | None:
        """Move an object to the first node that takes it; the reason if none does."""
        tried = []
        for node in self._nodes_for(size):
            left = min(_MOVE_SECONDS, self._deadline - time.monotonic())
            try:
                client._move_object(id, node, max(left, 0.0))
            except NotFound:
                # Deleted or evicted meanwhile, or the namespace is missing there.
                if client.contains(id):
                    tried.append(f"{node}: it has no namespace {client.namespace!r}")
                    continue
                return None
            except _OF_TARGET as error:
                tried.append(f"{node}: {error}")
                continue
            except (Disconnected, Timeout, FarrowError) as error:
                return str(error)
            self._progress.moved += 1
            self._progress.moved_bytes += size
            return None
        return "; ".join(tried) or "there is no live node to move it to"

    def _nodes_for(self, size: int) -> Iterator[str]:
        """The nodes that may take an object: those with room first."""
        nodes = {one.name: one for one in self._client.nodes() if one.reach == "live"}
        others = [one for one in nodes.values() if not one.is_own]
        if self._targets:
            yield from (name for name in self._targets if name in nodes)
            return
        others.sort(key=lambda one: (-1 if one.free is None else one.free, one.name), reverse=True)
        has_room = [one for one in others if one.free is not None and one.free >= size]
        yield from (one.name for one in [*has_room, *(o for o in others if o not in has_room)])

    def _remaining(
        self, found: _Found, reasons: dict[bytes, str], untold: list[tuple[str, str]]
    ) -> Remaining:
        late = "the timeout was over before its turn"
        overview, report = self._client._overview(1), self._client._drain()
        return Remaining(
            stuck=[
                (space, name, size, reasons.get(id, late))
                for space, id, name, size in found.movable
            ],
            stuck_bytes=sum(size for *_, size in found.movable),
            tables=found.tables,
            unnamed=found.unnamed,
            unnamed_bytes=found.unnamed_bytes,
            writing=report["reserved"],
            retiring=self._client.stats()["objects_retiring"],
            readers=[(one["pid"], one["holds"]) for one in overview["clients"] if one["holds"]],
            untold=untold,
            undone=report["undone"],
        )
