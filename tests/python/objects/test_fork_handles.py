"""What a forked child inherited of clients, pools, writers and views does nothing to its parent."""

# What a child uses by name, its parent deletes afterwards.
# ruff: noqa: F821

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
from c_cases import compile_c, needs_compiler
from conftest import LIMIT_SECONDS, run_program
from fork_cases import FOREIGN, Child, is_pattern, overwrite, pattern, wait_unused

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["c_cases", "fork_cases"]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_children"),
]


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


TABLE: Any = None


def _sum(number: int) -> int:
    return int(TABLE["n"].to_numpy()[number::4].sum())


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
