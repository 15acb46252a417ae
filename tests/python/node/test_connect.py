"""Where connect finds its node: the address given, the environment, this user's, a private one."""

from __future__ import annotations

import os
import socket as socketlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import LIMIT_SECONDS, run_python, wait_until

if TYPE_CHECKING:
    from conftest import Node


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment in which this user has no node yet."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    memory = Path(f"/dev/shm/farrow-test-{os.getpid()}-{tmp_path.name}")
    memory.mkdir(mode=0o700, exist_ok=True)
    return {
        "XDG_RUNTIME_DIR": str(runtime),
        "FARROW_MEMORY_DIR": str(memory),
        "FARROW_MEMORY": "64MiB",
        "FARROW_SOCKET": "",
        "FARROW_LINGER": "0",
    }


def check_removed(alone: dict[str, str]) -> None:
    """The private node ended, and left nothing behind."""
    memory = Path(alone["FARROW_MEMORY_DIR"])
    wait_until(lambda: not any(memory.iterdir()), "the memory of the private node to go")
    memory.rmdir()
    socket = Path(alone["XDG_RUNTIME_DIR"]) / "farrow" / "node.sock"
    wait_until(lambda: not socket.exists(), "its socket to go")


def test_address(node: Any) -> None:
    assert farrow.connect(node.socket).address == node.socket
    assert farrow.connect(Path(node.socket)).address == node.socket
    assert node.socket in repr(farrow.connect(node.socket))


def test_a_node_that_is_not_there_can_be_started(tmp_path: Path) -> None:
    socket = tmp_path / "none.sock"
    with pytest.raises(farrow.Disconnected, match=f"farrow node --socket {socket} starts one"):
        farrow.connect(socket)
    # A dead node has left its socket; a path that is no socket has another cause.
    with socketlib.socket(socketlib.AF_UNIX) as dead:
        dead.bind(str(socket))
    for path in (socket, tmp_path / ("n" * 200)):
        with pytest.raises((farrow.Disconnected, farrow.InvalidArgument)) as found:
            farrow.connect(path)
        assert "starts one" not in str(found.value)


def test_environment(node: Any, alone: dict[str, str]) -> None:
    script = "import farrow; print(farrow.connect().address)"
    env = {**alone, "FARROW_SOCKET": node.socket}
    assert run_python(script, env=env) == node.socket + "\n"
    # A node that was named is not replaced by a private one.
    env["FARROW_SOCKET"] = node.socket + ".not"
    script = """
import farrow
try:
    farrow.connect(timeout=2)
except farrow.Disconnected as error:
    print(error)
"""
    assert "node.sock.not" in run_python(script, env=env)
    check_removed(alone)


def test_a_private_node_has_no_descriptors_of_its_client(alone: dict[str, str]) -> None:
    """The end of a process of ``multiprocessing`` is seen by a pipe, which a node that this process
    had started held open; so was its port."""
    script = """
import os, socket, sys, farrow
reads, writes = os.pipe()
os.set_inheritable(writes, True)
server = socket.create_server(("127.0.0.1", 0))
server.set_inheritable(True)
client = farrow.connect()
client.put(b"mine", "n")
os.close(writes)
assert os.read(reads, 1) == b""
port = server.getsockname()[1]
server.close()
socket.create_server(("127.0.0.1", port), reuse_port=False).close()
print(client.get("n").to_pybytes())
"""
    env = {**os.environ, **alone, "FARROW_LINGER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True,
        timeout=LIMIT_SECONDS, close_fds=False,
    )  # fmt: skip
    assert done.stdout == "b'mine'\n", done.stderr
    check_removed(alone)


