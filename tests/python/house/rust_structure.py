"""Arrows between the source files of a Rust crate, and the circles that they form.

How it counts.  File A has an arrow to file B if A names an item that B defines: in a ``use``
(nested and grouped lists included) or in a path written in the code, ``crate::b::Item``,
``super::Item``, ``self::b::Item`` or ``b::Item`` after ``use crate::b``.

* A re-export leads to the file that defines the item, however many ``pub use`` lie between, so
  a ``mod.rs`` or ``lib.rs`` that only declares and re-exports has no arrows at all.
* If the file that re-exports also defines items, a name taken from it is an arrow to it as well:
  a reader opens it to find the name.
* A re-export is an arrow of its own file only if that file also uses the name.
* A glob (``use super::*``) is an arrow to each file whose items the importing file names.
* ``mod b;`` is not an arrow: a folder contains its files without depending on them.
* What only a test compiles (``#[cfg(test)]``, ``#[cfg(all(test, ..))]``) is left out, and so are
  comments, strings and files below no ``mod`` declaration, as those of ``src/bin``.

Not seen: a method that another file defines on a type that is named anyway, and items that
a macro generates (they belong to the file of the macro call).

A circle is a strongly connected component of more than one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Comments, strings and character literals; a lifetime ('a) is not a literal.
_BLANK = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hash>\#*)".*?"(?P=hash)|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\\n]|\\[^\n]+?)'""",
    re.S,
)
_TEST_ONLY = re.compile(r"#!?\[cfg\(\s*(?:test|all\([^\]]*\btest\b[^\]]*\))\s*\)\]")
_ATTRIBUTE = re.compile(r"\s*#!?\[")
_MODULE = re.compile(r"(?:\bpub(?:\([^)]*\))?\s+)?\bmod\s+(\w+)\s*([;{])")
_FILE = re.compile(r'path = "([^"]+)"')
_USE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]*);")
_ITEM = re.compile(
    r"\b(?:struct|enum|union|trait|fn|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)"
)
_PATH = re.compile(r"(?<![\w:])(?:\$?)(\w+(?:\s*::\s*\w+)+)")
_WORD = re.compile(r"\w+")


@dataclass
class Use:
    """One leaf of a ``use``: the path, and the name that it brings ("*" for a glob)."""

    path: tuple[str, ...]
    name: str
    is_public: bool


@dataclass
class Module:
    """A module: its file, what it defines and imports, and its code without the imports."""

    file: str
    parent: Module | None
    children: dict[str, Module] = field(default_factory=dict)
    items: set[str] = field(default_factory=set)
    uses: list[Use] = field(default_factory=list)
    code: str = ""


# Where a path leads: a module, or the module that defines the item.
Target = tuple[Module, bool]


def circles_of(crate: Path) -> list[list[str]]:
    """The circles of a crate, the largest first; files are relative to ``src``."""
    return circles(arrows_of(crate))


def arrows_of(crate: Path) -> dict[str, dict[str, set[str]]]:
    """The arrows of a crate: file -> file -> the names that the first takes from the second."""
    root = read(crate)
    modules = list(walk(root))
    arrows: dict[str, dict[str, set[str]]] = {module.file: {} for module in modules}
    for module in modules:
        for target, name in _names_taken(module, root):
            if target.file != module.file:
                arrows[module.file].setdefault(target.file, set()).add(name)
    return arrows


def read(crate: Path) -> Module:
    """The root module of a crate, without what only a test compiles."""
    source = crate / "src"
    return _read(source / "lib.rs", source, None)


def code_of(text: str) -> str:
    """The text without comments and strings."""
    return _BLANK.sub(_blank, text)


