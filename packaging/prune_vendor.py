"""Makes vendored crates smaller.

    python prune_vendor.py SOURCES

SOURCES has ``Cargo.lock`` and, from ``cargo vendor --versioned-dirs``, ``vendor/NAME-VERSION``.
A crate that no build for Linux compiles keeps its manifest, which cargo reads, and an empty
library. The others lose their tests and benchmarks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

CHECKSUM = ".cargo-checksum.json"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "powerpc64le-unknown-linux-gnu")


def compiled(sources: Path) -> set[str]:
    """NAME-VERSION of all crates that a build for one of the targets compiles."""
    found = set()
    for target in TARGETS:
        command = [
            "cargo", "tree", "--quiet", "--offline", "--locked", "--package", "farrow-python",
            "--edges", "normal,build", "--target", target, "--prefix", "none", "--format", "{p}",
        ]  # fmt: skip
        lines = subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True)
        for line in lines.stdout.splitlines():
            name, version, *_ = line.split()
            found.add(f"{name}-{version.removeprefix('v')}")
    return found


def remove(entry: Path) -> None:
    """Remove a file, or a folder with everything in it."""
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def check_files(crate: Path) -> None:
    """Leave only existing files in the list by which cargo notices that a crate was changed."""
    listed = crate / CHECKSUM
    content = json.loads(listed.read_text())
    files = {name: digest for name, digest in content["files"].items() if (crate / name).exists()}
    listed.write_text(json.dumps({**content, "files": files}, sort_keys=True))


def empty(crate: Path) -> None:
    """Leave the manifest and an empty library."""
    for entry in crate.iterdir():
        if entry.name not in ("Cargo.toml", CHECKSUM):
            remove(entry)
    check_files(crate)
    (crate / "src").mkdir()
    (crate / "src" / "lib.rs").touch()


def strip(crate: Path) -> None:
    """Remove the tests and benchmarks beside the sources: no dependent compiles them."""
    for name in ("tests", "benches"):
        for folder in list(crate.rglob(name)):
            if "src" not in folder.relative_to(crate).parts and folder.is_dir():
                shutil.rmtree(folder)
    check_files(crate)


def main(sources: Path) -> None:
    needed = compiled(sources)
    crates = sorted((sources / "vendor").iterdir())
    unneeded = [crate for crate in crates if crate.name not in needed]
    if len(unneeded) == len(crates):
        sys.exit(f"prune_vendor: none of the {len(crates)} crates is compiled")
    for crate in crates:
        if crate.name in needed:
            strip(crate)
        else:
            empty(crate)
    print(f"prune_vendor: {len(crates) - len(unneeded)} crates, {len(unneeded)} emptied")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
