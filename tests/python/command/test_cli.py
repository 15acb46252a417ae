"""The command ``farrow``: what it prints, and how it fails.  ``test_cli_files``: what it reads."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pytest

import farrow
from farrow.cli import main
from farrow.cli._files._read import read_table
from farrow.cli._node._doctor import findings
from farrow.cli._objects import _put
from farrow.cli._output import human_bytes, human_seconds, parse_bytes
from farrow.graph import generate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow.cli._files._read import Progress

ROWS = 2_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return generate.transactions(ROWS, seed=1)


@pytest.fixture
def run(node, capsys):
    """Run a command against the node: (exit code, standard output, standard error)."""

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        code = main([command, "--socket", node.socket, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_put_ls_get_rm(run, tmp_path: Path, table: pa.Table) -> None:
    source = tmp_path / "transfers.csv.gz"
    generate.write(source, ROWS, seed=1)
    code, out, err = run("put", str(source))
    assert (code, err) == (0, "")
    assert "transfers" in out
    assert "2,000 rows x 11 columns" in out

    code, out, _ = run("ls", "--json")
    (entry,) = json.loads(out)
    assert code == 0
    assert entry["name"] == "transfers"
    assert entry["creator_pid"] == os.getpid()
    assert len(entry["id"]) == 32
    assert "transfers" in run("ls")[1]
    assert "transfers" not in run("ls", "nothing")[1]

    for name in ("o.parquet", "o.arrow", "o.arrows", "o.csv", "o.csv.gz"):
        target = tmp_path / name
        assert run("get", "transfers", "-o", str(target))[0] == 0
        back = read_table(target)
        assert back["from account"].equals(table["from account"])
        assert back["amount paid"].equals(table["amount paid"])
    assert run("get", entry["id"], "-o", str(tmp_path / "by-id.parquet"))[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []

    assert run("rm", "transfers") == (0, "", "")
    assert json.loads(run("ls", "--json")[1]) == []


def test_ls_of_many_objects(run, node) -> None:
    """10,000 objects took seven seconds, and long names were cut."""
    client = farrow.connect(node.socket)
    names = [f"{number:04}" + "x" * 200 for number in range(600)]
    client.put_many([b"1"] * len(names), [*names[:-1], "a\nb"])
    code, out, _ = run("ls")
    titles, *lines = out.splitlines()
    assert code == 0
    assert titles.split()[:3] == ["name", "kind", "bytes"]
    assert [line.split()[0] for line in lines] == [*names[:-1], "a\\nb"]
    assert len({line.index("bytes") for line in lines}) == 1


def test_an_unknown_namespace_is_no_missing_node(
    node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every error of the node at the default place advised to start a node."""
    monkeypatch.delenv("FARROW_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "farrow").mkdir(mode=0o700)
    assert main(["ls"]) == 1
    assert "start a node with `farrow node`" in capsys.readouterr().err
    (tmp_path / "farrow" / "node.sock").symlink_to(node.socket)
    assert main(["ls", "--namespace", "none"]) == 1
    error = capsys.readouterr().err
    assert 'no namespace "none"' in error
    assert "start a node" not in error


def test_put_of_several_files(run, tmp_path: Path) -> None:
    """``farrow put *.csv`` was an error of usage."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text("a,b\n1,2\n")
    paths = [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]
    assert run("put", *paths, "-q")[0] == 0
    assert run("ls")[1].count("1") >= 2
    assert run("get", "two", "--format", "csv")[0] == 0
    code, _, err = run("put", *paths, "--name", "n")
    assert code == 1
    assert "one name for 2 files" in err


def test_put_of_standard_input(run, node, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "farrow", "put", "-", "--socket", node.socket]
    done = subprocess.run(command, input=b"a,b\n1,2\n", capture_output=True)
    assert (done.returncode, b"use --name" in done.stderr) == (1, True)
    done = subprocess.run([*command, "--name", "n"], input=b"a,b\n1,2\n", capture_output=True)
    assert done.returncode == 0, done.stderr
    assert farrow.connect(node.socket).get("n").to_pydict() == {"a": [1], "b": [2]}


def test_put_builds_in_place(run, tmp_path: Path) -> None:
    for name in ("t.parquet", "t.csv"):
        path = generate.write(tmp_path / name, ROWS)
        code, out, err = run("put", str(path), "--name", name, "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert facts["rows"] == ROWS
        assert facts["bytes_in_place"] == facts["bytes"] > 0


def test_preview_and_stat(run, tmp_path: Path) -> None:
    run("put", str(generate.write(tmp_path / "t.parquet", ROWS)))
    code, out, _ = run("get", "t")
    assert code == 0
    assert "2,000 rows x 11 columns" in out
    assert "timestamp[" in out
    assert "1,990 more rows" in out
    code, out, _ = run("stat", "--json")
    stats = json.loads(out)
    assert code == 0
    assert stats["objects"] == 1
    assert 0 < stats["used"] <= stats["capacity"]
    code, out, _ = run("stat")
    assert code == 0
    assert len(out.strip().splitlines()) <= 12, "ten lines and a head"
    assert re.search(r"objects +1 of", out)
    assert "capacity" not in out
    everything = run("stat", "--all")[1]
    assert "capacity" in everything
    # Only some statistics had a unit: a list beside the others had to name them.
    assert re.search(r"quarantine +0 B\b", everything)
    assert re.search(r"buffers_max +[\d.]+ [KMG]iB", everything)


def test_stop_ends_the_node(run, node) -> None:
    """A private node that lingers, or one in the background, had to be found and killed."""
    assert run("stop") == (0, "", "")
    assert not Path(node.socket).exists()
    code, _, err = run("stop", "--timeout", "0.3")
    assert code == 1
    assert "node.sock" in err


def test_bytes_and_arrays(run, node, tmp_path: Path) -> None:
    source = tmp_path / "blob.bin"
    source.write_bytes(os.urandom(100_000))
    assert run("put", str(source), "--bytes", "--name", "blob")[0] == 0
    assert run("get", "blob", "-o", str(tmp_path / "back.bin"))[0] == 0
    assert (tmp_path / "back.bin").read_bytes() == source.read_bytes()
    code, _, err = run("get", "blob", "-o", str(tmp_path / "back.parquet"))
    assert code == 1
    assert "not a table" in err
    assert not (tmp_path / "back.parquet").exists()

    client = farrow.connect(node.socket)
    numbers = np.arange(12.0).reshape(3, 4)
    client.put(numbers, "numbers")
    assert "(3, 4)" in run("get", "numbers")[1]
    assert run("get", "numbers", "-o", str(tmp_path / "n.npy"))[0] == 0
    assert (np.load(tmp_path / "n.npy") == numbers).all()


def test_get_describes_a_tensor(run, node, tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(2, 3)
    farrow.connect(node.socket).put(pa.Tensor.from_numpy(values), "t")
    assert run("get", "t") == (0, "t  double tensor of shape (2, 3), 48 B\n", "")
    path = tmp_path / "t.bin"
    assert run("get", "t", "-o", str(path))[0] == 0
    assert path.read_bytes() == values.tobytes()


def test_get_says_what_it_is_as_json(run, node, tmp_path: Path, table: pa.Table) -> None:
    client = farrow.connect(node.socket)
    client.put(table, "t")
    client.put(np.zeros((2, 3), "int16"), "n")
    client.put(b"12345", "b")
    reported = json.loads(run("get", "t", "--json")[1])
    assert (reported["name"], reported["kind"], reported["rows"]) == ("t", "Table", table.num_rows)
    assert [column["name"] for column in reported["columns"]] == table.column_names
    assert [column["nulls"] for column in reported["columns"]] == [
        c.null_count for c in table.columns
    ]
    reported = json.loads(run("get", "n", "--json")[1])
    assert (reported["kind"], reported["type"], reported["shape"], reported["bytes"]) == (
        "ndarray",
        "int16",
        [2, 3],
        12,
    )
    assert json.loads(run("get", "b", "--json")[1])["bytes"] == 5
    path = tmp_path / "t.parquet"
    reported = json.loads(run("get", "t", "-o", str(path), "--json")[1])
    assert reported == {
        "name": "t",
        "file": str(path),
        "format": "parquet",
        "bytes": path.stat().st_size,
    }


def list_into(output: BinaryIO, socket: str) -> tuple[int, str]:
    """Exit code and standard error of ``farrow ls --json``, whose output Python buffers."""
    command = [sys.executable, "-m", "farrow", "ls", "--socket", socket, "--json"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, env=env
    )
    return done.returncode, done.stderr


def test_output_that_cannot_be_written_is_an_error(node) -> None:
    with Path("/dev/full").open("wb") as full:
        assert list_into(full, node.socket) == (1, "farrow: No space left on device\n")


def test_a_pipe_whose_reader_ended_is_no_message(node) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        assert list_into(pipe, node.socket) == (1, "")


@pytest.mark.parametrize(
    ("name", "code"), [("t", 0), ("nothing", 1)], ids=["that succeeds", "that fails"]
)
def test_a_command_without_output_streams_does_the_same(node, name: str, code: int) -> None:
    farrow.connect(node.socket).put(pa.table({"n": [1]}), "t")
    command = [sys.executable, "-m", "farrow", "get", "--socket", node.socket, name]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, timeout=60).returncode == code


def test_a_node_without_standard_streams_has_no_socket_in_their_place(tmp_path: Path) -> None:
    """Regression test: with ``2>&-`` a socket of the node became its standard error.

    The first message of the node was written to it, and the node ended.
    """
    socket = str(tmp_path / "n.sock")
    command = [sys.executable, "-m", "farrow", "node", "--socket", socket, "--memory", "8M"]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, "--no-prepare"]
    node = subprocess.Popen(closed)
    try:
        until = time.monotonic() + 60
        while not Path(socket).exists():
            assert time.monotonic() < until, "no node"
            time.sleep(0.01)
        client = farrow.connect(socket, timeout=60)
        client.put(pa.table({"n": [1]}), "t")
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        (daemon,) = map(int, children)
        streams = [(node.pid, stream) for stream in (0, 1, 2)] + [(daemon, 1), (daemon, 2)]
        for pid, stream in streams:
            assert os.readlink(f"/proc/{pid}/fd/{stream}") == "/dev/null", (pid, stream)
        # The supervisor says that it starts another daemon, and goes on.
        os.kill(daemon, signal.SIGKILL)
        assert client.get("t", timeout=60).num_rows == 1
        assert farrow.connect(socket, timeout=60).contains("t")
    finally:
        node.terminate()
        assert node.wait(60) == 0


def test_ctrl_c_ends_a_node_without_a_word(tmp_path: Path) -> None:
    """It printed where Python was interrupted, twice."""
    socket = tmp_path / "n.sock"
    command = [sys.executable, "-m", "farrow", "node", "--socket", str(socket), "--memory", "8M"]
    # The mode of its files does not depend on the umask: others would not trust the lock.
    shared = ["sh", "-c", 'umask 002; exec "$@"', "sh", *command, "--no-prepare"]
    node = subprocess.Popen(shared, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not socket.exists():
            assert time.monotonic() < until, "no node"
            time.sleep(0.01)
        assert socket.with_name("n.sock.lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.killpg(node.pid, signal.SIGINT)
        _, said = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "Traceback" not in said, said
    assert "KeyboardInterrupt" not in said, said


def test_get_writes_to_a_pipe(node, run, tmp_path: Path) -> None:
    run("put", str(generate.write(tmp_path / "t.parquet", ROWS)))
    command = [sys.executable, "-m", "farrow.cli", "get", "--socket", node.socket, "t", "-o", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert pa.ipc.open_stream(done.stdout).read_all().num_rows == ROWS


@pytest.mark.parametrize("dangles", [False, True])
def test_get_writes_through_a_symbolic_link(run, node, tmp_path: Path, dangles: bool) -> None:
    farrow.connect(node.socket).put(b"new", "t")
    file, link = tmp_path / "june.bin", tmp_path / "current.bin"
    link.symlink_to(file)
    if not dangles:
        file.write_bytes(b"an earlier one")
    assert run("get", "t", "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert sorted(tmp_path.glob("*.bin")) + list(tmp_path.glob(".*")) == [link, file]


def test_get_through_a_link_to_dev_stdout_leaves_the_link(node, tmp_path: Path) -> None:
    # /dev/stdout itself is such a link: a file in its place would be there for all processes.
    farrow.connect(node.socket).put(b"new", "t")
    link, out = tmp_path / "stdout", tmp_path / "out"
    link.symlink_to("/dev/stdout")
    command = ["get", "--socket", node.socket, "t", "-o", str(link), "--format", "raw"]
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-m", "farrow", *command], stdout=file, check=True)
    assert link.is_symlink()
    assert out.read_bytes() == b"new"


def test_get_keeps_the_mode_of_the_file_that_it_replaces(run, node, tmp_path: Path) -> None:
    farrow.connect(node.socket).put(b"new", "t")
    path = tmp_path / "t.bin"
    path.write_bytes(b"old")
    path.chmod(0o600)
    assert run("get", "t", "-o", str(path))[0] == 0
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_control_characters_in_names_are_spelled_out(run, tmp_path: Path) -> None:
    path = generate.write(tmp_path / "t.parquet", 10)
    assert run("put", str(path), "--name", "a\x1b[31m\n[red]b")[0] == 0
    out = run("ls")[1]
    assert "a\\x1b[31m\\n[red]b" in out
    assert "\x1b" not in out
    assert run("put", str(path), "--name", "")[0] == 1


def test_errors_are_one_line(run, node, tmp_path: Path, capsys) -> None:
    path = generate.write(tmp_path / "t.parquet", 10)
    assert run("put", str(path))[0] == 0
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1" + bytes(100))
    for arguments in (
        ("put", str(path)),  # the name is taken
        ("put", str(tmp_path / "nothing.csv")),
        ("put", str(tmp_path)),
        ("put", str(broken)),
        ("put", str(path), "--name", "x" * 300),
        ("get", "nothing"),
        ("get", "0" * 32),
        ("get", "t", "-o", str(tmp_path / "t.unknown")),
        ("get", "t", "-o", str(tmp_path / "no" / "t.csv")),
        ("rm", "nothing"),
    ):
        code, out, err = run(*arguments)
        assert code == 1, arguments
        assert out == ""
        assert err.startswith("farrow: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    assert run("put", str(path), "--replace")[0] == 0
    assert main(["ls", "--socket", str(tmp_path / "no.sock"), "--timeout", "0.2"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_node_nothing_is_started(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FARROW_SOCKET", raising=False)
    assert main(["ls", "--timeout", "0.5"]) == 1
    err = capsys.readouterr().err
    assert "farrow node" in err
    assert err.count("\n") == 1


def test_a_table_larger_than_the_region_is_reported(run, tmp_path: Path) -> None:
    # The node has 256 MiB; the file needs more.
    rows = 40_000_000
    path = tmp_path / "large.arrow"
    column = pa.array(np.arange(rows))
    with pa.ipc.new_file(path, pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": column}), max_chunksize=rows // 8)
    code, _, err = run("put", str(path))
    assert code == 1
    assert err.count("\n") == 1
    assert json.loads(run("ls", "--json")[1]) == []
    # The store is as usable as before.
    assert run("put", str(generate.write(tmp_path / "t.parquet", 10)))[0] == 0


def test_a_replacement_without_room_leaves_the_old_object(
    make_node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a compressed file needs is known after it has been read.
    node = make_node("--memory", "64MiB")
    client = farrow.connect(node.socket)
    client.put(b"old", "large")
    path = tmp_path / "large.csv.gz"
    lines = b"text\n" + (b"x" * 1023 + b"\n") * (80 << 10)
    path.write_bytes(gzip.compress(lines, compresslevel=1))
    assert main(["put", "--socket", node.socket, "--replace", str(path)]) == 1
    assert "out of memory" in capsys.readouterr().err
    assert client.get("large").to_pybytes() == b"old"


def test_a_replacement_that_fits_into_the_room_of_the_old_object_is_stored(
    make_node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node("--memory", "64MiB")
    client = farrow.connect(node.socket)
    client.put(bytes(40 << 20), "large")
    path = tmp_path / "large.csv.gz"
    lines = b"text\n" + (b"x" * 1023 + b"\n") * (40 << 10)
    path.write_bytes(gzip.compress(lines, compresslevel=1))
    code = main(["put", "--socket", node.socket, "--replace", str(path)])
    assert (code, capsys.readouterr().err) == (0, "")
    assert client.get("large").num_rows == 40 << 10


def test_a_replacement_by_a_file_that_cannot_be_opened_leaves_the_old_object(
    run, node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = farrow.connect(node.socket)
    client.put(b"old", "t.bin")
    path = tmp_path / "t.bin"
    path.write_bytes(b"new")

    def fail(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", fail)
    code, _, err = run("put", "--bytes", "--replace", "--name", "t.bin", str(path))
    assert (code, "Permission denied" in err) == (1, True)
    assert client.get("t.bin").to_pybytes() == b"old"


def test_a_file_that_grows_while_it_is_read_is_not_stored_in_part(
    run, node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"12345")

    @contextlib.contextmanager
    def growing(label: str, *, quiet: bool) -> Iterator[Progress]:
        with path.open("ab") as file:
            file.write(b"6789")
        yield lambda done, total: None

    monkeypatch.setattr(_put, "progress_bar", growing)
    code, _, err = run("put", "--bytes", str(path))
    assert (code, "grew beyond 5 bytes" in err, err.count("\n")) == (1, True, 1)
    assert farrow.connect(node.socket).list().num_rows == 0


def test_a_replacement_that_fails_while_it_is_read_leaves_the_old_object(
    run, node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--replace`` deleted the old object first. If the file could not be read, both were gone."""
    client = farrow.connect(node.socket)
    client.put(b"old", "t.bin")
    path = tmp_path / "t.bin"
    path.write_bytes(b"12345")

    @contextlib.contextmanager
    def growing(label: str, *, quiet: bool) -> Iterator[Progress]:
        with path.open("ab") as file:
            file.write(b"6789")
        yield lambda done, total: None

    with monkeypatch.context() as patch:
        patch.setattr(_put, "progress_bar", growing)
        code, _, err = run("put", "--bytes", "--replace", str(path))
    assert (code, "grew beyond 5 bytes" in err) == (1, True)
    assert client.get("t.bin").to_pybytes() == b"old"
    assert run("put", "--bytes", "--replace", str(path))[0] == 0
    assert client.get("t.bin").to_pybytes() == b"123456789"
    assert client.list().num_rows == 1


def test_usage(capsys) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["frobnicate"])
    assert ended.value.code == 2


