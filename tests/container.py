"""The image of packaging/Containerfile without a container engine: its steps run in a chroot.

    python container.py FOLDER    as root; FOLDER has the packages of `make deb`

The first image only runs packaging/deb.sh, as `make deb` does. The steps of the second one run in a
fresh Debian. Its node runs as the image says: with mounts, a network, shared memory and a read-only
root of its own, without capabilities, and with a limit on its memory. Clients use it from outside
through the folder of its socket.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import farrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
CONTAINERFILE = ROOT / "packaging" / "Containerfile"
VALUES = ROOT / "packaging" / "chart" / "values.yaml"
LIMIT_SECONDS = 60.0
MEMORY_MIB = 256
METRICS_PORT = 9464
# The node needs its memory and its tables in /dev/shm; clients need nothing there.
SHM_MIB = MEMORY_MIB + 32
CGROUP = Path("/sys/fs/cgroup/memory")
ISOLATED = ("unshare", "--mount", "--ipc", "--uts", "--net")

# In namespaces of its own: $1 the root, $2 the folder of the socket, then the command.
ENTER = f"""
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs -o size={SHM_MIB}m tmpfs "$1/dev/shm"
mount --bind "$2" "$1/run/farrow"
ip link set lo up
root=$1
shift 2
exec chroot "$root" "$@"
"""

PROBE = f"""
exec 3<>/dev/tcp/127.0.0.1/{METRICS_PORT} && printf 'GET $0 HTTP/1.0\\r\\n\\r\\n' >&3 &&
read -r answer <&3 && [[ $answer == *' 200 '* ]]
""".replace("$0", "/readyz")


class Image(NamedTuple):
    """The second image of the Containerfile."""

    steps: list[str]
    environment: dict[str, str]
    user: tuple[str, str]
    volume: str
    entrypoint: list[str]


def read_image() -> Image:
    text = re.sub(r"\\\n", "", CONTAINERFILE.read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line[:1].isalpha()]
    starts = [number for number, (word, _) in enumerate(lines) if word == "FROM"]
    assert len(starts) == 2, starts
    build, final = lines[starts[0] : starts[1]], lines[starts[1] :]
    assert build[-1] == ["RUN", "packaging/deb.sh /dist"], build[-1]
    assert final[0][1] == "debian:bookworm-slim"
    assert final[1] == ["COPY", "--from=build /dist /dist"]
    rest = {word: value for word, value in final if word != "RUN"}
    user, _, group = rest["USER"].partition(":")
    return Image(
        steps=[value for word, value in final if word == "RUN"],
        environment=dict([rest["ENV"].split("=", 1)]),
        user=(user, group),
        volume=rest["VOLUME"],
        entrypoint=json.loads(rest["ENTRYPOINT"]),
    )


def run(*command: object, **more: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=900, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}"
    out: str = done.stdout
    return out


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.02)


def build(image: Image, root: Path, packages: Path) -> None:
    """Make a fresh Debian, and run the steps of the image in it."""
    run("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", root)
    (root / "dist").mkdir()
    for package in packages.glob("*.deb"):
        shutil.copy(package, root / "dist")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    for step in image.steps:
        print(f"container: {' '.join(step.split())}", flush=True)
        env = {"PATH": os.environ["PATH"], "DEBIAN_FRONTEND": "noninteractive"}
        run("chroot", root, "/bin/sh", "-c", step, env=env)
    assert not (root / "dist").exists()


@contextmanager
def memory_limit(mib: int) -> Iterator[Path | None]:
    """A control group with this limit, if one can be made here."""
    group = CGROUP / f"farrow-container-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(mib << 20))
    except OSError as error:
        print(f"container: no limit on memory here: {error}")
        yield None
        return
    try:
        yield group
        assert (group / "memory.failcnt").read_text() == "0\n", "the limit was reached"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty control group")
        group.rmdir()


@contextmanager
def node_of(image: Image, root: Path, folder: Path, group: Path | None) -> Iterator[int]:
    """The node of the image; its supervisor's process id."""
    user, owner = image.user
    options = [f"--memory={MEMORY_MIB}MiB", f"--metrics={METRICS_PORT}", "--evict=none"]
    command = [
        *ISOLATED, "bash", "-euc", ENTER, "bash", str(root), str(folder),
        "setpriv", "--reuid", user, "--regid", owner, "--clear-groups", "--no-new-privs",
        "--bounding-set=-all", "--inh-caps=-all",
        *image.entrypoint, *options,
    ]  # fmt: skip

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    env = {"PATH": os.environ["PATH"], **image.environment}
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, preexec_fn=join)
    try:
        wait_until(lambda: (folder / "node.sock").exists() or process.poll() is not None, "a node")
        assert process.poll() is None, "the node ended"
        yield process.pid
        # `docker stop`: in good order, and nothing is left in the folder.
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
        assert not list(folder.iterdir()), list(folder.iterdir())
    finally:
        process.kill()
        process.wait()


