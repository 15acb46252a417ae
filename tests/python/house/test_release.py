"""The release workflow: it runs what is run here, and only what it has to may write anywhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
MAKE = re.compile(r"make (?P<target>[a-z0-9-]+)((?: [A-Z]+=\S+)*)")
# What the image lacks, before there is a Makefile.
OTHER = re.compile(r"apt-get (update|install [\w -]+)|git config [^;&|]+")


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return found


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = jobs()[job]["steps"]
    return found


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_each_step_is_an_action_or_a_target_of_make() -> None:
    targets = []
    for job in jobs():
        for step in steps(job):
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
                continue
            found = MAKE.fullmatch(step["run"])
            if found:
                targets.append(found["target"])
            else:
                assert OTHER.fullmatch(step["run"]), step["run"]
    assert targets[:2] == ["check-version", "test"]
    files = {"wheels", "test-wheel-aarch64", "sdist", "deb", "container", "crates", "chart"}
    assert files | {"test-plasma"} <= set(targets)
    assert make("--dry-run", "no-such-target").returncode == 2
    for target in targets:
        # A folder of this name would be a target too, with nothing to do.
        done = make("--dry-run", target, "VERSION=v0")
        assert done.returncode == 0, done.stderr
        assert done.stdout, target
        assert "Nothing to be done" not in done.stdout


def test_every_published_file_has_provenance() -> None:
    uses = [step.get("uses", "") for step in steps("build")]
    signs = next(n for n, name in enumerate(uses) if name.startswith("actions/attest-build-prov"))
    uploads = [n for n, name in enumerate(uses) if name.startswith("actions/upload-artifact@")]
    builds = [n for n, step in enumerate(steps("build")) if step.get("run", "").startswith("make")]
    assert max(builds) < signs < min(uploads)
    signed = steps("build")[signs]["with"]["subject-path"]
    assert signed == "dist/*"
    for number in uploads:
        paths = steps("build")[number]["with"]["path"].split()
        assert all(path.startswith("dist/") for path in paths)
    names = {steps("build")[number]["with"]["name"] for number in uploads}
    for job in ("files", "pypi"):
        assert jobs()[job]["needs"] == "build"
        assert steps(job)[0]["with"]["name"] in names


def test_what_an_extra_pins_is_published_too() -> None:
    """`pip install farrow[sql]` needs the wheel of farrow-sql of the same release."""
    extras = (ROOT / "pyproject.toml").read_text().partition("[dependency-groups]")[0]
    pinned = re.findall(r'"([\w-]+)==([\d.]+)"', extras)
    assert ("farrow-sql", "0.1.0") in pinned
    folders = {
        re.findall(r'^(?:name|version) = "(.*)"', file.read_text(), re.M)[0]: file
        for file in ROOT.glob("*/pyproject.toml")
    }
    targets = [MAKE.fullmatch(step["run"]) for step in steps("build") if "run" in step]
    recipes = "".join(make("--dry-run", found["target"]).stdout for found in targets if found)
    for name, version in pinned:
        file = folders[name]
        assert f'version = "{version}"' in file.read_text()
        wheel = rf"pip wheel .*--wheel-dir dist \./{file.parent.name}$"
        assert re.search(wheel, recipes, re.M), name
    paths = [step["with"].get("path", "") for step in steps("build") if "with" in step]
    assert any("dist/*.whl" in path for path in paths)


def test_permissions() -> None:
    """The job that builds may sign and not write; those that write build nothing."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    given = {name: job["permissions"] for name, job in jobs().items()}
    assert given == {
        "build": {"attestations": "write", "contents": "read", "id-token": "write"},
        "files": {"contents": "write"},
        "pypi": {"id-token": "write"},
    }
    for job in ("files", "pypi"):
        assert not [step for step in steps(job) if "run" in step]


def test_the_version_of_a_tag() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)
    assert version
    done = make("check-version", f"VERSION=v{version[1]}")
    changes = (ROOT / "CHANGELOG.md").read_text()
    is_released = f"## [{version[1]}] - 2" in changes
    assert (done.returncode == 0) == is_released, done.stdout + done.stderr
    wrong = make("check-version", "VERSION=v9.9.9")
    assert wrong.returncode != 0
    assert "Cargo.toml does not say 9.9.9" in wrong.stderr
