"""The end of an interpreter into which threads of DataFusion still call.

DataFusion reads tables by calls into Python from threads of its own, which also run when nothing
waits for the query any more: after a ``limit``, a stream that was not read to its end, a timeout.
Python ends a thread that wants to enter an interpreter in finalization, and the runtime of Rust
then aborts the process.  So at exit each such call raises, and the process waits until they cease.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from farrow.exceptions import FarrowError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call", "closed", "end_process", "opened", "wait"]

# After its last call a thread needs some microseconds to leave the interpreter; a second if the
# machine is busy.
_QUIET_SECONDS = 0.1
# A reader that calls no more waits for a consumer, or computes.
_QUIET_WITH_READERS_SECONDS = 1.0
# An exit is delayed by this at most.
_WAIT_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.005


class _ThreadState:
    """What this process knows of calls by threads of DataFusion."""

    def __init__(self) -> None:
        self.is_ending = False
        # The threads that are in a call.  Each operation on it is one of a dict, so it needs no
        # lock, which a fork could inherit.
        self.inside: dict[int, None] = {}
        # Readers that may call again, each with what ends it early, if anything does.
        self.readers: dict[object, Callable[[], None] | None] = {}
        self.last_call = float("-inf")


_state = _ThreadState()


def _after_fork() -> None:
    # The child has none of these threads.
    global _state
    _state = _ThreadState()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def call() -> Iterator[None]:
    """A call by a thread of DataFusion.

    Raises:
        FarrowError: the interpreter ends.
    """
    state, thread = _state, threading.get_ident()
    state.last_call = time.monotonic()
    if state.is_ending:
        raise FarrowError("the interpreter ends, and with it the queries that still run")
    state.inside[thread] = None
    try:
        yield
    finally:
        state.last_call = time.monotonic()
        state.inside.pop(thread, None)


def opened(reader: object, cancel: Callable[[], None] | None = None) -> None:
    """Record that a reader may call until it is closed.

    Args:
        reader: anything that can be a key; it is referred to until then.
        cancel: called at the end of the interpreter.
    """
    _state.readers[reader] = cancel


def closed(reader: object) -> None:
    """Record that a reader calls no more."""
    if _state.readers.pop(reader, closed) is not closed:
        _state.last_call = time.monotonic()


def wait() -> None:
    """End the queries that still run, and wait until no thread of DataFusion calls, five seconds at
    most."""
    state = _state
    state.is_ending = True
    started = time.monotonic()
    for cancel in [*state.readers.values()]:
        if cancel is not None:
            with contextlib.suppress(Exception):
                cancel()
    while (now := time.monotonic()) < started + _WAIT_SECONDS_MAX:
        since = started if state.readers else float("-inf")
        quiet = _QUIET_WITH_READERS_SECONDS if state.readers else _QUIET_SECONDS
        if not state.inside and now - max(state.last_call, since) >= quiet:
            return
        time.sleep(_POLL_SECONDS)


def end_process(code: int) -> NoReturn:
    """End this process as the interpreter does, up to its finalization: a thread of DataFusion that
    drops a Python object then, which is no call, would abort the process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


# Callbacks run before the interpreter refuses threads, and after all threads that are no daemons.
atexit.register(wait)
