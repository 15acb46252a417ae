"""client.memory_pool(): what is built with it lies in the region, and put copies none of it."""

from __future__ import annotations

import gc
import os
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json
import pyarrow.parquet as pq
import pytest

import farrow
from conftest import run_program, run_python, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

ROOT = Path(__file__).resolve().parents[3]
ROWS = 60_000
MEGABYTE = 1 << 20


def outside(client: farrow.Client, value: Any) -> int:
    return sum(place["bytes"] for place in client.locate(value) if not place["in_region"])


def sample(rows: int = ROWS) -> pa.Table:
    rng = random.Random(3)
    return pa.table(
        {
            "i": pa.array(range(rows), pa.int64()),
            "s": pa.array([f"row {i % 97} {'x' * (i % 13)}" for i in range(rows)]),
            "f": pa.array([rng.random() for _ in range(rows)]),
            "n": pa.array([i if i % 11 else None for i in range(rows)], pa.int32()),
        }
    )


def large_addresses(client: farrow.Client, value: Any) -> set[int]:
    return {place["address"] for place in client.locate(value) if place["bytes"] >= 4096}


def check_in_place(client: farrow.Client, value: Any) -> Any:
    """``put`` leaves large buffers where they are; ``get`` returns the same addresses."""
    back = client.get(client.put(value))
    # A bitmap of no nulls may be left out.
    assert set() < large_addresses(client, back) <= large_addresses(client, value)
    assert back.equals(value)
    return back


def test_it_is_a_real_pool(client: farrow.Client) -> None:
    pool = client.memory_pool()
    assert isinstance(pool, pa.MemoryPool)
    assert pool.backend_name == "farrow"
    assert client.memory_pool() is pool
    assert client.memory_pool(strict=True) is not pool
    before = pool.bytes_allocated()
    buffer = pa.allocate_buffer(1000, memory_pool=pool)
    assert pool.bytes_allocated() >= before + 1000
    assert pool.max_memory() is not None
    assert outside(client, buffer) == 0
    del buffer
    assert pool.bytes_allocated() == before


def test_csv(client: farrow.Client, tmp_path: Path) -> None:
    csv.write_csv(sample(), tmp_path / "a.csv")
    table = csv.read_csv(tmp_path / "a.csv", memory_pool=client.memory_pool())
    assert outside(client, table) == 0
    assert table.equals(csv.read_csv(tmp_path / "a.csv"))
    check_in_place(client, table)


def test_parquet(client: farrow.Client, tmp_path: Path) -> None:
    pq.write_table(sample(), tmp_path / "a.parquet", row_group_size=20_000)
    before = pa.default_memory_pool()
    pa.set_memory_pool(client.memory_pool())
    try:
        table = pq.read_table(tmp_path / "a.parquet")
    finally:
        pa.set_memory_pool(before)
    assert outside(client, table) == 0
    assert table.equals(sample())
    check_in_place(client, table)


def test_json(client: farrow.Client, tmp_path: Path) -> None:
    lines = "\n".join(f'{{"i":{i},"s":"x{i}","l":[1,{i}]}}' for i in range(20_000))
    (tmp_path / "a.json").write_text(lines)
    table = json.read_json(tmp_path / "a.json", memory_pool=client.memory_pool())
    assert outside(client, table) == 0
    check_in_place(client, table)


def test_compute(client: farrow.Client) -> None:
    pool, table = client.memory_pool(), sample()
    results = {
        "add": pc.add(table["i"], 1, memory_pool=pool),
        "cast": pc.cast(table["i"], pa.string(), memory_pool=pool),
        "take": pc.take(table["s"], pa.array(range(0, ROWS, 2)), memory_pool=pool),
        "filter": pc.filter(table["f"], pc.greater(table["f"], 0.5), memory_pool=pool),
        "sort": pc.sort_indices(table["f"], memory_pool=pool),
        "upper": pc.utf8_upper(table["s"], memory_pool=pool),
        "combined": pa.concat_tables([table, table]).combine_chunks(memory_pool=pool),
    }
    for name, value in results.items():
        assert outside(client, value) == 0, name
        check_in_place(client, value)


