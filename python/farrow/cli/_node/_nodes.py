"""The commands about several nodes: nodes, certs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farrow import _native
from farrow.cli._output import console, grid, human_bytes, human_seconds, print_json, visible

if TYPE_CHECKING:
    import argparse

__all__ = ["COST_TITLES", "certs", "costs", "nodes"]

COST_TITLES = (">free", ">latency", ">bandwidth")


def costs(row: Any) -> tuple[str, str, str]:
    """Free memory, latency and bandwidth of a node; "-" for what is not known."""
    return (
        "-" if row.free is None else human_bytes(row.free),
        "-" if row.latency_us is None else human_seconds(row.latency_us / 1e6),
        "-" if row.bytes_per_second is None else f"{human_bytes(row.bytes_per_second)}/s",
    )


def nodes(client: Any, options: argparse.Namespace) -> int:
    """List the nodes of the cluster, or forget one that is lost."""
    if options.action == "forget":
        client.forget_node(options.name)
        return 0
    rows = client.nodes()
    if options.json:
        print_json([row._asdict() for row in rows])
        return 0
    out = console()
    if not rows:
        out.print("no cluster: this node was started without --name and --listen")
        return 0
    cells = [
        (
            visible(row.name or "-") + (" (asked)" if row.is_own else ""),
            str(row.number) if row.name else "-",
            visible(row.address),
            row.reach,
            row.fabric or "-",
            row.coherence or "-",
            human_bytes(row.capacity),
            *costs(row),
            visible(row.why_not),
        )
        for row in rows
    ]
    titles = ("name", ">number", "address", "reach", "fabric", "coherence", ">lends", *COST_TITLES,
              "why not")  # fmt: skip
    out.print(grid(titles, cells))
    return 0


def certs(options: argparse.Namespace) -> int:
    """Create a certificate authority in a folder, certify a node by it, or revoke a certificate."""
    out = console()
    if options.action == "init":
        _native.certs_init(options.folder, options.days)
        out.print(
            f"{visible(options.folder)}: ca.pem for all nodes; keep ca.key here", markup=False
        )
        return 0
    if options.action == "revoke":
        path = _native.certs_revoke(options.folder, options.name)
        out.print(
            f"{visible(path)}: copy it beside ca.pem of every node", markup=False, soft_wrap=True
        )
        return 0
    files = _native.certs_issue(options.folder, options.name, options.hosts, options.days)
    for path in files:
        out.print(visible(path), markup=False, soft_wrap=True)
    return 0
