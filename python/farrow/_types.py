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
    """Where one buffer of a value lies."""

    column: str  # "" for a value without columns
    chunk: int
    buffer: int  # counted depth first through the array and its children, then dictionaries
    address: int  # in this process
    offset: int | None  # bytes from the start of the region; None outside of it
    bytes: int
    in_region: bool


class NodeInfo(NamedTuple):
    """One node of a cluster, as the node that was asked sees it; from ``Client.nodes``."""

    name: str
    number: int  # in the cluster
    address: str  # where other nodes reach it
    incarnation: int  # which life of it
    # Heard of within a lease; not heard of, and being settled; the others go on without it; it left
    # in order; it is to be joined and is no member, and has no name here.
    reach: Literal["live", "suspect", "lost", "left", "not joined"]
    is_own: bool  # the one that was asked
    fabric: str  # how its memory is reached, "shm" or "device"; "": not at all
    coherence: str  # "coherent" or "node-local"; "" where the memory is not reached
    capacity: int  # bytes of memory for objects
    why_not: str  # why its memory is not reached, or it is not joined; "" where it is
