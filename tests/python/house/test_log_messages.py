"""Log messages of the daemon are short sentences, at the levels that the documentation lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
DAEMON = ROOT / "crates/cluster/src"
CALL = re.compile(r"\btracing::(error|warn|info|debug|trace)!\(")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
# Messages of one or two words, which say nothing without their fields. The number may only fall.
FRAGMENTS_MAX = 0


class Message(NamedTuple):
    level: str
    text: str
    place: str


def messages() -> list[Message]:
    found = []
    for path in sorted(DAEMON.rglob("*.rs")):
        source = path.read_text()
        for call in CALL.finditer(source):
            end, depth = call.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(source[end], 0)
                end += 1
            place = f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, call.start()) + 1}"
            texts = TEXT.findall(source[call.end() : end])
            found.append(Message(call[1], texts[-1] if texts else "", place))
    return found


def test_each_line_has_a_message_without_a_capital_or_a_period() -> None:
    all_of_them = messages()
    assert len(all_of_them) > 100
    wrong = [
        f"{one.place}: {one.text!r}"
        for one in all_of_them
        if not re.fullmatch(r"(?![A-Z][a-z]).*[^.!:]", one.text, re.S)
    ]
    assert wrong == []


def test_messages_are_sentences() -> None:
    fragments = [
        f"{one.place}: {one.text!r}"
        for one in messages()
        if len(one.text.split()) < 3 and "{" not in one.text
    ]
    assert len(fragments) <= FRAGMENTS_MAX, "\n".join(fragments)


def test_the_documentation_lists_the_levels_in_use() -> None:
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    table = page[page.index("| level | messages |") :].split("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)`", table, re.M)
    assert documented == ["error", "warn", "info", "debug"]
    assert {one.level for one in messages()} == set(documented)
