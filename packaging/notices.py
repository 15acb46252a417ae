"""Prints the licences of the crates that are linked into packages of this workspace.

    python3 notices.py PACKAGE...

First a line for each crate, then each text once, with the crates that have it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXT = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)\b", re.I)


def metadata() -> dict[str, Any]:
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = re.search(r"^host: (.*)$", host, re.M)
    if target is None:
        sys.exit("notices: rustc names no host")
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform"]
    done = subprocess.run([*command, target[1]], cwd=ROOT, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def linked(found: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """The crates of others that these packages are linked with, by name."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    left = [one["id"] for one in found["packages"] if one["name"] in names and not one["source"]]
    if len(left) != len(names):
        sys.exit(f"notices: {names} are not all packages of the workspace")
    seen = set(left)
    while left:
        for dependency in nodes[left.pop()]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            if None in kinds and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                left.append(dependency["pkg"])
    others = [packages[one] for one in seen if packages[one]["source"]]
    return sorted(others, key=lambda crate: (crate["name"], crate["version"]))


def main(names: list[str]) -> None:
    crates = linked(metadata(), names)
    texts: dict[str, list[str]] = {}
    print("These crates are linked into this package:\n")
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        print(f"{name}: {crate['license'] or 'see its text'}")
        for path in sorted(Path(crate["manifest_path"]).parent.iterdir()):
            if path.is_file() and TEXT.match(path.name):
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                texts.setdefault(text, []).append(name)
    for text, having in texts.items():
        print(f"\n{'=' * 80}\n{', '.join(having)}\n{'=' * 80}\n\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
