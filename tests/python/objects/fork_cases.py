"""Children that go on step by step, and what they and their parents check."""

from __future__ import annotations

import os
import select
import sys
import traceback
from typing import TYPE_CHECKING

import numpy as np
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORDS = 1_000_000  # 8 MB
FOREIGN = 0x5A


def pattern(seed: int, words: int = WORDS) -> np.ndarray:
    """Words that no other seed has, in this order."""
    return np.arange(words, dtype=np.int64) + (seed << 40)


def is_pattern(array: np.ndarray, seed: int) -> bool:
    return bool((np.asarray(array) == pattern(seed, len(array))).all())


class Child:
    """A process that was forked off, which goes on each time it is told to."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        to_child, self._go = os.pipe()
        self._done, from_child = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._go)

                def step() -> None:
                    os.write(from_child, b".")
                    if not os.read(to_child, 1):
                        os._exit(3)

                work(step)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(to_child)
        os.close(from_child)

    def at_step(self) -> None:
        """Wait until it waits."""
        ready, _, _ = select.select([self._done], [], [], LIMIT_SECONDS)
        assert ready, "the child waits for nothing"
        assert os.read(self._done, 1) == b".", f"the child ended: {os.waitpid(self.pid, 0)[1]}"

    def go(self) -> None:
        os.write(self._go, b"x")

    def end(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        code = -1

        def has_ended() -> bool:
            nonlocal code
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status)
            return pid == self.pid

        wait_until(has_ended, "the end of a child")
        os.close(self._go)
        os.close(self._done)
        return code

    def finish(self) -> None:
        """Let it go on to its end, which must be a good one."""
        self.go()
        assert self.end() == 0


def overwrite(client: farrow.Client, times: int = 3) -> None:
    """Use all memory that is free."""
    for _ in range(times):
        refs = []
        try:
            while True:
                refs.append(client.put(np.full(8 << 20, FOREIGN, np.uint8)))
        except farrow.OutOfMemory:
            pass
        assert refs or times == 1
        client.delete(refs)


def used(client: farrow.Client) -> int:
    """Bytes of objects, those included that are deleted and still held."""
    stats = client.stats()
    return int(stats["used"] + stats["retiring"])


def wait_unused(client: farrow.Client, before: int = 0) -> None:
    wait_until(lambda: used(client) <= before, f"{used(client)} B used, {before} before")


@pytest.fixture
def no_children() -> Iterator[None]:
    """No child is left after a test."""
    yield
    with pytest.raises(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
        raise ChildProcessError
