"""A process that measures one store: ``store_driver.py PEER``, JSON requests in, answers out.

It runs under the peer's own Python, so it uses only the standard library and NumPy (and pyarrow
for tables).  All times are measured here, by the same code for all peers; the creation of names
and the exchange of tokens are not timed.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from answer import hide_folders, load, serve

if TYPE_CHECKING:
    from collections.abc import Callable

_clock = time.perf_counter
_FILL_BULK = 100
# Rounds of one class end after this time, but not before two: a limit for slow peers.
_CLASS_SECONDS_MAX = 6.0


class StoreDriver:
    """A handler of requests for one store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._kept: list[Any] = []
        self._payloads: dict[tuple[int, int], bytes] = {}
        self._counter = itertools.count()
        # Garbage collections would appear in the tail latencies.
        gc.disable()

    def server(self, directory: str, capacity: int) -> Any:
        """The command that runs the peer's server."""
        return self._store.server(directory, capacity)

    def connect(self, directory: str) -> Any:
        """Connect to it."""
        self._store.connect(directory)
        return {"pid": os.getpid()}

    def about(self) -> Any:
        """Properties of the peer for the harness."""
        store = self._store
        return {
            "can_name": store.can_name,
            "can_unnamed": store.can_unnamed,
            "is_queue": store.is_queue,
            "has_best_copy": hasattr(store, "best_copy"),
            "remarks": getattr(store, "remarks", ""),
            "accounting": getattr(store, "accounting", ""),
            "has": [name for name in _OPTIONAL if hasattr(store, name)],
        }

    def stats(self) -> Any:
        """The peer's counters, if it has any."""
        return self._store.stats() if hasattr(self._store, "stats") else {}

    def prepare(self, count: int, size: int, scope: str, role: str) -> Any:
        """Announce the objects to the peer, if it supports that; create the payload."""
        if role != "read":
            self._payload(size)
        if hasattr(self._store, "prepare"):
            self._store.prepare(count, size, scope, role)
        return {}

    def write(
        self, count: int, size: int, rounds: int, compares: bool, is_named: bool = False
    ) -> Any:
        """Create, write and seal ``count`` objects, ``rounds`` times; the last ones stay.

        Returns the seconds of each round and the retained tokens; with ``compares`` also the
        seconds of the machine's best copy of as many bytes before each round, if the peer has it.
        Each object then has bytes of its own, as the copy reads ``count * size`` different bytes.
        """
        put = self._store.put
        payloads = [self._payload(size, place if compares else 0) for place in range(count)]
        samples, copies = [], []
        for turn in range(rounds):
            if compares and hasattr(self._store, "best_copy"):
                copies.append(self._store.best_copy(count * size))
            names, kept = self._names(count, is_named), []
            gc.collect()
            began = _clock()
            for name, payload in zip(names, payloads, strict=True):
                token = put(payload, name)
                kept.append(token)
            samples.append(_clock() - began)
            if turn >= 1 and sum(samples) > _CLASS_SECONDS_MAX:
                break
            if turn + 1 < rounds:
                self._store.delete(kept)
                # Ray deletes an object with its last reference, not earlier.
                del token
                kept.clear()
        self._kept = kept
        # The payloads of a class that was compared are a gigabyte.
        self._payloads = {key: data for key, data in self._payloads.items() if key[1] == 0}
        tokens = [self._store.export(token) for token in kept]
        return {"seconds": samples, "copies": copies, "tokens": tokens}

    def drop(self) -> Any:
        """Delete the objects of ``write`` or ``latency_put``."""
        self._store.delete(self._kept)
        self._kept = []
        return {}

    def read(self, tokens: list[str], size: int, rounds: int) -> Any:
        """Get and release objects: seconds of each round, one by one and in a batch."""
        adopted = [self._store.adopt(text) for text in tokens]
        get, get_many = self._store.get, getattr(self._store, "get_many", None)
        single: list[float] = []
        batch: list[float] = []
        if not self._store.is_queue:
            self._check(get(adopted[0]), size)
        for _ in range(rounds):
            gc.collect()
            began = _clock()
            for token in adopted:
                value = get(token)
                del value
            single.append(_clock() - began)
            if get_many is not None:
                began = _clock()
                values = get_many(adopted)
                del values
                batch.append(_clock() - began)
            if len(single) > 1 and sum(single) + sum(batch) > _CLASS_SECONDS_MAX:
                break
        return {"single": single, "batch": batch}

    def scan(self, tokens: list[str], size: int, laters: int) -> Any:
        """Get and read every byte, repeatedly; then as many bytes of private memory."""
        adopted = [self._store.adopt(text) for text in tokens]
        scanned = [self._scan(adopted, size) for _ in range(1 + laters)]
        private = [np.frombuffer(os.urandom(1) * size, dtype=np.uint8) for _ in adopted]
        passes = [_pass(private) for _ in range(4)]
        return {"first": scanned[0], "later": scanned[1:], "private": passes}

    def _scan(self, tokens: list[Any], size: int) -> float:
        began = _clock()
        for token in tokens:
            value = self._store.get(token)
            words = np.frombuffer(self._view(value), dtype=np.uint8, count=size)
            np.bitwise_xor.reduce(words[: size // 8 * 8].view(np.uint64))
            del words, value
        return _clock() - began

    def latency_put(self, names: list[str] | None, count: int, size: int, scope: str) -> Any:
        """Put objects one by one, with a sample for each.  The objects are retained."""
        self._prepare(names, count, size, scope, "write")
        payload, put = self._payload(size), self._store.put
        chosen = names or self._names(count)
        samples, kept = [], []
        gc.collect()
        for name in chosen:
            began = _clock()
            token = put(payload, name)
            samples.append(_clock() - began)
            kept.append(token)
        self._kept = kept
        return {"put": samples, "tokens": [self._store.export(token) for token in kept]}

    def latency_ready(self, names: list[str] | None, count: int, size: int, scope: str) -> Any:
        """Prepare the getting process: before the puts, or after them for names."""
        self._prepare(names, count, size, scope, "read")
        return {}

    def latency_get(self, tokens: list[str], size: int) -> Any:
        """Get objects one by one, with a sample for each, without the release."""
        adopted = [self._store.adopt(text) for text in tokens]
        get, samples = self._store.get, []
        gc.collect()
        for turn, token in enumerate(adopted):
            began = _clock()
            value = get(token)
            samples.append(_clock() - began)
            if turn == 0:
                self._check(value, size)
            del value
        return samples

    def many(self, bulk: int, rounds: int, size: int, is_named: bool = False) -> Any:
        """``put_many`` and ``get_many``, seconds per object."""
        store, payload = self._store, self._payload(size)
        puts, gets = [], []
        for _ in range(rounds):
            names = self._names(bulk, is_named)
            items = [payload] * bulk
            began = _clock()
            tokens = store.put_many(items, names if names[0] else None)
            puts.append((_clock() - began) / bulk)
            began = _clock()
            values = store.get_many(tokens)
            gets.append((_clock() - began) / bulk)
            del values
            store.delete(list(tokens))
        return {"put_many": puts, "get_many": gets}

    def rate(
        self, start_at: float, seconds: float, pairs_max: int, size: int, is_named: bool = False
    ) -> Any:
        """Put and get from a common start, until the time or the number is reached.

        The clock is the machine's: ``start_at`` is the same moment in every process. The objects
        stay until ``drop``, because deletes would disturb processes that are still working.
        """
        if hasattr(self._store, "prepare"):
            self._store.prepare(100, size, f"rate-{os.getpid()}", "both")
        payload, names = self._payload(size), self._names(pairs_max, is_named)
        put, get, tokens = self._store.put, self._store.get, []
        gc.collect()
        late = _clock() - start_at
        while _clock() < start_at:
            time.sleep(0.001)
        began = _clock()
        end = began + seconds
        for name in names:
            token = put(payload, name)
            value = get(token)
            del value
            tokens.append(token)
            if _clock() > end:
                break
        ended = _clock()
        self._kept = tokens
        return {"pairs": len(tokens), "began": began, "ended": ended, "late": max(late, 0.0)}

    def compute(self, start_at: float, seconds: float) -> Any:
        """Rounds of arithmetic from a common start: no system call, no shared memory."""
        late = _clock() - start_at
        while _clock() < start_at:
            time.sleep(0.001)
        rounds, number = 0, 1
        began = _clock()
        end = began + seconds
        while _clock() < end:
            for _ in range(200):
                number = (number * 3 + 1) & 0xFFFFFFFF
            rounds += 1
        return {"pairs": rounds, "began": began, "ended": _clock(), "late": max(late, 0.0)}

    def now(self) -> float:
        """The machine's clock."""
        return _clock()

    def fill(self, count: int, size: int, seconds_max: float, is_named: bool = False) -> int:
        """Put ``count`` objects, or fewer within the time; returns their number."""
        end, payload, store = _clock() + seconds_max, self._payload(size), self._store
        has_many = hasattr(store, "put_many")
        kept = []
        while len(kept) < count and _clock() < end:
            names = self._names(_FILL_BULK, is_named)
            if has_many:
                kept += store.put_many([payload] * _FILL_BULK, names if names[0] else None)
            else:
                kept += [store.put(payload, name) for name in names]
        self._kept += kept
        return len(kept)

    def used(self) -> int:
        """Bytes in use, by the peer's own accounting."""
        return int(self._store.used())

    def put_table(self, rows: int, times: int) -> Any:
        """Put the table ``times`` times, deleting in between; the last one stays."""
        table = load("data.py").make_table(rows)
        samples = []
        for turn in range(times):
            gc.collect()
            began = _clock()
            token = self._store.put_table(table)
            samples.append(_clock() - began)
            if turn + 1 < times:
                self._store.delete([token])
                del token
        self._kept = [token]
        return {"put": samples, "token": self._store.export(token), "bytes": table.nbytes}

    def get_table(self, token: str, rows: int, times: int) -> Any:
        """Get the table and release it."""
        adopted, samples = self._store.adopt(token), []
        for _ in range(times):
            began = _clock()
            table = self._store.get_table(adopted)
            samples.append(_clock() - began)
            if table.num_rows != rows:
                raise RuntimeError(f"{table.num_rows} rows came back instead of {rows}")
            del table
        return samples

    def _payload(self, size: int, place: int = 0) -> bytes:
        """The same bytes in every process; others for each place."""
        payload = self._payloads.get((size, place))
        if payload is None:
            pattern = bytes((number + place) % 251 for number in range(251))
            payload = (pattern * (size // len(pattern) + 1))[:size]
            self._payloads[size, place] = payload
        return payload

    def _names(self, count: int, is_named: bool = False) -> list[Any]:
        """New names if they are asked for or the peer needs them, else none."""
        if self._store.can_unnamed and not is_named:
            return [None] * count
        return [f"{os.getpid()}-{next(self._counter)}" for _ in range(count)]

    def _prepare(
        self, names: list[str] | None, count: int, size: int, scope: str, role: str
    ) -> None:
        if names is None:
            if hasattr(self._store, "prepare"):
                self._store.prepare(count, size, scope, role)
        elif hasattr(self._store, "prepare_names"):
            self._store.prepare_names(names, size, scope, role)

    def _view(self, value: Any) -> Any:
        view: Callable[[Any], Any] | None = getattr(self._store, "view", None)
        return view(value) if view is not None else value

    def _check(self, value: Any, size: int) -> None:
        """Check that a value has the bytes that were put."""
        if bytes(memoryview(self._view(value)).cast("B")) != self._payload(size):
            raise RuntimeError(f"other bytes came back for an object of {size} bytes")


_OPTIONAL = ("prepare_names", "put_many", "get_many", "put_table", "get_table", "used")


def _pass(arrays: list[Any]) -> float:
    """Read every byte of private arrays."""
    began = _clock()
    for array in arrays:
        np.bitwise_xor.reduce(array[: len(array) // 8 * 8].view(np.uint64))
    return _clock() - began


if __name__ == "__main__":
    hide_folders()
    serve(lambda: StoreDriver(load(f"{sys.argv[1]}/store.py").Store()))
