"""The C interface and farrow::MemoryPool, compiled against the pyarrow wheel."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import farrow
from arrow_cases import variants
from c_cases import compile_c, needs_compiler
from conftest import Cluster, run_program
from farrow import _native

ROOT = Path(__file__).resolve().parents[3]
ARROW = Path(pa.get_library_dirs()[0])
LIBARROW = f"libarrow.so.{pa.cpp_build_info.so_version}"

pytest_plugins = ["c_cases"]


def compile_cpp(source: str, out: Path, *more: str) -> Path:
    run_program(
        "g++", "-std=c++20", "-O1", "-Wall", "-Wextra", ROOT / "cpp" / source,
        f"-I{ROOT / 'cpp' / 'include'}", "-isystem", pa.get_include(), f"-L{ARROW}",
        f"-l:{LIBARROW}", f"-Wl,-rpath,{ARROW}", "-pthread", *more, "-o", out,
    )  # fmt: skip
    return out


@needs_compiler
def test_c_example(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    example = compile_c("examples/bytes.c", tmp_path / "bytes", capi)
    lines = run_program(example, client.address).splitlines()
    assert lines[1:3] == ["greeting: hello", "in place: no copy!"]
    assert "greeting" in lines[3]
    assert not client.contains("greeting")
    assert client.get("in place").to_pybytes() == b"no copy!"


@needs_compiler
def test_c_labels(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    example = compile_c("examples/labels.c", tmp_path / "labels", capi)
    lines = run_program(example, client.address).splitlines()
    assert lines == ["length/1: 5 bytes, unit metre", "sealed: 1 0"]
    assert client.metadata("length/1") == {"day": "monday", "unit": "metre"}


@needs_compiler
def test_c_at_exit(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    """Before, the first call of an exit handler ended the program by SIGABRT."""
    program = compile_c("tests/late.c", tmp_path / "late", capi)
    run_program(program, client.address)
    assert client.list()["name"].to_pylist() == ["at exit"]


@needs_compiler
def test_cpp_example(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    linked = (f"-L{capi}", "-lfarrow", f"-Wl,-rpath,{capi}")
    example = compile_cpp("examples/table.cc", tmp_path / "table", *linked)
    assert "built in place: true" in run_program(example, "write", client.address, "t")
    rows = 1_000_000
    nulls = (rows + 6) // 7
    expected = f"{rows} rows, sum {sum(range(rows))}, nulls {nulls}\n"
    assert run_program(example, "read", client.address, "t") == expected
    table = client.get("t")
    assert table.num_rows == rows
    assert table["w"][8].as_py() == "w8"
    assert table["w"].null_count == nulls
    assert all(place["in_region"] for place in client.locate(table))
    # And the other way.
    client.put(pa.table({"n": pa.array(range(10)), "w": ["x"] * 10}), "of python")
    assert run_program(example, "read", client.address, "of python") == "10 rows, sum 45, nulls 0\n"


@needs_compiler
def test_cpp_pool(client: farrow.Client, capi: Path, tmp_path: Path) -> None:
    linked = (f"-L{capi}", "-lfarrow", f"-Wl,-rpath,{capi}")
    program = compile_cpp("tests/pool_test.cc", tmp_path / "pool_test", *linked)
    capacity = client.stats()["capacity"]
    assert run_program(program, client.address, capacity) == "ok\n"
    assert client.stats()["clients"] == 1


@needs_compiler
def test_header_is_c_and_cpp(tmp_path: Path) -> None:
    include = f"-I{ROOT / 'cpp' / 'include'}"
    (tmp_path / "a.c").write_text('#include "farrow/farrow.h"\nint x;\n')
    run_program("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", include,
        "-fsyntax-only", tmp_path / "a.c")  # fmt: skip
    (tmp_path / "a.cc").write_text('#include "farrow/farrow.h"\n')
    run_program("g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", include,
        "-fsyntax-only", tmp_path / "a.cc")  # fmt: skip


@pytest.fixture(scope="session")
def stock_reader(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("reader") / "libreader.so"
    compiled = compile_cpp("tests/dissociated_reader.cc", out, "-shared", "-fPIC")
    library = ctypes.CDLL(str(compiled))
    library.read_messages.restype = ctypes.c_char_p
    return library


def read_stock(
    library: ctypes.CDLL, messages: _native.DissociatedMessages
) -> tuple[pa.Table, int, int]:
    """The table that Arrow C++'s own reader gives; its buffers in and outside the region."""
    parts = [messages.schema]
    for dictionaries, record in messages.batches:
        parts += [*dictionaries, record]
    inside, outside = ctypes.c_int64(), ctypes.c_int64()
    stream = ctypes.create_string_buffer(64)
    error = library.read_messages(
        (ctypes.c_char_p * len(parts))(*parts),
        (ctypes.c_int64 * len(parts))(*map(len, parts)),
        ctypes.c_int64(len(parts)),
        ctypes.c_void_p(messages.base),
        ctypes.c_int64(messages.length),
        ctypes.byref(inside),
        ctypes.byref(outside),
        stream,
    )
    assert error == b""
    reader = pa.RecordBatchReader._import_from_c(ctypes.addressof(stream))
    return reader.read_all(), inside.value, outside.value


