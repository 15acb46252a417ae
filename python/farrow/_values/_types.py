"""Types that appear in the signatures of the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

if TYPE_CHECKING:
    from typing import TypeAlias

    from farrow._native import ObjectRef

    # A reference, a name, or an id of 16 bytes.
    Target: TypeAlias = ObjectRef | str | bytes

__all__ = ["BufferLocation", "NodeInfo"]


class BufferLocation(TypedDict):
    """The location of one buffer of a value."""

    column: str  # "" for a value without columns
    chunk: int
    buffer: int  # counted depth first through the array and its children, then dictionaries
    address: int  # in this process
    offset: int | None  # bytes from the start of the region; None outside of it
    bytes: int
    in_region: bool


class NodeInfo(NamedTuple):
    """One node of a cluster, as the client's node sees it; from ``Client.nodes``.

    Attributes:
        name: name of the node; "" if it is not joined.
        number: its number in the cluster.
        address: address at which other nodes reach it.
        incarnation: number of its membership; it grows each time the node rejoins.
        reach: "live"; "suspect" (silent for a lease); "lost" (excluded by the others);
            "draining" (live, and its objects move to other nodes before it leaves); "left" (in
            order); "not joined" (an address to join that is no member).
        is_own: whether it is the client's node.
        fabric: how its memory is reached: "shm" or "device" if it is mapped, "net" or "net+TLS" if
            its objects are sent over the network, with "+rdma" behind it if the network card read
            the last large one; "" if it is not reached.
        coherence: "coherent" or "node-local"; "" if its memory is not mapped.
        capacity: bytes of memory for objects.
        why_not: why its memory is not mapped, or why it is not joined; "" otherwise.
        free: bytes of free memory, asked once a second; None: not known, for a node that does not
            answer or is of an earlier version.
        latency_us: microseconds between a small question of the client's node to this one and the
            answer, an exponentially weighted mean; None: not measured, as for the own node.  Loads
            from mapped memory send no message and are not measured here: see ``farrow lab``.
        bytes_per_second: bandwidth of the objects that the client's node fetched from this one over
            the network, an exponentially weighted mean; None before the first transfer of 1 MiB or
            more, and for mapped memory.

    Examples:
        >>> [own] = [node for node in client.nodes() if node.is_own]
        >>> own.name, own.reach, own.fabric
        ('a', 'live', 'shm')
    """

    name: str
    number: int
    address: str
    incarnation: int
    reach: Literal["live", "suspect", "lost", "draining", "left", "not joined"]
    is_own: bool
    fabric: str
    coherence: str
    capacity: int
    why_not: str
    free: int | None
    latency_us: int | None
    bytes_per_second: int | None
