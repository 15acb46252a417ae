"""What mkdocs does to each page before it renders it.

The help texts of all commands are inserted into their page, so that they have one source; so are
the C header and pages of the root of the repository.  Flowcharts become drawings.
Links to files of the repository outside of ``docs`` become the path of the file: the site does not
contain them.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import _c_reference
import _command
import _flowcharts

# As mkdocs' own: a strict build fails by a warning.
_log = logging.getLogger("mkdocs.hooks")

_LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)\s]+)\)")
_FILE = re.compile(r"^<!-- file: (.+) -->$", re.M)
_HEADER = re.compile(r"^<!-- header: (.+) -->$", re.M)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
# An option for the tests, which run the block only where that package is.
_REQUIRES = re.compile(r"^```python requires=\"[^\"]+\"$", re.M)
_COMMANDS = re.compile(r"^<!-- commands -->$", re.M)


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


def _header(name: str) -> str:
    return _c_reference.page(Path(name).read_text(encoding="utf-8"))


def _outside(folder: str, match: re.Match[str]) -> str:
    path = posixpath.normpath(posixpath.join("docs", folder, match[2].partition("#")[0]))
    if path.startswith("docs/"):
        return match[0]
    if not Path(path).exists():
        _log.warning("a page of docs/%s links to %s, which is not there", folder, path)
    return f"{match[1]} (`{path}`)"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called by mkdocs with the text of each page."""
    folder = posixpath.dirname(page.file.src_uri)
    markdown = _FILE.sub(lambda match: _file(folder, match[1]), markdown)
    markdown = _CHART.sub(lambda match: _flowcharts.figure(match[1]), markdown)
    markdown = _REQUIRES.sub("```python", markdown)
    markdown = _COMMANDS.sub(lambda _: _command.page(), markdown)
    markdown = _HEADER.sub(lambda match: _header(match[1]), markdown)
    return _LINK.sub(lambda match: _outside(folder, match), markdown)
