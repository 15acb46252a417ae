"""Draining a node: its objects move to other nodes before it leaves.

The node decides about each move (``crates/cluster/src/protocol/core/drain/outgoing.rs``).  This
module chooses the objects and their new nodes, and tries again what could not move, until a
deadline.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from farrow._reserved import HUGE_TABLE
from farrow._values._listed import listed_rows
from farrow.exceptions import (
    Disconnected,
    FarrowError,
    InvalidArgument,
    LimitReached,
    NodeDraining,
    NodeLost,
    NotFound,
    NotPermitted,
    OutOfMemory,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farrow import Client

__all__ = ["Drain", "Progress", "Remaining"]

#: Chunks and records of nodes of a huge table: names end with the id of the table and a number.
_OF_HUGE_TABLE = re.compile(r"/[0-9a-f]{32}/(node/)?[0-9]{10}\Z")

#: Values of the label of the root of a huge table.
_HUGE_LAYOUTS = ("1", "2", "3")

#: Pause before objects that could not move are tried again.
_PAUSE_SECONDS = 0.2

#: The longest time for one object before the next ones are tried.
_MOVE_SECONDS = 30.0

#: A table that other clients use is tried again in the next round.
_LEAVE_SECONDS = 5.0

#: Most objects of which the reason is remembered.
_REASONS_MAX = 1000

#: Errors of one target: another one may take the object.
_OF_TARGET = (
    OutOfMemory, QuotaExceeded, TooLarge, LimitReached, NodeLost, NodeDraining, NotPermitted,
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
        tables: huge tables with parts here, or that still name this node: (namespace, name, parts,
            bytes, reason).
        unnamed: objects without a name.
        unnamed_bytes: their bytes.
        writing: names of objects that clients are still writing.
        retiring: objects that moved or were deleted and are still read.
        readers: processes that read objects of the node: (process id, number of its holds).
        untold: members that do not know of the drain, each with the reason.
        undone: nodes that were lost while an object moved to them.  Each removes its copy when it
            is back, if this node is still there.
        cancelled: whether another command cancelled the drain: the node takes new objects.
    """

    stuck: list[tuple[str, str, int, str]] = field(default_factory=list)
    stuck_bytes: int = 0
    tables: list[tuple[str, str, int, int, str]] = field(default_factory=list)
    unnamed: int = 0
    unnamed_bytes: int = 0
    writing: int = 0
    retiring: int = 0
    readers: list[tuple[int, int]] = field(default_factory=list)
    untold: list[tuple[str, str]] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    cancelled: bool = False


class _Object(NamedTuple):
    """An object with a name; ``table`` is the huge table of which it is a part, or ""."""

    namespace: str
    name: str
    id: bytes
    nbytes: int
    table: str

    @property
    def order(self) -> int:
        """When it moves: roots before chunks, whose new nodes are recorded at the root's."""
        if not self.table:
            return 0
        return 1 if self.name == self.table else 3 - self.is_record

    @property
    def is_record(self) -> bool:
        """Whether it is a record of a node of a huge table, which ends with the root there."""
        part = _OF_HUGE_TABLE.search(self.name) if self.table else None
        return part is not None and part[1] is not None


