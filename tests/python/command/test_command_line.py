"""The help of the command: each command says what it does, and the reference has all of them.

``farrow nodes forget --help`` once had no word about what the command does, which can corrupt
readers; the reference, written by hand, lacked six commands and all actions.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from farrow.cli import main
from farrow.cli._commands import COMMANDS
from farrow.cli._parser import all_parsers

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))

import _hooks  # noqa: E402

# The daemon parses its options.
PARSERS = {words: parser for words, parser in all_parsers() if words != "farrow node"}
# Commands whose results are those of the whole node.
OF_NODE = ["nodes", "namespaces", "stat", "stop", "top", "node set", "node drain", "doctor"]
# A help text that needs the name of its option to be read.
FRAGMENT = re.compile(r"(of|that|for which|say|most|such as|by|\(default)\b")


@pytest.mark.parametrize("words", PARSERS)
def test_a_command_describes_itself_and_its_options(words: str) -> None:
    parser = PARSERS[words]
    assert re.fullmatch(r"[A-Z].*\.", parser.description or "", re.S)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        assert action.help, action.dest
        assert not FRAGMENT.match(action.help), action.help


def test_the_reference_has_every_command_and_action() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/command.md"))
    text = (ROOT / "docs/reference/command.md").read_text()
    shown = _hooks.on_page_markdown(text, page)
    titles = re.findall(r"^##+ farrow (.+)$", shown, re.M)
    assert set(COMMANDS) | {"node"} <= set(titles)
    assert {"nodes forget", "namespaces permit", "certs revoke", "graph patterns"} <= set(titles)
    assert len(titles) == len(set(titles)) == len(PARSERS)
    for words in titles:
        assert f"usage: farrow {words}" in shown or words == "node"
    assert "--allow-uid" in shown


def test_the_list_of_commands_names_those_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert "node set" in shown
    assert "node drain" in shown


@pytest.mark.parametrize("command", OF_NODE)
def test_a_command_of_the_whole_node_has_no_namespace(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``farrow stop --namespace TYPO`` looked for the namespace and did not stop the node."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--namespace=typo"])
    assert ended.value.code == 2
    assert "--namespace" in capsys.readouterr().err


def test_folders_of_memory_and_of_spilled_objects_are_two_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        "farrow._native.leftovers", lambda dirs, *, remove: given.extend(dirs) or []
    )
    options = PARSERS["farrow clean"].parse_args(["--spill", "/s", "--memory-dir", "/m"])
    assert (options.spill, options.memory_dir) == (["/s"], ["/m"])
    assert main(["clean", "--spill", "/s", "--memory-dir", "/m"]) == 0
    assert sorted(given) == ["/m", "/s"]
