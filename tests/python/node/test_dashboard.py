"""The page of a node: what its server answers and refuses, and what a browser makes of it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import browser
import farrow
from conftest import LIMIT_SECONDS, wait_until
from dashboard_cases import EVIL, SCRIPT, Visitor, fill, picture
from farrow.dashboard import Dashboard, _metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Cluster, Node


@pytest.fixture
def dashboard(node: Node) -> Iterator[Dashboard]:
    with Dashboard(lambda: farrow.connect(node.socket, timeout=2)) as made:
        yield made


@pytest.fixture
def visitor(dashboard: Dashboard) -> Visitor:
    return Visitor(dashboard)


def test_the_page_and_its_files_are_served_with_a_policy(visitor: Visitor) -> None:
    for path, kind in {
        "/": "text/html",
        "/page.css": "text/css",
        "/page.js": "text/javascript",
        "/draw.js": "text/javascript",
    }.items():
        answer = visitor.get(path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        # No assets from elsewhere.
        text = answer.body.decode()
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
    assert visitor.get("/", "HEAD").body == b""
    assert visitor.get("/nothing").status == 404
    assert visitor.get("/../_server.py").status == 404


def test_only_the_token_opens_what_is_of_the_node(dashboard: Dashboard, visitor: Visitor) -> None:
    right = visitor.authorization
    paths = ("/changes.json", "/objects.json", "/nothing", f"/changes.json?token={dashboard.token}")
    for wrong in ("", "Bearer", "Bearer ", dashboard.token, right + "x", right[:-1], "Bearer \x80"):
        visitor.authorization = wrong
        for path in paths:
            assert visitor.get(path).status == 403, (path, wrong)
    visitor.authorization = right.replace("Bearer", "bearer")
    assert visitor.get("/changes.json").status == 200


def test_no_cookie_leads_the_token_to_servers_at_other_ports(
    dashboard: Dashboard, visitor: Visitor
) -> None:
    """Regression: cookies ignore ports, so the browser sent the token to each server of 127.0.0.1
    that it was led to, also to that of another user."""
    for path in ("/", f"/?token={dashboard.token}", "/page.js", "/changes.json"):
        answer = visitor.get(path)
        assert answer.status == 200
        assert "set-cookie" not in answer.headers
        assert dashboard.token not in answer.body.decode()
    visitor.authorization = ""
    cookie = f"farrow-{dashboard.port}={dashboard.token}"
    assert visitor.get("/changes.json", Cookie=cookie).status == 403


def test_another_name_of_the_host_is_refused(visitor: Visitor) -> None:
    """A site whose name suddenly leads to 127.0.0.1 (DNS rebinding) sends its own Host."""
    for host in ("evil.example", f"evil.example:{visitor.port}", "127.0.0.1", f"127.0.0.1:{1}"):
        answer = visitor.get("/changes.json", Host=host)
        assert answer.status == 421, host
    for host in (f"localhost:{visitor.port}", f"LOCALHOST:{visitor.port}"):
        assert visitor.get("/changes.json", Host=host).status == 200


def test_only_reading_is_possible(visitor: Visitor) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = visitor.get("/changes.json", method)
        assert answer.status == 501, method
        assert "content-security-policy" in answer.headers


def test_malformed_requests_end_nothing(dashboard: Dashboard, visitor: Visitor) -> None:
    for data in (b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000, b"\r\n" * 50):
        with socket.create_connection(("127.0.0.1", dashboard.port), LIMIT_SECONDS) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
    for query in ("since=-1", "since=" + "9" * 400, "since=x", "since=%00", "&".join(["a=1"] * 99)):
        assert visitor.get(f"/changes.json?{query}").status in (200, 400), query
    for query in ("sort=nothing", "down=5", "q=%ff%00", "q=" + "x" * 5000, "node=none", "state=x"):
        assert visitor.get(f"/objects.json?{query}").status == 200, query
    assert visitor.parts()["state"]["error"] is None


def test_more_connections_than_places_are_closed(dashboard: Dashboard, visitor: Visitor) -> None:
    idle = [socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(60)]
    # Another user of the machine who takes all places and asks nothing keeps nobody out.
    assert [visitor.get("/changes.json").status for _ in range(3)] == [200] * 3
    closed = 0
    for one in idle:
        one.settimeout(0.2)
        try:
            closed += one.recv(1) == b""
        except TimeoutError:
            pass
        except ConnectionResetError:
            closed += 1
    assert 20 <= closed <= 60
    for one in idle:
        one.close()

    def is_served() -> bool:
        try:
            return visitor.get("/changes.json").status == 200
        except (OSError, http.client.HTTPException):
            return False

    wait_until(is_served, "places of ended connections")


def test_the_parts_show_the_node(make_node: Callable[..., Node]) -> None:
    node = make_node("--metrics", "--client-bytes", "64MiB")
    client = farrow.connect(node.socket)
    client.put(np.zeros(1 << 17), "a/zeros", metadata={"unit": "metre"})
    client.put(pa.table({"n": [1]}), EVIL)
    client.pin(EVIL)
    client.create_namespace("team", nbytes=1 << 20)
    held = client.get("a/zeros")
    table = client.huge_table("a/huge", pa.schema({"n": pa.int64()}))
    for _ in range(3):
        table.append(pa.table({"n": [1, 2]}))
    with Dashboard(lambda: farrow.connect(node.socket)) as dashboard:
        visitor = Visitor(dashboard)
        parts = visitor.parts()
        stats = client.stats()
        assert parts["node"]["capacity"] == stats["capacity"] == 256 << 20
        assert parts["node"]["address"] == node.socket
        sums = [sum(cell[index] for cell in parts["map"]) for index in range(4)]
        assert 0.99 * stats["capacity"] <= sum(sums) <= stats["capacity"]
        assert sums[3] >= 1 << 20
        [own] = [one for one in parts["clients"]["rows"] if one["holds"]]
        assert (own["pid"], own["is_connected"]) == (os.getpid(), True)
        assert own["command"] == Path("/proc/self/comm").read_text().strip()
        limits = parts["settings"]
        assert (limits["client_bytes"], limits["client_objects"]) == (64 << 20, None)
        assert limits["changed"] == []
        assert [one["name"] for one in parts["namespaces"]] == ["", "team"]
        assert parts["tables"][0]["name"] == "a/huge"
        assert parts["tables"][0]["nodes"] == [["", 3, 6, 48]]
        assert ["ndarray", 1, 1 << 20] in parts["objects"]["kinds"]
        kinds = {one["kind"]: one for one in parts["requests"]["kinds"]}
        assert kinds["seal"]["count"] >= 3
        assert 0 < kinds["seal"]["mean"] <= kinds["seal"]["p99"]
        found = visitor.get("/objects.json?q=ZEROS").json()
        [row] = found["rows"]
        assert (row["name"], row["bytes"], row["kind"]) == ("a/zeros", 1 << 20, "ndarray")
        assert row["metadata"] == [["unit", "metre"]]
        assert abs(row["sealed_at"] / 1000 - os.stat(node.socket).st_mtime) < 3600
        [row] = visitor.get("/objects.json?state=pinned&q=onerror").json()["rows"]
        assert row["name"] == EVIL
        rows = visitor.get("/objects.json?sort=bytes&down=1").json()["rows"]
        sizes = [row["bytes"] for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    del held


def test_running_queries_are_shown(node: Node, visitor: Visitor) -> None:
    """As ``farrow_sql`` announces them; whoever can write there may write anything."""
    client = farrow.connect(node.socket)
    labels = {"query": SCRIPT, "pid": "42", "workers": "3"}
    client.put(b"{}", "farrow.sql/queries/42-0", metadata=labels)
    client.put(b"x", "farrow.sql/queries/other")
    first, second = visitor.parts()["queries"]
    assert (first["text"], first["process"], first["workers"]) == (SCRIPT, "42", "3")
    assert first["began"] <= second["began"]
    assert second["text"] == ""


def test_only_what_changed_is_sent(node: Node, visitor: Visitor) -> None:
    client = farrow.connect(node.socket)
    first = visitor.get("/changes.json?since=0").json()
    assert first["all"]
    assert {"map", "objects", "clients", "node"} <= set(first["parts"])

    def later() -> dict[str, Any]:
        """The next reading: it is made a second after the last one."""
        found: dict[str, Any] = {}

        def is_newer() -> bool:
            nonlocal found
            found = visitor.get(f"/changes.json?since={first['sequence']}").json()
            return bool(found["sequence"] > first["sequence"])

        wait_until(is_newer, "another reading")
        return found

    second = later()
    assert not second["all"]
    assert "map" not in second["parts"]
    assert "namespaces" not in second["parts"]
    first = second
    client.put(bytes(10 << 20), "large")
    third = later()
    while "objects" not in third["parts"]:
        first, third = third, later()
    assert third["parts"]["objects"]["rows"] == 1
    assert all(number[0] > 0 for number in third["history"])
    # A page of an earlier server asks for a reading that is not there yet.
    assert visitor.get("/changes.json?since=999999").json()["all"]


def test_a_label_of_strange_digits_ends_no_answer(node: Node, visitor: Visitor) -> None:
    """Regression test: anybody who might put could end the page for all: ``int`` takes not all of
    what ``isdigit`` does, and the name of the object was that of a chunk of a huge table."""
    client = farrow.connect(node.socket)
    for number, rows in enumerate(["\N{SUPERSCRIPT TWO}", "9" * 3000]):
        client.put(b"x", f"t/{'0' * 32}/{number:010}", metadata={"rows": rows})
    parts = visitor.parts()
    assert parts["state"]["error"] is None
    assert (parts["tables"], parts["objects"]["rows"]) == ([], 2)


def test_a_node_that_ends_is_reported_and_one_that_comes_back_is_shown(
    node: Node, visitor: Visitor
) -> None:
    assert visitor.parts()["state"]["error"] is None
    node.kill9()
    wait_until(lambda: visitor.parts()["state"]["error"] is not None, "the error")
    # The last figures stay.
    assert visitor.parts()["node"]["capacity"] == 256 << 20
    node.start()
    wait_until(lambda: visitor.parts()["state"]["error"] is None, "the node again")


def test_reading_takes_no_object_from_eviction(node: Node, visitor: Visitor) -> None:
    """A page is no reader: nothing is held, and no object counts as used."""
    client = farrow.connect(node.socket)
    client.put(b"one", "one")
    used = client.list().column("last_use").cast(pa.int64()).to_pylist()
    for _ in range(3):
        visitor.parts()
        visitor.get("/objects.json")
    assert client.list().column("last_use").cast(pa.int64()).to_pylist() == used
    assert client.stats()["holds"] == 0


def test_addresses_that_others_reach_are_refused() -> None:
    with pytest.raises(farrow.InvalidArgument, match=r"0\.0\.0\.0"):
        Dashboard(lambda: None, host="0.0.0.0")


def test_metrics_are_read_from_a_port_too(make_node: Callable[..., Node]) -> None:
    assert _metrics.read("unix:/nowhere") is None
    assert _metrics.read("127.0.0.1:1") is None
    assert _metrics._parse('a{b="c\\"d\\\\"} 1\n# x\nbad\ne 2\n') == {
        ("a", (("b", 'c"d\\'),)): 1.0,
        ("e", ()): 2.0,
    }


def test_the_command(node: Node) -> None:
    command = [sys.executable, "-m", "farrow.cli", "dashboard", "--socket", node.socket]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = urllib.parse.urlsplit(process.stdout.readline().strip())
        connection = http.client.HTTPConnection("127.0.0.1", url.port or 0, timeout=LIMIT_SECONDS)
        token = dict(urllib.parse.parse_qsl(url.query))["token"]
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/changes.json", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()
        taken = subprocess.run(
            [*command, "--port", str(url.port)], capture_output=True, text=True, timeout=60
        )
        assert taken.returncode == 1
        assert "in use" in taken.stderr
        assert taken.stderr.count("\n") == 1
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, errors) == (0, "")
    nowhere = [*command[:-1], f"{node.socket}.none", "--timeout", "1"]
    done = subprocess.run(nowhere, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("farrow: ")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Browser]:
    made = browser.Browser(tmp_path)
    yield made
    made.close()


TEXT = "document.querySelector({!r}).innerText"
# Cells of holds with a known time: not "at least since".
SINCE_CELLS = (
    "[...document.querySelectorAll('#details-holds td')]"
    ".filter(cell => cell.textContent.startsWith('since '))"
)


def test_clicking_through_the_page(
    make_cluster: Callable[..., Cluster], page: browser.Browser
) -> None:
    cluster = make_cluster(2, "--plaintext", "--metrics")
    client = cluster.client("a")
    held = fill(client)
    query = {"query": SCRIPT, "pid": "42", "workers": "3"}
    client.put(b"{}", "farrow.sql/queries/42-0", metadata=query)
    socket_path = cluster.nodes["a"].socket
    with Dashboard(lambda: farrow.connect(socket_path)) as dashboard:
        page.show(1280, 900, "light")
        page.open(dashboard.url)
        page.wait("document.querySelectorAll('#map i').length === 512")
        assert page.evaluate("location.search") == ""
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate("document.title") == "Farrow: a"
        assert "of memory used" in page.wait(TEXT.format("#tiles"))
        assert page.wait("document.querySelectorAll('#map .held').length") > 10
        assert "team" in page.wait(TEXT.format("#namespaces"))
        shown = page.wait(TEXT.format("#spill"))
        assert "when memory is short\nrefuse requests" in shown
        assert "spilled now" in shown
        # Two points make a curve.
        page.wait("document.querySelector('#chart-memory path')?.getAttribute('d').includes('L')")
        picture(page, "memory-desktop-light")

        page.click("#tab-objects")
        page.wait("document.querySelectorAll('#objects-table tbody tr').length > 40")
        names = page.evaluate(
            "[...document.querySelectorAll('#objects-table td.name')].map(c => c.textContent)"
        )
        assert EVIL in names
        assert SCRIPT in names
        picture(page, "objects-desktop-light")
        page.write("#query", "onerror")
        page.wait("document.querySelectorAll('#objects-table tbody tr').length === 1")
        page.click("#objects-table tbody tr")
        details = page.wait("document.querySelector('#details[open]')?.innerText")
        assert EVIL in details
        assert SCRIPT in details
        assert "pinned" in details
        assert page.wait(TEXT.format("#details-note")) == "none"
        picture(page, "details-desktop-light")
        page.press("Escape")
        page.wait("document.querySelector('#details[open]') === null")
        page.write("#query", "")
        page.wait("document.querySelectorAll('#objects-table tbody tr').length > 40")
        page.click("#objects-table th:nth-child(3) button")
        page.wait(f"{TEXT.format('#objects-table tbody tr td:nth-child(3)')}.includes('MiB')")
        # The holders of a held object, while they hold it.
        page.write("#query", "2026-05")
        page.wait("document.querySelectorAll('#objects-table tbody tr').length === 1")
        page.click("#objects-table tbody tr")
        holders = page.wait(TEXT.format("#details-holds"))
        assert str(os.getpid()) in holders
        # They were there before the dashboard.
        assert re.search(r"since \d\d:\d\d:\d\d", holders)
        picture(page, "holders-desktop-light")
        held.clear()
        page.wait(f"{TEXT.format('#details-note')} === 'none'")
        held.extend(client.get(f"trades/2026-{number:02}") for number in range(5, 20))
        held.append(client.get(EVIL))
        page.wait(SINCE_CELLS + ".length === 1")
        page.press("Escape")
        page.wait("document.querySelector('#details[open]') === null")
        # A new object appears by itself.
        client.put(b"new", "zz new")
        page.write("#query", "zz new")
        page.wait("document.querySelectorAll('#objects-table tbody tr').length === 1")

        page.click("#tab-clients")
        assert str(os.getpid()) in page.wait(TEXT.format("#clients-table"))
        picture(page, "clients-desktop-light")
        # What a client holds.
        rows, has_16 = (
            "[...document.querySelectorAll('#clients-table tr.open')]",
            "cells[5].innerText",
        )
        page.wait(f"{rows}.some(row => row.{has_16} === '16')")
        page.evaluate(f"{rows}.find(row => row.{has_16} === '16').click()")
        page.wait("document.querySelectorAll('#details-holds tbody tr').length === 16")
        shown = page.evaluate("document.querySelector('#details-holds').textContent")
        assert "trades/2026-19" in shown
        assert EVIL in shown
        page.wait(SINCE_CELLS + ".length === 16")
        picture(page, "holds-desktop-light")
        page.press("Escape")
        page.wait("document.querySelector('#details[open]') === null")
        page.click("#tab-memory")
        page.wait("document.querySelectorAll('#held tbody tr').length === 16")
        assert EVIL in page.evaluate("document.querySelector('#held').textContent")
        page.click("#tab-requests")
        assert "seal" in page.wait(TEXT.format("#latencies"))
        picture(page, "requests-desktop-light")
        page.click("#tab-cluster")
        shown = page.wait(TEXT.format("#nodes"))
        assert "a (this one)" in shown
        assert "b" in shown
        shown = page.wait(TEXT.format("#lease"))
        assert "left" in shown
        assert "memory for what is brought" in shown
        # The link to the other node.
        assert "shm, " in page.evaluate(TEXT.format("#nodes"))
        picture(page, "cluster-desktop-light")
        page.click("#tab-tables")
        shown = page.wait(TEXT.format("#tables-list"))
        assert "events" in shown
        assert "120,000 rows" in shown
        assert "b: 60,000 rows" in shown
        picture(page, "tables-desktop-light")
        page.click("#tab-queries")
        page.wait("document.querySelectorAll('#queries-table tbody tr').length === 1")
        assert SCRIPT in page.evaluate(TEXT.format("#queries-table"))
        picture(page, "queries-desktop-light")
        assert page.evaluate("document.querySelectorAll('img, script').length") == 1
        assert page.problems == []
    del held
    # The page says that its server is gone.
    # It may first show the error of a response that was cut off.
    page.wait(f"{TEXT.format('#problem')}.includes('has ended')")


def test_an_open_dialog_reads_again_while_no_part_changes(
    node: Node, dashboard: Dashboard, page: browser.Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts have the oldest holds only, so they may not change when newer ones do."""
    client = farrow.connect(node.socket)
    client.put(b"x", "x")
    held = client.get("x")
    samples = dashboard._server.samples
    read, calls = samples.holds, []

    def counted(query: dict[str, str]) -> bytes:
        calls.append(query)
        return read(query)

    monkeypatch.setattr(samples, "holds", counted)
    page.show(1280, 900, "light")
    page.open(dashboard.url)
    page.click("#tab-objects")
    page.wait("document.querySelectorAll('#objects-table tbody tr').length === 1")
    page.click("#objects-table tbody tr")
    wait_until(lambda: len(calls) >= 6, "more readings")
    assert set(calls[-1]) == {"object"}
    page.press("Escape")
    page.wait("document.querySelector('#details[open]') === null")
    assert page.problems == []
    del held


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("phone", 375), ("desktop", 1280)])
def test_the_page_fits_each_width_and_scheme(
    node: Node, dashboard: Dashboard, page: browser.Browser, name: str, width: int, scheme: str
) -> None:
    client = farrow.connect(node.socket)
    client.put(b"x", "a/very/long/name/" + "without-spaces/" * 12)
    held = fill(client)
    page.show(width, 812, scheme)
    page.open(dashboard.url)
    page.wait("document.querySelectorAll('#map i').length === 512")
    for tab in ("memory", "objects", "clients", "requests", "cluster", "tables", "queries"):
        page.click(f"#tab-{tab}")
        page.wait(f"!document.querySelector('#{tab}').hidden")
        if tab == "objects":
            page.wait("document.querySelectorAll('#objects-table tbody tr').length > 40")
        # Nothing is wider than the window.
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        picture(page, f"{tab}-{name}-{scheme}")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = [int(part) for part in back[4:-1].split(",")]
    assert (sum(light) > 384) == (scheme == "light"), back
    assert page.problems == []
    del held