def circles(arrows: dict[str, dict[str, set[str]]]) -> list[list[str]]:
    """Strongly connected components of more than one file, the largest first (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    open_files: list[str] = []
    found: list[list[str]] = []
    for start in sorted(arrows):
        if start in order:
            continue
        order[start] = low[start] = len(order)
        open_files.append(start)
        walk = [(start, iter(sorted(arrows[start])))]
        while walk:
            file, rest = walk[-1]
            target = next(rest, None)
            if target is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[file])
                if low[file] == order[file]:
                    at = open_files.index(file)
                    component, open_files[at:] = open_files[at:], []
                    if len(component) > 1:
                        found.append(sorted(component))
            elif target not in order:
                order[target] = low[target] = len(order)
                open_files.append(target)
                walk.append((target, iter(sorted(arrows[target]))))
            elif target in open_files:
                low[file] = min(low[file], order[target])
    return sorted(found, key=lambda circle: (-len(circle), circle))


def _read(path: Path, source: Path, parent: Module | None) -> Module:
    """Parses a file and the files of the modules that it declares."""
    module = Module(str(path.relative_to(source)), parent)
    text = _without_tests(_BLANK.sub(_blank, path.read_text()))
    is_folder = path.name in ("lib.rs", "mod.rs", "main.rs")
    _fill(module, text, path.parent if is_folder else path.with_suffix(""), source)
    return module


def _blank(match: re.Match[str]) -> str:
    """What stays of a comment or a string: the string of `path = ".."`, and else a space."""
    return match[0] if match.string.endswith("path = ", 0, match.start()) else " "


def _fill(module: Module, text: str, folder: Path, source: Path) -> None:
    """Takes the modules, the imports and the items out of a module's text."""
    rest = []
    position = 0
    for match in _MODULE.finditer(text):
        if match.start() < position:
            continue
        rest.append(text[position : match.start()])
        name = match[1]
        if match[2] == ";":
            position = match.end()
            # One file for each instruction set; all of them count.
            declared = rest[-1][max(rest[-1].rfind(";"), rest[-1].rfind("}")) + 1 :]
            for number, file in enumerate(_files_of(name, folder, _FILE.findall(declared))):
                child = f"{name}#{number}" if number else name
                module.children[child] = _read(file, source, module)
        else:
            position = _end_of_block(text, match.end() - 1)
            inner = module.children[name] = Module(module.file, module)
            _fill(inner, text[match.end() : position - 1], folder / name, source)
    code = "".join(rest) + text[position:]
    for match in _USE.finditer(code):
        for path, name in _leaves(re.sub(r"\s+", " ", match["tree"])):
            module.uses.append(Use(path, name, match["public"] is not None))
    module.code = _USE.sub("", code)
    module.items = {match[1] for match in _ITEM.finditer(module.code)}


def _files_of(name: str, folder: Path, named: list[str]) -> list[Path]:
    """The files of a declared module: those that it names, or the one that the compiler takes."""
    if named:
        return [folder / file for file in named]
    file = folder / f"{name}.rs"
    return [file if file.exists() else folder / name / "mod.rs"]


def _without_tests(text: str) -> str:
    """The text without the items that only a test compiles."""
    rest = []
    position = 0
    for match in _TEST_ONLY.finditer(text):
        if match.start() < position:
            continue
        rest.append(text[position : match.start()])
        position = match.end()
        while attribute := _ATTRIBUTE.match(text, position):
            position = _end_of_block(text, attribute.end() - 1, "[]")
        end = re.compile(r"[;{,}]").search(text, position)
        if end is None or end[0] == "}":
            continue
        starts_import = re.match(r"\s*(?:pub(?:\([^)]*\))?\s+)?use\b", text[position:])
        if starts_import:
            position = text.index(";", position) + 1
        else:
            position = _end_of_block(text, end.start()) if end[0] == "{" else end.end()
    return "".join(rest) + text[position:]


def _end_of_block(text: str, start: int, brackets: str = "{}") -> int:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for match in re.compile(f"[{re.escape(brackets)}]").finditer(text, start):
        depth += 1 if match[0] == brackets[0] else -1
        if depth == 0:
            return match.end()
    return len(text)


