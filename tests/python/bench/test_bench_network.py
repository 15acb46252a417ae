"""The benchmark of a graph behind a network: ways are compared on equal segments.

A hit in the cache of the network once stood as faster than memory: in that one process the segments
in memory were slow.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import network  # noqa: E402
from citations import parts  # noqa: E402


def answer(base: float) -> dict[str, Any]:
    return {
        "mapped_over_private": base,
        "network_over_mapped": 1.5,
        "mapped": {"times": [0.01, 0.02, 0.01]},
        "network": {"times": [0.01, 0.04]},
    }


def test_a_way_has_the_least_and_the_most_of_its_batches() -> None:
    assert parts.slower(answer(2.0)) == "1.5 (1.0 to 2.0)"


def test_a_base_is_off_by_more_than_a_fifth() -> None:
    ways = [answer(base) for base in (2.0, 2.1, 2.2, 2.3, 3.3)]
    found = [parts.off_base(one, ways) for one in ways]
    assert found[:4] == [None] * 4
    assert found[4] == pytest.approx(1.5)
    assert parts.off_base(answer(1.0), ways) == pytest.approx(1 / 2.2)


def test_a_way_of_a_noisy_moment_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = {"a": [2.0], "b": [3.3, 3.2, 2.1], "c": [2.1], "d": [4.0, 2.0], "e": [2.0], "f": [2.0]}
    measured = []

    def run(_: Path, way: str) -> dict[str, Any]:
        measured.append(way)
        return answer(bases[way].pop(0))

    monkeypatch.setattr(network, "run", run)
    found = network.comparable(Path("program"), {way: [way] for way in bases})
    assert {way: one["mapped_over_private"] for way, one in found.items()} == {
        "a": 2.0, "b": 2.1, "c": 2.1, "d": 2.0, "e": 2.0, "f": 2.0,
    }  # fmt: skip
    assert measured == [*"abcdef", "b", "d", "b"]
