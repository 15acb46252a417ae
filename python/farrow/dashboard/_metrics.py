"""Request times and errors from the metrics of a node, if it serves them."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path
from typing import Any

__all__ = ["Latencies", "read"]

_TIMEOUT_SECONDS = 2.0
_BYTES_MAX = 8 << 20
_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

# Name and labels of a sample.
Key = tuple[str, tuple[tuple[str, str], ...]]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def read(address: str) -> dict[Key, float] | None:
    """All samples of the metrics at ``unix:PATH`` or ``HOST:PORT``; None if nothing answers."""
    connection: http.client.HTTPConnection
    path = address.removeprefix("unix:")
    if path != address:
        if not Path(path).is_socket():
            return None
        connection = _UnixConnection(path)
    else:
        connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(_BYTES_MAX).decode(errors="replace")
        return _parse(text) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _parse(text: str) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for line in text.split("\n"):
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        labels = tuple((key, _unescaped(value)) for key, value in _LABEL.findall(sample[2] or ""))
        try:
            found[sample[1], labels] = float(sample[3])
        except ValueError:
            continue
    return found


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


class Latencies:
    """Times and errors of requests between two readings of the metrics."""

    def __init__(self) -> None:
        self._before: dict[Key, float] = {}

    def rows(self, samples: dict[Key, float], seconds: float) -> dict[str, list[dict[str, Any]]]:
        """Rows by kind of request and of error.

        Each kind of request has its count, the rate since the last call, and mean and 99th
        percentile in seconds; without requests since then, those of the daemon's life.
        """
        before = self._before
        self._before = samples

        def since(key: Key) -> float:
            change = samples.get(key, 0.0) - before.get(key, 0.0)
            # A daemon that was replaced counts from zero.
            return change if before and change >= 0 else 0.0

        kinds = sorted({dict(key[1])["kind"] for key in samples if key[0] == _COUNT})
        requests = []
        for kind in kinds:
            count_key: Key = (_COUNT, (("kind", kind),))
            sum_key: Key = (_SUM, (("kind", kind),))
            recent = since(count_key)
            use = since if recent else lambda key: samples.get(key, 0.0)
            count = use(count_key)
            requests.append(
                {
                    "kind": kind,
                    "count": int(samples[count_key]),
                    "rate": recent / seconds if before else None,
                    "mean": use(sum_key) / count if count else None,
                    "p99": _percentile(samples, use, kind, count),
                    "recent": bool(recent),
                }
            )
        errors = [
            {
                "kind": dict(key[1])["error"],
                "count": int(value),
                "rate": since(key) / seconds if before else None,
            }
            for key, value in sorted(samples.items())
            if key[0] == "farrow_request_errors_total" and value
        ]
        return {"kinds": requests, "errors": errors}


_COUNT = "farrow_request_seconds_count"
_SUM = "farrow_request_seconds_sum"
_BUCKET = "farrow_request_seconds_bucket"


def _percentile(samples: dict[Key, float], use: Any, kind: str, count: float) -> float | None:
    """The upper bound of the bucket with the 99th percentile; None if it has no bound."""
    bounds = []
    for key in samples:
        labels = dict(key[1])
        if key[0] == _BUCKET and labels.get("kind") == kind and labels["le"] != "+Inf":
            bounds.append((float(labels["le"]), use(key)))
    return next((bound for bound, below in sorted(bounds) if count and below >= 0.99 * count), None)
