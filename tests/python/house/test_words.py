"""Names and prose use the field's terms: the words that they replaced may only become fewer.

Each word has a ceiling, for the identifiers and for the comments of production Rust and Python, and
for the texts of Python: docstrings, messages, and the help of the command.  A ceiling may fall.
Identifiers of tests have a list of their own; strings of Rust and code in prose are left out.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUST = sorted(
    path
    for path in ROOT.glob("crates/*/src/**/*.rs")
    if "testkit" not in path.parts
    and not any(re.search(r"^tests?$|_tests?$|^models$", part) for part in (*path.parts, path.stem))
)
PYTHON = sorted((ROOT / "python/farrow").rglob("*.py"))
WITH_TEXTS = [
    *PYTHON,
    ROOT / "python/farrow/_native.pyi",
    *sorted((ROOT / "sql/farrow_sql").rglob("*.py")),
]

COMMENT_OR_STRING = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|b?r(?P<hash>\#*)".*?"(?P=hash)"""
    r"""|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\\n]|\\[^\n]+?)'""",
    re.S,
)
# A module of tests in a file of production code is its end.
INLINE_TESTS = re.compile(r"^#\[cfg\((?:test|all\(test.*)\)\]\n(?:#\[.*\n)*mod \w+ \{", re.M)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# A line of an example in a docstring.
EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.M)

# The word, the field's term, and the most uses in identifiers, in comments and in texts of Python.
# `None`: plain English there.
WORDS = {
    "tell": ("notify, send, publish", 6, 20, 0),
    "tells": ("notifies, reports", 0, 0, 0),
    "told": ("notified, reported", 0, 0, 0),
    "teller": ("sender", 0, 0, 0),
    "asked": ("requested", 0, None, None),
    "answered": ("on_response", 11, None, 0),
    "letter": ("message", 20, 2, 2),
    "letters": ("messages", 8, 1, 2),
    "neighbour": ("peer", 8, 7, 0),
    "seat": ("remote session", 0, 0, 0),
    "seated": ("remote session", 0, 0, 0),
    "guest": ("remote client", 0, 1, 0),
    "keeper": ("owner", 0, 0, 0),
    "registrar": ("name authority", 0, 0, 0),
    "roster": ("members", 0, 0, 0),
    "promise": ("reservation", 10, 0, 0),
    "promised": ("reserved", 37, 2, 0),
    "gone": ("removed, ended, evicted", 0, 0, 0),
    "kept": ("retained, stored", 0, 2, 1),
    "unkept": ("not stored", 0, 0, 0),
    "anew": ("again, rebuilt", 0, 0, 0),
    "nobody": ("no client, no thread, nothing", 0, 0, 0),
    "whoever": ("any node, any client", 0, 0, 0),
    "for ever": ("always, without end", 0, 0, 0),
    "so many": ("this number of", 0, 0, 0),
    "so long": ("this time", 0, 0, 0),
    "taken up": ("resumed", 0, 0, 0),
    "others": ("peers, other nodes", 0, None, None),
    "goes": ("is, continues, is sent", None, None, 0),
    "comes": ("is, arrives, is received", None, None, 0),
    "lets go": ("releases", None, None, 0),
    "let go": ("release", None, None, 0),
    "means ill": ("is malicious", None, None, 0),
}


# The same for the identifiers of tests: those that have none, and the rest with their uses.
WORDS_OF_TESTS = dict.fromkeys(
    ("told", "teller", "gone", "kept", "anew", "whoever", "seat", "seated", "registrar", "roster"),
    0,
) | {
    # The user of this name.
    "nobody": 23,
    # A position in a file, and the call of this name between nodes.
    "tell": 32,
    "tells": 2,
}
TESTS = sorted(
    path
    for pattern in ("crates/**/*.rs", "tests/**/*.rs", "tests/python/**/*.py")
    for path in ROOT.glob(pattern)
    if path not in RUST and not {"target", "house"} & set(path.relative_to(ROOT).parts)
)


def parts_of_rust(text: str) -> tuple[str, str]:
    """The code of a file without strings, and its comments."""
    if tests := INLINE_TESTS.search(text):
        text = text[: tests.start()]
    comments = []

    def blank(match: re.Match[str]) -> str:
        if match["comment"]:
            comments.append(match["comment"])
        return " "

    return COMMENT_OR_STRING.sub(blank, text), "\n".join(comments)


