"""A process forks while another of its threads computes features: the child waited without an end
for a lock that only that thread could release."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import LIMIT_SECONDS
from farrow.graph import GraphFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

SETTINGS: dict[str, Any] = {
    "patterns": ("fan", "scatter-gather", "temp-cycle"),
    "window": 1_000,
    "bins": [2, 3, 4],
}


def rows(count: int, begin: int = 0) -> Any:
    """Rows among 200 accounts, which complete many patterns."""
    random = np.random.default_rng(begin)
    ends = random.integers(0, 200, (count, 2))
    times = begin + np.arange(count)
    return np.column_stack([times, ends, times]).astype(float)


def in_child(work: Callable[[], None]) -> int:
    """The status of a forked child: 0 if its work raises nothing."""
    pid = os.fork()
    if pid == 0:
        # A child that waits ends by the signal.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LIMIT_SECONDS))
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


CALLS: dict[str, Callable[[GraphFeatures], Any]] = {
    "transform": lambda features: features.transform(rows(2, 1_000_000)),
    "partial_fit": lambda features: features.partial_fit(rows(2, 1_000_000)),
    "preview": lambda features: features.preview(rows(2, 1_000_000)),
    "stats": lambda features: features.stats(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_child_of_a_fork_during_a_call_gets_an_error(call: str) -> None:
    features = GraphFeatures(**SETTINGS)
    features.partial_fit(rows(100))
    over = threading.Event()

    def compute() -> None:
        begin = 100
        while not over.is_set():
            features.transform(rows(2_000, begin))
            begin += 2_000

    def work() -> None:
        with pytest.raises(RuntimeError, match=r"forked while another thread .* make a new graph"):
            CALLS[call](features)
        # Another graph of the child has its own lock.
        GraphFeatures(**SETTINGS).transform(rows(10))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        # Between two calls of the thread the lock is free: then the child has a graph to use.
        for _ in range(20):
            time.sleep(0.05)
            status = in_child(work)
            assert status != -signal.SIGALRM, "the child waits"
            if status == 0:
                break
        else:
            pytest.fail("no child had an error")
    finally:
        over.set()
        thread.join()
    assert features.stats()["rows"] > 100


def test_a_child_of_a_fork_between_calls_uses_the_graph() -> None:
    features, whole = GraphFeatures(**SETTINGS), GraphFeatures(**SETTINGS)
    features.partial_fit(rows(100))
    whole.partial_fit(rows(100))
    want = whole.transform(rows(50, 100))

    def work() -> None:
        assert np.array_equal(features.transform(rows(50, 100)), want)
        threads = [threading.Thread(target=features.stats) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert in_child(work) == 0
    assert np.array_equal(features.transform(rows(50, 100)), want)
