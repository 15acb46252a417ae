"""Identities of processes, by which the end of one is proved.

A refused connection proves nothing: a firewall, another network or a loopback address refuse those
of a live process too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["has_ended", "identity"]

_PID_MAX = 1 << 22
# Fields of /proc/PID/stat after the name of the program, which may contain anything.
_STATE, _START = 0, 19


def identity() -> dict[str, Any]:
    """This process, for :func:`has_ended` in another one."""
    pid = os.getpid()
    return {**_space(), "pid": pid, "started": _stat(pid)[_START]}


def has_ended(other: Mapping[str, Any]) -> bool:
    """Whether the process of an identity is proved to have ended.

    False if it runs, and if nothing is known: on another machine, in another PID namespace, or
    without an identity.
    """
    pid = other.get("pid")
    if type(pid) is not int or not 1 <= pid <= _PID_MAX or not _is_here(other):
        return False
    try:
        # Where /proc hides the processes of other users, this still tells.
        os.kill(pid, 0)
        found = _stat(pid)
    except ProcessLookupError:
        return True
    except (OSError, IndexError):
        return False
    return found[_STATE] in ("Z", "X") or found[_START] != other.get("started")


def _is_here(other: Mapping[str, Any]) -> bool:
    """Whether a PID of that process means the same here: one machine, one PID namespace."""
    space = _space()
    return bool(space) and all(other.get(name) == value for name, value in space.items())


def _space() -> dict[str, str]:
    """The machine and the PID namespace; empty where a sandbox hides them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "pid_namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return {}


def _stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()
