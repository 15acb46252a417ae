"""The reference of the command: the help of each command and action, read from its parser."""

from __future__ import annotations

import os
import subprocess
import sys

from farrow.cli._parser import all_parsers

__all__ = ["page", "text_of"]

_COLUMNS = "100"


def page() -> str:
    """Sections of all commands in the order of ``farrow --help``, each with its actions below."""
    return "\n\n".join(_section(words) for words, _ in all_parsers())


def text_of(words: str) -> str:
    """What ``farrow COMMAND --help`` prints.

    Args:
        words: the command, such as ``"farrow ls"``.
    """
    if words == "farrow node":
        return _of_daemon()
    former = {key: os.environ.get(key) for key in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=_COLUMNS, NO_COLOR="1")
    try:
        return dict(all_parsers())[words].format_help().rstrip()
    finally:
        for key, value in former.items():
            os.environ.pop(key)
            if value is not None:
                os.environ[key] = value


def _section(words: str) -> str:
    # The actions of ``farrow node`` are commands of the parser.
    depth = len(words.split())
    title = f"{'#' * min(depth, 3)} {words}\n\n" if depth > 1 else ""
    return f"{title}```text\n{text_of(words)}\n```"


def _of_daemon() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "farrow.cli", "node", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": _COLUMNS, "NO_COLOR": "1"},
    )
    return done.stdout.rstrip()
