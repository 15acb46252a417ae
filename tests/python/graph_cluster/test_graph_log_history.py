"""The log of a graph in cluster memory, judged as an append-only register.

Writers are killed, or replaced while they still run; readers on all nodes look all the time;
daemons are killed and stopped. Before epochs, a writer that was replaced took an entry out of the
log that its successor had read (the graph could not be opened any more), and readers kept rows that
the graph did not have.

``FARROW_LOG_HISTORY_SECONDS`` makes it longer, ``FARROW_LOG_HISTORY_SEED`` repeats the choices of
a run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import farrow
from cluster_graph_cases import SETTINGS, on, stream
from conftest import LIMIT_SECONDS, Cluster, wait_until
from farrow.graph import GraphFeatures
from farrow.graph.cluster import _call_log, _objects, _reader, _writer, attach

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = float(os.environ.get("FARROW_LOG_HISTORY_SECONDS", "20"))
SEED = int(os.environ.get("FARROW_LOG_HISTORY_SEED", str(random.SystemRandom().randrange(1 << 30))))
ROWS = 200_000

# Says when each call began and ended, and what it was; ends when it is replaced.
_WRITE = """
import random, sys, time
import numpy as np
import farrow
from cluster_graph_cases import SETTINGS, stream
from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph

def say(what, *numbers):
    print(what, *numbers, time.monotonic_ns(), flush=True)

chance, matrix = random.Random(int(sys.argv[2])), stream(int(sys.argv[3]))
try:
    say("open")
    config = ClusterGraph("payments", sys.argv[1], segment=100)
    features = GraphFeatures(**SETTINGS, cluster=config).partial_fit(matrix[:0])
    have = features._stream.engine.rows
    say("opened", have)
    while have < len(matrix):
        last = min(have + chance.choice((1, 10, 100, 300)), len(matrix))
        say("call", last)
        features.partial_fit(matrix[have:last])
        say("done", last)
        have = last
        time.sleep(chance.choice((0, 0, 0.01)))
except (farrow.FarrowError, RuntimeError) as error:
    say("failed " + type(error).__name__, 0)
"""

# The time of a row is half its number, so what a reader has is seen by its clock.
_READ = """
import random, sys, time
import farrow
from farrow.graph.cluster import attach

chance, reader = random.Random(int(sys.argv[2])), None
while True:
    began = time.monotonic_ns()
    try:
        if reader is None or chance.random() < 0.1:
            reader = attach("payments", sys.argv[1])
        reader.refresh()
        have = reader._engine.next_number()
        clock = reader.stats()["now"] if have else None
    except farrow.FarrowError as error:
        reader = None
        print("error", type(error).__name__, repr(str(error)), flush=True)
        time.sleep(0.05)
        continue
    print("read", have, clock, began, time.monotonic_ns(), flush=True)
    time.sleep(0.005)
