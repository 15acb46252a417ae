"""What the page shows: readings of a node, which change nothing in it.

A reading is made when a page asks and the last one is old: many pages cost as much as one.
While no page is open, only the holds are read, every few seconds, since their times are noted here.
"""

from __future__ import annotations

import heapq
import json
import math
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import farrow
from farrow import _native
from farrow._native import stats_units
from farrow._nodes._listing import list_nodes
from farrow._reserved import SQL_QUERIES
from farrow._values._listed import listed_rows
from farrow.dashboard import _metrics
from farrow.dashboard._holds import EXACT_SECONDS, HELD_MAX, HoldTimes, Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from farrow.dashboard._holds import Seen

__all__ = ["Samples"]

INTERVAL_SECONDS = 1.0
# Between two readings of the holds while no page is open.
_WATCH_SECONDS = 5.0
# A node that hangs holds up such a reading, and the page that waits for it, no longer than this.
_WATCH_TIMEOUT_SECONDS = 3.0
# Holds in the table of the oldest ones.
_OLDEST_MAX = 20
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
_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,10}")
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
        # A client for the readings without a page. It has the address of the other one, so that it
        # never starts a private node.
        self._watcher: Any = None
        self._address: str | None = None
        self._lock = threading.Lock()
        # The end of the last reading for a page, of ``time.monotonic``.
        self._taken_at = -math.inf
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
        self._holds = HoldTimes()
        # Clients of one machine: a number of a process is one of this machine.
        self._is_alone = True
        self._region = 0
        # Copies of objects of other nodes that are held here, and the ids of these.
        self._origins: dict[bytes, bytes] = {}

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

    def holds(self, query: dict[str, str]) -> bytes:
        """Who holds an object (``object=`` an id), or what a client holds (``client=`` its slot and
        ``process=``), as JSON; the oldest hold first."""
        id, slot, pid = (query.get(key, "") for key in ("object", "client", "process"))
        with self._lock:
            self._take()
            if _ID.fullmatch(id):
                found = self._of_object(bytes.fromhex(id))
                are_all = self._holds.are_all()
            elif _NUMBER.fullmatch(slot) and _NUMBER.fullmatch(pid):
                found = self._holds.of_client(int(slot), int(pid))
                are_all = self._holds.are_all(int(slot), int(pid))
            else:
                return _json({"rows": [], "all": 0, "are_all": True, "is_here": True})
            holds = list(found)
            # The holds of an object are in the memory of its own node. Readers of a copy on another
            # node hold the copy, which has an id of its own there.
            is_here = not id or int(id[:16], 16) == self._region
            rows = self._hold_rows(holds, ROWS_MAX)
            return _json({"rows": rows, "all": len(holds), "are_all": are_all, "is_here": is_here})

    def _of_object(self, id: bytes) -> Iterator[tuple[dict[str, Any], bytes, Seen]]:
        """The holds of an object, and of its copies at this node."""
        copies = [copy for copy, origin in self._origins.items() if origin == id]
        for one in (id, *copies):
            yield from self._holds.of_object(one)

    def watch(self, has_ended: threading.Event) -> None:
        """Note the times of holds while no page is open, until the event."""
        while True:
            with self._lock:
                if not has_ended.is_set():
                    self._watch_once()
            if has_ended.wait(_WATCH_SECONDS):
                return

    def _watch_once(self) -> None:
        # A page reads, or has just waited for a node that hangs.
        if time.monotonic() - self._taken_at < _WATCH_SECONDS / 2:
            return
        try:
            if self._watcher is None:
                if self._address is None:
                    self._connect_page()
                self._watcher = _native.connect(self._address, _WATCH_TIMEOUT_SECONDS)
            self._overview(self._watcher, 1)
        except (farrow.FarrowError, OSError) as error:
            # A page shows the error of its own reading.
            if isinstance(error, farrow.Disconnected):
                self._watcher = None

    def _connect_page(self) -> None:
        self._client = self._connect()
        if self._client.address != self._address:
            self._address, self._watcher = self._client.address, None

    def _overview(self, client: Any, cells: int) -> Any:
        """An overview of the node; the times of its holds are noted."""
        began = Moment.now()
        overview = client._overview(cells, HELD_MAX)
        self._holds.note(overview["clients"], began, Moment.now())
        return overview

    def _hold_rows(
        self, holds: Iterable[tuple[dict[str, Any], bytes, Seen]], most: int
    ) -> list[dict[str, Any]]:
        oldest = heapq.nsmallest(most, holds, key=lambda one: (one[2].boot, one[1], one[0]["slot"]))
        # A list has the object itself, and no copy of it.
        ids = {id: self._origins.get(id, id) for _, id, _ in oldest}
        objects = _by_id(self._listed, set(ids.values()))
        return [
            _hold(*one, objects.get(ids[one[1]]), is_alone=self._is_alone)
            | {"is_copy": one[1] in self._origins}
            for one in oldest
        ]

    def _take(self) -> None:
        now = time.monotonic()
        if now - self._taken_at < INTERVAL_SECONDS:
            return
        self._sequence += 1
        try:
            if self._client is None:
                self._connect_page()
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
        overview = self._overview(client, _CELLS)
        nodes = client.nodes()
        rates = self._rates(now, stats)
        seconds = now - self._before[0] if self._before else INTERVAL_SECONDS
        self._before = (now, stats)
        self._is_alone, self._region = len(nodes) < 2, stats["region_uid"]
        # The uid of a region is more than a number of JavaScript holds.
        figures = {key: stats[key] for key in stats_units() if key != "region_uid"}
        self._set("node", {**figures, "address": client.address, "name": client.node or ""})
        self._set("settings", {**stats["settings"], "changed": stats["settings_changed"]})
        self._set("rates", {**rates, "round_trip": took})
        parts = ("free", "granted", "used", "held")
        self._set("map", [[cell[part] for part in parts] for cell in overview["cells"]])
        self._set("clients", _clients(overview["clients"], is_alone=self._is_alone))
        self._set("nodes", [_node(node) for node in nodes[:_NODES_MAX]])
        self._set("namespaces", [_plain(one) for one in client.namespaces()[:_NAMESPACES_MAX]])
        self._read_metrics(client.address, seconds)
        self._read_list(now)
        held = sorted({id for _, id, _ in self._holds.all()}) if len(nodes) > 1 else []
        self._origins = client._origins(held)
        self._set("holds", self._oldest())
        point = [round(time.time(), 1), stats["used"], stats["held"], stats["granted"]]
        point += [rates["requests"], rates["sealed_total"], rates["evicted_total"], took]
        self._history.append((self._sequence, point))

    def _oldest(self) -> dict[str, Any]:
        holds = list(self._holds.all())
        rows = self._hold_rows(holds, _OLDEST_MAX)
        return {"rows": rows, "all": len(holds), "are_all": self._holds.are_all()}

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
        {key: value for key, value in one.items() if key != "held"}
        | {"command": _command_of(one, is_alone=is_alone)}
        for one in ordered[:_CLIENTS_MAX]
    ]
    return {"rows": rows, "all": len(clients)}


