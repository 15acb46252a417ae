"""``farrow put 'data/*.csv'``: a pattern that no shell has expanded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import farrow
from farrow.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Node


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, name in enumerate(("b.csv", "a.csv", "deep/er/c.csv", "other.txt", "[x].csv")):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"n\n{number}\n")
    (tmp_path / "data" / "folder.csv").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("?.csv", {"a", "b"}),
        ("[ab].csv", {"a", "b"}),
        ("*.csv", {"a", "b", "[x]"}),
        ("**/*.csv", {"a", "b", "[x]", "c"}),
        # A file of that name comes first.
        ("[x].csv", {"[x]"}),
    ],
)
def test_a_pattern_is_its_files(node: Node, data: Path, pattern: str, names: set[str]) -> None:
    assert main(["put", "--socket", node.socket, "-q", str(data / pattern)]) == 0
    client = farrow.connect(node.socket)
    assert set(client.list()["name"].to_pylist()) == names
    if "b" in names:
        assert client.get("b")["n"].to_pylist() == [0]


def test_what_is_refused_puts_nothing(
    node: Node, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "deep/b.csv.gz").write_bytes(b"")
    put = ["put", "--socket", node.socket, "-q"]
    for arguments, message in (
        ([str(data / "*.parquet")], "*.parquet: no file matches"),
        ([str(data / "folder.[c]sv")], "folder.[c]sv: no file matches"),
        ([str(data / "*.csv"), "--name", "n"], "--name n: one name for 3 files"),
        ([str(data / "**/b.*"), "--replace"], "deep/b.csv.gz: both would be named 'b'"),
        (["https://example.org/*.csv"], "a URL names one file, not a pattern"),
        (["https://example.org/"], "https://example.org/ names no file: use --name NAME"),
        (["none://host/a.csv"], "none:// is a URL of neither pyarrow"),
        (["https://host/b.csv?key=secret", str(data / "deep/b.csv.gz")], "both would be named 'b'"),
    ):
        assert main([*put, *arguments]) == 1
        assert message in capsys.readouterr().err
    assert len(farrow.connect(node.socket)) == 0
