"""``farrow namespaces``: namespaces, their limits, and the permissions in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow.cli._client import connect
from farrow.cli._output import (
    CommandError,
    console,
    grid,
    human_bytes,
    parse_bytes,
    print_json,
    visible,
)

if TYPE_CHECKING:
    import argparse

    from farrow import Client

__all__ = ["namespaces"]


def namespaces(options: argparse.Namespace) -> int:
    client = connect(options)
    if options.action == "create":
        nbytes = None if options.bytes is None else parse_bytes(options.bytes)
        client.create_namespace(
            options.name, nbytes=nbytes, objects=options.objects, writers=options.writer
        )
        return 0
    if options.action == "drop":
        client.drop_namespace(options.name)
        return 0
    if options.action == "permit":
        _permit(client, options.rules)
        return 0
    if options.action == "permissions":
        return _permissions(client, as_json=options.json)
    rows = client.namespaces()
    if options.json:
        print_json(rows)
        return 0
    cells = [
        (
            visible(row["name"]) or "(default)",
            human_bytes(row["used_bytes"]),
            "-" if row["nbytes"] is None else human_bytes(row["nbytes"]),
            f"{row['used_objects']:,}",
            "-" if row["objects"] is None else f"{row['objects']:,}",
            str(row["clients"]),
            "all" if row["writers"] is None else ", ".join(map(str, row["writers"])),
        )
        for row in rows
    ]
    titles = ("name", ">bytes", ">of", ">objects", ">of", ">clients", "writers")
    console().print(grid(titles, cells))
    return 0


def _permit(client: Client, rules: list[str]) -> None:
    for rule in rules:
        # The name of a namespace may have colons in it.
        parts = rule.rsplit(":", 2)
        if len(parts) != 3:
            raise CommandError(f"{rule!r} is not NAMESPACE:NODE:RIGHTS")
        namespace, node, rights = parts
        if rights == "default":
            client.drop_permission(node, namespace=namespace)
        else:
            client.permit(node, rights, namespace=namespace)


def _permissions(client: Client, *, as_json: bool) -> int:
    rows = client.permissions()
    if as_json:
        print_json(rows)
        return 0
    cells = [
        (visible(row["namespace"]) or "(default)", row["node"], ", ".join(row["rights"]) or "none")
        for row in rows
    ]
    console().print(grid(("namespace", "node", "rights"), cells))
    return 0