@dataclass
class _Found:
    """The objects of one pass over the node."""

    movable: list[_Object] = field(default_factory=list)
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
        """Begin the drain, or go on with it, until nothing can move any more, the deadline, or a
        cancellation by another command.

        Returns:
            What is still at the node.

        Raises:
            InvalidArgument: a target is not a live member, or is the node itself.
            PermissionDenied: the node belongs to another user.
            Disconnected: the node ended, and did not start again within the client's timeout.
        """
        self._check_targets()
        self._client._drain(True)
        if untold := self._notify_all():
            return self._remaining(_Found(), {}, untold)
        reasons: dict[bytes, str] = {}
        found = self._look()
        while True:
            moved_any = self._move_all(found.movable, reasons)
            report = self._client._drain()
            self._progress.writing = report["reserved"]
            self._progress.retiring = self._client.stats()["objects_retiring"]
            self._on_progress(self._progress)
            found = self._look()
            named = [] if found.movable else self._leave_tables()
            waits = found.movable or named or report["reserved"] or report["undone"]
            is_over = not report["is_draining"] or time.monotonic() >= self._deadline
            if is_over or not (waits or self._progress.retiring):
                left = self._remaining(found, reasons, [], named)
                # A record that was just replaced is retiring for a moment.
                if is_over or not left.retiring:
                    return left
            if not moved_any:
                time.sleep(_PAUSE_SECONDS)

    def _check_targets(self) -> None:
        nodes = {node.name: node for node in self._client.nodes()}
        for name in self._targets:
            if name not in nodes or nodes[name].is_own or nodes[name].reach != "live":
                peers = [one.name for one in nodes.values() if not one.is_own]
                live = [other for other in peers if nodes[other].reach == "live"]
                raise InvalidArgument(f"--to {name}: the live other nodes are {live}")

    def _notify_all(self) -> list[tuple[str, str]]:
        """Wait until all members know of the drain; those that do not at the deadline, or when the
        drain is cancelled."""
        while untold := (report := self._client._drain())["untold"]:
            if time.monotonic() >= self._deadline or not report["is_draining"]:
                return [(node, why) for node, why in untold]
            time.sleep(0.05)
        return []

    def _look(self) -> _Found:
        """The objects of the node, of all namespaces."""
        found = _Found()
        for namespace in self._client.namespaces():
            client = self._at(namespace["name"])
            listed = client.list("").select(["name", "id", "bytes", "spilled", "metadata"])
            for row in listed_rows(listed):
                name, size, id = row["name"], row["bytes"], row["id"]
                if not name:
                    found.unnamed += 1
                    found.unnamed_bytes += size
                else:
                    table = self._table_of(client, row)
                    found.movable.append(_Object(namespace["name"], name, id, size, table))
        found.movable.sort(key=lambda one: one.order)
        self._progress.left = len(found.movable)
        self._progress.left_bytes = sum(one.nbytes for one in found.movable)
        return found

    def _leave_tables(self) -> list[tuple[str, str, int, int, str]]:
        """Record in all huge tables that the node has no rows of them; those that still name it."""
        named = []
        for namespace in [one["name"] for one in self._client.namespaces()]:
            client = self._at(namespace)
            names: set[str] = set()
            try:
                for layout in _HUGE_LAYOUTS:
                    roots = client.list("", where={HUGE_TABLE: layout}, all_nodes=True)
                    names.update(name for name in roots["name"].to_pylist() if name)
            except Disconnected:
                raise
            except FarrowError as error:
                named.append((namespace, "*", 0, 0, f"the tables cannot be listed: {error}"))
            for name in sorted(names):
                try:
                    client.huge_table(name)._leave_node(_LEAVE_SECONDS)
                except (NotFound, InvalidArgument):
                    # Dropped meanwhile, or another object with the label.
                    continue
                except Disconnected:
                    raise
                except FarrowError as error:
                    named.append((namespace, name, 0, 0, str(error)))
        return named

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
        return name if HUGE_TABLE in labels else ""

    def _at(self, namespace: str) -> Client:
        if namespace not in self._clients:
            client = self._connect(namespace)
            # The node takes objects of clients that ask for the state of its drain, to be brought
            # to other nodes. A drain that was cancelled does not begin again.
            client._drain()
            self._clients[namespace] = client
        return self._clients[namespace]

    def _move_all(self, movable: list[_Object], reasons: dict[bytes, str]) -> bool:
        """Move each object; whether any has moved."""
        moved_any = False
        for one in movable:
            if time.monotonic() >= self._deadline:
                break
            why = self._move(self._at(one.namespace), one)
            if why is None:
                moved_any = True
                self._progress.left -= 1
                self._progress.left_bytes -= one.nbytes
                reasons.pop(one.id, None)
            elif not self._client._drain()["is_draining"]:
                # Cancelled: further moves would bring bytes for nothing.
                break
            elif len(reasons) < _REASONS_MAX:
                reasons[one.id] = why
            self._on_progress(self._progress)
        return moved_any

    def _move(self, client: Client, one: _Object) -> str | None:
        """Move an object to the first node that takes it; the reason if none does."""
        tried = []
        for node in self._nodes_for(one.nbytes):
            left = min(_MOVE_SECONDS, self._deadline - time.monotonic())
            try:
                self._move_to(client, one, node, max(left, 0.0))
            except NotFound:
                # Deleted or evicted meanwhile, or the namespace is missing there.
                if client.contains(one.id):
                    tried.append(f"{node}: it has no namespace {client.namespace!r}")
                    continue
                return None
            except _OF_TARGET as error:
                why = str(error)
                if isinstance(error, NodeDraining) and error.node != node:
                    why = f"the root of its table is at node {error.node}, which drains as well"
                tried.append(f"{node}: {why}")
                continue
            except Disconnected:
                # Of this node: the errors of a target are above.
                raise
            except FarrowError as error:
                return str(error)
            if not one.is_record:
                self._progress.moved += 1
                self._progress.moved_bytes += one.nbytes
            return None
        return "; ".join(tried) or "there is no live node to move it to"

    def _move_to(self, client: Client, one: _Object, node: str, timeout: float) -> None:
        table = None
        if one.table:
            # What is left of a dropped table, or is only named so, moves as it is.
            with contextlib.suppress(NotFound, InvalidArgument):
                table = client.huge_table(one.table)
        if table is None:
            client._move_object(one.id, node, timeout)
        else:
            table._move_part(one.id, one.name, node, timeout)

    def _nodes_for(self, size: int) -> Iterator[str]:
        """The nodes that may take an object: those with room first."""
        nodes = {one.name: one for one in self._client.nodes() if one.reach == "live"}
        peers = [one for one in nodes.values() if not one.is_own]
        if self._targets:
            yield from (name for name in self._targets if name in nodes)
            return
        peers.sort(key=lambda one: (-1 if one.free is None else one.free, one.name), reverse=True)
        has_room = [one for one in peers if one.free is not None and one.free >= size]
        yield from (one.name for one in [*has_room, *(one for one in peers if one not in has_room)])

    def _remaining(
        self,
        found: _Found,
        reasons: dict[bytes, str],
        untold: list[tuple[str, str]],
        named: Sequence[tuple[str, str, int, int, str]] = (),
    ) -> Remaining:
        late = "the timeout was over before its turn"
        tables: dict[tuple[str, str], tuple[int, int, str]] = {}
        for one in found.movable:
            if one.table:
                parts, nbytes, why = tables.get((one.namespace, one.table), (0, 0, ""))
                why = why or reasons.get(one.id, late)
                tables[one.namespace, one.table] = (parts + 1, nbytes + one.nbytes, why)
        plain = [one for one in found.movable if not one.table]
        overview, report = self._client._overview(1), self._client._drain()
        return Remaining(
            stuck=[
                (one.namespace, one.name, one.nbytes, reasons.get(one.id, late)) for one in plain
            ],
            stuck_bytes=sum(one.nbytes for one in plain),
            tables=[*((*table, *rest) for table, rest in tables.items()), *named],
            unnamed=found.unnamed,
            unnamed_bytes=found.unnamed_bytes,
            writing=report["reserved"],
            retiring=self._client.stats()["objects_retiring"],
            readers=[(one["pid"], one["holds"]) for one in overview["clients"] if one["holds"]],
            untold=untold,
            undone=report["undone"],
            cancelled=not report["is_draining"],
        )
