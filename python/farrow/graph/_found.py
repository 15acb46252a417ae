"""The largest patterns of a stream, and their payments.

Listing every pattern would take longer than all features: a fan of a thousand payments completes a
thousand fans as it grows.  A first run therefore records only the rows that completed large
patterns.  A second run learns the rows before each of these without a search, and lists the
patterns of that one row.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farrow.graph import _stream
from farrow.graph._settings import VERTEX, ticks_of
from farrow.graph._svg import Hop
from farrow.graph.report import Drawn, block_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from farrow.graph.data import Transactions

__all__ = ["Candidates", "Largest", "drawn", "largest"]

# Seconds before this (3 March 1973) are steps of a simulation rather than dates.
_DATES_FROM = 100_000_000
_PAYMENTS_NAMED = 6
# Accounts to remember for each requested pattern: several may share one pattern.
_SPARE = 4
_FOUND_MAX = 20_000
_ROWS_EACH = 8


class _Seen:
    """The largest bin that an account reached, and some of the rows that reached it.

    A bin holds several sizes, and the last bin all larger ones, so the rows are spread over the
    stream.
    """

    __slots__ = ("_count", "_last", "_rows", "_stride", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._count = 0
        self._last = 0
        self._rows: list[int] = []
        self._stride = 1

    def add(self, row: int) -> None:
        if self._count % self._stride == 0:
            self._rows.append(row)
        if len(self._rows) > _ROWS_EACH:
            self._rows = self._rows[::2]
            self._stride *= 2
        self._count += 1
        self._last = row

    def all(self) -> list[int]:
        return [*self._rows, self._last]

    def rank(self) -> tuple[int, int]:
        return self.size, self._count


class Candidates:
    """Rows whose patterns are among the largest, kind by kind, one for each account."""

    def __init__(self, each: int) -> None:
        self._most = each * _SPARE
        self._kinds: dict[str, dict[int, _Seen]] = {}

    def add(self, batch: _stream.BatchResult) -> None:
        """Add candidates from the features of a batch."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(batch.features.column_names):
            block, label = block_of(name)
            if label.isdigit():
                places.setdefault(block, []).append(place)
        for kind, columns in places.items():
            counts = _stream.values(batch.features.select(columns)) > 0
            rows = np.flatnonzero(counts.any(axis=1))
            best = counts.shape[1] - 1 - counts[rows, ::-1].argmax(axis=1)
            # The centre of the pattern is not known for all kinds.
            ends = {"in": ("target",), "out": ("source",)}
            for end in ends.get(kind.rpartition("_")[2], ("source", "target")):
                self._look(kind, batch.rows[end].to_numpy()[rows], best, rows + batch.begin)

    def _look(self, kind: str, accounts: Any, best: Any, rows: Any) -> None:
        retained = self._kinds.setdefault(kind, {})
        # With enough candidates, smaller ones than all of them are skipped.
        floor = (
            min((one.size for one in retained.values()), default=0) if self._full(retained) else 0
        )
        large = best >= floor
        for account, size, row in zip(
            accounts[large].tolist(), best[large].tolist(), rows[large].tolist(), strict=True
        ):
            seen = retained.get(account)
            if seen is None or size > seen.size:
                retained[account] = seen = _Seen(size)
            if size == seen.size:
                seen.add(row)
        if len(retained) > self._most:
            top = heapq.nlargest(self._most, retained.items(), key=lambda one: one[1].rank())
            self._kinds[kind] = dict(top)

    def _full(self, retained: Mapping[int, object]) -> bool:
        return len(retained) >= self._most

    def rows(self, pattern: str) -> list[int]:
        """Rows that completed large patterns of a kind ("fan": of both directions)."""
        kinds = (pattern, f"{pattern}_in", f"{pattern}_out")
        return sorted(
            {
                row
                for kind in kinds
                for one in self._kinds.get(kind, {}).values()
                for row in one.all()
            }
        )