def parts_of_python(text: str) -> tuple[str, str]:
    """The names of a file, and its comments."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    names = " ".join(token.string for token in tokens if token.type == tokenize.NAME)
    comments = "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)
    return names, comments


def texts_of_python(text: str) -> str:
    """Docstrings without examples, and all strings of several words."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    return EXAMPLE.sub("", "\n.\n".join(strings))


def count(code: str, comments: str) -> tuple[Counter[str], Counter[str]]:
    """The words of the identifiers, and of the comments."""
    identifiers: Counter[str] = Counter()
    for name in IDENTIFIER.findall(code):
        identifiers.update({part.lower() for part in PART.findall(name)})
    return identifiers, words_of(comments)


def words_of(text: str) -> Counter[str]:
    """The words of prose; two that follow each other are also one."""
    # Code in prose is the name of something.
    prose = re.findall(r"[a-z]+", re.sub(r"(`+)[^`]*\1", " . ", text).lower())
    pairs = (f"{one} {two}" for one, two in itertools.pairwise(prose))
    return Counter(prose) + Counter(pairs)


@pytest.fixture(scope="module")
def used() -> tuple[Counter[str], Counter[str], Counter[str]]:
    identifiers: Counter[str] = Counter()
    prose: Counter[str] = Counter()
    for paths, parts_of in ((RUST, parts_of_rust), (PYTHON, parts_of_python)):
        for path in paths:
            some, more = count(*parts_of(path.read_text()))
            identifiers += some
            prose += more
    texts = words_of("\n.\n".join(texts_of_python(path.read_text()) for path in WITH_TEXTS))
    return identifiers, prose, texts


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_used_no_more_often(
    word: str, used: tuple[Counter[str], Counter[str], Counter[str]]
) -> None:
    term, *most = WORDS[word]
    found = [counted[word] for counted in used]
    places = ("identifiers", "comments", "texts of Python")
    for place, uses, ceiling in zip(places, found, most, strict=True):
        assert ceiling is None or uses <= ceiling, (
            f"{word!r} is in {uses} {place} of production code, {ceiling} are allowed: "
            f"write {term!r}, or what says more"
        )


def test_tests_use_the_terms_in_names_too() -> None:
    used: Counter[str] = Counter()
    for path in TESTS:
        text = path.read_text()
        names = parts_of_python(text)[0] if path.suffix == ".py" else code_of_rust(text)
        used += count(names, "")[0]
    # Modules of tests in production files.
    for path in RUST:
        if tests := INLINE_TESTS.search(text := path.read_text()):
            used += count(code_of_rust(text[tests.start() :]), "")[0]
    found = {word: used[word] for word, most in WORDS_OF_TESTS.items() if used[word] > most}
    assert found == {}, "words in identifiers of tests, and their uses"
    assert used["node"] > 1000


def code_of_rust(text: str) -> str:
    """The code of a file without comments and strings, its tests included."""
    return COMMENT_OR_STRING.sub(" ", text)


def test_words_are_counted() -> None:
    """The canary: parts of names, comments, no strings, no tests, no code in comments."""
    rust = """/// Told so many times: `told_at` is told.
struct Teller<'a>(&'a str); fn is_told(x: u8) { let told = "told"; toldest() } // Not gone.
#[cfg(test)]
mod tests { fn told() {} } // told
"""
    identifiers, prose = count(*parts_of_rust(rust))
    assert (identifiers["told"], identifiers["teller"], identifiers["gone"]) == (2, 1, 0)
    assert (prose["told"], prose["so many"], prose["gone"]) == (2, 1, 1)
    python = 'def tell_all(told="told"):  # told\n    """Told."""\n    return told\n'
    identifiers, prose = count(*parts_of_python(python))
    assert (identifiers["tell"], identifiers["told"], prose["told"]) == (1, 2, 1)
    texts = 'def f(told="told"):\n    """Told at last."""\n    return f"It is {told} told: `told`."'
    assert words_of(texts_of_python(texts))["told"] == 2
    example = 'def f():\n    """Told.\n\n    >>> told = 1  # told twice\n    """\n'
    assert words_of(texts_of_python(example))["told"] == 1
