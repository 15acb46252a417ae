"""File systems that are soon full."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def disk_of(place: Path, nbytes: int) -> Iterator[Path]:
    """A file system of this size at a path, which is created.

    The test is skipped where this process may mount none.
    """
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "farrow-test", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