def test_private_node_ends_with_its_last_client(alone: dict[str, str]) -> None:
    script = """
import os, sys, farrow
client = farrow.connect()
client.put(b"mine", "n")
print(client.address, client.stats()["capacity"], client.stats()["pid"], flush=True)
sys.stdin.readline()
print(client.get("n").to_pybytes(), flush=True)
"""
    env = {**os.environ, **alone}
    first = subprocess.Popen(
        [sys.executable, "-c", script],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    address, capacity, pid = first.stdout.readline().split()
    assert address.startswith(alone["XDG_RUNTIME_DIR"])
    assert 32 << 20 <= int(capacity) <= 64 << 20
    # A second client finds the same node, and it outlives the first.
    second = subprocess.Popen(
        [sys.executable, "-c", script.replace('client.put(b"mine", "n")', "")],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert second.stdout is not None
    assert second.stdout.readline().split()[2] == pid
    first.kill()
    first.communicate()
    out, _ = second.communicate("go on\n", timeout=LIMIT_SECONDS)
    assert out == "b'mine'\n"
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the private node to end")
    check_removed(alone)


def test_many_start_at_once(alone: dict[str, str]) -> None:
    """Clients that start together share one private node."""
    script = """
import sys, farrow
client = farrow.connect()
print(client.stats()["pid"], flush=True)
sys.stdin.read()
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **alone},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        pids = {one.stdout.readline().strip() for one in started if one.stdout}
        assert len(pids) == 1, [one.stderr.read() for one in started if one.stderr]
        assert "" not in pids
    finally:
        for one in started:
            one.communicate()
    check_removed(alone)


def test_private_node_needs_no_pyarrow_package(alone: dict[str, str]) -> None:
    """It maps nothing of pyarrow, and no libarrow: the extension is linked to neither."""
    script = """
import farrow
client = farrow.connect()
with open(f"/proc/{client.stats()['pid']}/maps") as maps:
    mapped = maps.read()
print([name for name in ("lib.cpython", "libarrow", "arrow_", "libstdc++") if name in mapped])
"""
    assert run_python(script, env=alone) == "[]\n"
    check_removed(alone)


def test_a_private_node_that_cannot_start_says_why(alone: dict[str, str]) -> None:
    script = """
import farrow
try:
    farrow.connect(timeout=20)
except farrow.FarrowError as error:
    print(error)
"""
    words = run_python(script, env={**alone, "FARROW_MEMORY": "a lot"})
    assert "a lot" in words
    words = run_python(script, env={**alone, "FARROW_MEMORY": "900TiB"})
    assert "900" in words or str(900 << 40) in words
    check_removed(alone)


def test_timeout_is_retained(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(farrow.Timeout, match=r"silent\.sock"):
            farrow.connect(tmp_path / "silent.sock", timeout=0.2)


def test_a_peer_that_speaks_nonsense(tmp_path: Path) -> None:
    import socket
    import threading

    path = tmp_path / "odd.sock"
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(path))
        odd.listen()

        def answer() -> None:
            for words in (b"\xff" * 100, b"\x05\x00\x00\x00hello", b""):
                peer, _ = odd.accept()
                peer.sendall(words)
                peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(3):
            with pytest.raises(farrow.FarrowError):
                farrow.connect(path, timeout=5)
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()


def test_a_private_node_makes_room_for_what_is_new(alone: dict[str, str]) -> None:
    script = """
import farrow
client = farrow.connect()
half = client.stats()["capacity"] // 2
kept = client.get(client.put(b"in use"))
for name in "abcd":
    client.put(bytes(half - (1 << 20)), name)
names = sorted(name for name in client.list()["name"].to_pylist() if name)
print(names, kept.to_pybytes(), client.stats()["eviction"])
"""
    out = run_python(script, env={**os.environ, **alone})
    assert out.strip() == "['c', 'd'] b'in use' lru"
    check_removed(alone)


def test_a_process_that_may_have_few_open_files_learns_it(node: Node) -> None:
    """It was told that the node had sent too few descriptors."""
    script = """
import resource, sys
import farrow
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    print(farrow.connect(sys.argv[2]).put(b"fits") is not None)
except farrow.FarrowError as error:
    print(type(error).__name__, error)
"""
    said = {}
    for limit in (5, 6, 20):
        said[limit] = run_python(script, str(limit), str(node.socket)).strip()
    assert said[20] == "True"
    assert "open files of this process: the limit is 5" in said[5], said
    assert "open files of this process: the limit is 6" in said[6], said


def test_a_producer_that_ended_is_found(alone: dict[str, str]) -> None:
    """``python producer.py; python consumer.py`` raised NotFound: the private node went with the
    producer.  It stays for a while as long as it has named objects."""
    env = {**alone, "FARROW_LINGER": "600"}
    put = "import farrow; c = farrow.connect(); c.put(b'hello', 'n'); print(c.stats()['pid'])"
    pid = int(run_python(put, env=env))
    get = "import farrow; c = farrow.connect(); print(c.get('n').to_pybytes(), c.stats()['pid'])"
    assert run_python(get, env=env) == f"b'hello' {pid}\n"
    # Once nothing is left that could be looked for, it ends with its last client.
    run_python("import farrow; farrow.connect().delete('n')", env=env)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the private node to end")
    check_removed(alone)


def test_a_lingering_node_ends_in_time(alone: dict[str, str]) -> None:
    env = {**alone, "FARROW_LINGER": "1"}
    put = "import farrow; c = farrow.connect(); c.put(b'hello', 'n'); print(c.stats()['pid'])"
    pid = int(run_python(put, env=env))
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the private node to end")
    check_removed(alone)


def test_a_consumer_that_starts_an_empty_node_learns_it(alone: dict[str, str]) -> None:
    """A bare ``NotFound`` did not say that nobody served before."""
    script = """
import farrow
client = farrow.connect()
try:
    client.get("trades")
except farrow.NotFound as error:
    print(error)
"""
    words = run_python(script, env=alone)
    assert 'no object named "trades": no node served at' in words
    assert '"farrow node"' in words
    check_removed(alone)


def test_a_failed_lookup_is_explained_without_the_node(alone: dict[str, str]) -> None:
    """For the explanation ``get`` sent a message with the interpreter locked: where the node hung,
    no thread ran and Ctrl-C did nothing until the timeout of the client."""
    script = """
import os, signal, farrow
client = farrow.connect(timeout=10)
pid = client.stats()["pid"]
os.kill(pid, signal.SIGSTOP)
try:
    client.get("trades")
except farrow.NotFound as error:
    print(error)
finally:
    os.kill(pid, signal.SIGCONT)
"""
    assert "so this program started an empty one" in run_python(script, env=alone)
    check_removed(alone)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_socket_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    socket = folder / "node.sock"
    script = f"""
import os
import socket as socketlib
import farrow
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    farrow.connect({str(socket)!r}, timeout=2)
except farrow.PermissionDenied as error:
    print(error)
"""
    assert f"the socket {socket} of another user" in run_python(script)
