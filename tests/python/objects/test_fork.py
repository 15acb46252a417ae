"""A preloading server puts a table, forks its workers and goes on: it deletes,
evicts, ends or is killed. The workers' inherited views then showed the bytes of whatever was put
next, without an error. What a child inherited stays what it was while the child has it, and
comes back when the child ends."""

# What a child uses by name, its parent deletes afterwards.
# ruff: noqa: F821

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from c_cases import compile_c, needs_compiler
from conftest import LIMIT_SECONDS, run_program, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["c_cases"]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

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


def test_a_deleted_object_stays_what_it_was_in_a_child(client: farrow.Client) -> None:
    """The case of the issue: 40 MB, delete, other data; `used` fell to 0 while the child read."""
    client.put(pattern(1, 5_000_000), "big")
    value = client.get("big")

    def work(step: Callable[[], None]) -> None:
        step()
        assert is_pattern(value, 1)

    child = Child(work)
    child.at_step()
    del value
    gc.collect()
    client.delete("big")
    overwrite(client)
    assert used(client) >= 40_000_000
    child.finish()
    wait_unused(client)


def test_what_only_children_have_is_not_evicted(make_node: Callable[..., Any]) -> None:
    client = farrow.connect(make_node("--memory", "64MiB", "--evict", "lru").socket)
    client.put(pattern(2), "kept")
    value = client.get("kept")

    def work(step: Callable[[], None]) -> None:
        step()
        assert is_pattern(value, 2)

    child = Child(work)
    child.at_step()
    del value
    for _ in range(30):
        client.put(np.full(8 << 20, FOREIGN, np.uint8))
    assert client.contains("kept")
    child.finish()

    def is_evicted() -> bool:
        client.put(np.full(8 << 20, FOREIGN, np.uint8))
        return not client.contains("kept")

    wait_until(is_evicted, "an eviction of what no child has")


@pytest.mark.parametrize("how", ["exit", "close", "kill"])
def test_a_child_outlives_its_parent(node: Any, client: farrow.Client, how: str) -> None:
    """The parent's place was given up when it ended, and with it what its children read."""
    reader, writer = os.pipe()
    go, told = os.pipe()

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(3), "orphaned")
        value = own.get("orphaned")
        loose = pa.array(range(100_000), memory_pool=own.memory_pool())
        pid = os.fork()
        if pid == 0:
            os.read(go, 1)
            is_good = is_pattern(value, 3) and loose[99_999].as_py() == 99_999
            os.write(writer, b"y" if is_good else b"n")
            os._exit(0)
        if how == "close":
            del value, loose, own
            gc.collect()
        step()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(parent)
    child.at_step()
    child.go()
    assert child.end() == (-signal.SIGKILL if how == "kill" else 0)
    client.delete("orphaned")
    overwrite(client)
    assert used(client) >= 8 * WORDS
    os.write(told, b"x")
    assert os.read(reader, 1) == b"y"
    wait_unused(client)
    for one in (reader, writer, go, told):
        os.close(one)


@pytest.mark.parametrize("is_parent_alive", [True, False])
def test_a_killed_child_gives_everything_back(node: Any, is_parent_alive: bool) -> None:
    client = farrow.connect(node.socket)
    reader, writer = os.pipe()

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(4), "held")
        value = own.get("held")
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            time.sleep(LIMIT_SECONDS)
            os._exit(len(value) == 0)
        os.write(writer, str(pid).encode())
        del value
        own.delete("held")
        step()
        step()

    child = Child(parent)
    child.at_step()
    pid = int(os.read(reader, 16))
    if not is_parent_alive:
        os.kill(child.pid, signal.SIGKILL)
        assert child.end() == -signal.SIGKILL
    overwrite(client, 1)
    assert used(client) >= 8 * WORDS
    os.kill(pid, signal.SIGKILL)
    wait_unused(client)
    if is_parent_alive:
        child.go()
        child.at_step()
        child.finish()
    os.close(reader)
    os.close(writer)


