"""What mkdocs does to each page before it renders it.

The help texts of the command are inserted where a page asks for them, so that they have one source;
so are pages of the root of the repository.  Flowcharts become numbered steps.
Links to files of the repository outside of ``docs`` become the path of the file: the site does not
contain them.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import subprocess
import sys
from typing import Any

_LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)\s]+)\)")
_FILE = re.compile(r"^<!-- file: (.+) -->$", re.M)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_NODE = re.compile(r"(\w+)(?:[\[{]\"([^\"]+)\"[\]}])?")
_ARROW = re.compile(r" (?:-- \"([^\"]+)\" )?(-->|-\.->) ")
_GROUP = re.compile(r"subgraph \w+ \[\"?([^\]\"]+)\"?\]")
# An option for the tests, which run the block only where that package is.
_REQUIRES = re.compile(r"^```python requires=\"[^\"]+\"$", re.M)
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
    group = ""
    for line in map(str.strip, match[1].splitlines()[1:]):
        if line == "end":
            group = ""
        elif found := _GROUP.fullmatch(line):
            group = f" ({found[1]})"
        else:
            _read_edges(line, group, texts, edges)
    all_ways = list(edges.values())
    # A walk is read from top to bottom; of other charts each edge is shown.
    labels = {label for ways in all_ways for label, _ in ways} - {"", "for its tests"}
    is_walk = bool(labels) or max(map(len, all_ways)) == 1
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


def _read_edges(
    line: str, group: str, texts: dict[str, str], edges: dict[str, list[tuple[str, str]]]
) -> None:
    """The nodes of a line, and the arrows between them."""
    # Nodes, each followed by the label and the kind of the arrow to the next one.
    parts = _ARROW.split(line)
    names = []
    for part in parts[::3]:
        node = _NODE.fullmatch(part)
        if node is None:
            raise ValueError(f"no line of a flowchart: {line!r}")
        if node[2] is not None or node[1] not in texts:
            texts[node[1]] = (node[2] or node[1]) + group
        names.append(node[1])
    for (start, to), label, kind in zip(
        itertools.pairwise(names), parts[1::3], parts[2::3], strict=True
    ):
        told = label or ("for its tests" if kind == "-.->" else "")
        edges.setdefault(start, []).append((told, to))


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
    markdown = _REQUIRES.sub("```python", markdown)
    markdown = _MARK.sub(lambda match: _help(match[1].removeprefix("farrow")), markdown)
    return _LINK.sub(lambda match: _outside(folder, match), markdown)
