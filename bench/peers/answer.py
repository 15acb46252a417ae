"""Common code of both drivers: load a peer's file, and answer requests on standard input."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = os.path.dirname(os.path.abspath(__file__))


def load(path: str) -> Any:
    """The module in ``path``, relative to this folder: ``farrow/peer.py``."""
    name = "peer_" + path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, os.path.join(_HERE, path))
    if spec is None or spec.loader is None or not os.path.exists(spec.origin or ""):
        raise SystemExit(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hide_folders() -> None:
    """Remove this folder from the module path: its folders must not shadow the packages."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]


def serve(make: Callable[[], Any]) -> None:
    """Make a driver; call the methods that requests name until the input ends."""
    # Answers use the original standard output; output of libraries goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = make()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(driver, request.pop("do"))(**request)}
        except Exception as error:  # sent to the harness, which decides
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()
