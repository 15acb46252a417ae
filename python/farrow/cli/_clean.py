"""``farrow clean``: remove what nodes left behind of which no process is left.

That is memory in a place with a name (``--keep``, ``--memory-dir``, earlier versions), with what is
sealed in it, spilled objects of memory that is gone, and sockets at which nobody listens.  What a
process serves, opens or maps stays: the kernel is asked, by locks and leases on the files.
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
    """List what is left and remove it.

    Returns:
        0: nothing is left.  1: something could not be removed.  3: a dry run found something.
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
    gone = [one for one in found if one not in failed]
    nbytes = sum(int(str(one["bytes"])) for one in gone)
    if not found:
        print("Nothing was left behind.")
    elif dry_run:
        print(f"farrow clean would free {human_bytes(nbytes)}.")
    else:
        print(f"{human_bytes(nbytes)} freed.")