"""


@dataclass
class Operation:
    """Something that began, ended if it did, and saw or made a number of rows."""

    what: str
    rows: int
    began: int
    ended: int | None


def judge(history: list[Operation]) -> list[str]:
    """What contradicts a log to which rows are only added, a call at a time: a read or an opening
    shows all rows that somebody knew of before it began, none that nobody had begun to write before
    it ended, and only whole calls."""
    wrong = []
    calls = [one for one in history if one.what == "call"]
    ends = {0, *(one.rows for one in calls)}
    known = sorted((one.ended, one.rows) for one in history if one.ended is not None)
    begun = sorted((one.began, one.rows) for one in calls)
    most_known = np.maximum.accumulate([rows for _, rows in known] or [0])
    most_begun = np.maximum.accumulate([rows for _, rows in begun] or [0])
    for one in history:
        if one.what == "call" or one.ended is None:
            continue
        before = np.searchsorted([at for at, _ in known], one.began)
        least = int(most_known[before - 1]) if before else 0
        after = np.searchsorted([at for at, _ in begun], one.ended)
        most = int(most_begun[after - 1]) if after else 0
        if not least <= one.rows <= most:
            wrong.append(f"{one}: {least} rows were known before, {most} begun after")
        if one.rows not in ends:
            wrong.append(f"{one}: no call ended there")
    return wrong


def test_the_judge_sees_what_is_wrong() -> None:
    good = [
        Operation("call", 10, 0, 5),
        Operation("read", 10, 6, 7),
        Operation("call", 30, 8, None),
        Operation("read", 10, 9, 11),
        Operation("read", 30, 10, 12),
        Operation("open", 30, 13, 14),
    ]
    assert judge(good) == []
    for bad in (
        Operation("read", 0, 6, 7),
        Operation("read", 30, 6, 7),
        Operation("read", 20, 15, 16),
        Operation("read", 10, 15, 16),
        Operation("open", 10, 15, 16),
    ):
        assert any(text.startswith(str(bad)) for text in judge([*good, bad])), bad


class Script:
    """A process whose lines go to a file, so that none is lost when it is killed."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        self.path = folder / f"lines-{time.monotonic_ns()}"
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        with self.path.open("wb") as out, self.path.with_suffix(".err").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, *arguments],
                stdout=out,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": paths},
            )

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines(keepends=True)
                if line.endswith("\n")]  # fmt: skip

    def end(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)


def history_of(writers: list[Script], readers: list[Script]) -> list[Operation]:
    """All that was said."""
    history = []
    for writer in writers:
        opened = 0
        for words in writer.lines():
            if words[0] == "open":
                opened = int(words[1])
            elif words[0] == "opened":
                history.append(Operation("open", int(words[1]), opened, int(words[2])))
            elif words[0] == "call":
                history.append(Operation("call", int(words[1]), int(words[2]), None))
            elif words[0] == "done":
                history[-1].ended = int(words[2])
    for reader in readers:
        for words in reader.lines():
            if words[0] == "read":
                rows, clock = int(words[1]), words[2]
                if rows:
                    assert float(clock) == (rows - 1) // 2, f"{rows} rows with the clock at {clock}"
                history.append(Operation("read", rows, int(words[3]), int(words[4])))
    return history


def disturb(nodes: Cluster, chance: random.Random) -> None:
    """Kill a daemon and start it again, or stop it for a while."""
    name = chance.choice("abc")
    if chance.random() < 0.5:
        nodes.nodes[name].restart()
    else:
        pid = nodes.nodes[name].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.random() * 0.3)
        os.kill(pid, signal.SIGCONT)


def test_writers_that_are_killed_and_replaced_and_readers_agree(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    chance, nodes = random.Random(SEED), make_cluster(3)
    writers: list[Script] = []
    readers: list[Script] = []
    everything = writers, readers
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            socket = nodes.nodes[chance.choice("ab")].socket
            seed = str(chance.randrange(1 << 30))
            # The one before may still write: it is replaced.
            writers.append(Script(tmp_path, _WRITE, socket, seed, str(ROWS)))
            while len(readers) < 3:
                place = nodes.nodes["abc"[len(readers)]].socket
                readers.append(Script(tmp_path, _READ, place, str(chance.randrange(1 << 30))))
            time.sleep(1 + chance.random() * 2)
            if chance.random() < 0.5:
                writers[-1].end()
            elif chance.random() < 0.5:
                os.kill(writers[-1].process.pid, signal.SIGSTOP)
            if chance.random() < 0.5:
                disturb(nodes, chance)
            for old in writers[:-1]:
                if old.process.poll() is None:
                    # Stopped in the middle of a call, it goes on behind its successor.
                    os.kill(old.process.pid, signal.SIGCONT)
    finally:
        for one in (script for scripts in everything for script in scripts):
            if one.process.poll() is None:
                os.kill(one.process.pid, signal.SIGCONT)
            one.end()
    nodes.settle(3)
    history = history_of(writers, readers)
    said = [" ".join(words) for one in readers for words in one.lines() if words[0] == "error"]
    reads = sum(one.what == "read" for one in history)
    assert reads > 30, said[-20:]
    assert sum(one.what == "call" and one.ended is not None for one in history) > 20
    wrong = judge(history)
    assert wrong == [], (SEED, len(wrong), wrong[:5])
    # The graph can be opened, and is that of its rows.
    matrix = stream(ROWS)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")).partial_fit(matrix[:0])
    have = features._stream.engine.rows
    assert have >= max(one.rows for one in history if one.ended is not None)
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:have])
    more = matrix[have : have + 100]
    assert np.array_equal(features.preview(more), whole.preview(more))
    assert np.array_equal(
        attach("payments", nodes.nodes["b"].socket).preview(more), whole.preview(more)
    )
    features.close()


