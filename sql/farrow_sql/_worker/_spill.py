"""Folders of the files to which operators spill: one for each process, removed at its end.

A process that is killed, or ends itself under a query, cannot remove its files.  Its supervisor
does.  A supervisor holds a lock on its folder, which the kernel releases at its end: the next
supervisor of the machine removes folders without a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["SpillFolder"]

_PREFIX = "farrow-sql-spill-"


class SpillFolder:
    """The folder of one supervisor, in the folder for temporary files (``TMPDIR``).

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        # Machines can share the folder for temporary files, and locks may be of one machine.
        prefix = f"{_PREFIX}{os.uname().nodename.replace('/', '-')}-"
        _remove_unlocked(base, prefix)
        while True:
            self._path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
            # Another supervisor may remove it before it is locked.
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                # Some network filesystems have no locks: then only this process removes it.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self._path.exists():
                    return
                os.close(self._lock)

    def add(self) -> Path:
        """A folder for one process."""
        return Path(tempfile.mkdtemp(dir=self._path))

    @staticmethod
    def remove(path: Path) -> None:
        """Remove the folder of a process that has ended."""
        shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)


def _remove_unlocked(base: Path, prefix: str) -> None:
    """Remove what supervisors of this user on this machine left that were killed."""
    for path in base.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            # Other users can make names here: their folders, and links, are left alone.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
