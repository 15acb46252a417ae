"""The commands ``farrow backup`` and ``farrow restore``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import farrow
from backup_cases import TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Node

pytest_plugins = ["backup_cases"]


def farrow_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farrow.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_commands(node: Node, folder: Path) -> None:
    client = farrow.connect(node.socket)
    client.put(TABLE, "trades")
    client.put(b"1", "one")
    here = ("--socket", node.socket)
    done = farrow_command("backup", *here, str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 objects, ")
    done = farrow_command("restore", *here, "--check", str(folder), "trades")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 objects, ")
    done = farrow_command("restore", *here, str(folder))
    assert done.returncode == 1
    assert done.stderr == "farrow: 'one', 'trades' exist: replace or skip them\n"
    done = farrow_command("restore", *here, "--skip", "--json", str(folder))
    assert json.loads(done.stdout)["skipped"] == ["one", "trades"]
    client.delete("trades")
    done = farrow_command("restore", *here, "--replace", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 objects, ")
    assert client.get("trades").equals(TABLE)
    [file] = folder.rglob("*.bin")
    file.write_bytes(b"2")
    done = farrow_command("restore", *here, "--check", str(folder))
    assert done.returncode == 1
    assert f"farrow: {file}: SHA-256 " in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_of_the_system_are_one_line(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = farrow_command("backup", "--socket", node.socket, str(tmp_path / "file" / "sub"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "x"
