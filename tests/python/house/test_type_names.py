"""One noun, one meaning: no two types of Rust share a name, and no two classes of Python do.

A reader who meets `Registry` in two places has to find out twice what it is, whether or not other
modules can name it.  Tests, models, fuzz targets and measurements count as well.  The associated
types of a trait have the trait's names and are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import rust_structure

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("crates", "bench", "tests")
# The packages; a class of a stub is the one of Rust.
PYTHON_FOLDERS = ("python", "sql")
CLASS = re.compile(r"^class (\w+)", re.M)
# A type of any visibility, an alias, or what shows where an alias stands.
TOKEN = re.compile(r"\b(?:struct|enum|union|trait)\s+([A-Z]\w*)|\btype\s+(\w+)|[;{}]")
HAS_ASSOCIATED_TYPES = re.compile(
    r"\s*(?:#!?\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?:impl|trait)\b"
)
ARRAY_LENGTH = re.compile(r";(?=[^\[\]{};]*\])")


def names_in(text: str) -> list[str]:
    """The types that a file defines, in any module or function of it."""
    code = ARRAY_LENGTH.sub(" ", rust_structure.code_of(text))
    names = []
    are_associated = [False]
    start = 0
    for match in TOKEN.finditer(code):
        name, alias = match.groups()
        if name or (alias and not are_associated[-1]):
            names.append(name or alias)
        elif match[0] == "{":
            are_associated.append(HAS_ASSOCIATED_TYPES.match(code, start) is not None)
        elif match[0] == "}":
            are_associated.pop()
        if match[0] in ";{}":
            start = match.end()
    assert are_associated == [False], "braces that do not match"
    return names


def doubled(root: Path) -> dict[str, list[str]]:
    """The names that are defined several times, with the files."""
    places = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.rs")):
            path = file.relative_to(root)
            if "target" not in path.parts:
                for name in names_in(file.read_text()):
                    places[name].append(str(path))
    return {name: files for name, files in places.items() if len(files) > 1}


def doubled_classes(root: Path) -> dict[str, list[str]]:
    """The classes of modules that are defined several times, with the files."""
    places = defaultdict(list)
    for folder in PYTHON_FOLDERS:
        for file in sorted((root / folder).rglob("*.py*")):
            if file.suffix in (".py", ".pyi"):
                for name in CLASS.findall(file.read_text()):
                    places[name].append(str(file.relative_to(root)))
    return {name: files for name, files in places.items() if len(files) > 1}


def test_no_name_of_a_class_has_two_meanings() -> None:
    assert doubled_classes(ROOT) == {}


def test_a_doubled_class_is_found(tmp_path: Path) -> None:
    for path in ("python/a/__init__.py", "python/a/_native.pyi", "sql/b.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "python/a/__init__.py").write_text(
        "class Once:\n    class Twice: ...\nclass _Two(Once): ...\n"
    )
    (tmp_path / "python/a/_native.pyi").write_text("class Twice: ...\nclass Three: ...\n")
    (tmp_path / "sql/b.py").write_text("class _Two:\n    ...\nclass Three(int): ...\n")
    assert sorted(doubled_classes(tmp_path)) == ["Three", "_Two"]


def test_no_name_of_a_type_has_two_meanings() -> None:
    assert doubled(ROOT) == {}


def test_a_doubled_name_is_found(tmp_path: Path) -> None:
    """The canary: types in modules, functions and tests, of any visibility; no comments, no strings
    and no associated types.
    """
    source, tests = tmp_path / "crates/one/src", tmp_path / "tests/two"
    source.mkdir(parents=True)
    tests.mkdir(parents=True)
    (source / "lib.rs").write_text(
        "pub struct Twice<T>(T);\nstruct Once;\ntype Alias = u8;\n"
        "fn run(row: [u8; 3]) -> u8 { type InFunction = u8; struct Local; 0 }\n"
        '#[cfg(test)]\nmod tests { struct InTest; const TEXT: &str = "struct Once"; }\n'
    )
    (source / "a.rs").write_text(
        "pub(super) enum Twice { A }\npub trait Single { type Item; }\nstruct Private;\n"
        "mod nested { pub(super) type Alias = u16; }\n"
        "impl Iterator for [Twice; 2] {\n    type Item = u8;\n"
        "    fn next(&mut self) { type InFunction = u16; }\n}\n"
    )
    (tests / "b.rs").write_text(
        "// pub struct Single;\npub(crate) union Private { a: u8 }\n"
        "#[allow(x)]\nunsafe impl Iterator for Other {\n    type Item = u8;\n}\ntype Item = u8;\n"
        "fn test() { enum Local {} }\nstruct InTest;\n"
    )
    names = ["Alias", "InFunction", "InTest", "Local", "Private", "Twice"]
    assert sorted(doubled(tmp_path)) == names
