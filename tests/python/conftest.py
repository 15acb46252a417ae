"""A node of 256 MiB in a process of its own, and clients of it."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from farrow import _native
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Fixtures of each are of the tests that name it in pytest_plugins.
pytest.register_assert_rewrite(
    "backup_cases", "c_cases", "flight_cases", "fork_cases", "net_cases", "sql_cases"
)

ROOT = Path(__file__).resolve().parents[2]
# Longest wait for anything that should be quick; a test never asserts that it was.
LIMIT_SECONDS = 30.0
LEASE_MS = "2000"
MEMORY = "256MiB"
# A user that owns nothing.
NOBODY = 65534

# Without an import of the package, which takes longer than all else that a node does here.
RUN_NODE = (
    sys.executable, "-I", "-S",
    str(Path(farrow.__file__).parent / "_nodes/_node.py"), str(_native.__file__),
)  # fmt: skip


def pytest_configure() -> None:
    """What a shell runs in its background ignores SIGINT, and so would all that tests start and
    stop by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Files with few tests that take long: with two workers they begin first, so that none is left alone
# with one of them at the end.
_LONG = frozenset(
    {
        "test_bench_sql.py", "test_certificate_reload.py", "test_drain_killed.py",
        "test_drain_waits.py", "test_fork.py", "test_graph_killed.py", "test_graph_log_history.py",
        "test_install_c.py", "test_lazy_served.py", "test_sql_killed.py",
    }
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _LONG)