def test_a_fork_of_a_fork(client: farrow.Client) -> None:
    """The first child ends while its own child reads on."""
    client.put(pattern(5), "old")
    value = client.get("old")
    go, told = os.pipe()
    reader, writer = os.pipe()

    def work(step: Callable[[], None]) -> None:
        if os.fork() == 0:
            os.read(go, 1)
            os.write(writer, b"y" if is_pattern(value, 5) else b"n")
            os._exit(0)
        step()

    child = Child(work)
    child.at_step()
    child.finish()
    del value
    client.delete("old")
    overwrite(client)
    os.write(told, b"x")
    assert os.read(reader, 1) == b"y"
    wait_unused(client)
    for one in (reader, writer, go, told):
        os.close(one)


def test_inherited_clients_say_so_and_new_ones_work_beside_them(client: farrow.Client) -> None:
    """A child's copies of handles do nothing to its parent, whatever is called or dropped."""
    client.put(pattern(6), "mine")
    value = client.get("mine")
    several = client.get_many(client.put_many([bytes([n]) * 100 for n in range(50)]))
    pool = client.memory_pool()
    writer = client.create(1000)
    writer.write(b"a" * 500, at=0)
    events = client.subscribe()

    def work(step: Callable[[], None]) -> None:
        inherited = [
            lambda: client.put(b"x"), lambda: client.get("mine"), lambda: client.delete("mine"),
            lambda: writer.write(b"y"), lambda: writer.seal(), lambda: client.stats(),
            lambda: client.barrier("b", 1), lambda: client.set_flags("f", 1),
            lambda: events.next(timeout=0.1), lambda: client.huge_table("h"),
            lambda: client.subscribe(), lambda: client.create(10), lambda: client.list(),
        ]  # fmt: skip
        for call in inherited:
            with pytest.raises(farrow.Disconnected, match="fork"):
                call()
        built = pa.array(range(10_000), memory_pool=pool)
        assert client._offset(built.buffers()[1].address, 1) is None, "the parent's memory"
        step()
        own = farrow.connect(client.address)
        assert is_pattern(own.get("mine"), 6)
        own.put(value, "copied")
        assert is_pattern(value, 6)
        assert [bytes(one)[0] for one in several] == list(range(50))
        events.close()

    child = Child(work)
    child.at_step()
    child.finish()
    gc.collect()
    assert is_pattern(value, 6)
    assert is_pattern(client.get("copied"), 6)
    writer.write(b"b" * 500, at=500)
    assert bytes(client.get(writer.seal())) == b"a" * 500 + b"b" * 500
    client.put(b"an event", "event")
    names = [getattr(events.next(timeout=LIMIT_SECONDS), "name", None) for _ in range(3)]
    assert "event" in names, names
    assert [bytes(one)[0] for one in several] == list(range(50))


def test_a_child_that_ends_in_good_order_takes_nothing_along(node: Any) -> None:
    """Interpreter shutdown, garbage collection and `del` in a child are its own affair."""
    client = farrow.connect(node.socket)
    client.put(pattern(7), "seven")
    value = client.get("seven")
    table = client.get(client.put(pa.table({"n": pattern(8)})))
    pid = os.fork()
    if pid == 0:
        # As pytest is not to go on here, a new interpreter's end is what `atexit` and the like do.
        del table
        gc.collect()
        del value, client
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.delete("seven")
    overwrite(client)
    assert is_pattern(value, 7)
    assert is_pattern(table["n"].to_numpy(), 8)
    script = (
        "import os, sys, farrow\nclient = farrow.connect(sys.argv[1])\n"
        "value = client.get(client.put(b'x' * 100000))\npid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert bytes(value) == b'x' * 100000 and client.stats()['clients'] >= 1\n"
    )
    subprocess.run([sys.executable, "-c", script, node.socket], check=True, timeout=60)


def test_children_of_a_thread_while_others_put_and_delete(client: farrow.Client) -> None:
    """A fork in the middle of another thread's put finds no lock that stays held."""
    client.put(pattern(9), "nine")
    value = client.get("nine")
    is_over = threading.Event()
    failures: list[BaseException] = []

    def busy(seed: int) -> None:
        try:
            while not is_over.is_set():
                ref = client.put(pattern(seed, 50_000))
                assert is_pattern(client.get(ref), seed)
                client.delete(ref)
                client.delete(client.put_many([b"small"] * 20))
                pa.array(range(5000), memory_pool=client.memory_pool())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=busy, args=(10 + n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):

            def work(step: Callable[[], None]) -> None:
                assert is_pattern(value, 9)
                own = farrow.connect(client.address)
                ref = own.put(pattern(20, 1000))
                assert is_pattern(own.get(ref), 20)
                own.delete(ref)

            assert Child(work).end() == 0
    finally:
        is_over.set()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
    assert not failures, failures


