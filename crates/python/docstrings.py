"""Write each docstring of a stub to a separate file, for `include_str!`.

The stub is the only source of these texts: type checkers and the documentation site read it, and
the build script runs this module so that `help()` shows the same.  The text of `Client.put` is in
`Client.put.txt`.
"""

import ast
import sys
from pathlib import Path


def main(stub: Path, folder: Path) -> None:
    """Write the docstrings of `stub` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.txt"):  # a text that left the stub must not stay in the extension
        old.unlink()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        members = node.body if isinstance(node, ast.ClassDef) else []
        functions = [member for member in members if isinstance(member, ast.FunctionDef)]
        items = {node.name: node} | {f"{node.name}.{item.name}": item for item in functions}
        for name, item in items.items():
            text = ast.get_docstring(item)
            if text is not None:
                (folder / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
