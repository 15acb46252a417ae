"""The installed C library: a program that has never seen the repository finds it and builds.

The examples are copied elsewhere and built there, by pkg-config and by CMake, shared and static.
``FARROW_JAVA=require`` makes the absence of a JDK or of JNA a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import farrow
import systemd_service
from conftest import RUN_NODE, build_capi, run_program, wait_until

ROOT = Path(__file__).resolve().parents[3]
ARROW = Path(pa.get_library_dirs()[0])
LIBARROW = f"libarrow.so.{pa.cpp_build_info.so_version}"

# Debian's libjna-java.
JNA = Path("/usr/share/java/jna.jar")

CMAKE = f"""
cmake_minimum_required(VERSION 3.16)
project(examples C CXX)
find_package(Farrow 0.1 REQUIRED)
add_executable(bytes bytes.c)
target_link_libraries(bytes PRIVATE Farrow::farrow)
add_executable(labels labels.c)
target_link_libraries(labels PRIVATE Farrow::farrow_static)
add_executable(table table.cc)
target_compile_features(table PRIVATE cxx_std_20)
target_include_directories(table SYSTEM PRIVATE {pa.get_include()})
target_link_libraries(table PRIVATE Farrow::farrow {ARROW / LIBARROW})
"""

# The daemon as a program. The real one takes long to build.
FARROWD = f"""#!/bin/sh
exec {" ".join(RUN_NODE)} "$@"
"""

pytestmark = pytest.mark.skipif(
    None in map(shutil.which, ("cargo", "g++", "pkg-config", "cmake")),
    reason="needs cargo, a C++ compiler, pkg-config and cmake",
)


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the library is: installed under another root, and moved from there as a whole."""
    staging = tmp_path_factory.mktemp("staging")
    daemon = staging / "daemon"
    daemon.write_text(FARROWD)
    built = {"FARROWD": str(daemon), "FARROW_LIBRARIES": str(build_capi())}
    environment = {**os.environ, "DESTDIR": str(staging), **built}
    run_program(ROOT / "packaging" / "install_c.sh", "/opt/farrow", "dev", env=environment)
    moved = tmp_path_factory.mktemp("installed") / "farrow"
    (staging / "opt" / "farrow").rename(moved)
    return moved


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "cpp" / "examples", tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def check_examples(client: farrow.Client, folder: Path, prefix: Path) -> None:
    """Run the three examples."""
    env = {**os.environ, "LD_LIBRARY_PATH": f"{prefix / 'lib'}:{ARROW}"}
    assert "greeting: hello" in run_program(folder / "bytes", client.address, env=env)
    assert "sealed: 1 0" in run_program(folder / "labels", client.address, env=env)
    assert "in place: true" in run_program(folder / "table", "write", client.address, "t", env=env)
    assert client.get("t").num_rows == 1_000_000


def pkg_config(prefix: Path, *flags: str) -> list[str]:
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    return run_program("pkg-config", *flags, "farrow", env=env).split()


def test_pkg_config(client: farrow.Client, prefix: Path, sources: Path) -> None:
    assert pkg_config(prefix, "--modversion") == [farrow.__version__]
    flags = pkg_config(prefix, "--cflags", "--libs")
    run_program("gcc", "-std=c11", "bytes.c", *flags, "-o", "bytes", cwd=sources)
    # A linker takes the shared library where both are.
    static = pkg_config(prefix, "--static", "--cflags", "--libs")
    static = [str(prefix / "lib" / "libfarrow.a") if one == "-lfarrow" else one for one in static]
    run_program("gcc", "-std=c11", "labels.c", *static, "-o", "labels", cwd=sources)
    run_program(
        "g++", "-std=c++20", "table.cc", "-isystem", pa.get_include(), *flags, f"-L{ARROW}",
        f"-l:{LIBARROW}", "-o", "table", cwd=sources,
    )  # fmt: skip
    assert "libfarrow.so.0.1" in run_program("ldd", sources / "bytes")
    assert "libfarrow" not in run_program("ldd", sources / "labels")
    check_examples(client, sources, prefix)


