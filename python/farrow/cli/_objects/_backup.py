"""``farrow backup`` and ``farrow restore``: named objects to a folder or bucket, and back."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from farrow import backup
from farrow.cli._output import console, human_bytes, print_json, progress_bar, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from farrow import Client

__all__ = ["check", "create", "restore"]


def create(client: Client, options: argparse.Namespace) -> int:
    """Save objects."""
    with progress_bar("backup", quiet=options.quiet) as report:
        created = backup.create(
            client,
            options.target,
            options.names or None,
            partial=options.partial,
            progress=report,
        )
    if options.json:
        print_json(created._asdict())
        return 0
    _say(f"{created.objects:,} objects, {human_bytes(created.nbytes)} at {options.target}")
    if created.left_out:
        cause = "of lost nodes or deleted meanwhile" if created.lost_nodes else "deleted meanwhile"
        _warn(f"{cause}, and not in the backup", created.left_out)
    if created.lost_nodes:
        _warn("not in the backup, since they are lost: nodes", created.lost_nodes)
    return 0


def check(options: argparse.Namespace) -> int:
    """Check the files of a backup."""
    with progress_bar("check", quiet=options.quiet) as report:
        manifest = backup.verify(options.target, options.names or None, progress=report)
    wanted = set(options.names)
    entries = [entry for entry in manifest.objects if not wanted or entry.name in wanted]
    if options.json:
        print_json({"id": manifest.id, "objects": [entry._asdict() for entry in entries]})
        return 0
    nbytes = sum(file.bytes for entry in entries for file in entry.files())
    _say(f"{len(entries):,} objects, {human_bytes(nbytes)}, of {manifest.begun_at}: no damage")
    return 0


def restore(client: Client, options: argparse.Namespace) -> int:
    """Put objects."""
    existing: Any = "replace" if options.replace else "skip" if options.skip else "error"
    with _ended_in_order(), progress_bar("check", quiet=options.quiet) as report:
        restored = backup.restore(
            client, options.target, options.names or None, existing=existing, progress=report
        )
    if options.json:
        print_json(restored._asdict())
        return 0
    _say(f"{len(restored.names):,} objects, {human_bytes(restored.nbytes)} restored")
    if restored.skipped:
        _warn("skipped, since they exist", restored.skipped)
    return 0


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Signals end the command as Ctrl-C does: a table that is restored in part is dropped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = (signal.SIGTERM, signal.SIGHUP)
    former = [signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in ends]
    try:
        yield
    finally:
        for number, handler in zip(ends, former, strict=True):
            signal.signal(number, handler)


def _say(text: str) -> None:
    console().print(visible(text), markup=False)


def _warn(what: str, names: list[str]) -> None:
    print(f"farrow: {what}: {visible(', '.join(names))}", file=sys.stderr)