@pytest.mark.parametrize("was_read", [True, False])
def test_an_entry_of_a_writer_that_was_replaced_counts_if_its_successor_read_it(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, was_read: bool
) -> None:
    """Its call fails either way, and readers agree with the successor."""
    nodes, matrix = make_cluster(2), stream(1000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.partial_fit(matrix[:300])
    reader = attach("payments", nodes.nodes["b"].socket)
    successors: list[GraphFeatures] = []

    def replaced(*arguments: Any) -> Any:
        monkeypatch.setattr(_call_log, "log", _objects.log)
        entry = _objects.log(*arguments) if was_read else None
        successor = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
        successors.append(successor.partial_fit(matrix[:0]))
        return entry or _objects.log(*arguments)

    monkeypatch.setattr(_call_log, "log", replaced)
    with pytest.raises(farrow.AlreadyExists, match="another process writes"):
        features.partial_fit(matrix[300:400])
    engine = successors[0]._stream.engine
    have = 400 if was_read else 300
    assert engine.rows == have
    for _ in range(2):
        reader.refresh()
        assert reader._engine.next_number() == have
        assert attach("payments", nodes.nodes["a"].socket)._engine.next_number() == have
        successors[0].partial_fit(matrix[have : have + 50])
        have += 50
    # It is followed by one that can open the graph.
    again = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")).partial_fit(matrix[:0])
    assert again._stream.engine.rows == have
    again.close()


def names_of(nodes: Cluster, kind: str) -> list[str]:
    found = nodes.client("a").list(f"graph/payments/{kind}/", all_nodes=True)
    return sorted(found["name"].to_pylist())


@pytest.mark.parametrize("was_read", [True, False])
def test_a_writer_that_was_replaced_adds_nothing_however_often_it_is_called(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, was_read: bool
) -> None:
    """Its service logs the error and calls with the next batch. A shorter entry with the same first
    row counted, too, and readers took its rows in place of those that the successor has."""
    nodes, matrix = make_cluster(2), stream(1000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.partial_fit(matrix[:300])
    successors: list[GraphFeatures] = []

    def replaced(*arguments: Any) -> Any:
        monkeypatch.setattr(_call_log, "log", _objects.log)
        entry = _objects.log(*arguments) if was_read else None
        successor = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
        successors.append(successor.partial_fit(matrix[:0]))
        return entry or _objects.log(*arguments)

    monkeypatch.setattr(_call_log, "log", replaced)
    with pytest.raises(farrow.AlreadyExists, match="another process writes"):
        features.partial_fit(matrix[300:400])
    before = names_of(nodes, "log")
    other = matrix[500:700].copy()
    other[:, 3] = matrix[300, 3]
    for rows in (10, 1, 100, 200):
        other[:rows, 0] = np.arange(300, 300 + rows)
        for call in (features.partial_fit, features.transform):
            with pytest.raises(farrow.AlreadyExists, match="another process writes"):
                call(other[:rows])
    assert names_of(nodes, "log") == before
    have = 400 if was_read else 300
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:have])
    more = matrix[have : have + 100]
    reader = attach("payments", nodes.nodes["b"].socket)
    assert reader._engine.next_number() == have
    assert np.array_equal(reader.preview(more), whole.preview(more))
    assert np.array_equal(successors[0].transform(more), whole.transform(more))
    features.close()
    successors[0].close()


