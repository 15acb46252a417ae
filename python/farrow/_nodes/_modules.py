"""Processes that run a module of this package."""

from __future__ import annotations

import sys

__all__ = ["module_command"]

# `python -m` searches the working directory first: a file there, such as json.py, would run in
# place of the standard one.
_RUN = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter, as ``python -m`` does, without modules
    of the working directory."""
    return [sys.executable, "-c", _RUN.format(module=module), *arguments]