def wait_until(condition: Callable[[], bool], what: str, limit: float = LIMIT_SECONDS) -> None:
    """Return as soon as the condition holds; fail when it does not within the limit."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.005)


class Node:
    """A node that a test can kill and start again over the same memory."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.socket = str(folder / "node.sock")
        memory_dir = str(self._memory())
        # The test itself starts it again.
        self.flags = ["--unsupervised", "--socket", self.socket, "--memory-dir", memory_dir, *flags]
        if "--memory" not in flags:
            self.flags += ["--memory", MEMORY]
        if not {"--evict", "--spill"} & set(flags):
            # What does not fit is to be an error.
            self.flags += ["--evict", "none"]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            # Nobody else knows of it yet.
            self.close()
            raise

    def _memory(self) -> Path:
        """A folder of this node alone on the machine's tmpfs."""
        folder = Path("/dev/shm") / f"farrow-test-{os.getpid()}-{id(self):x}"
        folder.mkdir(mode=0o700)
        self.memory_dir = folder
        return folder

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            [*RUN_NODE, *self.flags],
            stdin=subprocess.DEVNULL,
            stderr=(self.folder / "node.log").open("ab"),
        )
        wait_until(self._answers, f"a node at {self.socket}: {self.log()}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the node ended: {self.log()}"
        try:
            farrow.connect(self.socket, timeout=5)
        except farrow.Disconnected:
            return False
        return True

    def log(self) -> str:
        """What it wrote to standard error."""
        path = self.folder / "node.log"
        return path.read_text() if path.exists() else ""

    def kill9(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(LIMIT_SECONDS)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(LIMIT_SECONDS)
                raise

    def restart(self) -> None:
        """Kill it and start it again; it adopts what it finds."""
        self.kill9()
        self.start()

    def close(self) -> None:
        """Stop it and remove its memory."""
        try:
            self.stop()
        finally:
            for path in self.memory_dir.iterdir():
                path.unlink()
            self.memory_dir.rmdir()


def need_process_namespaces() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("process namespaces need root and unshare")


class Apart(Node):
    """A node in a process namespace of its own. It does not see its clients' processes, and to
    other nodes it is another machine."""

    def start(self) -> None:
        words = ["unshare", "--pid", "--fork", "--kill-child", *RUN_NODE]
        self._process = subprocess.Popen(
            [*words, *self.flags],
            stdin=subprocess.DEVNULL,
            stderr=(self.folder / "node.log").open("ab"),
        )
        wait_until(self._answers, f"a node at {self.socket}: {self.log()}")

    def kill9(self) -> None:
        """Its end follows that of its parent, which is the process that was started."""
        assert self._process is not None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        super().kill9()
        for child in children:
            wait_until(lambda: not Path(f"/proc/{child}").exists(), "the node ends")  # noqa: B023

    def stop(self) -> None:
        """Kill it, since it gets no signal of its parent's."""
        if self._process is not None and self._process.poll() is None:
            self.kill9()


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Nodes with flags of their own, ended after the test."""
    nodes: list[Node] = []

    def make(*flags: str) -> Node:
        folder = tmp_path / f"node{len(nodes)}"
        folder.mkdir()
        nodes.append(Node(folder, *flags))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node of 256 MiB that belongs to this test."""
    return make_node()


@pytest.fixture
def client(node: Node) -> farrow.Client:
    """A client of this test's node."""
    return farrow.connect(node.socket)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests that leave no names behind."""
    node = Node(tmp_path_factory.mktemp("shared"))
    yield node
    node.close()


@pytest.fixture
def shared(shared_node: Node) -> farrow.Client:
    """A client of the shared node."""
    return farrow.connect(shared_node.socket)


class Cluster:
    """Nodes a, b and so on, each of which knows all others."""

    def __init__(self, make_node: Callable[..., Node], count: int, *flags: str) -> None:
        self.names = [chr(ord("a") + number) for number in range(count)]
        self.addresses = free_addresses(count)
        self.nodes: dict[str, Node] = {}
        lease = () if "--lease-ms" in flags else ("--lease-ms", LEASE_MS)
        for name, address in zip(self.names, self.addresses, strict=True):
            joins = [f"--join={other}" for other in self.addresses if other != address]
            self.nodes[name] = make_node(
                "--memory", "64MiB", "--name", name, "--listen", address, *joins,
                *lease, *(flags or ("--plaintext",)),
            )  # fmt: skip
        self.settle(count)

    def client(self, name: str) -> farrow.Client:
        return farrow.connect(self.nodes[name].socket)

    def clients(self) -> list[farrow.Client]:
        return [self.client(name) for name in self.names]

    def settle(self, live: int) -> None:
        """Wait until each node maps the memory of this number of nodes."""

        def is_settled(client: farrow.Client) -> bool:
            nodes = client.nodes()
            return sum(node.reach == "live" and node.fabric != "" for node in nodes) == live

        for client in self.clients():
            wait_until(lambda client=client: is_settled(client), f"{live} nodes: {client.nodes()}")


@pytest.fixture
def make_cluster(make_node: Callable[..., Node]) -> Callable[..., Cluster]:
    def make(count: int, *flags: str) -> Cluster:
        return Cluster(make_node, count, *flags)

    return make


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests that end none."""
    made: list[Node] = []

    def make(*flags: str) -> Node:
        made.append(Node(tmp_path_factory.mktemp("node"), *flags))
        return made[-1]

    try:
        yield Cluster(make, 3)
    finally:
        for node in made:
            node.close()


@pytest.fixture
def nodes(three: Cluster) -> Iterator[Cluster]:
    """The three nodes, with nothing in them."""
    yield three
    client = three.client("a")
    client.delete(client.list(all_nodes=True)["id"].to_pylist())


def run_program(*command: object, **more: Any) -> str:
    """The output of a program, which has to succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        **more,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def build_capi() -> Path:
    """The folder of the C library, built now. With the libraries of all packages and one test they
    have the features of ``cargo test``, which has built all of it then."""
    run_program("cargo", "build", "--quiet", "--lib", "--test", "c_data", cwd=ROOT)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"


def run_python(script: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Standard output of a script in a new process, which must succeed."""
    done = python_process(script, *arguments, env=env)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    return done.stdout


def python_process(
    script: str, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A script in a new process, run to its end."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=None if env is None else {**os.environ, **env},
    )


def scrape(node: Node) -> str:
    """The numbers, asked as Prometheus asks."""
    connection = http.client.HTTPConnection("localhost", timeout=LIMIT_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(LIMIT_SECONDS)
    connection.sock.connect(node.socket + ".metrics")
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def as_nobody(run: Callable[[], None]) -> None:
    """Run it in a child that is another user; assertions that fail there fail here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            run()
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        said = words.read()
    os.waitpid(child, 0)
    assert not said, said
