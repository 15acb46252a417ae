"""Pages of the documentation: their blocks, and figures that nothing backs.

On ``STRICT`` pages each figure with a unit of speed stands in a block.  On other pages a section
with such a figure says where it is from, in comments that hold up to the next heading:

* ``<!-- figures: raw FILE -->``: this file of ``bench/results`` has each of these numbers;
* ``<!-- figures: by hand REASON -->``: no raw samples were kept;
* ``<!-- figures: works -->``: published figures, those of ``bench/reproduction/theirs.json``;
* ``<!-- figures: limits -->``: limits, defaults and settings, not measured.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from citations.blocks import KINDS, text_of
from citations.raw import REPOSITORY, RESULTS, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["CITING", "STRICT", "faults", "pages", "rewritten"]

# Full runs of committed states only.
CITING = ("README.md",)
STRICT = (*CITING, "docs/performance.md")
_OTHER = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "bench/*.md",
          "bench/peers/*.md", "kernel/*.md", "tests/**/*.md")  # fmt: skip

_BLOCK = re.compile(
    r"<!-- measured: (?P<name>[\w-]+) -->\n(?P<text>.*?)\n?<!-- /measured -->", re.DOTALL
)
_LOOSE = re.compile(r"<!-- /?measured\b")
_SOURCE = re.compile(r"<!-- figures: (?P<kind>raw|by hand|works|limits)(?: (?P<rest>[^>]*?))? -->")
_MARK = re.compile(r"<!-- figures:")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`[^`\n]*`")
_SPAN = re.compile(r"<!--.*?-->|\]\([^)]*\)", re.DOTALL)
_UNITS = (
    r"ns|us|µs|ms|[KMGT]i?B/s|GB/s|/s|/second|rows/s|(?:[a-z]+ ){0,2}(?:a|per|each) second"
    r"|times (?:as|faster|slower|the|more|less|quicker)"
)
# On strict pages also units that are mostly sizes, shares and limits elsewhere.
_MORE = r"|s|seconds|minutes|times|%"
_NUMBER = r"(?<![\w.#/-])\d[\d,.]*(?: ?(?:to|and|or) \d[\d,.]*)?[ ]?(?:"
_FIGURE = {
    False: re.compile(f"{_NUMBER}{_UNITS})(?![\\w/])"),
    True: re.compile(f"{_NUMBER}{_UNITS}{_MORE})(?![\\w/])"),
}
_PLAIN = re.compile(r"\d+(?:[.,]\d+)*")
# A table, and units in its head.
_TABLE = re.compile(r"^(?P<head>\|.*)\n\|[ :|-]*\n(?P<rows>(?:\|.*(?:\n|$))+)", re.MULTILINE)
_HEAD_UNIT = re.compile(rf"(?<![\w-])(?:{_UNITS})(?![\w-])")


def pages() -> Iterator[str]:
    """All pages, by their path in the repository."""
    found = {path for pattern in _OTHER for path in REPOSITORY.glob(pattern)}
    yield from STRICT
    for path in sorted(found):
        # Environments of peers and results are not pages.
        name = path.relative_to(REPOSITORY).as_posix()
        if name not in STRICT and not any(part.startswith(".") for part in path.parts[1:]):
            yield name


def rewritten(page: str, text: str) -> str:
    """The text of a page with all blocks made again."""

    def block(match: re.Match[str]) -> str:
        made = text_of(match["name"], page)
        return f"<!-- measured: {match['name']} -->\n{made}\n<!-- /measured -->"

    return _BLOCK.sub(block, text)


def faults(page: str, text: str, results: Path = RESULTS) -> Iterator[str]:
    """What is wrong with the figures of a page, each with its line."""
    for match in _BLOCK.finditer(text):
        yield from _block_faults(page, text, match)
    rest = _BLOCK.sub(_blank, text)
    rest = _INLINE.sub(_blank, _CODE.sub(_blank, rest))
    for match in _LOOSE.finditer(rest):
        yield f"{_place(page, rest, match)}: a block that has no beginning or no end"
    for start, section in _sections(rest):
        sources = list(_SOURCE.finditer(section))
        for source in sources:
            line = _line(rest, start + source.start())
            yield from _source_faults(page, line, source, results)
        if len(sources) != len(_MARK.findall(section)):
            line = _line(rest, start)
            yield f"{page}:{line}: figures: raw FILE, by hand REASON, works or limits"
        plain = _SPAN.sub(_blank, section)
        if not sources:
            for at, figure in _figures(plain, page in STRICT):
                line = _line(rest, start + at)
                yield f"{page}:{line}: {figure!r} has no raw file behind it (bench/README.md)"
        elif all(source["kind"] == "raw" for source in sources):
            known = _numbers_of(sources, results)
            for match in _FIGURE[False].finditer(plain):
                for number in _PLAIN.findall(match[0]):
                    if number not in known:
                        line = _line(rest, start + match.start())
                        yield f"{page}:{line}: {number!r} is not in {sources[0]['rest']}"


def _numbers_of(sources: Sequence[re.Match[str]], results: Path) -> set[str]:
    """All numbers in the files of a section."""
    files = [results / (source["rest"] or "") for source in sources]
    return {
        number for file in files if file.is_file() for number in _PLAIN.findall(file.read_text())
    }


def _figures(text: str, is_strict: bool) -> Iterator[tuple[int, str]]:
    """Figures with a unit, the first of a line; a table's unit may be in its head."""
    seen = set()
    for match in _FIGURE[is_strict].finditer(text):
        line = text.count("\n", 0, match.start())
        if line not in seen:
            seen.add(line)
            yield match.start(), match[0]
    for match in _TABLE.finditer(text):
        unit = _HEAD_UNIT.search(match["head"])
        if unit and re.search(r"\d", match["rows"]):
            yield match.start(), unit[0].strip()