def probe(pid: int) -> bool:
    """A health check of the Helm chart, run inside the container."""
    inside = ("nsenter", f"--target={pid}", "--mount", "--net", "--root", "--wd=/")
    done = subprocess.run([*inside, "/bin/bash", "-c", PROBE], stderr=subprocess.DEVNULL)
    return done.returncode == 0


def client_of_another_container(packages: Path, work: Path, image: Image) -> list[str]:
    """A command that puts and gets as the user of the image, in namespaces of its own."""
    for package in packages.glob("libfarrow*.deb"):
        run("dpkg-deb", "-x", package, work / "dev")
    (library,) = (work / "dev").rglob("libfarrow.a")
    sources = ROOT / "cpp" / "examples" / "bytes.c"
    private = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]
    include = work / "dev" / "usr" / "include"
    run("cc", "-std=c11", "-I", include, sources, library, *private, "-o", work / "bytes")
    user, group = image.user
    pod = ["unshare", "--mount", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
    return [
        *pod, "setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs",
        str(work / "bytes"), str(work / "run" / "node.sock"),
    ]  # fmt: skip


def check_clients(socket: str, pid: int, other: list[str]) -> None:
    client = farrow.connect(socket, timeout=30)
    client.put(b"from outside", "kept")
    said = run(*other)
    assert "in place: no copy!" in said, said
    # A client that is killed in another container gives its place back.
    clients = client.stats()["clients"]
    reader = (
        f"import farrow, time; c = farrow.connect({socket!r}); h = c.get('kept'); time.sleep(60)"
    )
    pod = subprocess.Popen(
        [*other[: other.index("setpriv")], sys.executable, "-c", reader], stdin=subprocess.DEVNULL
    )
    wait_until(lambda: client.stats()["clients"] == clients + 1, "another client")
    pod.kill()
    pod.wait()
    wait_until(lambda: client.stats()["clients"] == clients, "the end of the other client")
    # All of the memory can be used within the limit of the container.
    filled = 0
    try:
        while True:
            client.put(os.urandom(1 << 20) * 4, f"filled {filled}")
            filled += 4
    except farrow.OutOfMemory:
        assert filled > MEMORY_MIB * 3 // 4, f"{filled} MiB of {MEMORY_MIB}"
    print(f"container: {filled} MiB of {MEMORY_MIB} MiB filled")
    # A killed daemon is followed by the next one, with all objects.
    (daemon,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    objects = client.stats()["objects"]
    os.kill(int(daemon), signal.SIGKILL)
    wait_until(lambda: client.stats()["pid"] != int(daemon), "the next daemon")
    assert client.stats()["objects"] == objects
    assert client.get("kept").to_pybytes() == b"from outside"


def main(packages: Path) -> None:
    assert os.geteuid() == 0, "needs root"
    image = read_image()
    found = re.search(r"^daemonMiB: (\d+)", VALUES.read_text(), re.M)
    assert found
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        work.chmod(0o755)
        build(image, work / "root", packages)
        folder = work / "run"
        folder.mkdir()
        os.chown(folder, *map(int, image.user))
        assert image.environment["FARROW_SOCKET"] == f"{image.volume}/node.sock"
        other = client_of_another_container(packages, work, image)
        with (
            memory_limit(MEMORY_MIB + int(found[1])) as group,
            node_of(image, work / "root", folder, group) as pid,
        ):
            wait_until(lambda: probe(pid), "a health check that succeeds")
            check_clients(str(folder / "node.sock"), pid, other)
            assert probe(pid)
    print("container: passed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