def test_buffers_of_the_pool_that_were_not_put(client: farrow.Client) -> None:
    """A table built in the pool belongs to no object: its pages went to others when freed."""
    pool = client.memory_pool()
    large = pa.array(pattern(30, 200_000), type=pa.int64(), memory_pool=pool)
    large = pa.concat_arrays([large, large], memory_pool=pool)
    small = [
        pa.concat_arrays([pa.array([n]), pa.array([n + 1])], memory_pool=pool) for n in range(99)
    ]
    put = pa.concat_arrays([pa.array(pattern(31, 200_000))] * 2, memory_pool=pool)

    def work(step: Callable[[], None]) -> None:
        step()
        assert is_pattern(large.to_numpy()[:200_000], 30)
        assert is_pattern(put.to_numpy()[200_000:], 31)
        assert [one.to_pylist() for one in small] == [[n, n + 1] for n in range(99)]

    child = Child(work)
    child.at_step()
    ref = client.put(put)
    del large, small, put
    gc.collect()
    client.delete(ref)
    others = [pa.concat_arrays([pa.array([7] * 200)] * 2, memory_pool=pool) for _ in range(500)]
    overwrite(client)
    del others
    child.finish()


def test_views_of_a_batch(client: farrow.Client) -> None:
    refs = client.put_many([bytes([n]) * 1000 for n in range(200)])
    views = client.get_many(refs)

    def work(step: Callable[[], None]) -> None:
        step()
        assert [set(bytes(view)) for view in views] == [{n} for n in range(200)]

    child = Child(work)
    child.at_step()
    del views
    gc.collect()
    client.delete(refs)
    more = client.put_many([bytes([FOREIGN]) * 1000 for _ in range(2000)])
    overwrite(client)
    client.delete(more)
    child.finish()


def test_a_writer_is_the_parents(client: farrow.Client) -> None:
    """A child that stored through an inherited writer changed what its parent sealed."""
    writer = client.create(8192)
    view = np.frombuffer(writer.buffer, np.uint8)
    view[:] = 1

    def work(step: Callable[[], None]) -> None:
        assert (view == 1).all()
        step()
        view[0] = 2

    child = Child(work)
    child.at_step()
    child.go()
    assert child.end() == -signal.SIGSEGV
    assert (view == 1).all()

    def read(step: Callable[[], None]) -> None:
        step()
        assert (view == 1).all()

    child = Child(read)
    child.at_step()
    del view
    writer.abort()
    del writer
    gc.collect()
    overwrite(client)
    child.finish()


@pytest.mark.parametrize("how", ["kill", "upgrade"])
@pytest.mark.parametrize("is_parent_alive", [True, False])
def test_a_child_outlives_the_daemon(node: Any, how: str, is_parent_alive: bool) -> None:
    """The next daemon finds the place of a client that has ended, and asks the kernel, too."""
    client = farrow.connect(node.socket)

    def parent(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(40), "forty")
        value = own.get("forty")

        def work(step: Callable[[], None]) -> None:
            step()
            assert is_pattern(value, 40)

        child = Child(work)
        child.at_step()
        del value
        step()
        child.finish()
        step()

    family = Child(parent)
    family.at_step()
    go, told = os.pipe()
    reader, writer = os.pipe()

    def orphaner(step: Callable[[], None]) -> None:
        own = farrow.connect(node.socket)
        own.put(pattern(41), "forty-one")
        value = own.get("forty-one")
        if os.fork() == 0:
            os.read(go, 1)
            os.write(writer, b"y" if is_pattern(value, 41) else b"n")
            os._exit(0)

    if not is_parent_alive:
        assert Child(orphaner).end() == 0
    if how == "kill":
        node.restart()
    else:
        before = node._process
        node._process = subprocess.Popen(
            [*before.args, "--upgrade"],
            stdin=subprocess.DEVNULL,
            stderr=(node.folder / "node.log").open("ab"),
        )
        before.wait(LIMIT_SECONDS)
    client.delete(["forty"] if is_parent_alive else ["forty", "forty-one"])
    overwrite(client)
    family.go()
    family.at_step()
    if not is_parent_alive:
        os.write(told, b"x")
        assert os.read(reader, 1) == b"y"
    wait_unused(client)
    family.finish()
    for one in (reader, writer, go, told):
        os.close(one)