def _block_faults(page: str, text: str, match: re.Match[str]) -> Iterator[str]:
    place, name = _place(page, text, match), match["name"]
    try:
        wanted = text_of(name, page)
    except (ValueError, OSError) as error:
        yield f"{place}: block {name}: {error}"
        return
    run = run_of(KINDS[name])
    if page in CITING and not run.is_citable:
        yield f"{place}: {run.name} is a quick run, or one of files that were not committed"
    have = match["text"].splitlines()
    for number, line in enumerate(wanted.splitlines()):
        if number >= len(have) or have[number] != line:
            found = have[number] if number < len(have) else "nothing"
            first = _line(text, match.start()) + 1 + number
            yield f"{page}:{first}: other than {run.name}: {found!r}, not {line!r}"
            return
    if len(have) > len(wanted.splitlines()):
        yield f"{place}: block {name} has more lines than {run.name} gives"


def _source_faults(
    page: str, line: int, source: re.Match[str], results: Path
) -> Iterator[str]:  # fmt: skip
    kind, rest = source["kind"], source["rest"] or ""
    if page in STRICT:
        yield f"{page}:{line}: figures of this page are made from their run: a block"
    elif kind == "raw" and not (rest and (results / rest).is_file()):
        yield f"{page}:{line}: no file named {rest!r} in bench/results"
    elif kind == "by hand" and not rest:
        yield f"{page}:{line}: say why no raw samples were kept"


def _sections(text: str) -> Iterator[tuple[int, str]]:
    """Sections with their offsets, each from its heading to the next."""
    starts = [0, *(match.start() for match in re.finditer(r"^#+ ", text, re.MULTILINE)), len(text)]
    for start, end in itertools.pairwise(starts):
        yield start, text[start:end]


def _blank(match: re.Match[str]) -> str:
    """As many lines and characters as the match, with nothing in them."""
    return re.sub(r"[^\n]", " ", match[0])


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _place(page: str, text: str, match: re.Match[str]) -> str:
    return f"{page}:{_line(text, match.start())}"
