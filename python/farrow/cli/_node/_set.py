"""``farrow node set``: change settings of a node while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable

    from farrow import Client

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Change the settings that were given; without any, print all."""
    _check(options)
    of_node = _changes(options, _OF_NODE)
    if "evict" in of_node:
        of_node["is_evicting"] = of_node.pop("evict")
    of_namespace = _changes(options, {"bytes": _size, "objects": _count})
    client = connect(options)
    if of_node:
        client._change_settings(of_node)
    if of_namespace:
        client._change_settings(of_namespace, options.limit)
    if options.json or not (of_node or of_namespace):
        _print(client, as_json=options.json)
    return 0


def _check(options: argparse.Namespace) -> None:
    if (options.limit is None) != (options.bytes is None and options.objects is None):
        options.usage_error("--limit NAMESPACE needs --bytes or --objects, and these need --limit")
    if options.limit is not None and any(getattr(options, key) is not None for key in _OF_NODE):
        # If one were refused, the other would be in effect.
        options.usage_error(
            "--limit NAMESPACE is set by a command of its own, without other settings"
        )


def _changes(
    options: argparse.Namespace, parsers: dict[str, Callable[[str], Any]]
) -> dict[str, Any]:
    given = {key: getattr(options, key) for key in parsers}
    return {key: parsers[key](text) for key, text in given.items() if text is not None}


def _size(text: str) -> int | None:
    return None if text == "none" else parse_bytes(text)


def _count(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise CommandError(f"{text!r}: a number below {1 << 32}, or none")
    return int(text)


# The settings of a node, and how their values are read.
_OF_NODE: dict[str, Callable[[str], Any]] = {
    "client_bytes": _size,
    "client_objects": _count,
    "cache": _size,
    "memory": parse_bytes,
    "evict": lambda text: text == "lru",
    "log": str,
}


def _print(client: Client, *, as_json: bool) -> None:
    stats = client.stats()
    settings, changed = stats["settings"], stats["settings_changed"]
    if as_json:
        print_json({"settings": settings, "changed": changed})
        return
    sizes = {"client_bytes", "cache", "memory"}
    cells = [
        (
            _option_of(key),
            _text(value, is_size=key in sizes),
            "changed" if key in changed else "",
        )
        for key, value in settings.items()
    ]
    console().print(grid(("setting", "value", ""), cells))


def _option_of(key: str) -> str:
    return "--evict" if key == "is_evicting" else f"--{key.replace('_', '-')}"


def _text(value: Any, *, is_size: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "lru" if value else "none"
    return human_bytes(value) if is_size else visible(str(value)) or "-"
