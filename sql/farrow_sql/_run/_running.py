"""Announce running queries, by objects that every process can list: the dashboard shows them."""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import TYPE_CHECKING

from farrow._reserved import SQL_QUERIES
from farrow.exceptions import FarrowError
from farrow_sql._worker._processes import has_ended, identity
from farrow_sql._worker._workers import announcements

if TYPE_CHECKING:
    from collections.abc import Iterator

    import farrow

__all__ = ["announced", "delete_ended"]

# Labels have 4,096 bytes in all, and a character has four.
_TEXT_MAX = 900


@contextlib.contextmanager
def announced(client: farrow.Client, text: str, workers: int) -> Iterator[None]:
    """Announce a query while it runs on workers.

    A client that may not write, or finds no room, runs its query all the same.
    """
    own = identity()
    labels = {"query": text[:_TEXT_MAX], "pid": str(own["pid"]), "workers": str(workers)}
    name = f"{SQL_QUERIES}{own['pid']}-{secrets.token_hex(4)}"
    with contextlib.suppress(FarrowError):
        client.put(json.dumps(own).encode(), name, metadata=labels)
    try:
        yield
    finally:
        with contextlib.suppress(FarrowError):
            client.delete(name)


def delete_ended(client: farrow.Client) -> None:
    """Delete what processes of this machine announced at this node before they were killed."""
    for name, process in announcements(client, SQL_QUERIES, all_nodes=False):
        if has_ended(process):
            with contextlib.suppress(FarrowError):
                client.delete(name)
