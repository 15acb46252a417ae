"""A second run of a benchmark on huge pages: a tmpfs over /dev/shm in a mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.process import run_program
from harness.tasks import Sample

__all__ = ["can_mount", "measured_inside"]

_NAMESPACE = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'size=$1; shift; mount -t tmpfs -o huge=always,size="$size" tmpfs /dev/shm && exec "$@"',
    "sh",
)


def can_mount(notes: list[str]) -> bool:
    """Whether a tmpfs with huge pages can be mounted in a private namespace."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        notes.append("not measured on huge pages: needs root and unshare")
        return False
    trial = [*_NAMESPACE, "16m", "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode != 0:
        notes.append("not measured on huge pages: tmpfs does not mount with huge=always here")
        return False
    return True


def measured_inside(
    program: Path, size: int, peers: list[str], quick: bool, notes: list[str]
) -> list[Sample]:
    """Run a program with ``--inside FILE`` in a mount namespace and read its samples back."""
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        target = Path(folder) / "samples.json"
        command = [*_NAMESPACE, str(size), sys.executable, str(program), "--inside", str(target)]
        command += ["--peers", ",".join(peers)] + (["--quick"] if quick else [])
        if run_program(command) != 0 or not target.exists():
            notes.append("the run on huge pages failed")
            return []
        inner = json.loads(target.read_text())
    notes.extend(inner["notes"])
    return [Sample(**sample) for sample in inner["samples"]]
