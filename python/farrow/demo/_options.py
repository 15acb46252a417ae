"""What a demo runs on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Options"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What a demo runs on.

    Attributes:
        data: a Parquet, CSV or Arrow IPC file; None generates ``rows`` transactions.
        rows: number of rows to generate.
        seed: seed of the generator.
        memory_bytes: size of each node's region in bytes; None derives it from the data.
    """

    data: Path | None = None
    rows: int = 3_000_000
    seed: int = 7
    memory_bytes: int | None = None
