"""One noun, one meaning: no two types of the Rust workspace share a name.

A reader who meets `Registry` in two crates has to find out twice what it is, whether or not other
modules can name it.  What only a test compiles is left out, and so are programs and the associated
types of a trait.
"""

from __future__ import annotations

import re
from pathlib import Path

import rust_structure

ROOT = Path(__file__).resolve().parents[3]
CRATES = sorted(path.parents[1] for path in (ROOT / "crates").glob("*/src/lib.rs"))
# Of any visibility. An alias stands at the start of a line: an associated type is indented.
TYPE = re.compile(
    r"\b(?:struct|enum|union|trait)\s+([A-Z]\w*)|(?m:^)(?:pub(?:\([^)]*\))?\s+)?type\s+(\w+)"
)
# Names that are in several places with one meaning, and why.
SHARED = {
    "CancelToken": "the binding of the client's",
    "Client": "the binding of the client's",
    "HugeTable": "the binding of the client's",
    "Writer": "the binding of the client's",
    "Node": "a node of the cluster: as its own process runs it, and as a client asks it for memory",
    "Random": "random numbers of tests; `arrow` has no crate of ours below it",
}


def names_of(crate: Path) -> set[tuple[str, str]]:
    """The types of a crate, each with its file."""
    root = rust_structure.read(crate)
    return {
        (name, f"{crate.name}/src/{module.file}")
        for module in rust_structure.walk(root)
        for name in map("".join, TYPE.findall(module.code))
    }


def doubled(names: set[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that are in several files, with these."""
    places: dict[str, list[str]] = {}
    for name, file in sorted(names):
        places.setdefault(name, []).append(file)
    return {name: files for name, files in places.items() if len(files) > 1}


def test_no_name_of_a_type_has_two_meanings() -> None:
    found = doubled({one for crate in CRATES for one in names_of(crate)})
    assert {name: files for name, files in found.items() if name not in SHARED} == {}


def test_the_list_of_shared_names_has_no_other() -> None:
    assert set(SHARED) <= set(doubled({one for crate in CRATES for one in names_of(crate)}))


def test_a_doubled_name_is_found(tmp_path: Path) -> None:
    """The canary: types in modules and files, of any visibility; no tests, no comments and no
    associated types.
    """
    (tmp_path / "src").mkdir()
    (tmp_path / "src/lib.rs").write_text(
        "mod a; mod b;\npub struct Twice<T>(T);\nstruct Once;\ntype Alias = u8;\n"
        "#[cfg(test)] mod tests;\n"
    )
    (tmp_path / "src/a.rs").write_text(
        "pub(super) enum Twice { A }\npub trait Single { type Item; }\nstruct Private;\n"
        "mod nested { pub(super) type Alias = u16; }\n"
    )
    (tmp_path / "src/b.rs").write_text(
        "// pub struct Single;\npub(crate) union Private { a: u8 }\n"
        "impl Iterator for Other {\n    type Item = u8;\n}\ntype Item = u8;\ntype Alias = u32;\n"
        "#[cfg(test)]\nmod tests { pub struct Single; }\n"
    )
    (tmp_path / "src/tests.rs").write_text("pub struct Single;\n")
    assert list(doubled(names_of(tmp_path))) == ["Alias", "Private", "Twice"]
