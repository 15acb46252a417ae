"""The reference of the C interface: the comments and declarations of its header, as a page.

A header is read as it is written: sections (``/* ---- title ---- */``), and in them declarations,
each behind its comment.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Declaration", "declarations", "page"]

_SECTION = re.compile(r"/\* -{4} (.+?) -+ \*/\n")
_COMMENT = re.compile(r"/\*(.*?)\*/\n", re.S)
# Up to a semicolon at the end of a line, except of a field, with the comment behind it.
_DECLARATION = re.compile(r"#define \w+ [^\n]+\n|\w(?:[^;{]|\{[^}]*\})*;(?: */\*.*?\*/)?\n", re.S)
_IGNORED = re.compile(
    r"\n|#(?:ifn?def|include|endif)\b.*\n|#define \w+\n|extern \"C\" \{\n|\}.*\n|struct \w+;\n"
)
_HANDLE = re.compile(r"typedef struct (\w+) \1; +/\* (.+) \*/")
# Names of C in a text, and what is marked as code there.
_NAME = re.compile(r"(`[^`]+`)|(\bfarrow_\w+(?:\(\))?|\$?\b[A-Z]+_[A-Z_]+\b|\bNULL\b)")


class Declaration(NamedTuple):
    """One declaration: the title of its section, its name, its comment, and its code."""

    section: str
    name: str
    text: str
    code: str


def declarations(header: str) -> list[Declaration]:
    """The declarations of a header, in its order.

    Raises:
        ValueError: a line is neither a declaration nor a comment.
    """
    found: list[Declaration] = []
    section, text, at = "types", "", 0
    while at < len(header):
        if match := _SECTION.match(header, at):
            section, text = match[1], ""
        elif match := _COMMENT.match(header, at):
            text = _paragraphs(match[1])
        elif match := _IGNORED.match(header, at):
            # A blank line parts a comment from what follows.
            text = "" if match[0] == "\n" else text
        elif match := _DECLARATION.match(header, at):
            found.append(Declaration(section, _name_of(match[0]), text, match[0].rstrip()))
            text = ""
        else:
            line = header[at:].partition("\n")[0]
            raise ValueError(f"neither a declaration nor a comment: {line!r}")
        at = match.end()
    return found


def _paragraphs(comment: str) -> str:
    lines = [line.strip(" *") for line in comment.strip().splitlines()]
    return " ".join(line or "\n\n" for line in lines).replace(" \n\n ", "\n\n")


def _name_of(code: str) -> str:
    match = re.match(r"#define (\w+)|typedef \w+ \(\*(\w+)\)|.*?(\w+)\(", code, re.S)
    if code.startswith("typedef") and not (match and match[2]):
        return re.findall(r"(\w+);", code)[-1]
    assert match is not None
    return next(name for name in match.groups() if name)


def page(header: str) -> str:
    """Sections of a header, each with its declarations: a heading, the code, and the comment."""
    known = declarations(header)
    names = {one.name for one in known}
    parts: list[str] = []
    section = ""
    handles = [match for one in known if (match := _HANDLE.match(one.code))]
    for one in known:
        if one.section != section:
            section = one.section
            title, _, text = section.partition(": ")
            parts.append(f"## {title[:1].upper()}{title[1:]}")
            if text:
                parts.append(f"{_linked(text, names)[:1].upper()}{_linked(text, names)[1:]}.")
        if not _HANDLE.match(one.code):
            parts.append(f"### `{one.name}`\n\n```c\n{one.code}\n```")
            parts.append(_linked(one.text, names))
        elif handles and one.name == handles[0][1]:
            rows = (f"| `{match[1]}` | {_linked(match[2], names)} |" for match in handles)
            parts.append("### Handles\n\n| handle | is |\n| --- | --- |\n" + "\n".join(rows))
    return "\n\n".join(part for part in parts if part)


def _linked(text: str, names: set[str]) -> str:
    """A comment as Markdown: names are code, and those of the page links."""

    def mark(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = match[2].removesuffix("()")
        return f"[`{match[2]}`](#{name.lower()})" if name in names else f"`{match[2]}`"

    return _NAME.sub(mark, text)
