"""The site is built without a warning, and a dead link is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD_SECONDS_MAX = 240


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # Not --quiet: it hides warnings from --strict too.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "site" / "index.html").read_text()
    assert "Arrow" in front
    # The reference of Python comes from the docstrings of the package.
    assert "memory_pool" in (tmp_path / "site" / "reference" / "python" / "index.html").read_text()


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("[a page](nowhere.md)", "nowhere.md"),
        ("[a heading](start.md#nowhere)", "#nowhere"),
        ("[a file](../crates/nowhere.rs)", "crates/nowhere.rs, which is not there"),
    ],
)
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str, why: str) -> None:
    folder = tmp_path / "repository"
    (folder / "docs").mkdir(parents=True)
    for file in (ROOT / "docs").glob("_*.py"):
        shutil.copy(file, folder / "docs")
    (folder / "mkdocs.yml").write_text(
        "site_name: One page\nhooks: [docs/_hooks.py]\n"
        "validation: {links: {not_found: warn, anchors: warn}}\n"
    )
    (folder / "docs" / "start.md").write_text("# Start\n")
    (folder / "docs" / "index.md").write_text("# Index\n\n[good](start.md)\n")
    assert build(folder, tmp_path / "good").returncode == 0
    (folder / "docs" / "index.md").write_text(f"# Index\n\n{link}\n")
    done = build(folder, tmp_path / "bad")
    assert done.returncode != 0
    assert why in done.stderr + done.stdout