def test_builders_that_grow(client: farrow.Client) -> None:
    """Nested builders reallocate all their buffers again and again."""
    pool = client.memory_pool()
    values = [
        None if i % 7 == 0 else [{"k": "v" * (i % 50), "n": list(range(i % 5))}] * (i % 4)
        for i in range(30_000)
    ]
    kind = pa.list_(pa.struct([("k", pa.string()), ("n", pa.list_(pa.int16()))]))
    array = pa.array((value for value in values), kind, memory_pool=pool)
    array.validate(full=True)
    assert outside(client, array) == 0
    back = check_in_place(client, array)
    assert back.to_pylist() == values


def test_reallocation(client: farrow.Client) -> None:
    pool = client.memory_pool()
    buffer = pa.allocate_buffer(0, memory_pool=pool, resizable=True)
    assert buffer.size == 0
    rng = random.Random(11)
    content = b""
    for _ in range(300):
        size = rng.choice([0, 1, 63, 64, 65, 2048, 4095, 4096, 5000, 70_000, 3_000_000])
        retained = content[: min(len(content), size)]
        buffer.resize(size, shrink_to_fit=rng.random() < 0.5)
        view = np.frombuffer(buffer, np.uint8)
        assert view[: len(retained)].tobytes() == retained
        content = rng.randbytes(min(size, 5000)) + bytes(max(0, size - 5000))
        if size:
            np.ndarray(size, np.uint8, buffer)[:] = np.frombuffer(content, np.uint8)
        assert buffer.address % 64 == 0
        del view
    del buffer


def test_alignment_and_size_zero(client: farrow.Client) -> None:
    pool = client.memory_pool()
    buffers = [pa.allocate_buffer(size, memory_pool=pool) for size in (0, 1, 3, 64, 100, 5000, 0)]
    assert all(buffer.address % 64 == 0 for buffer in buffers)
    assert buffers[0].address != 0
    assert buffers[0].address == buffers[-1].address


def test_many_threads(client: farrow.Client) -> None:
    pool = client.memory_pool()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rng = random.Random(seed)
            retained: list[tuple[pa.Array, int]] = []
            for _ in range(200):
                number = rng.randrange(1 << 30)
                array = pa.array([number] * rng.randrange(1, 3000), memory_pool=pool)
                retained.append((array, number))
                if len(retained) > 10:
                    retained.pop(rng.randrange(len(retained)))
                for old, expected in retained:
                    assert old[0].as_py() == expected
                    assert old[len(old) - 1].as_py() == expected
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert failures == []
    gc.collect()
    assert pool.bytes_allocated() == 0


def test_put_while_another_thread_builds(client: farrow.Client) -> None:
    pool = client.memory_pool()
    tables = [pa.table({"n": pa.array(range(50_000), memory_pool=pool)}) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda t=t: [client.put(t) for _ in range(10)]) for t in tables
    ]
    for thread in threads:
        thread.start()
    arrays = [pa.array([i] * 3000, memory_pool=pool) for i in range(200)]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [array[2999].as_py() for array in arrays] == list(range(200))