@needs_compiler
def test_stock_reader_reads_in_place(shared: farrow.Client, stock_reader: ctypes.CDLL) -> None:
    """All types, whole and sliced: equal values, no buffer outside of the region."""
    for name, array in variants().items():
        table = pa.table({"column": array})
        reference = shared.put(table)
        # IPC has one dictionary for each field, so none of its values can have one.
        if name.startswith("dictionary of dictionary"):
            with pytest.raises(farrow.InvalidArgument, match="dictionary"):
                _native.export_dissociated(shared, reference)
            continue
        messages = _native.export_dissociated(shared, reference)
        try:
            stock, inside, outside = read_stock(stock_reader, messages)
            ours = _native.import_dissociated(
                shared, messages.refs, messages.schema, messages.batches
            )
            ours.validate(full=True)
            for read in (stock, ours):
                assert read.schema == table.schema
                assert read.to_pylist() == table.to_pylist()
            assert outside == 0
            assert inside > 0 or table.nbytes == 0 or len(array) == 0
        except Exception as error:
            raise AssertionError(name) from error
        del stock, ours, read
        shared.delete(messages.refs)


@needs_compiler
def test_stock_reader_reads_many_batches(shared: farrow.Client, stock_reader: ctypes.CDLL) -> None:
    words = [
        pa.array(list(text), pa.string()).dictionary_encode() for text in ("aab", "bc", "", "aab")
    ]
    numbers = pa.chunked_array([[1, 2, 3], [4, 5], [], [6, 7, 8]])
    table = pa.table({"n": numbers, "w": pa.chunked_array(words)})
    messages = _native.export_dissociated(shared, shared.put(table))
    stock, _, outside = read_stock(stock_reader, messages)
    assert stock.to_pylist() == table.to_pylist()
    assert outside == 0
    again = _native.import_dissociated(shared, messages.refs, messages.schema, messages.batches)
    assert again.to_pylist() == table.to_pylist()


def test_messages_of_another_node_are_read_from_its_memory(nodes: Cluster) -> None:
    """Offsets were looked up in the memory of the client's own node: other bytes, and no error."""
    at_a, at_b = nodes.client("a"), nodes.client("b")
    table = pa.table({"n": range(10_000)})
    noise = at_b.put(pa.table({"n": [7] * 10_000}))
    messages = _native.export_dissociated(at_a, at_a.put(table))
    read = _native.import_dissociated(at_b, messages.refs, messages.schema, messages.batches)
    assert read.equals(table)
    # At another node than that of the object all is copied.
    copied = _native.export_dissociated(at_b, messages.refs[0])
    assert len(copied.refs) == 1
    again = _native.import_dissociated(at_b, copied.refs, copied.schema, copied.batches)
    assert again.equals(table)
    with pytest.raises(farrow.InvalidDescriptor, match="regions"):
        refs = [*messages.refs, noise]
        _native.import_dissociated(at_b, refs, messages.schema, messages.batches)
    at_a.delete(messages.refs)
    at_b.delete([noise, *copied.refs])


def test_forged_messages_are_errors(shared: farrow.Client) -> None:
    reference = shared.put(pa.table({"n": list(range(100)), "s": ["text"] * 100}))
    messages = _native.export_dissociated(shared, reference)
    for position in range(0, len(messages.batches[0][1]), 3):
        forged = bytearray(messages.batches[0][1])
        forged[position] ^= 0x5A
        try:
            table = _native.import_dissociated(
                shared, messages.refs, messages.schema, [([], bytes(forged))]
            )
        except farrow.InvalidDescriptor:
            continue
        table.validate()
    elsewhere = shared.put(b"another object")
    with pytest.raises(farrow.InvalidDescriptor):
        _native.import_dissociated(shared, [elsewhere], messages.schema, messages.batches)


_AT_A_NODE = """
import ctypes, sys, time
library, socket = sys.argv[1:]
farrow = ctypes.CDLL(library)
farrow.farrow_last_error.restype = ctypes.c_char_p
client, far, nobody = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(1)
seconds = ctypes.c_double(10)
assert farrow.farrow_connect(socket.encode(), seconds, ctypes.byref(client)) == 0
assert farrow.farrow_client_at(client, b"b", ctypes.byref(far)) == 0
assert farrow.farrow_client_at(client, b"d", ctypes.byref(nobody)) == 9
assert nobody.value is None
farrow.farrow_close(client)

def put(name):
    return farrow.farrow_put_bytes(far, b"from C", ctypes.c_uint64(6), name, None)

assert put(b"at b") == 0, farrow.farrow_last_error()
print("put", flush=True)
sys.stdin.readline()  # b is killed meanwhile
end = time.monotonic() + 30
while (status := put(b"again")) != 13:
    assert status in (0, 2, 7, 13), (status, farrow.farrow_last_error())
    assert time.monotonic() < end
    time.sleep(0.01)
print(farrow.farrow_last_error().decode())
farrow.farrow_close(far)
"""


def test_a_client_in_c_at_another_node(make_node: Any, capi: Path) -> None:
    cluster = Cluster(make_node, 3)
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_A_NODE, capi / "libfarrow.so", cluster.nodes["a"].socket],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "put\n", process.communicate()
    a = cluster.client("a")
    assert a.list(node="b")["name"].to_pylist() == ["at b"]
    assert a.get("at b").to_pybytes() == b"from C"
    cluster.nodes["b"].kill9()
    out, err = process.communicate("go on\n", timeout=120)
    assert process.returncode == 0, err
    assert 'node "b" is lost' in out