def largest(
    read: Transactions,
    candidates: Candidates,
    settings: Mapping[str, Any],
    *,
    batch: int,
    each: int,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Largest:
    """Find the patterns that the candidates completed.

    Args:
        read: the transactions.
        candidates: candidates of a run over them with these settings.
        settings: arguments of ``GraphFeatures``.
        batch: rows of a batch in that run.
        each: number of patterns of each kind.
        progress: called with the numbers of finished candidates and of all candidates.
    """
    # In causal mode a batch of one row gives the same patterns.
    step = 1 if settings["mode"] == "causal" else batch
    patterns = [name for name in settings["patterns"] if name != VERTEX]
    begins = {
        name: list(dict.fromkeys(row // step * step for row in candidates.rows(name)))
        for name in patterns
    }
    total = sum(map(len, begins.values()))
    retained = Largest(each)
    done = 0
    for name in patterns:
        for found in _again(read, name, begins[name], settings, step):
            retained.add(found)
            done += 1
            progress(done, total)
    return retained


def _again(
    read: Transactions, pattern: str, begins: Sequence[int], settings: Mapping[str, Any], step: int
) -> Iterator[pa.Table]:
    """The patterns of the batches that begin at these rows; other rows are only learnt."""
    from farrow.graph import GraphFeatures

    window = settings["window"]
    window = window[pattern] if isinstance(window, dict) else window
    seconds = ticks_of(f"window of {pattern}", window, 1)
    features = GraphFeatures(
        **{**settings, "patterns": (pattern,), "evidence": True, "evidence_max": _FOUND_MAX}
    )
    table = _stream.edges_of(read)
    times = table["timestamp"].to_numpy()
    done = 0
    for begin in begins:
        # Rows older than the window need not be learnt.
        done = max(done, int(np.searchsorted(times, times[begin] - seconds)))
        if begin > done:
            features.partial_fit(table.slice(done, begin - done).combine_chunks())
        _, found = features.patterns_of(table.slice(begin, step).combine_chunks())
        yield found
        done = begin + step


class Largest:
    """The largest patterns of each kind, one for each centre: a growing fan is one fan."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._kinds: dict[str, dict[Any, tuple[int, int, dict[str, Any]]]] = {}
        self._count = itertools.count()

    def add(self, found: pa.Table) -> None:
        """Add the patterns of a batch."""
        for kind in pc.unique(found["kind"]).to_pylist():
            of_kind = found.filter(pc.equal(found["kind"], kind))
            retained = self._kinds.setdefault(kind, {})
            # Enough to fill the list even if many share a centre.
            top = pc.select_k_unstable(of_kind, self._each * 64, [("size", "descending")])
            for row in of_kind.take(top).to_pylist():
                self._keep(retained, kind, row)

    def _keep(self, retained: dict[Any, Any], kind: str, row: dict[str, Any]) -> None:
        key = _key(kind, row["accounts"])
        if key not in retained or retained[key][0] < row["size"]:
            retained[key] = (row["size"], -next(self._count), row)
        if len(retained) > self._each:
            del retained[min(retained, key=lambda one: retained[one][:2])]

    def all(self) -> list[dict[str, Any]]:
        """Patterns as dictionaries, kind by kind, the largest first."""
        return [
            row
            for _, retained in sorted(self._kinds.items())
            for _, _, row in heapq.nlargest(self._each, retained.values(), key=lambda one: one[:2])
        ]


def _key(kind: str, accounts: Sequence[int]) -> Any:
    """A key that is equal for a pattern and its grown versions."""
    if kind.endswith("cycle"):
        return frozenset(accounts)
    return tuple(accounts[:2]) if kind == "scatter-gather" else accounts[0]


def drawn(read: Transactions, rows: Sequence[dict[str, Any]]) -> list[Drawn]:
    """Patterns with their payments, for drawing."""
    wanted = pa.array(sorted({edge for row in rows for edge in row["edges"]}), pa.int64())
    table = read.table.filter(pc.is_in(read.table["edge_id"], value_set=wanted))
    payments = {payment["edge_id"]: payment for payment in table.to_pylist()}
    return [_drawn(read, row, payments) for row in rows]


def _drawn(read: Transactions, row: dict[str, Any], payments: dict[int, Any]) -> Drawn:
    edges = [payments[edge] for edge in row["edges"] if edge in payments]
    codes = list(dict.fromkeys([*row["accounts"], *_ends(edges)]))
    names = dict(zip(codes, map(str, read.accounts.of(codes).to_pylist()), strict=True))
    grouped: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for edge in edges:
        grouped.setdefault((edge["source"], edge["target"]), []).append(edge)
    hops = tuple(
        Hop(
            names[source],
            names[target],
            _label(names[source], names[target], several, read.amounts),
            len(several),
            any(edge["edge_id"] == row["trigger"] for edge in several),
        )
        for (source, target), several in grouped.items()
    )
    accounts = tuple(names[code] for code in codes)
    times = [edge["timestamp"] for edge in edges]
    caption = f"{len(edges)} payments, {len(accounts)} accounts"
    if times:
        caption += f"; {_moment(min(times))} to {_moment(max(times))}"
    return Drawn(row["kind"], row["size"], accounts, hops, caption)


def _ends(edges: Sequence[dict[str, Any]]) -> Iterator[int]:
    for edge in edges:
        yield edge["source"]
        yield edge["target"]


def _label(source: str, target: str, edges: Sequence[dict[str, Any]], amounts: Any) -> str:
    lines = [f"{source} to {target}"]
    for edge in edges[:_PAYMENTS_NAMED]:
        money = ", ".join(f"{edge[name]:,.2f}" for name in amounts)
        lines.append(f"{_moment(edge['timestamp'])}  {money}")
    if len(edges) > _PAYMENTS_NAMED:
        lines.append(f"and {len(edges) - _PAYMENTS_NAMED} more")
    return "\n".join(lines)


def _moment(seconds: int) -> str:
    if seconds < _DATES_FROM:
        return f"t = {seconds:,}"
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"t = {seconds:,}"
    return f"{when:%Y-%m-%d %H:%M}"