def test_doctor(capsys) -> None:
    code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == int(any(f["level"] == "error" for f in document["findings"]))
    assert document["survey"]
    main(["doctor"])
    verdict = capsys.readouterr().out.splitlines()[0]
    assert verdict.startswith("A node cannot work here" if code else "A node works here")


def test_doctor_says_how_to_mend() -> None:
    assert [one.level for one in findings({"tmpfs": []})] == ["error"]
    poor = {
        "tmpfs": [{"path": "/dev/shm", "size_bytes": 64 << 20, "huge": None}],
        "huge_pages": {"shmem_enabled": "always within_size advise [never] deny force"},
        "limits": {"open_files": 256, "max_map_count": 1000, "address_space": 1 << 40},
        "fixed_window": {"free": False},
    }
    found = findings(poor)
    assert len(found) == 6
    assert all(one.command and one.consequence for one in found)
    # A node that mounts huge pages for itself needs no advice about those of others.
    poor["node_memory"] = {"path": "its own", "huge_pages": True}
    assert len(findings(poor)) == 5
    # What belongs to one node is no place for another.
    of_another = {"path": "/x", "of_node": True}
    assert [one.level for one in findings({"tmpfs": [of_another]})] == ["error"]
    rich = {
        "tmpfs": [{"path": "/dev/shm", "size_bytes": 1 << 50, "huge": "always"}],
        "limits": {"open_files": 1 << 20, "address_space": None},
        "fixed_window": {"free": True},
    }
    assert findings(rich) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("1k", 1024),
        ("512MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("9B", 9),
        ("2 TB", 2 * 10**12),
        ("1.5kb", 1500),
        ("2 TiB", 2 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "4 apples", "1e9"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9" * 400, "8388608T", "9223372036854775808"])
def test_sizes_that_no_memory_has_are_errors_of_one_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="is too large a size") as raised:
        parse_bytes(text)
    assert len(str(raised.value)) < 100


def test_figures_for_people() -> None:
    assert human_bytes(0) == "0 B"
    assert human_bytes(999) == "999 B"
    assert human_bytes(1_730_150_400) == "1.61 GiB"
    assert human_seconds(0.0000415) == "41.5 us"
    assert human_seconds(2.05) == "2.05 s"
