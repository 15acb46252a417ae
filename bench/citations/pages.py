"""Pages of the documentation: their blocks, and figures that nothing backs.

On ``STRICT`` pages each figure with a unit of speed, each share and each comparison stands in a
block.  On other pages a section with such a figure says where it is from, in comments that hold up
to the next heading:

* ``<!-- figures: raw FILE -->``: this file of ``bench/results`` has each of these numbers;
* ``<!-- figures: by hand REASON -->``: no raw samples were kept;
* ``<!-- figures: works -->``: published figures, each in ``bench/reproduction/theirs.json``;
* ``<!-- figures: limits -->``: limits, defaults and settings, which compare nothing.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import TYPE_CHECKING

from citations.blocks import KINDS, text_of
from citations.raw import REPOSITORY, RESULTS, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["STRICT", "faults", "pages", "rewritten"]

# Blocks only, of full runs of committed states.
STRICT = ("README.md", "docs/performance.md")
_OTHER = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "bench/*.md",
          "bench/peers/*.md", "kernel/*.md", "tests/**/*.md")  # fmt: skip

_THEIRS = REPOSITORY / "bench/reproduction/theirs.json"
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
    r"ns|us|µs|ms|(?:nano|micro|milli)seconds?|[KMGT]i?B/s|GB/s|/s|/second|rows/s"
    r"|(?:[a-z]+ ){0,2}(?:a|per|each) second"
)
_THAN = r"(?:faster|slower|quicker|shorter|longer|less|more|fewer|better|worse)"
# What follows the number of a comparison; "64 x `name`" is a product.
_RATIOS = rf"times (?:as|the|{_THAN})|x(?= ?(?:[.,;:|)]|as\b|{_THAN}|$))|(?:%|percent) {_THAN}"
# On strict pages also units that are mostly sizes and limits elsewhere.
_MORE = r"|s|seconds|minutes|times"
_NUMBER = r"(?<![\w.#/-])\d[\d,.]*(?: ?(?:to|and|or) \d[\d,.]*)?[ ]?(?:"
# Comparisons of other forms: "0.97 of the best copy", and those without a digit.
_SHARE = r"(?<![\w.#/-])[01]\.\d+ of (?:the|that|an?|its|what)\b"
_PART = r"(?:half|twice|double|two thirds|an? (?:third|quarter|fifth|tenth))"
_WORDS = (
    rf"\b{_PART}(?:\s+of)?\s+"
    rf"(?:(?:the|its)\s+(?:time|speed|rate|latency)\b|as\s+(?:fast|quick|slow)|{_THAN}\s+time"
    r"|faster|slower|quicker)"
)
_COMPARED = f"{_NUMBER}{_RATIOS})(?![\\w/])|{_SHARE}|{_WORDS}"
_COMPARISON = re.compile(_COMPARED, re.MULTILINE)
_FIGURE = {
    is_strict: re.compile(f"{_NUMBER}{_UNITS}|%|percent{more})(?![\\w/])|{_COMPARED}", re.MULTILINE)
    for is_strict, more in ((False, ""), (True, _MORE))
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
        for at, words in _section_faults(page, plain, sources, results):
            yield f"{page}:{_line(rest, start + at)}: {words}"


def _section_faults(
    page: str, plain: str, sources: Sequence[re.Match[str]], results: Path
) -> Iterator[tuple[int, str]]:
    """What is wrong with the figures of a section, by its marks."""
    kinds = {source["kind"] for source in sources}
    if not kinds:
        for at, figure in _figures(plain, page in STRICT):
            yield at, f"{figure!r} has no raw file behind it (bench/README.md)"
    elif kinds == {"raw"}:
        known = _numbers_of(sources, results)
        yield from _unknown(_FIGURE[False], plain, known, str(sources[0]["rest"]))
    elif kinds == {"limits"}:
        for match in _COMPARISON.finditer(plain):
            yield match.start(), f"{match[0]!r} compares, and is no limit"
    elif kinds <= {"works", "limits"}:
        # Beside limits the comparisons alone are surely published ones.
        pattern = _COMPARISON if "limits" in kinds else _FIGURE[False]
        yield from _unknown(pattern, plain, _published(), _THEIRS.name)


def _unknown(
    pattern: re.Pattern[str], plain: str, known: set[str], name: str
) -> Iterator[tuple[int, str]]:
    for match in pattern.finditer(plain):
        for number in _PLAIN.findall(match[0]):
            if number not in known:
                yield match.start(), f"{number!r} is not in {name}"


@functools.lru_cache
def _published() -> set[str]:
    """The numbers of the works, as a page may write them; not their pages and sections."""
    found = set()
    for one in json.loads(_THEIRS.read_text())["figures"]:
        values = one["value"] if isinstance(one["value"], list) else [one["value"]]
        for value in (value for value in values if value is not None):
            forms = {f"{value:g}", f"{value:,}", f"{value:,.0f}"}
            # Of a large number a page may leave the decimals out.
            exact = {form for form in forms if float(form.replace(",", "")) == value}
            found |= exact if value < 1000 else forms
        found |= set(_PLAIN.findall(f"{one['what']} {one['conditions']}"))
    return found


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
    runs = runs_of(*KINDS[name])
    for run in runs if page in STRICT else ():
        if not run.is_citable:
            yield f"{place}: {run.name} is a quick run, or one of files that were not committed"
    source = ", ".join(run.name for run in runs) or "no run"
    have = match["text"].splitlines()
    for number, line in enumerate(wanted.splitlines()):
        if number >= len(have) or have[number] != line:
            found = have[number] if number < len(have) else "nothing"
            first = _line(text, match.start()) + 1 + number
            yield f"{page}:{first}: other than {source}: {found!r}, not {line!r}"
            return
    if len(have) > len(wanted.splitlines()):
        yield f"{place}: block {name} has more lines than {source} gives"


def _source_faults(
    page: str, line: int, source: re.Match[str], results: Path
) -> Iterator[str]:  # fmt: skip
    kind, rest = source["kind"], source["rest"] or ""
    if page in STRICT:
        yield f"{page}:{line}: figures of this page are made from their run: a block"
    elif kind == "raw" and not (rest and (results / rest).is_file()):
        yield f"{page}:{line}: no file named {rest!r} in bench/results"
    elif kind == "raw" and not _is_citable(results / rest):
        yield f"{page}:{line}: {rest} is of a quick run, or of files that were not committed"
    elif kind == "by hand" and not rest:
        yield f"{page}:{line}: say why no raw samples were kept"


def _is_citable(path: Path) -> bool:
    """Whether a file is of no run that says that it was quick, or that files were changed."""
    path = path.with_suffix(".json")
    if not path.is_file():
        return True
    found = json.loads(path.read_text())
    return not found.get("quick") and not (found.get("commit") or {}).get("changed")


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
