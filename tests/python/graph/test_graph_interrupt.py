"""Ctrl-C in a long search: it had no effect before the end of the call, which may never come.

Where all accounts of a core pay each other, there are more cycles than can be listed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from conftest import LIMIT_SECONDS, Cluster
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph, attach

if TYPE_CHECKING:
    import numpy.typing as npt

# Without a limit on the work of a search.
ENDLESS: dict[str, Any] = {"patterns": ["fan", "lc-cycle"], "window": 10**6, "work_max": None}


def core(rows: int, accounts: int = 60) -> npt.NDArray[np.float64]:
    """Payments among accounts that all pay each other."""
    random, matrix = np.random.default_rng(0), np.zeros((rows, 4))
    matrix[:, 0] = matrix[:, 3] = np.arange(rows)
    matrix[:, 1] = random.integers(0, accounts, rows)
    matrix[:, 2] = (matrix[:, 1] + 1 + random.integers(0, accounts - 1, rows)) % accounts
    return matrix


def interrupted(call: Any, after: float = 0.3) -> None:
    """Run a call until Ctrl-C."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        call()
    timer.join()


def apart(name: str, *arguments: str) -> None:
    """Run a function of this file in a process of its own, which ends if the function does not."""
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    code = "import sys, test_graph_interrupt as t; getattr(t, sys.argv[1])(*sys.argv[2:])"
    command = [sys.executable, "-c", code, name, *arguments]
    subprocess.run(command, env=env, timeout=2 * LIMIT_SECONDS, check=True)


def ends_and_changes_nothing(threads: str) -> None:
    few, many = core(100), core(2000)
    features = GraphFeatures(**ENDLESS, threads=int(threads)).fit(few)
    whole = GraphFeatures(**ENDLESS).fit(few)
    more = core(110)[100:]
    for call in (features.transform, features.preview, features.fit_transform):
        interrupted(lambda call=call: call(many))
        assert features.stats()["edges"] == features.stats()["rows"] == 100
    assert np.array_equal(features.transform(more), whole.transform(more))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_ends_a_call_and_changes_nothing(threads: str) -> None:
    apart("ends_and_changes_nothing", threads)


def ends_in_batch_mode() -> None:
    from farrow.graph.compat import GraphFeaturePreprocessor

    parameters = {"lc-cycle": True, "vertex_stats": False, "num_threads": 1}
    features, whole = GraphFeaturePreprocessor(), GraphFeaturePreprocessor()
    for one in (features, whole):
        one.set_params(parameters)
    few, more = core(100), core(110)[100:]
    whole.transform(few)
    features.transform(few)
    interrupted(lambda: features.transform(core(1500, 40)))
    assert np.array_equal(features.transform(more), whole.transform(more))


def test_ctrl_c_ends_a_call_of_the_compatible_interface() -> None:
    apart("ends_in_batch_mode")


def uses_the_graph_in_a_handler() -> None:
    features = GraphFeatures(**ENDLESS).fit(core(100))

    def handler(*_: Any) -> None:
        features.stats()

    signal.signal(signal.SIGINT, handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(RuntimeError, match="a signal handler cannot use the graph"):
        features.transform(core(2000))
    assert features.stats()["rows"] == 100


def test_a_handler_that_uses_the_graph_of_the_call_does_not_wait_for_itself() -> None:
    apart("uses_the_graph_in_a_handler")


def returns_from_a_handler() -> None:
    settings, seen = {**ENDLESS, "work_max": 200_000}, []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    found = GraphFeatures(**settings).transform(core(1500))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen
    assert np.array_equal(found, GraphFeatures(**settings).transform(core(1500)))


def test_a_call_goes_on_after_a_handler_that_returns() -> None:
    apart("returns_from_a_handler")


def leaves_offline_mode() -> None:
    features = GraphFeatures(**ENDLESS)
    parts = features.offline(core(2000), batch=1900)
    interrupted(lambda: next(parts))
    assert features.stats()["rows"] == 2000
    assert list(parts) == []
    last = np.array([[2000, 100, 101, 2000]], float)
    assert features.transform(last).shape == (1, len(features.get_feature_names_out()))


def test_ctrl_c_ends_offline_mode() -> None:
    apart("leaves_offline_mode")


def goes_on_in_the_cluster(address: str) -> None:
    graph = ClusterGraph("core", address, segment=50)
    features = GraphFeatures(**ENDLESS, cluster=graph).fit(core(100))
    whole = GraphFeatures(**ENDLESS).fit(core(100))
    interrupted(lambda: features.transform(core(2000)))
    assert features.stats()["rows"] == attach("core", address).stats()["rows"] == 100
    more = core(110)[100:]
    assert np.array_equal(features.transform(more), whole.transform(more))
    assert attach("core", address).stats()["rows"] == 110
    features.close()


def test_ctrl_c_leaves_a_writer_that_goes_on(nodes: Cluster) -> None:
    """The log had the rows, too."""
    apart("goes_on_in_the_cluster", nodes.nodes["a"].socket)
