"""The house stays one that a stranger can live in: few circles of files, no crate on a higher one.

A circle of files cannot be read from any end.  `rust_structure` says how circles are counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import python_structure
import rust_structure

ROOT = Path(__file__).resolve().parents[3]
NATIVE = frozenset({"farrow._native"})
CRATES = sorted(path.parents[1] for path in (ROOT / "crates").glob("*/src/lib.rs"))
# Three files can be read together: a type, its parts, and what both need.
CIRCLE_FILES_MAX = 3
# Crates with a larger circle, and its size. A number may fall, and a crate may leave the list.
LARGER_CIRCLES = {}


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_no_crate_has_a_large_circle_of_files(crate: Path) -> None:
    arrows = rust_structure.arrows_of(crate)
    found = rust_structure.circles(arrows)
    files_max = LARGER_CIRCLES.get(crate.name, CIRCLE_FILES_MAX)
    largest = len(found[0]) if found else 1
    assert largest <= files_max, (
        f"{crate.name} has a circle of {largest} files, {files_max} are allowed:\n"
        + "\n".join(
            f"  {file} -> {target}: {', '.join(sorted(names))}"
            for file in found[0]
            for target, names in sorted(arrows[file].items())
            if target in found[0]
        )
    )


def test_the_list_of_exceptions_names_crates_that_are() -> None:
    assert set(LARGER_CIRCLES) <= {crate.name for crate in CRATES}
    assert all(size > CIRCLE_FILES_MAX for size in LARGER_CIRCLES.values())


def test_a_crate_uses_only_crates_below_it() -> None:
    """Section 2 of ARCHITECTURE.md draws who may use whom, by any number of arrows."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    allowed = drawn_in(page)
    allowed_for_tests = drawn_in(page, dotted=True)
    built, for_tests = set(), set()
    for crate in CRATES:
        for section, other in dependencies_of((crate / "Cargo.toml").read_text()):
            if other == crate.name:
                continue
            if section != "dev-dependencies" and other not in below(crate.name, allowed):
                built.add((crate.name, other))
            if section == "dev-dependencies" and other not in below(crate.name, allowed_for_tests):
                for_tests.add((crate.name, other))
    assert not built, "a crate, and the one that it must not use"
    assert not for_tests, "a crate, and the one that its tests must not use"


def test_the_picture_of_crates_has_no_circle_and_names_them_all() -> None:
    allowed = drawn_in((ROOT / "ARCHITECTURE.md").read_text(), dotted=True)
    assert set(allowed) == {crate.name for crate in CRATES}
    assert not rust_structure.circles(
        {crate: {other: set() for other in others} for crate, others in allowed.items()}
    )


# Each crate of this platform counts once for each version.
CLIENT_CRATES_MAX = 60


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")
def test_the_client_needs_few_crates() -> None:
    """A program that embeds the client compiles all of them."""
    needed = crates_that("farrow")
    assert {"farrow-wire", "farrow-membership"} <= needed
    assert len(needed) <= CLIENT_CRATES_MAX, sorted(needed)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")
def test_membership_needs_no_other_crate_of_ours() -> None:
    needed = crates_that("farrow-membership", "normal,build,dev")
    assert [crate for crate in needed if crate.startswith("farrow")] == ["farrow-membership"]


