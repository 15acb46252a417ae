"""What mkdocs does to each page before it renders it.

The help texts of the command are inserted where a page asks for them, so that they have one source;
so are pages of the root of the repository.  Flowcharts become numbered steps.
Links to files of the repository outside of ``docs`` become the path of the file: the site does not
contain them.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from typing import Any

_LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)\s]+)\)")
_FILE = re.compile(r"^<!-- file: (.+) -->$", re.M)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_NODE = re.compile(r"(\w+)[\[{]\"([^\"]+)\"[\]}]")
_EDGE = re.compile(
    r"\s*(\w+)(?:[\[{]\"[^\"]+\"[\]}])? (?:-- \"([^\"]+)\" )?--> (\w+)(?:[\[{]\"[^\"]+\"[\]}])?$"
)
_MARK = re.compile(r"^<!-- help: (.+) -->$", re.M)


def _help(words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "farrow.cli", *words.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
    )
    return f"```text\n{done.stdout.rstrip()}\n```"


def _file(folder: str, name: str) -> str:
    """A page of the root of the repository, with its links as the folder of this page sees them."""
    with open(name, encoding="utf-8") as file:
        text = file.read()
    up = posixpath.relpath(".", posixpath.join("docs", folder))
    links = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
    inside = posixpath.relpath("docs", posixpath.join("docs", folder)) + "/"
    return links.sub(
        lambda match: "](" + f"{up}/{match[1]}".replace(f"{up}/docs/", inside, 1) + ")", text
    )


def _steps(match: re.Match[str]) -> str:
    """A flowchart as numbered steps: drawing it would take a script from elsewhere."""
    texts: dict[str, str] = {}
    edges: dict[str, list[tuple[str, str]]] = {}
    for line in match[1].splitlines()[1:]:
        for name, text in _NODE.findall(line):
            texts.setdefault(name, text)
        edge = _EDGE.match(line)
        if edge is None:
            raise ValueError(f"no edge of a flowchart: {line!r}")
        texts.setdefault(edge[1], edge[1])
        texts.setdefault(edge[3], edge[3])
        edges.setdefault(edge[1], []).append((edge[2] or "", edge[3]))
    all_ways = list(edges.values())
    # A walk is read from top to bottom; of other charts each edge is shown.
    is_walk = any(label for ways in all_ways for label, _ in ways) or max(map(len, all_ways)) == 1
    names = list(texts)
    lines = []
    for number, name in enumerate(names, 1):
        ways = edges.get(name, [])
        told = ", then done" if is_walk and not ways and number < len(names) else ""
        if ways and not (is_walk and ways == [("", names[min(number, len(names) - 1)])]):
            short = [(label, texts[to].partition(":")[0]) for label, to in ways]
            told = " → " + "; ".join(f"{label}: {to}" if label else to for label, to in short)
        lines.append(f"{number}. {texts[name]}{told}")
    return "\n".join(lines)


def _outside(folder: str, match: re.Match[str]) -> str:
    path = posixpath.normpath(posixpath.join("docs", folder, match[2].partition("#")[0]))
    if path.startswith("docs/"):
        return match[0]
    return f"{match[1]} (`{path}`)"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called by mkdocs with the text of each page."""
    folder = posixpath.dirname(page.file.src_uri)
    markdown = _FILE.sub(lambda match: _file(folder, match[1]), markdown)
    markdown = _CHART.sub(_steps, markdown)
    markdown = _MARK.sub(lambda match: _help(match[1].removeprefix("farrow")), markdown)
    return _LINK.sub(lambda match: _outside(folder, match), markdown)
