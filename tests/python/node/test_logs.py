"""What a node logs: text without colours in files, or one JSON object a line."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from conftest import RUN_NODE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from conftest import Node


def test_a_log_in_json_is_one_object_a_line(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARROW_LOG", "info")
    node = make_node("--log-format", "json")
    wait_until(lambda: "listening on" in node.log(), "the last of its first words")
    lines = [json.loads(line) for line in node.log().splitlines()]
    words = [line["fields"]["message"] for line in lines if "message" in line["fields"]]
    assert f"farrow node: listening on {node.socket}" in words
    assert {line["level"] for line in lines} <= {"INFO", "WARN"}
    assert all(line["timestamp"] and line["target"] for line in lines)


def test_a_log_in_a_file_has_no_colours(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARROW_LOG", "debug")
    node = make_node()
    wait_until(lambda: "DEBUG" in node.log(), "a line of detail")
    assert f"farrow node: listening on {node.socket}" in node.log()
    assert "\x1b" not in node.log()


def test_an_error_before_the_log_is_text(tmp_path: Path) -> None:
    command = [*RUN_NODE, "--log-format", "xml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "[possible values: text, json]" in done.stderr
