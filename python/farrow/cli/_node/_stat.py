"""``farrow stat``: how full a node is, in ten lines; or all of its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farrow._native import stats_units
from farrow.cli._output import console, grid, human_bytes, human_seconds, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow import Client

__all__ = ["run"]


def run(client: Client, *, with_all: bool, as_json: bool) -> int:
    """Print the statistics of the client's node."""
    stats = client.stats()
    if as_json:
        print_json(stats)
    elif with_all:
        _print_all(stats)
    else:
        console().print(grid(("node", ">"), _main(client, stats)))
    return 0


def _main(client: Client, stats: dict[str, Any]) -> list[tuple[str, str]]:
    """What most users look for."""
    used = stats["used"] / stats["capacity"] if stats["capacity"] else 0.0
    rows = [
        ("socket", client.address),
        ("process", f"{stats['pid']}, for {human_seconds(stats['uptime_ms'] / 1e3)}"),
        ("memory", f"{_memory(stats)} at {stats['memory']}"),
        ("used", f"{human_bytes(stats['used'])} ({used:.0%})"),
        ("held by readers", human_bytes(stats["held"])),
        ("can be evicted", human_bytes(stats["evictable"])),
        ("spilled", human_bytes(stats["spilled"])),
        ("objects", f"{stats['objects']:,} of {stats['objects_max']:,}"),
        ("clients", f"{stats['clients']:,} of {stats['clients_max']:,}"),
    ]
    if stats["draining"]:
        moved = (
            f"{stats['moved_total']:,} objects moved ({human_bytes(stats['moved_bytes_total'])})"
        )
        rows.append(("draining", f"{moved}, {stats['objects']:,} left"))
    waiting = stats["waiting"]
    if waiting:
        rows.append(("waiting for memory", f"{waiting:,} ({human_bytes(stats['waiting_bytes'])})"))
    if changed := stats["settings_changed"]:
        rows.append(("changed settings", ", ".join(changed)))
    return rows


def _memory(stats: dict[str, Any]) -> str:
    capacity, most = stats["capacity"], stats["capacity_max"]
    text = human_bytes(capacity)
    return text if most == capacity else f"{text} (at most {human_bytes(most)})"


def _print_all(stats: dict[str, Any]) -> None:
    out = console()
    rows = [(key, _figure(key, value)) for key, value in stats.items() if not _is_nested(value)]
    out.print(grid(("node", ">"), rows))
    for key, value in stats.items():
        if not _is_nested(value):
            continue
        for title, counters in _sections(key, value):
            inner = [(name, _figure(name, figure)) for name, figure in counters.items()]
            out.print(grid((title, ">"), inner))


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _sections(key: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flatten ``{"shm": {...}}`` or ``{...}`` into titled groups of counters."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield f"{key} {index}", item if isinstance(item, dict) else {"": item}
    elif any(isinstance(item, dict) for item in value.values()):
        for name, item in value.items():
            yield f"{key} {name}", item if isinstance(item, dict) else {name: item}
    else:
        yield key, value


# Statistics of the client, not of the node, that count bytes.
_CLIENT_BYTES = {"mapped_writable", "pool_allocated"}


def _figure(key: str, value: Any) -> str:
    if key == "base":
        return f"{value:#x}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and (key in _CLIENT_BYTES or stats_units().get(key) == "bytes"):
        return human_bytes(value)
    return f"{value:,}" if is_number else str(value)
