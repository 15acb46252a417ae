"""``farrow ls``: list the objects of a node or of a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from farrow._nodes._listing import list_nodes
from farrow._values._listed import listed_rows
from farrow.cli._client import connect
from farrow.cli._output import human_bytes, plain, print_grid, print_json, visible

if TYPE_CHECKING:
    import argparse

__all__ = ["ls"]


def ls(options: argparse.Namespace) -> int:
    client = connect(options)
    if options.all:
        listed, missing = list_nodes(client, options.prefix)
        _report_missing(sorted(missing))
    else:
        listed = client.list(options.prefix, node=options.node)
    rows = listed_rows(listed, times=pa.string())
    rows.sort(key=lambda row: (row["name"] or "", bytes(row["id"])))
    if options.json:
        print_json(rows)
        return 0
    cells = [
        (
            row["name"] or "-",
            str(row["kind"]),
            human_bytes(row["bytes"]),
            str(row["sealed_at"])[:19],
            str(row["last_use"])[:19],
            "pinned" if row["pinned"] else "spilled" if row["spilled"] else "",
            str(row["creator_pid"]),
            plain(row["id"]),
            *([row["node"] or "-"] if options.all else []),
        )
        for row in rows
    ]
    titles = ["name", "kind", ">bytes", "sealed at", "last use", "", ">creator", "id"]
    titles += ["node"] if options.all else []
    print_grid(titles, cells)
    return 0


def _report_missing(missing: list[str]) -> None:
    """Print the nodes whose objects are not listed, on standard error."""
    if missing:
        names = visible(", ".join(missing))
        print(f"farrow: not listed, since they cannot be reached: {names}", file=sys.stderr)
