"""Types that appear in the signatures of the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import TypeAlias

    from farrow._native import ObjectRef

    # A reference, a name, or an id of 16 bytes.
    Target: TypeAlias = ObjectRef | str | bytes

__all__ = ["BufferLocation"]


class BufferLocation(TypedDict):
    """Where one buffer of a value lies."""

    column: str  # "" for a value without columns
    chunk: int
    buffer: int  # counted depth first through the array and its children, then dictionaries
    address: int  # in this process
    offset: int | None  # bytes from the start of the region; None outside of it
    bytes: int
    in_region: bool
