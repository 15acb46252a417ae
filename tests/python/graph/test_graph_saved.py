"""Damaged files of saved graph features.

Of 2,400 damaged files ``GraphFeatures.load`` took 1,271 without complaint: the file was an Arrow
IPC file, in which nothing guards the values.  Now a checksum covers all of it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

pytest.importorskip("sklearn")

import farrow
from farrow.graph import GraphFeatures, _file, _state

if TYPE_CHECKING:
    from pathlib import Path

# Enough to meet every part of the file; more by FARROW_DAMAGE_FILES.
DAMAGED_FILES = int(os.environ.get("FARROW_DAMAGE_FILES", "600"))


def _features() -> GraphFeatures:
    rows = np.random.default_rng(7).integers(0, 40, (300, 4)).astype(float)
    rows[:, 3] = np.arange(300)
    features = GraphFeatures(patterns=("fan", "temp-cycle"), window=200, bins=[2, 3])
    features.fit_transform(rows)
    return features


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "graph"
    _features().save(path)
    GraphFeatures.load(path)
    return path.read_bytes()


def _refused(path: Path, data: bytes) -> farrow.DamagedFile:
    path.write_bytes(data)
    with pytest.raises(farrow.DamagedFile) as caught:
        GraphFeatures.load(path)
    assert caught.value.path == str(path)
    return caught.value


def test_every_flipped_bit_is_noticed(saved: bytes, tmp_path: Path) -> None:
    chance = random.Random(20261124)
    # All of the head, and some of the rest.
    places = [*range(64), *chance.sample(range(64, len(saved)), DAMAGED_FILES // 2)]
    for place in places:
        damaged = bytearray(saved)
        damaged[place] ^= 1 << chance.randrange(8)
        _refused(tmp_path / "damaged", bytes(damaged))


def test_every_lost_or_added_end_is_noticed(saved: bytes, tmp_path: Path) -> None:
    chance = random.Random(7)
    lengths = [0, 1, 8, 63, 64, 65, len(saved) - 1]
    lengths += chance.sample(range(len(saved)), DAMAGED_FILES // 4)
    for length in lengths:
        _refused(tmp_path / "damaged", saved[:length])
    _refused(tmp_path / "damaged", saved + b"\0")
    _refused(tmp_path / "damaged", saved + saved)


def test_larger_damage_is_noticed(saved: bytes, tmp_path: Path) -> None:
    chance = random.Random(8)
    for _ in range(DAMAGED_FILES // 4):
        start, stop = sorted(chance.sample(range(len(saved) + 1), 2))
        damaged = bytearray(saved)
        if chance.random() < 0.5:
            damaged[start:stop] = bytes(stop - start)
            if bytes(damaged) == saved:
                continue
        else:
            del damaged[start:stop]
        _refused(tmp_path / "damaged", bytes(damaged))


def test_other_files_are_refused(tmp_path: Path) -> None:
    for data in [b"", b"not an Arrow file", b"FARROWGF" * 16, bytes(4096), b"ARROW1\0\0" * 9]:
        error = _refused(tmp_path / "other", data)
        assert "graph features" in str(error) or "damaged" in str(error)
    assert isinstance(pickle.loads(pickle.dumps(error)), farrow.DamagedFile)
    with pytest.raises(FileNotFoundError):
        GraphFeatures.load(tmp_path / "missing")


def test_a_later_version_is_refused_with_both_numbers(saved: bytes, tmp_path: Path) -> None:
    body = saved[64:]
    checksum = _file._checksum(3, len(body))
    checksum.update(body)
    head = _file._HEAD.pack(_file.MAGIC, 3, 0, len(body), checksum.digest())
    (tmp_path / "later").write_bytes(head + body)
    with pytest.raises(farrow.InvalidArgument, match="version 3; this farrow reads 1 to 2"):
        GraphFeatures.load(tmp_path / "later")


def test_the_first_version_is_read_with_a_warning(saved: bytes, tmp_path: Path) -> None:
    """Its bytes are those of the body."""
    features = _features()
    state = _state.state_of(features)
    edges = state.pop("edges").replace_schema_metadata({b"farrow.graph": json.dumps(state)})
    with pa.OSFile(str(tmp_path / "old"), "wb") as sink, pa.ipc.new_file(sink, edges.schema) as to:
        to.write_table(edges)
    assert (tmp_path / "old").read_bytes() == saved[64:]
    with pytest.warns(UserWarning, match="no checksum"):
        old = GraphFeatures.load(tmp_path / "old")
    assert old.stats()["edges"] == features.stats()["edges"]


def test_a_failed_save_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph"
    _features().save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        _features().save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["graph"]


def test_a_saved_graph_has_the_mode_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    """It had 0600, also in place of a file that another user's service could read."""
    path, features = tmp_path / "graph", _features()
    before = os.umask(0o027)
    try:
        features.save(path)
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        features.save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o604
    assert [one.name for one in tmp_path.iterdir()] == ["graph"]
