"""``--audit-log``: who created and deleted objects, and what was refused."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, wait_until
from disk_cases import disk_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Cluster, Node


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Whole lines; the last one may be on its way."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def wait_for(path: Path, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """Until so many lines have these fields."""

    def found() -> list[dict[str, Any]]:
        return [line for line in lines_of(path) if fields.items() <= line.items()]

    wait_until(lambda: len(found()) >= count, f"{count} lines with {fields} in {lines_of(path)}")
    return found()


def test_each_create_and_delete_has_a_line(make_node: Callable[..., Node], tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    node = make_node("--audit-log", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    client = farrow.connect(node.socket)
    client.create_namespace("team", nbytes=1 << 20)
    team = farrow.connect(node.socket, namespace="team")
    team.put(pa.table({"a": [1, 2, 3]}), 'a "name"')
    # Small ones without a name need no message elsewhere; here each has a line.
    unnamed = [client.put(bytes([number % 256])) for number in range(300)]
    client.delete(unnamed[0])
    team.delete('a "name"')
    with pytest.raises(farrow.NotFound):
        client.delete("nothing")
    with pytest.raises(farrow.QuotaExceeded):
        team.put(bytes(2 << 20), "large")

    (made,) = wait_for(path, action="create", name='a "name"')
    assert (made["pid"], made["uid"], made["namespace"]) == (os.getpid(), os.getuid(), "team")
    assert (made["result"], made["bytes"] >= 24) == ("ok", True)
    ids = {line["id"] for line in wait_for(path, 300, action="create", bytes=1)}
    assert ids == {one.hex() for one in unnamed}
    (removed,) = wait_for(path, action="delete", id=unnamed[0].hex())
    assert (removed["result"], removed["namespace"]) == ("ok", "")
    wait_for(path, action="delete", name='a "name"', result="ok")
    (missing,) = wait_for(path, action="delete", name="nothing")
    assert missing["result"] == "not_found"
    # The client asks again before it raises.
    (refused, *_) = wait_for(path, result="quota_exceeded")
    assert "1048576" in refused["reason"]
    wait_for(path, action="create_namespace", name="team", result="ok")
    assert lines_of(path)[0]["action"] == "start"
    times = [line["time"] for line in lines_of(path)]
    assert times == sorted(times)
    node.stop()
    assert lines_of(path)[-1]["action"] == "end"


def test_evictions_are_the_node_s(make_node: Callable[..., Node], tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    node = make_node("--audit-log", str(path), "--memory", "16MiB", "--evict", "lru")
    client = farrow.connect(node.socket)
    for number in range(8):
        client.put(bytes(4 << 20), f"n{number}")
    evictions = wait_for(path, action="evict")
    assert all("pid" not in line and line["count"] >= 1 for line in evictions)


def test_a_client_of_another_node_has_the_name_of_its_node(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    flags = ("--plaintext", "--permit", "secret:*:read", "--audit-log", str(path))
    cluster = make_cluster(2, *flags)
    a, b = cluster.clients()
    a.create_namespace("secret")
    b.at("a").put(b"from b", "far")
    # Both nodes of this test write to one file, each line as a whole.
    (made,) = wait_for(path, action="create", name="far")
    assert (made["node"], made["pid"]) == ("b", os.getpid())
    b.create_namespace("secret")
    inside = farrow.connect(b.address, namespace="secret")
    with pytest.raises(farrow.PermissionDenied):
        inside.at("a").put(b"from b", "denied")
    (refused, *_) = wait_for(path, result="not_permitted")
    assert refused["node"] == "b"


def test_a_moved_file_is_made_again(make_node: Callable[..., Node], tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    node = make_node("--audit-log", str(path))
    client = farrow.connect(node.socket)
    client.put(b"1", "before")
    wait_for(path, name="before")
    path.rename(moved)
    end = time.monotonic() + LIMIT_SECONDS
    count = 0
    while not path.exists():
        assert time.monotonic() < end
        client.put(b"2", f"after{count}")
        count += 1
        time.sleep(0.05)
    wait_for(path, name=f"after{count - 1}")
    named = [line["name"] for file in (moved, path) for line in lines_of(file) if "name" in line]
    assert named == ["before", *(f"after{number}" for number in range(count))]


def test_a_restart_and_an_unusable_file(make_node: Callable[..., Node], tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    node = make_node("--audit-log", str(path))
    farrow.connect(node.socket).put(b"1", "one")
    wait_for(path, name="one")
    node.restart()
    wait_for(path, 2, action="start")
    with pytest.raises(AssertionError, match="audit log"):
        make_node("--audit-log", str(tmp_path / "no" / "file"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with disk_of(tmp_path / "disk", 64 << 10) as place:
        yield place


def test_a_full_disk_stops_no_client_and_the_log_has_the_number_of_lost_lines(
    make_node: Callable[..., Node], small_disk: Path
) -> None:
    path = small_disk / "audit.log"
    node = make_node("--audit-log", str(path))
    client = farrow.connect(node.socket)
    count = 0
    end = time.monotonic() + LIMIT_SECONDS
    while "audit log is not written" not in node.log():
        assert time.monotonic() < end
        for _ in range(100):
            client.put(b"x", f"n{count}")
            count += 1
    for _ in range(100):
        client.put(b"x", f"n{count}")
        count += 1
    assert client.get(f"n{count - 1}").to_pybytes() == b"x"
    # Room again: the file is emptied in place, as some tools do.
    os.truncate(path, 0)
    client.put(b"x", "after")

    def whole() -> list[dict[str, Any]]:
        found = []
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                # Half of a line, from when the disk was full.
                continue
        return found

    wait_until(lambda: any(line.get("name") == "after" for line in whole()), "the next line")
    (note,) = [line for line in whole() if line["action"] == "audit"]
    assert (note["result"], note["count"] >= 1) == ("dropped", True)
    node.stop()
