"""``farrow clean``, and what ``farrow doctor`` says of the same.

A killed node's memory stayed in its place until somebody removed it by hand, file by file, and had
to know which files nobody used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import LIMIT_SECONDS
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node


def clean(node: Node, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """The exit code, and what is left in the node's folders."""
    folders = [str(node.memory_dir), str(node.folder)]
    code = main(["clean", "--json", *(f"--memory-dir={one}" for one in folders), *words])
    found = json.loads(capsys.readouterr().out)
    return code, [one for one in found if one["path"].startswith(tuple(folders))]


def test_what_a_killed_node_left_is_listed_and_removed(
    make_node: Callable[..., Node], capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node("--memory", "32MiB")
    client = farrow.connect(node.socket)
    client.put(b"x" * 100_000, "x")
    assert clean(node, capsys, "--dry-run")[1] == []
    node.kill9()
    # A client maps it still.
    held = client.get("x")
    assert [one["kind"] for one in clean(node, capsys)[1]] == ["socket"]
    assert len(list(node.memory_dir.iterdir())) == 2
    del client
    assert clean(node, capsys)[1] == []
    assert held.to_pybytes() == b"x" * 100_000
    del held
    node.start()
    assert farrow.connect(node.socket).get("x").to_pybytes() == b"x" * 100_000
    node.kill9()
    code, found = clean(node, capsys, "--dry-run")
    assert code == 3
    assert {one["kind"] for one in found} == {"region", "socket"}
    assert sum(one["bytes"] for one in found) > 32 << 20
    assert clean(node, capsys)[0] == 0
    assert list(node.memory_dir.iterdir()) == []
    assert clean(node, capsys, "--dry-run")[1] == []
    node.start()
    assert farrow.connect(node.socket).stats()["adopted"] == 0


def test_what_cannot_be_removed_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = {"kind": "region", "path": "/x", "bytes": 4096, "error": "resource busy"}
    monkeypatch.setattr("farrow._native.leftovers", lambda dirs, *, remove: [stuck])
    assert main(["clean"]) == 1
    said = capsys.readouterr()
    assert "/x stays: resource busy" in said.err
    assert "4.00 KiB" in said.out
    monkeypatch.setattr("farrow._native.leftovers", lambda dirs, *, remove: [])
    assert main(["clean"]) == 0
    assert "Nothing was left behind" in capsys.readouterr().out


def test_doctor_and_a_start_report_it(node: Node, tmp_path: Path) -> None:
    env = {**os.environ, "FARROW_MEMORY_DIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    name = f"farrow-{os.geteuid()}-00000000000000aa"
    for part in ("control", "data"):
        (tmp_path / f"{name}.{part}").write_bytes(b"x" * 8192)
    command = [sys.executable, "-m", "farrow.cli", "doctor", "--json"]
    reported = subprocess.run(command, env=env, capture_output=True, check=True, timeout=60)
    found = json.loads(reported.stdout)["findings"]
    left = [one for one in found if name in one["what"]]
    assert [one["command"] for one in left] == ["farrow clean --dry-run"]
    assert "16.0 KiB" in left[0]["consequence"]
    # A node that starts says so in one line.
    socket = str(tmp_path / "n.sock")
    command = [sys.executable, "-m", "farrow.cli", "node", "--memory", "8MiB", "--socket", socket]
    env["FARROW_MEMORY_DIR"] = str(node.memory_dir)
    other = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert other.stderr is not None
    lines = []
    for line in other.stderr:
        lines.append(line)
        if "listening on" in line:
            break
    other.terminate()
    other.communicate(timeout=60)
    assert other.returncode == 0
    assert sum("farrow clean" in line for line in lines) <= 1, lines


def test_a_supervised_node_goes_on_when_its_daemon_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As users start it: nobody starts the daemon again by hand, and nothing is lost."""
    socket = str(tmp_path / "n.sock")
    command = [sys.executable, "-m", "farrow.cli", "node", "--memory", "16MiB", "--socket", socket]
    env = {key: value for key, value in os.environ.items() if key != "FARROW_MEMORY_DIR"}
    node = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert node.stderr is not None
    assert any("listening on" in line for line in node.stderr)
    client = farrow.connect(socket)
    client.put(b"kept", "kept")
    first = client.stats()["pid"]
    assert first != node.pid
    os.kill(first, 9)
    assert farrow.connect(socket).get("kept").to_pybytes() == b"kept"
    second = client.stats()["pid"]
    assert second not in (first, node.pid)
    node.terminate()
    node.communicate(timeout=60)
    assert node.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_memory_on_a_disk_is_refused_at_once(tmp_path: Path) -> None:
    """Before, the node failed after ten seconds without the reason, and left its files."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("the folder of the tests is in memory")
    words = ["--memory", "64MiB", "--memory-dir", tmp_path, "--socket", tmp_path / "node.sock"]
    node = subprocess.run(
        ["farrow", "node", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert node.returncode == 1
    assert f"{tmp_path} is in no tmpfs" in node.stderr
    assert not list(tmp_path.iterdir())