def crates_that(crate: str, kinds: str = "normal") -> set[str]:
    """The crates that a crate of ours needs, itself included, by name and version."""
    command = ["cargo", "tree", "--locked", "--package", crate, "--edges", kinds]
    command += ["--prefix", "none", "--no-dedupe", "--format", "{p}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = {line.split(" (")[0] for line in listed.splitlines() if line}
    ours = re.compile(r"^(farrow\S*) v\S+$")
    return {ours.sub(r"\1", line) for line in lines}


def drawn_in(page: str, dotted: bool = False) -> dict[str, set[str]]:
    """The arrows of the first diagram of a page, by what stands before the colon of a node.

    Dotted arrows are for tests alone.
    """
    diagram = page.partition("```mermaid\n")[2].partition("```")[0]
    names = dict(re.findall(r"(\w+)\[\"([\w-]+):", diagram))
    arrows: dict[str, set[str]] = {name: set() for name in names.values()}
    for start, arrow, end in re.findall(r"^\s*(\w+)(?:\[.*?\])? (-\.?->) (\w+)", diagram, re.M):
        if dotted or arrow == "-->":
            arrows[names[start]].add(names[end])
    return arrows


def below(crate: str, arrows: dict[str, set[str]]) -> set[str]:
    """Every crate that arrows lead to from a crate."""
    seen: set[str] = set()
    ahead = [crate]
    while ahead:
        for other in arrows.get(ahead.pop(), set()) - seen:
            seen.add(other)
            ahead.append(other)
    return seen


def dependencies_of(manifest: str) -> list[tuple[str, str]]:
    """Sections of a Cargo.toml, and the folders of the crates of ours that they name."""
    found = []
    section = ""
    for line in manifest.splitlines():
        if heading := re.match(r"\[(?:target\..*\.)?([\w-]+)\]", line):
            section = heading[1]
        elif section.endswith("dependencies") and (
            crate := re.match(r"farrow(?:-([\w-]+))?\s*[.=]", line)
        ):
            found.append((section, crate[1] or "farrow"))
    return found


# A small crate: `a.rs`, `b/mod.rs`, `b/c.rs` and `d.rs` form a circle through every kind of path;
# `e.rs`, `tests.rs` and `lib.rs` are no part of it.
SMALL = {
    "lib.rs": """//! use crate::a::Alpha in a comment is nothing.
mod a; mod b; mod d; mod e; mod late;
pub use crate::b::Gamma;
pub use a::{Alpha, nested::{self, Deep as Deeper}};
#[cfg(test)] mod tests;
""",
    "a.rs": """use std::{collections::HashMap, sync::Arc};
use crate::{b, d::Delta as Renamed, e::*};
pub struct Alpha(b::Gamma, Renamed, HashMap<u8, Arc<Epsilon>>);
pub mod nested { pub struct Deep; pub fn deep(_: super::Alpha) {} }
#[cfg(test)]
mod tests { use crate::late::Late; fn f() { crate::late::g("}"); } }
""",
    # Only declarations and re-exports: no part of a circle, and seen through.
    "b/mod.rs": "mod c;\npub use c::Gamma;\npub(crate) use self::c::helper;\n",
    "b/c.rs": """use super::super::d::{Delta};
pub struct Gamma; pub(crate) fn helper<'a>(x: &'a str) -> char { let _: Delta; '"' }
/* crate::late::Late /* no */
""",
    "d.rs": """pub struct Delta;
impl Delta { fn f() { let text = "crate::late::Late"; crate::nested::deep(todo()); } }
""",
    "e.rs": "pub struct Epsilon; pub(crate) use crate::late::Late;\n",
    "late.rs": "use crate::a::Alpha;\nfn f() { crate::b::helper(x) }\n pub struct Late;",
    "tests.rs": "use crate::e::Epsilon; use crate::late::Late;\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, text in SMALL.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    return tmp_path


def test_the_counter_follows_every_kind_of_path(small: Path) -> None:
    assert rust_structure.arrows_of(small) == {
        "lib.rs": {},
        "a.rs": {"b/c.rs": {"Gamma"}, "d.rs": {"Delta"}, "e.rs": {"Epsilon"}},
        "b/mod.rs": {},
        "b/c.rs": {"d.rs": {"Delta"}},
        "d.rs": {"a.rs": {"deep"}},
        "e.rs": {},
        "late.rs": {"a.rs": {"Alpha"}, "b/c.rs": {"helper"}},
    }


def test_the_counter_finds_the_circle_and_no_other(small: Path) -> None:
    assert rust_structure.circles_of(small) == [["a.rs", "b/c.rs", "d.rs"]]
    # One more arrow, and two more files are in it.
    (small / "src/e.rs").write_text("pub struct Epsilon(crate::late::Late);\n")
    assert rust_structure.circles_of(small) == [["a.rs", "b/c.rs", "d.rs", "e.rs", "late.rs"]]


def test_a_file_with_code_that_re_exports_has_arrows(small: Path) -> None:
    """Regression test: a circle of 16 files through `node/mod.rs` was not seen."""
    face = "mod c; pub use c::Gamma; pub(crate) use self::c::helper;\n"
    face += "pub struct Own(crate::e::E);\n"
    (small / "src/b/mod.rs").write_text(face)
    arrows = rust_structure.arrows_of(small)
    assert arrows["a.rs"]["b/mod.rs"] == {"Gamma"}
    assert arrows["late.rs"]["b/mod.rs"] == {"helper"}
    assert arrows["a.rs"]["b/c.rs"] == {"Gamma"}
    (small / "src/e.rs").write_text("pub struct E(crate::a::Alpha);\n")
    found = rust_structure.circles_of(small)
    assert found == [["a.rs", "b/c.rs", "b/mod.rs", "d.rs", "e.rs"]]


def test_two_circles_are_two() -> None:
    taken = {"x"}
    arrows = {"a": {"b": taken}, "b": {"a": taken, "c": taken}, "c": {"d": taken}}
    arrows |= {"d": {"e": taken}, "e": {"c": taken}, "f": {"a": taken}}
    assert rust_structure.circles(arrows) == [["c", "d", "e"], ["a", "b"]]


def test_python_packages_have_no_large_circle_of_files() -> None:
    """Imports in functions and those for type checking count: a reader follows them as well."""
    packages = ((ROOT / "python/farrow", NATIVE), (ROOT / "sql/farrow_sql", frozenset()))
    found = [
        one
        for package, outside in packages
        for one in python_structure.circles_of(package, outside)
    ]
    assert [circle for circle in found if len(circle) > CIRCLE_FILES_MAX] == []


def test_every_kind_of_import_is_an_arrow(tmp_path: Path) -> None:
    """The canary: at the top, relative, in a function, for type checking; the extension is none."""
    files = {
        "__init__.py": "from small.a import A\nimport json\n",
        "a.py": "from typing import TYPE_CHECKING\nfrom small import _native\n"
        "if TYPE_CHECKING:\n    from .inner import b\n",
        "inner/__init__.py": "def f():\n    import small.c\n",
        "inner/b.py": "def f():\n    from ..c import C\n",
        "c.py": "from . import A\n",
    }
    package = tmp_path / "small"
    (package / "inner").mkdir(parents=True)
    for name, text in files.items():
        (package / name).write_text(text)
    outside = frozenset({"small._native"})
    assert python_structure.arrows_of(package, outside) == {
        "__init__.py": {"a.py": {"A"}},
        "a.py": {"inner/b.py": {"b"}},
        "c.py": {"__init__.py": {"A"}},
        "inner/__init__.py": {"c.py": {""}},
        "inner/b.py": {"c.py": {"C"}},
    }
    assert python_structure.circles_of(package, outside) == [
        ["__init__.py", "a.py", "c.py", "inner/b.py"]
    ]
    assert "__init__.py" in python_structure.arrows_of(package)["a.py"]


# Rooms of the daemon that have sockets and threads.
ROOMS_WITH_THREADS = ("net", "peers", "server", "node")


def test_the_decisions_of_the_daemon_use_no_room_with_threads() -> None:
    """`protocol/` has events and the time as arguments, so it can be tested without either."""
    crate = ROOT / "crates/cluster"
    arrows = rust_structure.arrows_of(crate)
    assert "protocol/node.rs" in arrows
    assert arrows_between(arrows, "protocol", ROOMS_WITH_THREADS) == []
    # Tests too, and names that such a room only passes on.
    path = re.compile(rf"^[^/]*\bcrate::(?:{'|'.join(ROOMS_WITH_THREADS)})\b", re.M)
    files = (crate / "src/protocol").rglob("*.rs")
    assert [str(file) for file in files if path.search(file.read_text())] == []


def arrows_between(
    arrows: dict[str, dict[str, set[str]]], room: str, others: tuple[str, ...]
) -> list[str]:
    """The arrows from the files of a room to those of others."""
    return [
        f"{file} -> {target}: {', '.join(sorted(names))}"
        for file, targets in arrows.items()
        if file.startswith(f"{room}/")
        for target, names in targets.items()
        if target.split("/")[0].removesuffix(".rs") in others
    ]


def test_arrows_between_rooms_are_found() -> None:
    """The canary."""
    arrows = {
        "protocol/a.rs": {"net/b.rs": {"B"}, "node.rs": {"N"}, "protocol/net/c.rs": {"C"}},
        "net/b.rs": {"server/d.rs": {"D"}},
    }
    found = arrows_between(arrows, "protocol", ("net", "node", "server"))
    assert found == ["protocol/a.rs -> net/b.rs: B", "protocol/a.rs -> node.rs: N"]


# More arguments are a struct with a name.
ARGUMENTS_MAX = 5
SOURCES = sorted(
    path
    for folder in ("crates", "bench", "tests")
    for path in (ROOT / folder).rglob("*.rs")
    if "target" not in path.relative_to(ROOT).parts
)


def test_no_function_has_many_arguments() -> None:
    """A tuple counts as its parts; a method's `self` and Python's token do not count.

    C and Python have forms of their own.
    """
    found = [
        f"{path.relative_to(ROOT)}: {name}, {count}"
        for path in SOURCES
        for name, count in rust_structure.arguments_of(path.read_text())
        if count > ARGUMENTS_MAX
    ]
    assert found == []


def test_arguments_are_counted() -> None:
    """The canary."""
    text = """
fn none() {} // fn comment(a: A, b: B)
fn two<F: Fn(u8, u8) -> u8>(one: HashMap<u8, Vec<[u8; 2]>>, (a, b): (u8, [u8; 2]),) -> u8 {}
fn pair(all: (Vec<u8>, &str), window: (T, T), (one, None): Alias) {}
impl A {
    fn method(&'a mut self, one: impl Fn(u8, u8), py: Python<'_>) { "fn text(a: A)" }
}
pub extern "C" fn of_c(a: A, b: B) {}
#[pymethods]
impl B { #[new] fn of_python(a: A, b: B) {} fn again(a: A) {} }
#[doc = "x"]
#[pyfunction]
fn also(a: A) {}
"""
    assert rust_structure.arguments_of(text) == [
        ("none", 0),
        ("two", 3),
        ("pair", 4),
        ("method", 1),
    ]
