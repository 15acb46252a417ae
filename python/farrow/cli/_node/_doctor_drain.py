"""The drain of the running node, for ``farrow doctor``: its progress and its obstacles.

The command that drains a node prints the reason of each object, but runs elsewhere, or has ended.
This module reads the state of the node only, and changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import farrow
from farrow._nodes._drain import Progress
from farrow.cli._node._finding import Finding
from farrow.cli._output import human_bytes, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow import Client

__all__ = ["DrainStatus", "drain_status"]

_ANSWER_SECONDS = 5.0

#: An object of some megabytes moves in less time.
_SAMPLE_SECONDS = 1.0

#: Processes and members that are listed one by one.
_LISTED_MAX = 20


@dataclass(kw_only=True)
class DrainStatus(Progress):
    """The drain of a node, with its progress since the daemon started.

    Attributes:
        node: name of the node; "" if it is in no cluster.
        is_draining: whether this node drains.
        draining_peers: names of other nodes of the cluster that drain.
        unnamed: objects without a name, which cannot move.
        unnamed_bytes: their bytes.
        is_moving: whether an object moved while the state was read.
        obstacles: what delays or prevents the end of the drain.
    """

    node: str
    is_draining: bool
    draining_peers: list[str]
    unnamed: int = 0
    unnamed_bytes: int = 0
    is_moving: bool = False
    obstacles: list[Finding] = field(default_factory=list)

    def verdict(self) -> str:
        """One or two sentences; "" if no node drains."""
        if not self.is_draining:
            if not self.draining_peers:
                return ""
            names = ", ".join(visible(name) for name in self.draining_peers)
            return f"Being drained in this cluster: {names}. farrow doctor there shows the state."
        node = visible(self.node)
        moved = f"{self.moved:,} objects, {human_bytes(self.moved_bytes)} have moved"
        if not (self.left or self.unnamed or self.writing or self.retiring or self.obstacles):
            return (
                f"Node {node} is drained: {moved}, and none is left."
                f" farrow node drain {node} checks huge tables, then the node can end."
            )
        left = f"{self.left:,} objects, {human_bytes(self.left_bytes)} are left"
        count = len(self.obstacles)
        way = "nothing is" if not count else "1 obstacle is" if count == 1 else f"{count} are"
        return f"Node {node} is being drained: {moved}, {left}; {way} in the way."


def drain_status(client: Client) -> DrainStatus:
    """Read the state of the drain of the client's node.

    Args:
        client: a client of the node in the default namespace.

    Returns:
        The state; without obstacles if the user may not drain the node.

    Raises:
        Disconnected: the node has ended.
    """
    nodes, stats = client.nodes(), client.stats()
    status = DrainStatus(
        node=client.node or "",
        is_draining=bool(stats["draining"]),
        draining_peers=[one.name for one in nodes if one.reach == "draining" and not one.is_own],
    )
    if not status.is_draining:
        return status
    status.moved, status.moved_bytes = stats["moved_total"], stats["moved_bytes_total"]
    try:
        report = client._drain()
    except farrow.PermissionDenied as error:
        # Other users' objects are not listed either.
        status.left, status.left_bytes = stats["objects"], stats["used"]
        status.obstacles = [_hidden(status.node, error)]
        return status
    status.writing = report["reserved"]
    largest = _count_left(client, status)
    status.is_moving = bool(status.left) and _is_moving(client, report["moved"])
    status.retiring = _retiring_all_along(client, stats["objects_retiring"])
    status.obstacles = [
        *_member_obstacles(report),
        *_object_obstacles(status, largest, nodes),
        *_reader_obstacles(client, status, stats["memory"]),
    ]
    return status


def _hidden(node: str, error: Exception) -> Finding:
    return Finding(
        "drain",
        "the obstacles are shown to the owner of the node and to root",
        str(error),
        f"sudo farrow doctor  # on the machine of node {visible(node)}",
    )


def _count_left(client: Client, status: DrainStatus) -> tuple[str, int]:
    """Count the objects of all namespaces; name and bytes of the largest one that can move."""
    largest = ("", 0)
    for namespace in client.namespaces():
        name = namespace["name"]
        with contextlib.ExitStack() as stack:
            lister = client
            if name:
                try:
                    lister = farrow.connect(client.address, timeout=_ANSWER_SECONDS, namespace=name)
                except farrow.NotFound:
                    # It was dropped meanwhile.
                    continue
                stack.enter_context(lister)
            listed = lister.list("").select(["name", "bytes"])
        for found, size in zip(*listed.to_pydict().values(), strict=True):
            if found:
                status.left += 1
                status.left_bytes += size
                largest = max(largest, (found, size), key=lambda one: one[1])
            else:
                status.unnamed += 1
                status.unnamed_bytes += size
    return largest


def _is_moving(client: Client, moved: int) -> bool:
    """Whether an object moves, or has moved since that many had."""
    end = time.monotonic() + _SAMPLE_SECONDS
    while True:
        now = client._drain()
        if now["moving_to"] or now["moved"] > moved:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)


def _retiring_all_along(client: Client, retiring: int) -> int:
    """The fewest retiring objects in the time of a sample.

    An object that has just moved is retiring for a moment, which is in nothing's way.
    """
    end = time.monotonic() + _SAMPLE_SECONDS
    while retiring and time.monotonic() < end:
        time.sleep(0.02)
        retiring = min(retiring, client.stats()["objects_retiring"])
    return retiring


def _member_obstacles(report: dict[str, Any]) -> Iterator[Finding]:
    for member, why in report["untold"][:_LISTED_MAX]:
        yield Finding(
            "drain",
            f"node {visible(member)} does not know of the drain: {visible(why)}",
            "no object moves before it does",
            "farrow nodes  # start that node again or upgrade it; if it is down, it is excluded",
        )
    for member in report["undone"][:_LISTED_MAX]:
        yield Finding(
            "drain",
            f"node {visible(member)} was lost while an object moved to it",
            "no other object moves there before it is back and has removed its copy",
            f"farrow nodes forget {visible(member)}  # if it does not come back",
        )


def _object_obstacles(
    status: DrainStatus, largest: tuple[str, int], nodes: list[Any]
) -> Iterator[Finding]:
    node = visible(status.node)
    again = f"farrow node drain {node}  # prints the reason of each object that does not move"
    targets = [one for one in nodes if one.reach == "live" and not one.is_own]
    if status.left and not targets:
        yield Finding(
            "drain",
            "no other node is live and takes objects",
            f"{status.left:,} objects stay",
            "farrow nodes  # start another node, or cancel: farrow node drain --cancel",
        )
    elif status.left and not status.is_moving:
        yield Finding(
            "drain",
            f"no object moved within {_SAMPLE_SECONDS:g} s",
            "farrow node drain does not run, or can move none of those left at present",
            again,
        )
        name, size = largest
        known = {one.name: one.free for one in targets if one.free is not None}
        if len(known) == len(targets) and max(known.values()) < size:
            free = ", ".join(f"{visible(one)}: {human_bytes(known[one])}" for one in sorted(known))
            yield Finding(
                "drain",
                f"{visible(name)} has {human_bytes(size)}; free at other nodes: {free}",
                "it stays, unless one of them can evict or spill as much",
                "farrow node set --memory SIZE  # at another node, or delete objects there",
            )
    if status.unnamed:
        yield Finding(
            "drain",
            f"{status.unnamed:,} objects, {human_bytes(status.unnamed_bytes)} have no name",
            "they cannot move, and end with the node",
            f"farrow node drain {node} --drop-unnamed  # or delete them: farrow ls",
        )
    if status.writing:
        yield Finding(
            "drain",
            f"{status.writing:,} objects with a name are being written by clients",
            "the drain waits for them until its timeout",
            "farrow top  # shows the clients with granted memory: end them, or wait",
        )


def _reader_obstacles(client: Client, status: DrainStatus, memory: str) -> Iterator[Finding]:
    if not status.retiring:
        return
    clients = [one for one in client._overview(1)["clients"] if one["holds"]]
    holds: dict[int, int] = {}
    for one in clients:
        holds[one["pid"]] = holds.get(one["pid"], 0) + one["holds"]
    for pid, count in sorted(holds.items(), key=lambda one: -one[1])[:_LISTED_MAX]:
        is_stopped = _is_stopped(pid, memory)
        yield Finding(
            "drain",
            f"process {pid} holds {count:,} objects of this node"
            + (", and is stopped" if is_stopped else ""),
            f"{status.retiring:,} objects that moved or were deleted are still read: the drain"
            " waits for their readers until its timeout",
            f"kill -CONT {pid}  # or end it" if is_stopped else f"ps -p {pid}  # end it, or wait",
        )


def _is_stopped(pid: int, memory: str) -> bool:
    """Whether a process of this machine that maps the node's memory is stopped.

    The process of a client at another machine may have the number of one here.
    """
    try:
        with Path(f"/proc/{pid}/maps").open(errors="replace") as maps:
            if not any(Path(memory).name in line for line in maps):
                return False
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
