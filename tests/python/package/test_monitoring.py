"""The alert rules and the Grafana dashboard of packaging/monitoring, with a real Prometheus.

The tests need the commands ``prometheus`` and ``promtool`` (Debian's package ``prometheus``);
``FARROW_PROMETHEUS=require`` makes their absence a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Node

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "packaging" / "monitoring"
RULES = FOLDER / "farrow.rules.yml"
TESTS = ROOT / "tests" / "monitoring" / "alerts.yml"
DASHBOARD = FOLDER / "grafana.json"
METRIC = re.compile(r"\bfarrow_[a-z0-9_]+")
GRID_COLUMNS = 24


def tool(name: str) -> str:
    """The path of a command of Prometheus; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        text = f"no {name} on this machine: apt install prometheus"
        if os.environ.get("FARROW_PROMETHEUS") == "require":
            pytest.fail(text)
        pytest.skip(text)
    return path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def panels() -> list[dict[str, Any]]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def expressions() -> list[str]:
    """The expression of each panel as Grafana sends it, with values for its variables."""
    found = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return [text.replace("$__rate_interval", "1m").replace("$instance", ".*") for text in found]


class Monitored(NamedTuple):
    """A node, the samples that it serves, and the address of a Prometheus that scrapes it."""

    node: Node
    text: str
    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Data of an answer of the HTTP API of Prometheus."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]


@pytest.fixture
def monitored(make_node: Callable[..., Node], tmp_path: Path) -> Iterator[Monitored]:
    program = tool("prometheus")
    metrics, listen, address = free_addresses(3)
    node = make_node("--metrics", metrics, "--name", "a", "--listen", listen, "--plaintext")
    # The example itself, with another address and shorter intervals.
    config = (FOLDER / "prometheus.yml").read_text()
    assert config.count("127.0.0.1:9464") == config.count("15s") == 1
    config = config.replace("127.0.0.1:9464", metrics).replace("15s", "200ms")
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(RULES, tmp_path)
    command = [
        program,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "log").open("wb") as log:
        prometheus = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=LIMIT_SECONDS) as answer:
            text = answer.read().decode()
        found = Monitored(node, text, address)

        def is_scraped() -> bool:
            assert prometheus.poll() is None, (tmp_path / "log").read_text()
            try:
                up = found.ask("query", query='up{job="farrow"} == 1')["result"]
            except OSError:
                return False
            return bool(up)

        wait_until(is_scraped, "a scrape of the node")
        yield found
    finally:
        prometheus.terminate()
        prometheus.wait(LIMIT_SECONDS)


def test_prometheus_accepts_the_rules_and_their_tests_pass(tmp_path: Path) -> None:
    promtool = tool("promtool")
    checked = run(promtool, "check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    checked = run(promtool, "check", "config", str(FOLDER / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run(promtool, "test", "rules", str(TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    # A canary: with a rule that never fires the tests fail.
    broken = RULES.read_text().replace("farrow_ready == 0", "farrow_ready == 7")
    (tmp_path / RULES.name).write_text(broken)
    tests = TESTS.read_text().replace("../../packaging/monitoring/", "")
    (tmp_path / TESTS.name).write_text(tests)
    assert run(promtool, "test", "rules", str(tmp_path / TESTS.name)).returncode != 0


def test_each_alert_has_a_test_and_says_what_to_do() -> None:
    rules = RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == len(set(alerts)) > 20
    tests = TESTS.read_text()
    for alert in alerts:
        assert re.search(rf'alertname="{alert}"', tests), f"no test of {alert}"
    for key in ("expr:", "severity:", "summary:", "description:"):
        assert rules.count(key) == len(alerts), key


def test_every_rule_and_panel_asks_for_metrics_that_a_node_has(monitored: Monitored) -> None:
    farrow.connect(monitored.node.socket).put(b"hello", "hello")
    served = set(re.findall(r"^# TYPE (\S+)", monitored.text, re.M))
    histograms = set(re.findall(r"^# TYPE (\S+) histogram", monitored.text, re.M))
    for name in histograms:
        served |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    groups = monitored.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    assert not [rule["lastError"] for rule in rules if rule.get("lastError")]
    for text in [rule["query"] for rule in rules] + expressions():
        assert set(METRIC.findall(text)) <= served, text
        # Prometheus parses it and evaluates it.
        monitored.ask("query", query=text)
    # The kinds of error that rules name.
    kinds = set(re.findall(r'^farrow_request_errors_total\{error="(\w+)"\}', monitored.text, re.M))
    known = (ROOT / "crates" / "wire" / "src" / "error.rs").read_text()
    for rule in rules:
        for requested in re.findall(r'error=~?"([^"]+)"', rule["query"]):
            for kind in requested.split("|"):
                assert f'=> "{kind}"' in known, kind
                assert kind in kinds or len(requested.split("|")) > 1, kind


def test_a_healthy_node_shows_values_and_raises_no_alert(monitored: Monitored) -> None:
    client = farrow.connect(monitored.node.socket)
    client.put(b"x" * (1 << 20), "x")
    with pytest.raises(farrow.NotFound):
        client.drop_namespace("nothing")
    with pytest.raises(farrow.NotFound):
        client.delete(bytes(16))

    def value(query: str) -> float | None:
        result = monitored.ask("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else None

    def errors(kind: str) -> float | None:
        return value(f'farrow_request_errors_total{{error="{kind}"}}')

    wait_until(lambda: errors("no_namespace") == 1, "an error of a request")
    wait_until(lambda: errors("not_found") == 1, "an error of an item")
    assert value("farrow_ready") == 1
    assert value('farrow_namespace_objects{namespace=""}') == 1
    used = value('farrow_namespace_used_bytes{namespace=""}')
    assert used is not None
    assert used >= 1 << 20
    firing = [alert for alert in monitored.ask("alerts")["alerts"] if alert["state"] == "firing"]
    assert not firing, firing


def test_the_dashboard_is_what_grafana_imports() -> None:
    """No Grafana is at hand: the fields that its importer needs, and a layout without overlaps."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["uid"]
    assert "id" not in dashboard
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= GRID_COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"instance", "__rate_interval"}
            assert '{instance=~"$instance"' in target["expr"]
