"""A full spill folder was told as "out of memory, 0 B free", for reads of spilled objects too; the
cause stood only in the daemon's log, and what was spilled could not be read any more.

Here the folder is a file system of 24 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import farrow
from disk_cases import disk_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Node

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with disk_of(tmp_path / "spill", 24 * MB) as place:
        yield place


@pytest.fixture
def node(folder: Path, make_node: Callable[..., Node]) -> Iterator[Node]:
    node = make_node("--memory", "32MiB", "--spill", str(folder))
    yield node
    node.stop()


def fill(client: farrow.Client) -> tuple[int, farrow.NotSpilled]:
    """Objects of 4 MiB until there is no more room."""
    for number in range(64):
        try:
            client.put(bytes([number]) * 4 * MB, f"o{number}")
        except farrow.NotSpilled as error:
            return number, error
    raise AssertionError("64 objects of 4 MiB fit in 56 MiB")


def test_a_full_folder_is_named_and_what_is_in_it_can_be_read(node: Node, folder: Path) -> None:
    client = farrow.connect(node.socket)
    count, error = fill(client)
    assert count >= 10
    assert isinstance(error, farrow.OutOfMemory)
    assert error.folder.startswith(str(folder))
    assert error.nbytes >= 4 * MB
    assert error.requested >= 4 * MB
    assert "No space left on device" in error.reason
    assert error.folder in str(error)
    assert client.stats()["objects_spilled"] >= 3
    # Each of them comes back, again and again, and others leave for it.
    for _ in range(2):
        for number in range(count):
            assert client.get(f"o{number}").to_pybytes() == bytes([number]) * 4 * MB, number
    # What needs nobody to leave goes on, and so does everything when there is room again.
    client.put(b"small", "small")
    # One that came back has its file yet: it leaves again, and nothing has to be written.
    client.put(bytes(4 * MB), "once more")
    with pytest.raises(farrow.NotSpilled, match=error.folder):
        for _ in range(8):
            client.put(bytes(4 * MB))
    client.delete_many([f"o{number}" for number in range(4)])
    client.put(bytes(4 * MB), "more")
    assert client.get(f"o{count - 1}").size == 4 * MB


def test_with_no_space_at_all_the_reason_is_reported(node: Node, folder: Path) -> None:
    client = farrow.connect(node.socket)
    count, _ = fill(client)
    with (folder / "in the way").open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(MB))
            file.flush()
    spilled = [
        name
        for name, is_spilled in zip(
            client.list()["name"].to_pylist(), client.list()["spilled"].to_pylist(), strict=True
        )
        if is_spilled
    ]
    with pytest.raises(farrow.NotSpilled, match="No space left") as caught:
        for name in spilled:
            client.get(name)
    assert caught.value.folder.startswith(str(folder))
    # With room in memory no file needs to be written.
    for number in range(count):
        if f"o{number}" not in spilled:
            client.delete(f"o{number}")
    for name in spilled:
        assert client.get(name).size == 4 * MB
    client.put(b"small", "small")