def _command_of(client: dict[str, Any], *, is_alone: bool) -> str:
    # In a cluster a process may be another machine's.
    return _command(client["pid"]) if is_alone and client["is_connected"] else ""


def _by_id(listed: pa.Table | None, ids: set[bytes]) -> dict[bytes, dict[str, Any]]:
    """Name, bytes and time of the seal of objects that the list has."""
    if listed is None or not ids:
        return {}
    wanted = pa.array(sorted(ids), listed["id"].type)
    found = listed.filter(pc.is_in(listed["id"], value_set=wanted))
    return {
        row["id"]: row for row in listed_rows(found.select(["id", "name", "bytes", "sealed_at"]))
    }


def _hold(
    client: dict[str, Any], id: bytes, seen: Seen, found: dict[str, Any] | None, *, is_alone: bool
) -> dict[str, Any]:
    """One hold; ``found``: its object, None if it is not in the list, such as a deleted one."""
    name = found["name"] if found else None
    sealed_at = _milliseconds(found["sealed_at"]) if found else None
    # It was not held before its seal.
    is_new = sealed_at is not None and 0 <= seen.since - sealed_at / 1000 <= EXACT_SECONDS
    return {
        "id": id.hex(),
        "name": None if name is None else _text(name),
        "bytes": found["bytes"] if found else None,
        "is_listed": found is not None,
        "sealed_at": sealed_at,
        "client": client["slot"],
        "process": client["pid"],
        "command": _command_of(client, is_alone=is_alone),
        "is_connected": client["is_connected"],
        "since": round(seen.since * 1000),
        "not_before": None if seen.not_before is None else round(seen.not_before * 1000),
        "is_exact": seen.is_exact or is_new,
        "is_first": seen.is_first,
    }


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
    rows = listed_rows(found.slice(0, _QUERIES_MAX).select(columns))
    labels = [dict(row["metadata"] or ()) for row in rows]
    return [
        {
            "text": _text(own.get("query", "")),
            "process": _text(own.get("pid", "")),
            "workers": _text(own.get("workers", "")),
            "node": _text(row["node"] or ""),
            "began": _milliseconds(row["sealed_at"]),
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
        "rows": [_row(row) for row in listed_rows(rows)],
        "matching": found.num_rows,
        "all": listed.num_rows,
    }


def _milliseconds(nanoseconds: int | None) -> int | None:
    """A time in milliseconds, which fits a number of JavaScript."""
    return None if nanoseconds is None else nanoseconds // 1_000_000


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_plain({key: value for key, value in row.items() if key not in ("id", "metadata")}),
        "name": None if row["name"] is None else _text(row["name"]),
        "id": row["id"].hex(),
        "metadata": [[_text(key), _text(value)] for key, value in row["metadata"] or ()],
        "sealed_at": _milliseconds(row["sealed_at"]),
        "last_use": _milliseconds(row["last_use"]),
    }
