"""``farrow put`` of damaged files and of names that are no text: which one it was, in one line."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from farrow.cli import main
from farrow.cli._files._read import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Node

DAMAGED = {
    "short.parquet": b"PAR1",
    "long.parquet": b"PAR1" + b"a" * 21 + b"PAR1",
    "short.arrow": b"ARROW1\0\0",
    "cut.csv.gz": gzip.compress(b"a,b\n1,2\n" * 100)[:-12],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_error_of_a_damaged_file_names_it(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Of many files, such as those of a pattern, which one was damaged could not be seen."""
    (tmp_path / "a good one.csv").write_text("a\n1\n")
    (tmp_path / name).write_bytes(DAMAGED[name])
    files = [str(tmp_path / "a good one.csv"), str(tmp_path / name)]
    assert main(["put", "--socket", node.socket, *files]) == 1
    error = capsys.readouterr().err
    assert error.startswith("farrow: ")
    assert error.count("\n") == 1
    assert error.count(name) == 1
    assert "a good one" not in error


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "# a remark\na,b"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_header_alone_is_a_table_without_rows(tmp_path: Path, text: str, suffix: str) -> None:
    """Without a line break at its end it was an error about a block size."""
    path = tmp_path / f"header{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".csv.gz" else text.encode())
    table = read_table(path)
    assert (table.num_rows, table.column_names) == (0, ["a", "b"])


def test_a_file_that_cannot_be_read_is_named(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["put", "--socket", node.socket, "/proc/self/mem"]) == 1
    assert capsys.readouterr().err == "farrow: mem: Input/output error\n"


@pytest.mark.parametrize("command", [["put", "--name"], ["get"], ["rm"], ["ls"]])
def test_a_name_that_is_no_text_is_an_error_that_says_so(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """The message was that of Python's codec, with a position instead of the name."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    words = [*command, "\udcff"] + ([str(tmp_path / "a.csv")] if command[0] == "put" else [])
    assert main([words[0], "--socket", node.socket, *words[1:]]) == 1
    assert capsys.readouterr().err == "farrow: \\udcff: not UTF-8\n"