def test_cmake(client: farrow.Client, prefix: Path, sources: Path) -> None:
    (sources / "CMakeLists.txt").write_text(CMAKE)
    build = sources / "build"
    run_program("cmake", "-S", sources, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run_program("cmake", "--build", build)
    check_examples(client, build, prefix)
    # Another minor version is another interface.
    (sources / "CMakeLists.txt").write_text(CMAKE.replace("Farrow 0.1 ", "Farrow 0.2 "))
    with pytest.raises(AssertionError, match=r"version:\s+0\.1"):
        run_program("cmake", "-S", sources, "-B", sources / "b", f"-DCMAKE_PREFIX_PATH={prefix}")


def from_prefix(prefix: Path) -> dict[str, str]:
    """An environment in which other languages find the library."""
    lib = prefix / "lib"
    found = {"PKG_CONFIG_PATH": str(lib / "pkgconfig"), "LD_LIBRARY_PATH": str(lib)}
    return {**os.environ, **found}


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go")
def test_go(client: farrow.Client, prefix: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    env = {**from_prefix(prefix), "CGO_ENABLED": "1", "GOFLAGS": "-mod=mod"}
    # Go does not notice that pkg-config has another answer for the same folder.
    copied = shutil.copytree(ROOT / "examples" / "go", tmp_path / "elsewhere")
    run_program("go", "build", "-o", program, ".", cwd=copied, env=env)
    lines = run_program(program, client.address, env=env).splitlines()
    assert lines[0] == "from go: hello"
    assert lines[1].startswith("refused: ")
    assert "(code 2)" in lines[1]
    assert client.get("left by go").to_pybytes() == b"for the next process"
    assert not client.contains("from go")


@pytest.fixture
def jna() -> Path:
    """The library by which Java calls C; without it or a JDK the test is skipped."""
    if shutil.which("javac") is None or not JNA.is_file():
        text = "no JDK or no JNA: apt install default-jdk-headless libjna-java"
        if os.environ.get("FARROW_JAVA") == "require":
            pytest.fail(text)
        pytest.skip(text)
    return JNA


def test_java(client: farrow.Client, jna: Path, prefix: Path) -> None:
    source = ROOT / "examples" / "java" / "Bytes.java"
    command = ("java", f"-Djna.library.path={prefix / 'lib'}", "-cp", jna, source, client.address)
    lines = run_program(*command, env=from_prefix(prefix)).splitlines()
    assert lines[0] == "from java: hello"
    assert lines[1].startswith("refused: ")
    assert "(code 2)" in lines[1]
    assert client.get("left by java").to_pybytes() == b"for the next process"


# As cargo: writes what it would build into the folder where it would put it.
CARGO = """#!/bin/sh
target=${CARGO_TARGET_DIR:-${CARGO_BUILD_TARGET_DIR:-target}}
while [ $# -gt 0 ]; do
    [ "$1" = --target-dir ] && target=$2
    shift
done
built=$target/${CARGO_BUILD_TARGET:-.}/debug
mkdir -p "$built"
for name in farrowd libfarrow_capi.so libfarrow_capi.a; do echo new >"$built/$name"; done
"""


def install_with_stand_ins(tmp_path: Path, **more: str) -> Path:
    """Run install_c.sh with stand-ins of cargo and ldconfig; where it installed."""
    commands = tmp_path / "commands"
    commands.mkdir()
    ldconfig = f"#!/bin/sh\ntouch {tmp_path}/ldconfig-ran\n"
    for name, text in {"cargo": CARGO, "ldconfig": ldconfig}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    left_out = ("CARGO_", "DESTDIR", "FARROW", "LIBDIR")
    env = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    env |= {"PATH": f"{commands}:{os.environ['PATH']}", **more}
    run_program(ROOT / "packaging" / "install_c.sh", tmp_path / "prefix", "dev", env=env)
    return tmp_path / "prefix"


@pytest.mark.parametrize("folder", ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"])
@pytest.mark.parametrize("machine", [{}, {"CARGO_BUILD_TARGET": "aarch64-unknown-linux-gnu"}])
def test_installs_what_cargo_built(tmp_path: Path, folder: str, machine: dict[str, str]) -> None:
    """Before, it took what an earlier build had left in the folder `target`."""
    prefix = install_with_stand_ins(tmp_path, **{folder: str(tmp_path / "built")}, **machine)
    for name in ("bin/farrowd", "lib/libfarrow.so", "lib/libfarrow.a"):
        assert (prefix / name).read_text() == "new\n"


def test_the_loader_is_made_to_look_again(tmp_path: Path) -> None:
    """Before, a program found a library in /usr/local/lib after the next ldconfig only."""
    built = {"CARGO_TARGET_DIR": str(tmp_path / "built")}
    install_with_stand_ins(tmp_path, **built)
    assert (tmp_path / "ldconfig-ran").exists() == (os.geteuid() == 0)


def test_a_staged_installation_leaves_the_loader_alone(tmp_path: Path) -> None:
    staging = {"CARGO_TARGET_DIR": str(tmp_path / "built"), "DESTDIR": str(tmp_path / "staging")}
    install_with_stand_ins(tmp_path, **staging)
    assert not (tmp_path / "ldconfig-ran").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_reads_the_unit(prefix: Path, tmp_path: Path, kind: str) -> None:
    """It has no unknown setting, and stores the memory (the protocol: service_manager.rs)."""
    text = (prefix / "lib" / "systemd" / kind / "farrowd.service").read_text()
    assert "Type=notify" in text
    assert "FileDescriptorStoreMax=2" in text
    assert "NotifyAccess=all" in text
    unit = tmp_path / "farrowd.service"
    unit.write_text(text.replace("/opt/farrow/", f"{prefix}/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # It also says what it finds in other units of the machine.
    said = [line for line in done.stderr.splitlines() if "farrowd" in line]
    assert not said, said


# A manager of its own: $1 the folder of the configuration, $2 the name of its control groups;
# then the command.
NAMESPACES = """
for root in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    if [ -w "$root/cgroup.procs" ]; then
        mkdir "$root/$2"
        echo 0 >"$root/$2/cgroup.procs"
    fi
done
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mkdir -m 700 /run/session
export XDG_CONFIG_HOME=$1 XDG_RUNTIME_DIR=/run/session
shift 2
exec "$@"
"""


def remove_groups(group: Path) -> bool:
    """Remove a control group and those in it; False if one is in use."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists(), reason="needs root and systemd"
)
def test_a_service_is_upgraded_by_a_reload(prefix: Path, tmp_path: Path) -> None:
    """Before, systemd took the end of the old node for the end of the service."""
    units = tmp_path / "systemd" / "user"
    units.mkdir(parents=True)
    text = (prefix / "lib" / "systemd" / "user" / "farrowd.service").read_text()
    (units / "farrowd.service").write_text(text.replace("/opt/farrow/", f"{prefix}/"))
    env = {key: value for key, value in os.environ.items() if not key.startswith("FARROW_")}
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", NAMESPACES]
    session = Path(systemd_service.__file__)
    group = f"farrow-test-{os.getpid()}"
    done = subprocess.run(
        [*own, "bash", tmp_path, group, sys.executable, session, tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=env,
    )
    for made in list(Path("/sys/fs/cgroup").rglob(group)):
        # The last process may be leaving.
        wait_until(lambda made=made: remove_groups(made), f"an empty {made}")
    if done.returncode == systemd_service.NO_SYSTEMD:
        pytest.skip(f"systemd does not run here: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_a_program_starts_the_installed_daemon(prefix: Path, sources: Path, tmp_path: Path) -> None:
    """Where no node serves, a private one is started, and ends with the program."""
    flags = pkg_config(prefix, "--cflags", "--libs")
    run_program("gcc", "-std=c11", "bytes.c", *flags, "-o", "bytes", cwd=sources)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FARROW_")}
    env |= {
        "FARROW_LINGER": "0",
        "FARROW_MEMORY": "16MiB",
        "LD_LIBRARY_PATH": str(prefix / "lib"),
        "PATH": "/usr/bin:/bin",
        "XDG_RUNTIME_DIR": str(runtime),
    }
    for _ in range(2):
        # The second run puts the same names: the first node is gone.
        assert "in place: no copy!" in run_program(sources / "bytes", env=env)
        wait_until(lambda: not node_serves(runtime), "the end of the private node")
    # A socket that is named is never started, and neither is a program that does not exist.
    named = {**env, "FARROW_SOCKET": str(runtime / "other.sock")}
    without = {**env, "LD_LIBRARY_PATH": str(sources / "bare"), "PATH": "/nowhere"}
    shutil.copytree(prefix / "lib", sources / "bare", symlinks=True)
    for environment in (named, without):
        with pytest.raises(AssertionError, match=r"connect: .*\(code 7\)"):
            run_program(sources / "bytes", env=environment)


def node_serves(runtime: Path) -> bool:
    try:
        farrow.connect(runtime / "farrow" / "node.sock", timeout=5)
    except farrow.Disconnected:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "variables", "is_library"),
    [
        (["install", "PREFIX=/opt/farrow"], {}, True),
        (["install-c", "PREFIX=/opt/farrow"], {}, True),
        (["install"], {}, False),
        # Of another program, for all that it starts.
        (["install"], {"PREFIX": "/opt/farrow"}, False),
    ],
)
def test_make_install_with_a_prefix_is_that_of_the_library(
    words: list[str], variables: dict[str, str], is_library: bool
) -> None:
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key} | variables
    # -B: also where the package is up to date.
    done = subprocess.run(
        ["make", "-nB", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert ('packaging/install_c.sh "/opt/farrow"' in done.stdout) == is_library
    assert ("pip install" in done.stdout) != is_library
