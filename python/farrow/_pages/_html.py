"""What notebooks show of a client."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from farrow.exceptions import FarrowError

if TYPE_CHECKING:
    from farrow._native import Client

__all__ = ["client_page"]

_ROWS = (
    ("objects", "objects"),
    ("used", "memory used"),
    ("free", "memory free"),
    ("capacity", "memory in all"),
    ("clients", "clients"),
)
_BYTES = {"used", "free", "capacity"}


def client_page(client: Client) -> str:
    """A table of the node's main statistics; the reason if it does not answer."""
    try:
        stats = client.stats()
        rows = [
            (title, f"{stats[key]:,} B" if key in _BYTES else f"{stats[key]:,}")
            for key, title in _ROWS
        ]
        node = client.node
    except FarrowError as error:
        rows, node = [("state", str(error))], None
    places = [("socket", client.address), ("namespace", client.namespace), ("node", node or "")]
    cells = "".join(
        f"<tr><th>{html.escape(title)}</th><td>{html.escape(value)}</td></tr>"
        for title, value in [*((title, value) for title, value in places if value), *rows]
    )
    return f"<table><caption>farrow.Client</caption>{cells}</table>"
