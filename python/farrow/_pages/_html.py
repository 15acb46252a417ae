"""What notebooks show of a client, of its statistics and of its list of objects."""

from __future__ import annotations

import html
import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from farrow._values._listed import listed_rows
from farrow.exceptions import FarrowError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from farrow._native import Client

__all__ = ["LIST_ROWS", "Stats", "client_page", "list_page", "show_lists"]

_ROWS = (
    ("objects", "objects"),
    ("used", "memory used"),
    ("free", "memory free"),
    ("capacity", "memory in all"),
    ("clients", "clients"),
)
_BYTES = {"used", "free", "capacity"}
_LISTED = (
    "name", "id", "kind", "bytes", "sealed_at", "creator_pid", "metadata", "pinned", "last_use",
    "spilled",
)  # fmt: skip

# Objects in the page of a list; a line says how many more there are.
LIST_ROWS = 50


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
    return _pairs("farrow.Client", [*((title, value) for title, value in places if value), *rows])


class Stats(dict[str, Any]):
    """The statistics of a node: a dictionary that a notebook shows as a table with units."""

    def _repr_html_(self) -> str:
        from farrow._native import stats_units

        units = stats_units()
        return _pairs(
            "statistics of the node",
            [(name, _quantity(value, units.get(name, ""))) for name, value in self.items()],
        )


def list_page(table: pa.Table) -> str | None:
    """The first objects of a list; None for a table that ``Client.list`` has not made."""
    columns = table.schema.names
    if tuple(columns[: len(_LISTED)]) != _LISTED or columns[len(_LISTED) :] not in ([], ["node"]):
        return None
    shown = listed_rows(table.slice(0, LIST_ROWS))
    head = _row("th", columns)
    body = "".join(_row("td", [_cell(*item) for item in row.items()]) for row in shown)
    more = table.num_rows - len(shown)
    caption = f"{table.num_rows:,} objects" + (f", the last {more:,} not shown" if more else "")
    return f"<table><caption>{caption}</caption>{head}{body}</table>"


def show_lists() -> None:
    """In a notebook, the list of objects is shown as a table; all else of pyarrow as before."""
    # Absent also while IPython itself is being imported.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    formatter = getattr(get_shell() if get_shell else None, "display_formatter", None)
    if formatter is None:
        return
    pages = formatter.formatters["text/html"]
    before = pages.for_type_by_name("pyarrow.lib", "Table")

    def page(table: pa.Table) -> str | None:
        found = list_page(table)
        return before(table) if found is None and before else found

    pages.for_type_by_name("pyarrow.lib", "Table", page)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column == "id":
        return str(value.hex())
    if column == "metadata":
        return ", ".join(f"{key}={text}" for key, text in value)
    if column == "bytes":
        return f"{value:,}"
    if column in ("sealed_at", "last_use"):
        seconds = value // 1_000_000_000
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return str(value)


def _quantity(value: Any, unit: str) -> str:
    if unit == "bytes" and isinstance(value, int):
        return f"{value:,} B"
    if unit == "milliseconds" and isinstance(value, int):
        return f"{value:,} ms"
    if unit == "count" and isinstance(value, int):
        return f"{value:,}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _pairs(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(title)}</th><td>{html.escape(value)}</td></tr>"
        for title, value in rows
    )
    return f"<table><caption>{caption}</caption>{cells}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
