"""Arrows between the files of a Python package, and the circles that they form.

File A has an arrow to file B if A imports B, or a name from B: at the top, in a function (a lazy
import), or for type checking alone.  A name that an ``__init__.py`` re-exports leads to that
``__init__.py``.  The extension module ``_native`` is no file of the package.
"""

from __future__ import annotations

import ast
from pathlib import Path

import rust_structure


def arrows_of(
    package: Path, outside: frozenset[str] = frozenset()
) -> dict[str, dict[str, set[str]]]:
    """The arrows of a package: file -> file -> the names that the first takes from the second.

    Args:
        package: the folder of the package.
        outside: modules that are no files of it.
    """
    files = {_module_of(path, package): path for path in sorted(package.rglob("*.py"))}
    arrows = {}
    for module, path in files.items():
        found: dict[str, set[str]] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            for whole, name in _imports(node, module, path.name == "__init__.py"):
                inner = f"{whole}.{name}"
                target = inner if inner in files or inner in outside else whole
                if target in files and target != module:
                    found.setdefault(_relative(files[target], package), set()).add(name)
        arrows[_relative(path, package)] = found
    return arrows


def circles_of(package: Path, outside: frozenset[str] = frozenset()) -> list[list[str]]:
    """The circles of a package, the largest first; files are relative to the package."""
    return rust_structure.circles(arrows_of(package, outside))


def _module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _relative(path: Path, package: Path) -> str:
    return str(path.relative_to(package))


def _imports(node: ast.AST, module: str, is_package: bool) -> list[tuple[str, str]]:
    """The module that a statement imports from, and the name; "" for the module itself."""
    if isinstance(node, ast.Import):
        return [(one.name, "") for one in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = []
    if node.level:
        parts = module.split(".")
        start = parts[: len(parts) - node.level + is_package]
    whole = ".".join([*start, *([node.module] if node.module else [])])
    return [(whole, one.name) for one in node.names]