def test_a_writer_that_was_replaced_commits_no_segment_and_joins_no_entries(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of its next manifest is free again once its successor has put two."""
    joined, joins = _call_log.joined, []
    monkeypatch.setattr(
        _call_log, "joined", lambda *given: (joins.append(given), joined(*given))[1]
    )
    matrix = stream(1000)
    monkeypatch.setattr(_call_log, "_ENTRIES_MAX", 6)
    for step in ("commits", "joins"):
        features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
        features.partial_fit(matrix[:10])
        engine, rows = features._stream.engine, 10
        if step == "commits":
            while engine._sealing._pending is None:
                features.partial_fit(matrix[rows : rows + 100])
                rows += 100
            engine._sealing._pending.result(LIMIT_SECONDS)
        while step == "joins" and rows < 60:
            features.partial_fit(matrix[rows : rows + 10])
            rows += 10
        successor = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
        successor.partial_fit(matrix[:0])
        if step == "commits":
            successor.partial_fit(matrix[rows : rows + 50])
            successor._stream.engine.settle(LIMIT_SECONDS)
            assert successor.stats()["segments"] == 1
        before = [names_of(nodes, kind) for kind in ("manifest", "log")]
        for _ in range(2):
            with pytest.raises(farrow.AlreadyExists, match="another process writes"):
                features.partial_fit(matrix[rows : rows + 50])
        assert [names_of(nodes, kind) for kind in ("manifest", "log")] == before, step
        assert len(engine._writer.entries) >= (6 if step == "joins" else 1)
        assert joins == []
        features.close()
        successor.close()
        client = nodes.client("a")
        client.delete(client.list("graph/", all_nodes=True)["id"].to_pylist())


@pytest.mark.parametrize("call", ["refused", "clear"])
def test_a_replaced_writer_that_begins_an_epoch_takes_nothing_from_its_successor(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It put the fence after its successor's, so that both were replaced."""
    matrix = stream(600)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")).partial_fit(matrix[:100])
    engine, real = features._stream.engine, features._stream.engine._writer.engine
    begin_epoch, successors = _writer.begin_epoch, []

    def late(*arguments: Any) -> int:
        monkeypatch.setattr(_writer, "begin_epoch", begin_epoch)
        successor = GraphFeatures(**SETTINGS, cluster=on(nodes, "b"))
        successors.append(successor.partial_fit(matrix[:0]))
        return begin_epoch(*arguments)

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def learn_columns(self, *_: object) -> None:
            raise ValueError("refused")

    monkeypatch.setattr(_writer, "begin_epoch", late)
    if call == "refused":
        engine._writer.engine = Refusing()
    for _ in range(2):
        with pytest.raises(farrow.AlreadyExists):
            if call == "refused":
                features.partial_fit(matrix[100:200])
            else:
                engine.clear()
    engine._writer.engine = real
    features.close()
    # The rows that were refused were in the log when the successor read it.
    have = successors[0]._stream.engine.rows
    assert have == (200 if call == "refused" else 100)
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:have])
    for start in (have, have + 100):
        more = matrix[start : start + 100]
        assert np.array_equal(successors[0].transform(more), whole.transform(more))
    successors[0].close()


