"""The aarch64 wheel, run on x86-64 by user-mode QEMU.

    python wheel_aarch64.py WHEEL

Debian's Python for arm64 is unpacked into a folder of the build, not installed. pip installs the
wheel beside it, with what the wheel needs on that machine. There a node serves, processes put and
get, use the memory pool of each pyarrow, and compute features of a graph. The features are compared
with those that the farrow of this Python computes on x86-64, bit by bit.

``$PYARROWS``: "22 26". What works here may not work on a real machine: the emulated CPU shares the
ordered memory of this one, so no missing barrier shows. QEMU 7.2 accepts MADV_REMOVE,
MADV_POPULATE_WRITE, MADV_DONTFORK and MADV_WIPEONFORK and ignores them, and has no userfaultfd:
no check here depends on their effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from farrow.graph.generate import transactions

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS / "vm"))

from virtual import Debian, Failure, install, run  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

# Debian 12's Python, and the libraries of it, of pyarrow and of SciPy.
PYTHON = "3.11"
PACKAGES = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    *("libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libsqlite3-0", "libssl3", "libstdc++6", "libuuid1", "zlib1g"),
)
# As pip on such a machine accepts them.
PLATFORMS = ("2_28", "2_27", "2_26", "2_17")
PYARROWS = os.environ.get("PYARROWS", "22 23 24 25 26").split()
MEMORY = "64MiB"
ROWS = 3000
# For one script, which takes seconds on a machine of its own kind.
LIMIT_SECONDS = 600.0

# In a user namespace, and nowhere else, the kernel runs programs for aarch64 by QEMU, with their
# own argv[0] (P). Where that fails, `enter_namespace` says so inside.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
REGISTER = f"""
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf %s ':farrow-aarch64:M::{MAGIC}:{MASK}:'"$0":P >/proc/sys/fs/binfmt_misc/register
exec "$@"
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", REGISTER)
INSIDE = "FARROW_TEST_INSIDE"


def say(words: str) -> None:
    print(f"wheel: aarch64: {words}", flush=True)


def unpacked_python() -> Path:
    """The folder that has Debian's Python."""
    install(("qemu-user-static",))
    cache = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "vm"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"python{PYTHON}-arm64"
    if not root.is_dir():
        debian = Debian(cache, "arm64")
        debian.update()
        debian.unpack([f"{name}:arm64" for name in PACKAGES], root)
    return root


def enter_namespace(python: Path, words: list[str]) -> None:
    """Goes on in a namespace where the kernel runs Python, unless it does so here."""
    with contextlib.suppress(OSError):
        machine = subprocess.run(
            (python, "-c", "print(__import__('os').uname().machine)"), capture_output=True
        )
        if machine.stdout == b"aarch64\n":
            return
    if INSIDE in os.environ:
        raise Failure(
            "programs for aarch64 do not run. Linux 6.7 and later can register QEMU for a user "
            "namespace. Register it for the machine: apt-get install binfmt-support"
        )
    os.environ[INSIDE] = "yes"
    emulator = run("which", "qemu-aarch64-static").strip()
    os.execvp(NAMESPACE[0], [*NAMESPACE, emulator, sys.executable, __file__, *words])


class Machine(NamedTuple):
    """An emulated machine: its Python, and a folder with the packages of it."""

    folder: Path
    python: Path

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def address(self) -> Path:
        return self.folder / "run" / "farrow" / "node.sock"

    def env(self, *first: Path, **more: str) -> dict[str, str]:
        """For a process: ``first`` are folders with packages that it uses instead of others."""
        names = ("PATH", "HOME", "LANG", "QEMU_LD_PREFIX")
        given = {name: os.environ[name] for name in names if name in os.environ}
        path = ":".join(map(str, (*first, self.site)))
        runtime = {"XDG_RUNTIME_DIR": str(self.folder / "run"), "FARROW_LINGER": "0"}
        return {**given, **runtime, "FARROW_MEMORY": MEMORY, "PYTHONPATH": path, **more}

    def run(self, what: str, *words: str | Path, env: dict[str, str]) -> None:
        """Runs Python with these arguments to its end."""
        began = time.monotonic()
        # In a group of its own: a script that is stopped has children.
        child = subprocess.Popen(
            (self.python, *words), env=env, cwd=self.folder, start_new_session=True
        )
        try:
            code = child.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"{what}: not done in {LIMIT_SECONDS} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if code != 0:
            raise Failure(f"{what}: exit code {code}")
        say(f"{what}: {time.monotonic() - began:.1f} s")

    def script(self, name: str, *words: str, env: dict[str, str]) -> None:
        """Runs one of the scripts of this folder."""
        self.run(f"{name} {words[0]}", TESTS / name, *words, env=env)


