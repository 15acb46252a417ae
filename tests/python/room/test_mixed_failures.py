"""An operation that fails costs nobody else anything: 300 failures of all kinds, in random order,
beside the objects of other clients, and none of these is evicted or moved.

``FARROW_FAILURES=1000`` makes it 1,000, ``FARROW_FAILURES_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from farrow.cli import main
from test_failed_loads import numbers, words, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node

MB = 1 << 20
FAILURES = int(os.environ.get("FARROW_FAILURES", "300"))
SEED = int(os.environ.get("FARROW_FAILURES_SEED", "26"))
OTHERS = 24
# What nobody can evict: so what fails does so for want of room, not for a size beyond any room.
HELD_MB = 12


class Others:
    """Objects of clients that have nothing to do with it."""

    def __init__(self, node: Node) -> None:
        self.owner = farrow.connect(node.socket)
        self.limited = farrow.connect(node.socket, namespace="limited")
        for number in range(OTHERS):
            self.owner.put(self._bytes(number), f"other {number}")
        # Sealed by the client itself.
        self.nameless = [self.owner.put(bytes([number]) * 5000) for number in range(OTHERS)]
        self.held = self.owner.create(HELD_MB * MB)
        stats = self.owner.stats()
        self.seen = (stats["evicted_total"], stats["spilled_total"])

    @staticmethod
    def _bytes(number: int) -> bytes:
        return bytes([number]) * MB

    def check(self) -> None:
        stats = self.owner.stats()
        assert (stats["evicted_total"], stats["spilled_total"]) == self.seen
        # By `list`, which leaves no mark of a use.
        assert self.owner.list("other ").num_rows == OTHERS
        assert all(self.owner.contains(ref) for ref in self.nameless)

    def check_bytes(self) -> None:
        for number in range(OTHERS):
            assert self.owner.get(f"other {number}").to_pybytes() == self._bytes(number)


class Failures:
    """Ways to fail; each is a method that returns with its failure seen."""

    def __init__(self, node: Node, folder: Path, dice: random.Random) -> None:
        self.node = node
        self.dice = dice
        self.client = farrow.connect(node.socket)
        self.limited = farrow.connect(node.socket, namespace="limited")
        self.large = folder / "large.parquet"
        write(numbers(80), self.large)
        self.text = folder / "words.parquet"
        write(words(56), self.text)
        self.torn = folder / "torn.arrow"
        write(numbers(20), self.torn)
        self.torn.write_bytes(self.torn.read_bytes()[: 15 * MB])

    def _size(self) -> int:
        """More than there can be beside what is held, less than the region."""
        return self.dice.randrange(54, 63) * MB

    def put_bytes(self) -> None:
        with pytest.raises(farrow.OutOfMemory):
            self.client.put(bytes(self._size()), self.dice.choice([None, "mine"]))

    def put_array(self) -> None:
        with pytest.raises(farrow.OutOfMemory):
            self.client.put(np.zeros(self._size() // 8))

    def put_table(self) -> None:
        half = self._size() // 16
        with pytest.raises(farrow.OutOfMemory):
            self.client.put(pa.table({"a": np.zeros(half), "b": np.zeros(half)}), "mine")

    def put_many(self) -> None:
        part = self._size() // 4
        values = [bytes(part), b"small", bytes(part), bytes(part), bytes(part)]
        with pytest.raises(farrow.OutOfMemory):
            self.client.put_many(values)

    def put_many_with_a_wrong_one(self) -> None:
        with pytest.raises(TypeError):
            self.client.put_many([bytes(20 * MB), object(), b"x"])

    def create(self) -> None:
        with pytest.raises(farrow.OutOfMemory):
            self.client.create(self._size(), "mine")

    def create_many(self) -> None:
        part = self._size() // 3
        with pytest.raises(farrow.OutOfMemory):
            self.client.create_many([part, part, part + MB], ["a", "b", "c"])

    def wait_in_vain(self) -> None:
        with pytest.raises(farrow.OutOfMemory):
            self.client.put(bytes(self._size()), wait=0.01)
        with pytest.raises(farrow.OutOfMemory):
            self.client.create(self._size(), "mine", wait=0.01)

    def too_large(self) -> None:
        with pytest.raises(farrow.TooLarge):
            self.client.create(65 * MB)

    def taken_name(self) -> None:
        with pytest.raises(farrow.AlreadyExists):
            self.client.put(bytes(30 * MB), f"other {self.dice.randrange(OTHERS)}")
        with pytest.raises(farrow.AlreadyExists):
            self.client.put_many([bytes(30 * MB), b"x"], ["new", "other 3"])
        with pytest.raises(farrow.AlreadyExists):
            self.client.create(30 * MB, "other 5")

    def wrong_name(self) -> None:
        with pytest.raises(farrow.InvalidArgument):
            self.client.put(bytes(30 * MB), self.dice.choice(["", "x" * 256, "a\0b"]))

    def wrong_namespace(self) -> None:
        with pytest.raises(farrow.NotFound):
            farrow.connect(self.node.socket, namespace="none")

    def wrong_metadata(self) -> None:
        with pytest.raises((ValueError, TypeError)):
            self.client.put(bytes(30 * MB), metadata={"k": "v" * 5000})

    def wrong_type(self) -> None:
        with pytest.raises(TypeError):
            self.client.put(object())

    def quota_of_bytes(self) -> None:
        with pytest.raises(farrow.QuotaExceeded):
            self.limited.put(bytes(30 * MB), wait=self.dice.choice([0.0, 0.01]))

    def quota_of_objects(self) -> None:
        with pytest.raises(farrow.QuotaExceeded):
            self.limited.create_many([MB] * 5)

    def pool(self) -> None:
        pool = self.client.memory_pool()
        buffers = [pa.allocate_buffer(6 * MB, memory_pool=pool) for _ in range(10)]
        arrays = [pa.Array.from_buffers(pa.int8(), one.size, [None, one]) for one in buffers]
        with pytest.raises(farrow.OutOfMemory):
            self.client.put(pa.chunked_array(arrays), "mine")

    def strict_pool(self) -> None:
        pool = self.client.memory_pool(strict=True)
        with pytest.raises(pa.ArrowMemoryError):
            _ = [pa.allocate_buffer(6 * MB, memory_pool=pool) for _ in range(10)]

    def expecting_pool(self) -> None:
        with pytest.raises(farrow.OutOfMemory):
            self.client.memory_pool(expect=self._size())

    def huge_table(self) -> None:
        table = self.client.huge_table("huge", pa.schema({"a": pa.float64()}))
        with pytest.raises(farrow.OutOfMemory):
            table.append(pa.table({"a": np.zeros(self._size() // 8)}), timeout=0.01)

    def command(self) -> None:
        path = self.dice.choice([self.large, self.text, self.torn])
        assert main(["put", str(path), "--socket", self.node.socket, "--quiet"]) != 0

    def command_of_bytes(self) -> None:
        sparse = self.large.with_name("sparse")
        with sparse.open("wb") as file:
            file.truncate(self._size())
        words = ["put", str(sparse), "--bytes", "--socket", self.node.socket, "--quiet"]
        assert main(words) != 0


@pytest.mark.parametrize("spills", [False, True])
def test_what_fails_costs_no_other_client_anything(
    make_node: Callable[..., Node], tmp_path: Path, spills: bool
) -> None:
    flags = ["--spill", str(tmp_path / "spill")] if spills else ["--evict", "lru"]
    node = make_node("--memory", "64M", *flags)
    farrow.connect(node.socket).create_namespace("limited", nbytes=8 * MB, objects=3)
    dice = random.Random(SEED)
    failures = Failures(node, tmp_path, dice)
    failures.client.huge_table("huge", pa.schema({"a": pa.float64()}))
    others = Others(node)
    names = sorted(name for name in vars(Failures) if not name.startswith("_"))
    ways: list[Any] = [getattr(failures, name) for name in names]
    count = FAILURES // 2
    for number in range(count):
        way = ways[number] if number < len(ways) else dice.choice(ways)
        way()
        try:
            others.check()
        except AssertionError as error:
            raise AssertionError(f"seed {SEED}, failure {number}: {way.__name__}") from error
    others.held.abort()
    others.check_bytes()
    # And what can succeed does, at their cost.
    for number in range(3):
        failures.client.put(bytes(15 * MB), f"mine {number}")
    stats = failures.client.stats()
    assert (stats["spilled_total"] if spills else stats["evicted_total"]) > others.seen[spills]