def _leaves(tree: str, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The paths of a ``use`` tree with the names that they bring."""
    tree = tree.strip()
    head, brace, inner = tree.partition("{")
    path = before + tuple(part.strip() for part in head.split("::") if part.strip())
    if brace:
        for part in _split(inner.rpartition("}")[0]):
            yield from _leaves(part, path)
    elif path:
        *rest, last = path
        last, _, alias = (part.strip() for part in last.partition(" as "))
        whole = tuple(rest) if last == "self" and rest else (*rest, last)
        yield whole, alias or whole[-1]


def _split(text: str) -> Iterator[str]:
    """The parts of a list between commas that no brace encloses."""
    depth = start = 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def walk(module: Module) -> Iterator[Module]:
    """A module and all modules below it."""
    yield module
    for child in module.children.values():
        yield from walk(child)


def _names_taken(module: Module, root: Module) -> Iterator[tuple[Module, str]]:
    """What a module takes: the module that defines it, and its name."""
    words = set(_WORD.findall(module.code))
    words |= {word for child in module.children.values() for word in _words_inside(child, module)}
    for use in module.uses:
        if use.name == "*":
            for word in words:
                yield from _targets(module, (*use.path[:-1], word), root, strict=True)
        elif not use.is_public or use.name in words:
            yield from _targets(module, use.path, root)
    for match in _PATH.finditer(module.code):
        path = tuple(part.strip() for part in match[1].split("::"))
        if path[0] in ("crate", "self", "super") or _is_module_here(module, path[0], root):
            yield from _targets(module, path, root)


def _targets(
    module: Module, path: tuple[str, ...], root: Module, strict: bool = False
) -> Iterator[tuple[Module, str]]:
    """The file that defines the item of a path, and a file with code that re-exports it."""
    target = _resolve(module, path, root, strict)
    if target is None or target[1]:
        return
    yield target[0], path[-1]
    for end in range(1, len(path)):
        at = _resolve(module, path[:end], root)
        if at is None or not at[1]:
            return
        name, face = path[end], at[0]
        is_here = name in face.children or name in face.items or name in ("self", "super")
        if not is_here and face.items and any(use.is_public for use in face.uses):
            found = _imported(face, name, root, 0)
            if found is not None and not found[1]:
                yield face, name


def _words_inside(child: Module, outer: Module) -> Iterator[str]:
    """The words of inline modules in the same file, which see the imports by ``super``."""
    if child.file == outer.file:
        yield from _WORD.findall(child.code)


def _is_module_here(module: Module, name: str, root: Module) -> bool:
    """Whether a name in a module is one of its children or an imported module."""
    if name in module.children:
        return True
    for use in module.uses:
        if use.name == name and use.path != (name,):
            target = _resolve(module, use.path, root)
            return target is not None and target[1]
    return False


def _resolve(
    module: Module, path: tuple[str, ...], root: Module, strict: bool = False, depth: int = 0
) -> Target | None:
    """Where a path leads from a module: `(module, True)`, or `(defining module, False)`.

    None for a path into another crate.  With `strict`, a name that no file is seen to define
    is None as well; else it counts for the module where it was looked up.
    """
    if depth > 16:
        return None
    at = module
    for index, part in enumerate(path):
        if part == "crate":
            at = root
        elif part == "super":
            at = at.parent or root
        elif part == "self":
            pass
        elif part in at.children:
            at = at.children[part]
        elif part in at.items:
            return at, False
        else:
            found = _imported(at, part, root, depth)
            if found is None:
                is_foreign = index == 0 or strict
                return None if is_foreign else (at, False)
            if not found[1]:
                return found
            at = found[0]
    return at, True


def _imported(module: Module, name: str, root: Module, depth: int) -> Target | None:
    """What a name stands for that a module imports."""
    for use in module.uses:
        if use.name == name and use.path != (name,):
            return _resolve(module, use.path, root, depth=depth + 1)
    for use in module.uses:
        if use.name == "*" and len(use.path) > 1:
            found = _resolve(module, (*use.path[:-1], name), root, strict=True, depth=depth + 1)
            if found is not None:
                return found
    return None


_FUNCTION = re.compile(r"\bfn\s+(\w+)\s*(<)?")
# What other languages call, with the arguments that these give.
_FOREIGN = re.compile(r'extern\s+"C"\s+\{|extern\s+"C"\s+fn|#\[pymethods\]|#\[pyfunction\]')
_UNCOUNTED = re.compile(r"(&\s*('\w+\s+)?)?(mut\s+)?self\b|\w+:\s*Python<")


def arguments_of(text: str) -> list[tuple[str, int]]:
    """The functions of a text and the number of their arguments, without those of C and Python.

    A tuple counts as its parts.
    """
    text = _BLANK.sub(lambda match: '"C"' if match[0] == '"C"' else " ", text)
    foreign = []
    for match in _FOREIGN.finditer(text):
        opened = text.find("{", match.end() - 1)
        end = text.find(";", match.end()) if opened < 0 else _end_of_block(text, opened)
        foreign.append(range(match.start(), end))
    found = []
    for match in _FUNCTION.finditer(text):
        if any(match.start() in one for one in foreign):
            continue
        start = text.find("(", match.end()) if match[2] is None else _end_of_generics(text, match)
        if text[match.end() : start].strip() and match[2] is None:
            continue
        inside = text[start + 1 : _end_of_block(text, start, "()") - 1]
        parts = [part.strip() for part in _arguments(inside)]
        counted = [one for one in parts if one and not _UNCOUNTED.match(one)]
        found.append((match[1], sum(map(_parts, counted))))
    return found


def _parts(argument: str) -> int:
    """How many values an argument has: those of its tuple, else one.

    A pair of one type parameter, as `(T, T)`, is a range.
    """
    kind = argument.rpartition(": ")[2] if argument.startswith("(") else argument
    kind = re.sub(r"^\w+:\s*", "", kind)
    if not kind.startswith("("):
        return 1
    inside = kind[1 : _end_of_block(kind, 0, "()") - 1]
    if inside == "T, T":
        return 1
    return max(1, sum(1 for one in _arguments(inside) if one.strip()))


def _end_of_generics(text: str, match: re.Match[str]) -> int:
    """The place behind the generic parameters of a function: that of its `(`."""
    depth, at = 1, match.end()
    while depth and at < len(text):
        depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] not in "-=")
        at += 1
    return text.find("(", at)


def _arguments(inside: str) -> Iterator[str]:
    """The parts of a list of arguments."""
    depth = start = 0
    for at, letter in enumerate(inside):
        depth += (letter in "([{<") - (
            letter in ")]}" or (letter == ">" and inside[at - 1] not in "-=")
        )
        if letter == "," and depth == 0:
            yield inside[start:at]
            start = at + 1
    yield inside[start:]