def pip(target: Path, *wanted: str) -> None:
    platforms = [f"--platform=manylinux_{one}_aarch64" for one in PLATFORMS]
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    machine = ("--implementation=cp", f"--python-version={PYTHON}", *platforms)
    run(*command, "--only-binary=:all:", *machine, "--target", str(target), *wanted)


def is_serving(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(address))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def node(machine: Machine) -> Iterator[int]:
    """The process of a node as the command starts it, which ends at SIGTERM."""
    began = time.monotonic()
    command = (machine.python, "-m", "farrow", "node", "--memory", MEMORY)
    process = subprocess.Popen(
        command, env=machine.env(), cwd=machine.folder, start_new_session=True
    )
    try:
        while not is_serving(machine.address):
            if process.poll() is not None:
                raise Failure(f"the node ended with {process.returncode}")
            if time.monotonic() - began > LIMIT_SECONDS:
                raise Failure(f"the node does not serve after {LIMIT_SECONDS} s")
            time.sleep(0.1)
        say(f"a node serves after {time.monotonic() - began:.1f} s")
        yield process.pid
        process.terminate()
        code = process.wait(LIMIT_SECONDS)
        if code != 0:
            raise Failure(f"the node ended with {code}")
    finally:
        # Its supervisor and its daemon.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_restart(machine: Machine, supervisor: int) -> None:
    """The supervisor of a node starts another daemon for one that is killed. It has its objects."""

    def daemons() -> set[int]:
        files = Path(f"/proc/{supervisor}/task").glob("*/children")
        return {int(word) for file in files for word in file.read_text().split()}

    connect = "import farrow; client = farrow.connect(timeout=60)\n"
    put, get = (
        "client.put(b'here still', 'kept')",
        "assert bytes(client.get('kept')) == b'here still'",
    )
    machine.run("a put", "-c", connect + put, env=machine.env())
    (killed,) = daemons()
    os.kill(killed, signal.SIGKILL)
    machine.run("a get after the daemon was killed", "-c", connect + get, env=machine.env())
    if len(daemons() - {killed}) != 1:
        raise Failure(f"supervisor {supervisor} has daemons {daemons()} after {killed} was killed")


def check_graph(machine: Machine) -> None:
    """The same bits as on x86-64."""
    rows, theirs, ours = (machine.folder / f"{name}.arrow" for name in ("rows", "theirs", "ours"))
    table = transactions(ROWS, seed=30)
    with pa.ipc.new_file(str(rows), table.schema) as writer:
        writer.write_table(table)
    machine.run("graph", TESTS / "wheel_graph.py", rows, theirs, env=machine.env())
    run(sys.executable, TESTS / "wheel_graph.py", rows, ours)
    found, expected = (pa.ipc.open_file(str(path)).read_all() for path in (theirs, ours))
    if found.schema != expected.schema or found.num_rows != expected.num_rows:
        raise Failure(f"graph: {found.schema} and {found.num_rows} rows, not {expected.schema}")

    def bits(column: pa.ChunkedArray) -> list[bytes | None]:
        whole = column.combine_chunks()
        return [buffer and buffer.to_pybytes() for buffer in whole.buffers()]

    names = expected.column_names
    differ = [name for name in names if bits(found[name]) != bits(expected[name])]
    if differ:
        raise Failure(f"graph: {len(differ)} columns differ from those on x86-64: {differ[:10]}")
    say(f"graph: {found.num_columns} columns of {found.num_rows} rows are those of x86-64")


def check(machine: Machine, wheel: Path) -> None:
    (machine.folder / "run").mkdir(mode=0o700)
    pip(machine.site, f"{wheel}[graph]", f"pyarrow=={PYARROWS[-1]}.*")
    # A private node.
    machine.script("wheel_smoke.py", "first", env=machine.env())
    with node(machine) as supervisor:
        machine.script("wheel_smoke.py", "all", env=machine.env())
        for major in PYARROWS:
            other = machine.folder / f"pyarrow-{major}"
            if major != PYARROWS[-1]:
                pip(other, "--no-deps", f"pyarrow=={major}.*")
            machine.script("matrix_smoke.py", "pool", env=machine.env(other))
        check_restart(machine, supervisor)
    check_graph(machine)


def main(*words: str) -> int:
    (wheel,) = words
    try:
        root = unpacked_python()
        os.environ["QEMU_LD_PREFIX"] = str(root)
        python = root / "usr" / "bin" / f"python{PYTHON}"
        enter_namespace(python, list(words))
        with tempfile.TemporaryDirectory(prefix="farrow-") as folder:
            check(Machine(Path(folder), python), Path(wheel).resolve())
    except Failure as failure:
        say(f"FAILED: {failure}")
        return 1
    say(f"{Path(wheel).name}: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
