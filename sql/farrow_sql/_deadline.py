"""The time of a query."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from farrow._native import CancelToken
from farrow_sql._errors import Late

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NEVER", "Deadline"]

T = TypeVar("T")

# How soon Ctrl-C and the deadline end a wait.
_POLL_SECONDS = 0.1


class Deadline:
    """The end of the time of a query.

    Args:
        seconds: from now; None: there is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._end is not None and time.monotonic() >= self._end

    def left(self, most: float) -> float:
        """Seconds until the end, from 0 to ``most``."""
        return most if self._end is None else min(max(self._end - time.monotonic(), 0.0), most)

    def check(self) -> None:
        """Raise ``Late`` if no time is left."""
        if self.is_over:
            raise Late

    def read(self, body: Callable[[], T]) -> T:
        """Call a body that reads from the store; what it waits for ends with the time.

        Raises:
            Late: no time is left.
            Exception: what the body raised.
        """
        if self._end is None:
            return body()
        token = CancelToken()
        found: T = self.run(lambda: token.run(body), token.cancel)
        return found

    def run(self, body: Callable[[], T], cancel: Callable[[], None]) -> T:
        """Call a body in another thread, so that the deadline and Ctrl-C end the wait for it.

        Args:
            body: it may outlive the call.
            cancel: called if nothing waits for the body any more.

        Raises:
            Late: no time is left.
            Exception: what the body raised.
        """
        self.check()
        ended: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

        def call() -> None:
            try:
                ended.put((body(),))
            except BaseException as error:
                ended.put(error)

        threading.Thread(target=call, name="farrow-sql query", daemon=True).start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    result = ended.get(timeout=_POLL_SECONDS)
                    break
                self.check()
        except BaseException:
            cancel()
            raise
        if isinstance(result, BaseException):
            # An error after the deadline can be a consequence of it.
            self.check()
            raise result
        return result[0]


NEVER = Deadline(None)
