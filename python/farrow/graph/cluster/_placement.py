"""Selection of the node for the next segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farrow

if TYPE_CHECKING:
    from farrow._native import Client

POLICIES = ("local", "round-robin", "most-free")


def check(client: Client, policy: str, log_node: str | None) -> None:
    """Check that the policy, or the node that it names, and the log's node exist.

    Raises:
        ValueError: the policy or a node does not exist.
    """
    names = sorted(one.name for one in client.nodes())
    if log_node is not None and log_node not in names:
        raise ValueError(
            f"log_node is {log_node!r}, which is none of the nodes"
            f" ({', '.join(names) or 'there is no cluster'})"
        )
    if policy not in POLICIES and policy not in names:
        raise ValueError(
            f"placement is {policy!r}, which is none of {', '.join(POLICIES)} and none of the "
            f"nodes ({', '.join(names) or 'there is no cluster'})"
        )


def nodes(client: Client, policy: str, turn: int) -> list[str | None]:
    """Nodes to try, best first; None: the client's own.

    Args:
        client: a client of the cluster.
        policy: one of :data:`POLICIES`, or the name of a node.
        turn: number of earlier segments.
    """
    if policy == "local":
        return [None]
    if policy not in POLICIES:
        return [policy]
    live = [one for one in client.nodes() if one.reach == "live" and one.fabric]
    names = [one.name for one in live]
    if not names:
        return [None]
    if policy == "round-robin":
        at = turn % len(names)
        return [*names[at:], *names[:at]]
    free: dict[str, int] = {}
    for name in names:
        try:
            free[name] = int(client.stats(node=name)["free"])
        except farrow.FarrowError:
            # The node was lost since the list.
            continue
    return [*sorted(free, key=lambda name: -free[name])]
