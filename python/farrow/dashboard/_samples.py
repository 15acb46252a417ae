"""What the page shows: readings of a node, which change nothing in it.

A reading is made when a page asks and the last one is old, so hidden pages cost the node nothing,
and many pages cost as much as one.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import farrow
from farrow._native import stats_units
from farrow._nodes._listing import list_nodes
from farrow._reserved import SQL_QUERIES
from farrow.dashboard import _metrics

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Samples"]

INTERVAL_SECONDS = 1.0
# A list of many objects takes longer: at most this share of the time is spent on it.
_LIST_SHARE = 0.1
# Points of each curve: ten minutes.
_HISTORY_MAX = 600
_CELLS = 512
_CLIENTS_MAX = 200
_NODES_MAX = 128
_NAMESPACES_MAX = 200
_TABLES_MAX = 200
_QUERIES_MAX = 100
ROWS_MAX = 500
_TEXT_MAX = 1024
_COUNTERS = ("requests", "sealed_total", "deleted_total", "evicted_total", "spilled_total")
_PART = re.compile(r"(?P<table>.+)/(?P<root>[0-9a-f]{32})/(?P<number>[0-9]{10})", re.DOTALL)
_ROWS = re.compile(r"[0-9]{1,20}")
_ORDERS = {
    "name": "name",
    "kind": "kind",
    "bytes": "bytes",
    "sealed": "sealed_at",
    "used": "last_use",
    "node": "node",
}


class Samples:
    """Readings of one node, safe to use from many threads.

    Args:
        connect: makes a client of the node.
        metrics: address of its metrics, ``unix:PATH`` or ``HOST:PORT``; None: next to its socket.
    """

    def __init__(self, connect: Callable[[], Any], metrics: str | None = None) -> None:
        self._connect = connect
        self._metrics = metrics
        self._client: Any = None
        self._lock = threading.Lock()
        self._taken_at = -INTERVAL_SECONDS
        self._sequence = 0
        # Each part of the page: its value as JSON, and the reading in which it last changed.
        self._parts: dict[str, tuple[str, int]] = {}
        self._history: deque[tuple[int, list[float | None]]] = deque(maxlen=_HISTORY_MAX)
        self._before: tuple[float, dict[str, Any]] | None = None
        self._latencies = _metrics.Latencies()
        self._listed: pa.Table | None = None
        self._listed_at = 0.0
        # The reading in which the list last changed.
        self._list_number = 0
        self._list_pause = 0.0

    def changes(self, since: int) -> bytes:
        """The parts that changed after a reading, as JSON; ``since=0`` asks for all."""
        with self._lock:
            self._take()
            # Readings of another server.
            since = since if since <= self._sequence else 0
            parts = {
                key: json.loads(text)
                for key, (text, changed) in self._parts.items()
                if changed > since
            }
            history = [point for number, point in self._history if number > since]
            body = {"sequence": self._sequence, "all": since == 0, "parts": parts}
            return _json({**body, "history": history})

    def objects(self, query: dict[str, str]) -> bytes:
        """Rows of the objects whose name contains a text, as JSON."""
        with self._lock:
            self._take()
            if self._listed is None:
                return _json({"rows": [], "matching": 0, "all": 0})
            return _json(_select(self._listed, query))

    def _take(self) -> None:
        now = time.monotonic()
        if now - self._taken_at < INTERVAL_SECONDS:
            return
        self._sequence += 1
        try:
            if self._client is None:
                self._client = self._connect()
            self._read(now)
            self._set("state", {"error": None, "at": time.time()})
        except (farrow.FarrowError, OSError) as error:
            # The last values stay, with the reason why there are no newer ones.
            self._set("state", {"error": _text(str(error)), "at": time.time()})
            if isinstance(error, farrow.Disconnected):
                # The node has ended, or started again without its memory.
                self._client = None
        self._taken_at = time.monotonic()

    def _set(self, key: str, value: Any) -> None:
        text = json.dumps(value)
        if self._parts.get(key, ("", 0))[0] != text:
            self._parts[key] = (text, self._sequence)

    def _read(self, now: float) -> None:
        client = self._client
        began = time.perf_counter()
        stats = client.stats()
        took = time.perf_counter() - began
        overview = client._overview(_CELLS)
        nodes = client.nodes()
        rates = self._rates(now, stats)
        seconds = now - self._before[0] if self._before else INTERVAL_SECONDS
        self._before = (now, stats)
        # The uid of a region is more than a number of JavaScript holds.
        figures = {key: stats[key] for key in stats_units() if key != "region_uid"}
        self._set("node", {**figures, "address": client.address, "name": client.node or ""})
        self._set("settings", {**stats["settings"], "changed": stats["settings_changed"]})
        self._set("rates", {**rates, "round_trip": took})
        parts = ("free", "granted", "used", "held")
        self._set("map", [[cell[part] for part in parts] for cell in overview["cells"]])
        self._set("clients", _clients(overview["clients"], is_alone=len(nodes) < 2))
        self._set("nodes", [_node(node) for node in nodes[:_NODES_MAX]])
        self._set("namespaces", [_plain(one) for one in client.namespaces()[:_NAMESPACES_MAX]])
        self._read_metrics(client.address, seconds)
        self._read_list(now)
        point = [round(time.time(), 1), stats["used"], stats["held"], stats["granted"]]
        point += [rates["requests"], rates["sealed_total"], rates["evicted_total"], took]
        self._history.append((self._sequence, point))

    def _rates(self, now: float, stats: dict[str, Any]) -> dict[str, float | None]:
        """Counts a second since the last reading."""
        # A daemon that was replaced counts from zero.
        if self._before is None or self._before[1]["pid"] != stats["pid"]:
            return dict.fromkeys(_COUNTERS)
        then, before = self._before
        seconds = max(now - then, 1e-3)
        return {key: (stats[key] - before[key]) / seconds for key in _COUNTERS}

    def _read_metrics(self, address: str, seconds: float) -> None:
        samples = _metrics.read(self._metrics or f"unix:{address}.metrics")
        if samples is None:
            self._set("requests", None)
            return
        self._set("requests", self._latencies.rows(samples, max(seconds, 1e-3)))
        single = {name: value for (name, labels), value in samples.items() if not labels}
        keys = ("view", "has_lease", "lease_left_seconds")
        lease = {key: single.get(f"farrow_cluster_{key}") for key in keys}
        fetched = {key: single.get(f"farrow_fetched_{key}_total") for key in ("objects", "bytes")}
        self._set("cluster", {**lease, "fetched": fetched, "ready": single.get("farrow_ready")})

    def _read_list(self, now: float) -> None:
        if now - self._listed_at < self._list_pause:
            return
        began = time.monotonic()
        listed, missing = list_nodes(self._client)
        tables = _tables(listed)
        if self._listed is None or not listed.equals(self._listed):
            self._list_number = self._sequence
        self._listed = listed
        self._set("tables", tables)
        self._set("queries", _queries(listed))
        numbers = {"rows": listed.num_rows, "number": self._list_number}
        self._set("objects", {**numbers, "unlisted": sorted(missing), "kinds": _kinds(listed)})
        self._listed_at = now
        self._list_pause = (time.monotonic() - began) / _LIST_SHARE


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _text(value: str) -> str:
    return value if len(value) <= _TEXT_MAX else value[:_TEXT_MAX] + "..."


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _text(value) if isinstance(value, str) else value for key, value in row.items()}


def _node(node: farrow.NodeInfo) -> dict[str, Any]:
    # An incarnation is more than a number of JavaScript holds.
    return _plain({key: value for key, value in node._asdict().items() if key != "incarnation"})


def _clients(clients: list[dict[str, Any]], *, is_alone: bool) -> dict[str, Any]:
    """The clients with the most memory, and their number."""
    ordered = sorted(clients, key=lambda one: (-one["granted"], -one["holds"], one["slot"]))
    rows = [
        # In a cluster a process may be another machine's.
        {**one, "command": _command(one["pid"]) if is_alone and one["is_connected"] else ""}
        for one in ordered[:_CLIENTS_MAX]
    ]
    return {"rows": rows, "all": len(clients)}


def _command(pid: int) -> str:
    try:
        return _text(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    except OSError:
        return ""


def _kinds(listed: pa.Table) -> list[list[Any]]:
    """Kind, objects and bytes, the largest first."""
    if not listed.num_rows:
        return []
    grouped = listed.group_by("kind").aggregate([("bytes", "count"), ("bytes", "sum")])
    rows = [[row["kind"], row["bytes_count"], row["bytes_sum"]] for row in grouped.to_pylist()]
    return sorted(rows, key=lambda row: -row[2])


def _tables(listed: pa.Table) -> list[dict[str, Any]]:
    """Huge tables, with their rows and bytes on each node."""
    named = listed.filter(pc.match_substring(listed["name"], "/"))
    parts: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row in named.select(["name", "node", "bytes", "metadata"]).to_pylist():
        found = _PART.fullmatch(row["name"])
        rows = dict(row["metadata"] or ()).get("rows", "")
        # Labels are input of any client that may put.
        if found is None or not _ROWS.fullmatch(rows):
            continue
        nodes = parts.setdefault((found["table"], found["root"]), {})
        sums = nodes.setdefault(row["node"] or "", [0, 0, 0])
        for index, value in enumerate((1, int(rows), row["bytes"])):
            sums[index] += value
    tables: list[dict[str, Any]] = [
        {
            "name": _text(table),
            "id": root,
            "nodes": [[node, *sums] for node, sums in sorted(nodes.items())],
        }
        for (table, root), nodes in sorted(parts.items())
    ]
    tables.sort(key=lambda table: -sum(node[3] for node in table["nodes"]))
    return tables[:_TABLES_MAX]


def _queries(listed: pa.Table) -> list[dict[str, Any]]:
    """Queries that run on workers of the cluster, oldest first."""
    found = listed.filter(pc.starts_with(listed["name"], SQL_QUERIES)).sort_by("sealed_at")
    columns = ["metadata", "node", "sealed_at"]
    rows = _with_time(found.slice(0, _QUERIES_MAX).select(columns), "sealed_at").to_pylist()
    labels = [dict(row["metadata"] or ()) for row in rows]
    return [
        {
            "text": _text(own.get("query", "")),
            "process": _text(own.get("pid", "")),
            "workers": _text(own.get("workers", "")),
            "node": _text(row["node"] or ""),
            "began": row["sealed_at"],
        }
        for row, own in zip(rows, labels, strict=True)
    ]


def _select(listed: pa.Table, query: dict[str, str]) -> dict[str, Any]:
    """Rows of a list that match a search, in an order."""
    found = listed
    text = query.get("q", "")[:_TEXT_MAX]
    if text:
        names = pc.fill_null(found["name"], "")
        found = found.filter(pc.match_substring(names, text, ignore_case=True))
    node = query.get("node", "")
    if node:
        found = found.filter(pc.equal(pc.fill_null(found["node"], ""), node))
    state = query.get("state", "")
    if state in ("pinned", "spilled"):
        found = found.filter(found[state])
    order = _ORDERS.get(query.get("sort", ""), "name")
    down = "descending" if query.get("down") == "1" else "ascending"
    keys = [(order, down), ("name", "ascending")] if order != "name" else [(order, down)]
    shown = min(ROWS_MAX, found.num_rows)
    rows = found.take(pc.select_k_unstable(found, shown, keys)) if shown else found
    return {
        "rows": [_row(row) for row in _with_times(rows).to_pylist()],
        "matching": found.num_rows,
        "all": listed.num_rows,
    }


def _with_times(rows: pa.Table) -> pa.Table:
    return _with_time(_with_time(rows, "sealed_at"), "last_use")


def _with_time(rows: pa.Table, name: str) -> pa.Table:
    """A column of times in milliseconds since 1970, which fit a number of JavaScript."""
    times = pc.divide(rows[name].cast(pa.int64()), 1_000_000)
    return rows.set_column(rows.schema.get_field_index(name), name, times)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_plain({key: value for key, value in row.items() if key not in ("id", "metadata")}),
        "name": None if row["name"] is None else _text(row["name"]),
        "id": row["id"].hex(),
        "metadata": [[_text(key), _text(value)] for key, value in row["metadata"] or ()],
    }