def _sum(number: int) -> int:
    return int(TABLE["n"].to_numpy()[number::4].sum())


TABLE: Any = None


def test_a_pool_of_workers_over_a_preloaded_table(client: farrow.Client) -> None:
    """As `multiprocessing.Pool`, torch's DataLoader and gunicorn do it."""
    global TABLE
    numbers = pattern(50, 100_000)
    TABLE = client.get(client.put(pa.table({"n": numbers}), "preloaded"))
    with multiprocessing.get_context("fork").Pool(3) as workers:
        assert workers.map(_sum, range(4)) == [int(numbers[n::4].sum()) for n in range(4)]
        TABLE = None
        gc.collect()
        client.delete("preloaded")
        overwrite(client)
        assert workers.map(_sum, range(4)) == [int(numbers[n::4].sum()) for n in range(4)]
    wait_unused(client)


def test_a_child_that_executes_another_program_gives_everything_back(
    client: farrow.Client,
) -> None:
    client.put(pattern(60), "sixty")
    value = client.get("sixty")
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/sleep", ["sleep", str(int(LIMIT_SECONDS) * 2)])
    del value
    client.delete("sixty")
    wait_unused(client)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # What `subprocess` starts has nothing of it from the start.
    value = client.get(client.put(pattern(61), "sixty-one"))
    with subprocess.Popen(["/bin/sleep", str(int(LIMIT_SECONDS) * 2)]) as started:
        del value
        client.delete("sixty-one")
        wait_unused(client)
        started.kill()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of a system call")
def test_a_fork_that_no_handler_sees_faults(client: farrow.Client) -> None:
    """`clone` as a bare system call runs no handlers: such a child has no memory of the region."""
    import ctypes

    client.put(pattern(70), "seventy")
    value = client.get("seventy")
    libc = ctypes.CDLL(None)
    pid = libc.syscall(57)
    if pid == 0:
        value[0] == 0  # noqa: B015
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGSEGV
    assert is_pattern(value, 70)


def test_memory_of_another_node(make_cluster: Callable[..., Any]) -> None:
    """A child reads what its parent got from another node, which hears of the parent's end only."""
    cluster = make_cluster(2)
    own, other = cluster.clients()

    def parent(step: Callable[[], None]) -> None:
        client = cluster.client("a")
        there = client.at("b")
        there.put(pattern(80, 100_000), "there")
        value = client.get("there")
        mine = client.get(client.put(pattern(81, 100_000), "here"))

        def work(step: Callable[[], None]) -> None:
            step()
            assert is_pattern(value, 80)
            assert is_pattern(mine, 81)

        child = Child(work)
        child.at_step()
        del value, mine
        client.delete(["there", "here"])
        step()
        child.finish()
        step()

    family = Child(parent)
    family.at_step()
    overwrite(other, 2)
    overwrite(own, 2)
    assert used(other) >= 800_000
    assert used(own) >= 800_000
    family.go()
    family.at_step()
    wait_unused(own)
    wait_unused(other)
    family.finish()


def test_many_forks_leave_nothing_behind(client: farrow.Client) -> None:
    """Each fork makes a witness and takes it down again: no map and no descriptor is left."""
    value = client.get(client.put(pattern(90, 1000)))

    def counts() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            lines = sum("farrow-forks" in line for line in maps)
        return lines, len(os.listdir("/proc/self/fd"))

    assert Child(lambda step: None).end() == 0
    before = counts()
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if is_pattern(value, 90) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    maps, descriptors = counts()
    # Those of earlier tests may be closed meanwhile.
    assert (maps, descriptors <= before[1]) == (before[0], True), (descriptors, before)
    assert before[0] == 0


@needs_compiler
def test_a_program_in_c(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    program = compile_c("tests/fork.c", tmp_path / "fork", capi)
    assert run_program(program, client.address) == "the same bytes\n"


@pytest.fixture(autouse=True)
def _no_children() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
        raise ChildProcessError