def test_rows_on_the_node_of_a_former_writer_are_missed_while_it_is_down(
    make_cluster: Callable[..., Cluster],
) -> None:
    """The manifest lies on the node of the writer after it, which logged nothing: that the log had
    rows at all was seen by nobody, and the next writer began in their place."""
    nodes, matrix = make_cluster(3), stream(600)
    first = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")).partial_fit(matrix[:150])
    reader = attach("payments", nodes.nodes["c"].socket)
    first.close()
    second = GraphFeatures(**SETTINGS, cluster=on(nodes, "b")).partial_fit(matrix[:0])
    assert second._stream.engine.rows == 150
    second.close()
    nodes.nodes["a"].kill9()
    client = nodes.client("c")
    wait_until(lambda: {one.name: one.reach for one in client.nodes()}["a"] == "lost", "a is lost")
    for _ in range(2):
        with pytest.raises(farrow.NodeLost, match=r"rows 0 to 149 of graph 'payments' .* be on a"):
            attach("payments", nodes.nodes["c"].socket)
        third = GraphFeatures(**SETTINGS, cluster=on(nodes, "c"))
        with pytest.raises(farrow.NodeLost, match=r"rows 0 to 149 of graph 'payments' .* be on a"):
            third.partial_fit(matrix[150:200])
    # A reader that has the rows misses nothing.
    assert reader.refresh() == 0
    nodes.nodes["a"].start()
    nodes.settle(3)
    third = GraphFeatures(**SETTINGS, cluster=on(nodes, "c")).partial_fit(matrix[150:200])
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:200])
    more = matrix[200:300]
    assert reader.refresh() == 50
    for one in (reader, attach("payments", nodes.nodes["b"].socket)):
        assert np.array_equal(one.preview(more), whole.preview(more))
    third.close()


def test_a_reader_follows_rows_into_a_joined_entry(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of its list are deleted before it reads them, and no manifest changes."""
    matrix = stream(400)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a")).partial_fit(matrix[:10])
    reader = attach("payments", nodes.nodes["b"].socket)
    for start in range(10, 90, 10):
        features.partial_fit(matrix[start : start + 10])
    engine, lists = features._stream.engine, []

    def listed(*arguments: Any) -> list[_objects.LogEntry]:
        found = counted(*arguments)
        lists.append(len(found))
        if len(lists) == 1:
            monkeypatch.setattr(_call_log, "_ENTRIES_MAX", 8)
            engine._calls._join()
            monkeypatch.undo()
        return found

    counted = _reader.counted
    monkeypatch.setattr(_reader, "counted", listed)
    assert reader.refresh() == 80
    assert lists == [9]
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:90])
    more = matrix[100:200]
    assert np.array_equal(reader.preview(more), whole.preview(more))
    # An entry that is listed and cannot be read is an error at once, and so is a gap.
    features.partial_fit(matrix[90:100])
    features.partial_fit(matrix[100:110])
    client = nodes.client("a")
    client.delete(names_of(nodes, "log")[-2])
    with pytest.raises(farrow.NotFound, match="rows 90 to 99 of graph 'payments' are in no log"):
        reader.refresh()
    features.close()


def test_a_reader_that_saw_rows_which_were_taken_back_has_them_no_more(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, matrix = make_cluster(2), stream(1000)
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    features.partial_fit(matrix[:300])
    reader = attach("payments", nodes.nodes["b"].socket)
    engine = features._stream.engine

    class Refusing:
        """The engine, which refuses rows once a reader has them."""

        def __getattr__(self, name: str) -> object:
            return getattr(engine._engine_before, name)

        def learn_columns(self, *_: object) -> None:
            end = time.monotonic() + LIMIT_SECONDS
            while reader._engine.next_number() == 300 and time.monotonic() < end:
                reader.refresh()
            raise ValueError("refused")

    engine._engine_before = engine._writer.engine
    engine._writer.engine = Refusing()
    with pytest.raises(ValueError, match="refused"):
        features.partial_fit(matrix[300:400])
    engine._writer.engine = engine._engine_before
    assert reader._engine.next_number() == 400
    other = matrix[500:600].copy()
    other[:, 0] = np.arange(300, 400)
    features.partial_fit(other)
    reader.refresh()
    whole = GraphFeatures(**SETTINGS)
    whole.partial_fit(matrix[:300])
    whole.partial_fit(other)
    more = matrix[600:700]
    assert reader._engine.next_number() == 400
    assert np.array_equal(reader.preview(more), whole.preview(more))
    assert np.array_equal(features.preview(more), whole.preview(more))
    features.close()
