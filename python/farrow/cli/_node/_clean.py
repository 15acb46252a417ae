"""``farrow clean``: remove files of ended nodes.

These are named memory (``--keep``, ``--memory-dir``, earlier versions) with its sealed objects,
spilled objects of removed memory, and sockets without a listener.  Files that a process serves,
opens or maps stay, as detected by locks and leases on the files.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from farrow import _native
from farrow.cli._output import console, grid, human_bytes, print_json, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SOMETHING_LEFT", "run"]

# Exit code of a dry run that found something.
SOMETHING_LEFT = 3


def run(folders: Sequence[str], *, dry_run: bool, as_json: bool) -> int:
    """List leftover files and remove them.

    Returns:
        0: nothing is left.  1: a removal failed.  3: a dry run found leftover files.
    """
    found = _native.leftovers(list(folders), remove=not dry_run)
    if as_json:
        print_json(found)
    elif found:
        rows = [(one["kind"], human_bytes(one["bytes"]), visible(one["path"])) for one in found]
        console().print(grid(("left behind", ">memory", ""), rows))
    failed = [one for one in found if one["error"] is not None]
    for one in failed:
        print(f"farrow: {visible(one['path'])} stays: {one['error']}", file=sys.stderr)
    if not as_json:
        _sum_up(found, failed, dry_run=dry_run)
    if failed:
        return 1
    return SOMETHING_LEFT if dry_run and found else 0


def _sum_up(
    found: list[dict[str, object]], failed: list[dict[str, object]], *, dry_run: bool
) -> None:
    removed = [one for one in found if one not in failed]
    nbytes = sum(int(str(one["bytes"])) for one in removed)
    if not found:
        print("Nothing was left behind.")
    elif dry_run:
        print(f"farrow clean would free {human_bytes(nbytes)}.")
    else:
        print(f"{human_bytes(nbytes)} freed.")
