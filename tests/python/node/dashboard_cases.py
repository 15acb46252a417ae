"""What the tests of the dashboard share: a visitor without a page, objects, and pictures."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from conftest import LIMIT_SECONDS

if TYPE_CHECKING:
    import browser
    import farrow
    from farrow.dashboard import Dashboard

# Names that would run if the page took them for HTML.
EVIL = "<img src=x onerror=\"alert('name')\">"
SCRIPT = "</script><script>alert('script')</script>"
# FARROW_SCREENSHOTS names a folder for the pictures of the browser's tests.
SCREENSHOTS = os.environ.get("FARROW_SCREENSHOTS")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        assert self.status == 200, self
        return json.loads(self.body)


class Visitor:
    """A browser without a page: it sends the token, as the page does."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.port = dashboard.port
        self.authorization = f"Bearer {dashboard.token}"
        entered = self.get(dashboard.url.partition(f":{dashboard.port}")[2])
        assert entered.status == 200

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_SECONDS)
        sent = {"Authorization": self.authorization} if self.authorization else {}
        connection.request(method, path, headers={**sent, **headers})
        answer = connection.getresponse()
        body = answer.read()
        found = {key.lower(): value for key, value in answer.getheaders()}
        connection.close()
        return Answer(answer.status, found, body)

    def parts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/changes.json?since=0").json()["parts"]
        return found


def picture(page: browser.Browser, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(SCREENSHOTS) / f"{name}.png")


def fill(client: farrow.Client) -> list[Any]:
    """Objects of several kinds, some of them with names that are no text for HTML."""
    for number in range(40):
        client.put(np.zeros(20_000 * (number % 7 + 1)), f"trades/2026-{number:02}")
    client.put(pa.table({"n": [1, 2]}), EVIL, metadata={EVIL: SCRIPT})
    client.put(b"hello", SCRIPT)
    client.pin(EVIL)
    client.create_namespace("team", nbytes=1 << 20, objects=10)
    table = client.huge_table("events", pa.schema({"n": pa.int64()}))
    for node in client.nodes() or [None]:
        for _ in range(3):
            rows = pa.table({"n": np.arange(20_000)})
            table.append(rows, node=None if node is None else node.name)
    return [client.get(f"trades/2026-{number:02}") for number in range(5, 20)]