def test_a_full_region_spills_and_put_says_what_is_missing(client: farrow.Client) -> None:
    pool = client.memory_pool()
    capacity = client.stats()["capacity"]
    size = 16 * MEGABYTE
    arrays = [
        pc.cast(pa.array(np.full(size // 8, i)), pa.float64(), memory_pool=pool)
        for i in range(capacity // size + 4)
    ]
    places = [client.locate(array)[0]["in_region"] for array in arrays]
    assert True in places
    assert False in places
    assert [array[7].as_py() for array in arrays] == [float(i) for i in range(len(arrays))]
    spilled = [array for array, inside in zip(arrays, places, strict=True) if not inside]
    table = pa.table({f"c{i}": array for i, array in enumerate(spilled)})
    with pytest.raises(farrow.OutOfMemory) as caught:
        client.put(table)
    assert caught.value.requested >= size
    assert caught.value.free < caught.value.requested
    assert str(caught.value.requested) in str(caught.value)
    # The store is usable, and with room the same table goes in.
    del arrays
    gc.collect()
    assert client.get(client.put(table)).equals(table)


def test_csv_larger_than_the_region_does_not_abort(make_node: Any, tmp_path: Path) -> None:
    node = make_node("--memory", "16MiB")
    csv.write_csv(sample(400_000), tmp_path / "a.csv")
    script = """
import sys, farrow, pyarrow.csv as csv
client = farrow.connect(sys.argv[1])
table = csv.read_csv(sys.argv[2], memory_pool=client.memory_pool())
print(table.num_rows)
try:
    client.put(table)
except farrow.OutOfMemory as error:
    print(error.requested > error.largest)
"""
    assert run_python(script, node.socket, str(tmp_path / "a.csv")) == "400000\nTrue\n"


# Of the crate of this name, what build.rs needs. There is no compiler here.
CC = """
pub struct Build;
impl Build {
    pub fn new() -> Self { Self }
    pub fn cpp(&mut self, _: bool) -> &mut Self { self }
    pub fn std(&mut self, _: &str) -> &mut Self { self }
    pub fn opt_level(&mut self, _: u32) -> &mut Self { self }
    pub fn debug(&mut self, _: bool) -> &mut Self { self }
    pub fn compiler<P>(&mut self, _: P) -> &mut Self { self }
    pub fn try_get_compiler(&self) -> Result<Tool, String> { Err("a compiler is needed".into()) }
}
pub struct Tool;
impl Tool {
    pub fn to_command(&self) -> std::process::Command { std::process::Command::new("false") }
    pub fn path(&self) -> &std::path::Path { std::path::Path::new("false") }
}
"""


def compile_build_script(folder: Path) -> Path:
    (folder / "cc.rs").write_text(CC)
    out = folder / "build-script"
    rustc = ["rustc", "--edition=2024", "--cap-lints=allow"]
    run_program(*rustc, "--crate-type=rlib", "--crate-name=cc", "cc.rs", cwd=folder)
    source = ROOT / "crates" / "python" / "build.rs"
    env = {**os.environ, "CARGO_PKG_VERSION": "0.1.0"}
    run_program(*rustc, "--extern=cc=libcc.rlib", "-o", out, source, cwd=folder, env=env)
    return out


@pytest.mark.skipif(
    shutil.which("rustc") is None or not (ROOT / "Cargo.toml").exists(), reason="needs the sources"
)
def test_a_build_beside_an_early_pyarrow_has_no_pool_for_it(tmp_path: Path) -> None:
    """Before, `pip install .` failed beside pyarrow 15, with which all else works."""
    script = compile_build_script(tmp_path)
    crate = tmp_path / "crates" / "python"
    crate.mkdir(parents=True)
    (crate / "cpp").symlink_to(ROOT / "crates" / "python" / "cpp")
    (tmp_path / "cpp").symlink_to(ROOT / "cpp")
    (tmp_path / "python" / "farrow").mkdir(parents=True)
    config = tmp_path / "pyarrow" / "include" / "arrow" / "util" / "config.h"
    config.parent.mkdir(parents=True)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1" != -c ] || echo "{tmp_path}/pyarrow"\n')
    python.chmod(0o755)

    def build(series: int, **more: str) -> str:
        config.write_text(f'#define ARROW_SO_VERSION "{series}"\n')
        env = {"PATH": os.environ["PATH"], "PYO3_PYTHON": str(python), "OUT_DIR": str(tmp_path)}
        return run_program(script, cwd=crate, env=env | more)

    early = build(1500)
    assert "cargo:warning=no memory pool for the pyarrow of" in early
    assert "cargo::error" not in early
    needed = "cargo::error=a compiler is needed"
    assert needed in build(1600)
    assert needed in build(1500, FARROW_BRIDGE_PYARROW=str(tmp_path / "pyarrow"))


def test_strict(client: farrow.Client) -> None:
    pool = client.memory_pool(strict=True)
    capacity = client.stats()["capacity"]
    with pytest.raises(pa.ArrowMemoryError, match=f"no room for {capacity + 64} bytes"):
        pa.allocate_buffer(capacity + 64, memory_pool=pool)
    buffer = pa.allocate_buffer(1000, memory_pool=pool, resizable=True)
    with pytest.raises(MemoryError):
        buffer.resize(2 * capacity)
    assert buffer.size == 1000
    with pytest.raises(pa.ArrowMemoryError):
        pc.add(np.zeros(capacity // 8 + 1), 1, memory_pool=pool)


def test_memory_outlives_pool_and_client(node: Any) -> None:
    client = farrow.connect(node.socket)
    watcher = farrow.connect(node.socket)
    array = pa.array(range(100_000), memory_pool=client.memory_pool())
    reference = client.put(array)
    loose = pa.array(range(5), memory_pool=client.memory_pool())
    clients = watcher.stats()["clients"]
    del client
    gc.collect()
    assert array[99_999].as_py() == 99_999
    assert loose.to_pylist() == [0, 1, 2, 3, 4]
    assert watcher.stats()["clients"] == clients
    del array, loose
    gc.collect()
    wait_until(lambda: watcher.stats()["clients"] == clients - 1, "the client to leave")
    assert watcher.get(reference)[5].as_py() == 5


def test_pool_in_use_after_client_and_wrapper(node: Any) -> None:
    """Arrow keeps bare pointers to a pool: after its client is gone it must still answer."""
    before = pa.default_memory_pool()
    client = farrow.connect(node.socket)
    pa.set_memory_pool(client.memory_pool())
    try:
        del client
        gc.collect()
        array = pa.array(range(10_000))
        assert array[9_999].as_py() == 9_999
    finally:
        pa.set_memory_pool(before)
    del array
    gc.collect()


def test_sealed_buffers_of_the_pool_stay_readable_after_delete(client: farrow.Client) -> None:
    array = pa.array(range(100_000), memory_pool=client.memory_pool())
    client.put(array, "there")
    client.delete("there")
    assert pc.sum(array).as_py() == sum(range(100_000))


def test_put_twice(client: farrow.Client) -> None:
    """What was put once lies in the region: a second object refers to the same bytes."""
    array = pa.array(range(500_000), memory_pool=client.memory_pool())
    first, second = client.put(array), client.put(array)
    got = client.get(first)
    third = client.put(got)
    for reference in (second, third):
        assert client.get(reference).equals(array)
        assert client.locate(client.get(reference))[0]["address"] == array.buffers()[1].address
    assert client.stats()["used"] < 2 * array.nbytes
    client.delete([first, second])
    del array, got
    gc.collect()
    assert pc.sum(client.get(third)).as_py() == sum(range(500_000))


def test_memory_of_deleted_tables_is_used_again(make_node: Callable[..., Node]) -> None:
    """Grants and copies reuse what was written before, however the pieces of a table fell."""
    client = farrow.connect(
        make_node("--memory", "512MiB", "--evict", "none", "--no-prepare").socket
    )
    pool = client.memory_pool()
    values = pa.array(np.arange(20_000))
    private = pa.table({"a": pa.chunked_array([values] * 150)})
    written: list[int] = []
    for _ in range(12):
        chunks = [pc.add(values, number, memory_pool=pool) for number in range(150)]
        table = pa.table({"a": pa.chunked_array(chunks)})
        del chunks
        client.put(table, "built")
        written += [place["offset"] for place in client.locate(table)]
        client.delete("built")
        del table
        client.put(private, "copied")
        written += [place["offset"] for place in client.locate(client.get("copied"))]
        client.delete("copied")
    # 24 MB at a time; before, each turn went on to pages that nobody had touched.
    assert max(written) - min(written) < 4 * private.nbytes
