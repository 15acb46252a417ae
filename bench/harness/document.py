"""The raw result of a run: every sample, with its machine and commit."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from harness import machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.tasks import Sample

__all__ = ["document_of", "leave", "plain", "save", "write"]


def plain(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples for JSON, rounded to four digits, more than the precision of the clock."""
    items = [dataclasses.asdict(sample) for sample in samples]
    for item in items:
        item["samples"] = [float(f"{value:.4g}") for value in item["samples"]]
    return items


def document_of(
    repository: Path, samples: Sequence[Sample], notes: Sequence[str], quick: bool
) -> dict[str, Any]:
    """All data of one run."""
    return {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "quick": quick,
        "machine": machine.describe(),
        "commit": machine.commit(repository),
        "notes": list(dict.fromkeys(notes)),
        "samples": plain(samples),
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """As JSON on one line."""
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


def save(document: dict[str, Any], kind: str, text: str, folder: Path) -> Path:
    """Write JSON and Markdown under one name: date, machine, ``kind``, and whether it was quick.

    Returns:
        The common path without its ending, for a picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = [document["date"], machine.host_hash(), kind, "quick" if document["quick"] else ""]
    stem = folder / "-".join(filter(None, words))
    write(stem.with_suffix(".json"), document)
    stem.with_suffix(".md").write_text(text)
    return stem


def leave(document: dict[str, Any], kind: str, table: str, folder: Path) -> Path:
    """Print a table with the notes below it, and ``save`` both."""
    text = table + "".join(f"\n- {note}" for note in document["notes"]) + "\n"
    print(text)
    return save(document, kind, text, folder)
