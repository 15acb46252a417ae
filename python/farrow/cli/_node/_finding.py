"""A finding of ``farrow doctor``."""

from __future__ import annotations

import dataclasses

__all__ = ["Finding"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A deficiency, its consequence, and its fix."""

    #: "error": a node cannot work; "drain": an obstacle to the drain of the running node;
    #: "advice": a node works, but slower or smaller.
    level: str
    what: str
    consequence: str
    command: str
