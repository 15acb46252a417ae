"""farrow lab coherence: what it measures, leaves behind and refuses; the profile of the machine."""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from farrow import _native
from farrow.cli import main
from farrow.cli._node._doctor import _all_caches
from farrow.lab import _analyse, _measure, _pairs, _plan, _report, analyse

if TYPE_CHECKING:
    from conftest import Cluster, Node

SMALL = (
    "--quick", "--size-max=64KiB", "--pattern-bytes=64KiB", "--rounds=1", "--seconds=0.0005",
    "--threads=1,2",
)  # fmt: skip
FILES = {"samples.parquet", "figures.json", "report.html"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a tiny run leaves."""
    folder = tmp_path_factory.mktemp("lab") / "out"
    assert main(["lab", "coherence", *SMALL, "-q", "-o", str(folder)]) == 0
    return folder


def test_a_run_leaves_samples_figures_and_a_page(output: Path) -> None:
    assert {path.name for path in output.iterdir()} >= FILES
    samples = pq.read_table(output / "samples.parquet")
    assert min(samples["ns"].to_pylist()) > 0
    methods = _native.lab_methods()
    found = {
        (row["work"], row["method"], row["state"], row["pages"])
        for row in samples.select(["work", "method", "state", "pages"]).to_pylist()
    }
    for pages in ("small", "huge"):
        for state in ("uncached", "cached", "dirty"):
            for work in ("publish", "refresh"):
                assert {m for w, m, s, p in found if (w, s, p) == (work, state, pages)} == set(
                    methods[work]
                )
        for work in ("write", "copy"):
            assert {m for w, m, _, p in found if (w, p) == (work, pages)} == set(methods[work])
    patterns = samples.select(["part", "memory", "width", "stride", "threads"]).to_pylist()
    shapes = {
        (row["memory"], row["width"], row["stride"], row["threads"])
        for row in patterns
        if row["part"] == "patterns"
    }
    for shape in (("private", 1, 1, 1), ("region", 8, 4096, 2), ("region", 2, 2, 1)):
        assert shape in shapes
    assert {(place, width, 64, 1) for place in ("private", "region") for width in (1, 2, 4, 8)} <= (
        shapes
    )
    assert set(samples.filter(pc.field("part") == "region")["work"].to_pylist()) == {
        "publish", "refresh", "write",
    }  # fmt: skip
    again = samples.filter(pc.field("work") == "publish again")
    assert max(again["nbytes"].to_pylist()) == methods["publish_again_bytes_max"]
    assert set(again["method"].to_pylist()) == set(methods["publish"])

    figures = json.loads((output / "figures.json").read_text())
    sizes = [choice["nbytes"] for choice in figures["choices"] if choice["work"] == "refresh"]
    assert min(sizes) == methods["line_bytes"]
    assert max(sizes) == 64 << 10
    for choice in figures["choices"]:
        assert choice["ratio"] >= 1
        work = choice["work"].removesuffix(" again")
        assert choice["picked"] in methods[work]
        is_small = choice["nbytes"] <= methods["publish_again_bytes_max"]
        is_decided = choice["threads"] == 1 and not (choice["work"] == "publish" and is_small)
        assert choice["is_decided"] is is_decided
        assert choice["picked"] == _analyse.picked_way(
            figures["profile"], choice["work"], choice["nbytes"]
        )
    found_threads = {(choice["work"], choice["threads"]) for choice in figures["choices"]}
    assert ("publish again", 1) in found_threads
    for work in ("publish", "refresh", "write"):
        is_it = (pc.field("part") == "threads") & (pc.field("work") == work)
        compared = samples.filter(is_it & (pc.field("threads") == 2)).select(["method", "nbytes"])
        assert compared.num_rows > 0
        # A profile of a busy machine may pick a method that two threads do not compare.
        is_picked = [
            row["method"] == _analyse.picked_way(figures["profile"], work, row["nbytes"])
            for row in compared.to_pylist()
        ]
        assert ((work, 2) in found_threads) == any(is_picked), work
    assert all(model["line_ns"] >= 0 for model in figures["models"])
    assert {cost["p50"] <= cost["p99"] for cost in figures["costs"]} == {True}

    page = (output / "report.html").read_text()
    for part in ("picked / best", "2 MiB pages", "time in region / private", "<svg"):
        assert part in page
    for heading in ("Cost by size", "Threads", "In another node", "Access patterns"):
        section = page.split(f"<h2>{heading}")[1].split("<h2>")[0]
        assert "<polyline" in section, heading
    every = page.split("Every series")[1]
    assert every.count("<tr>") > len(figures["costs"])
    assert "http" not in page.split("<style>")[0]
    assert "<script" not in page


def test_the_command_prints_choices_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["lab", "coherence", *SMALL, "-o", str(tmp_path / "out")]) == 0
    reported = capsys.readouterr()
    assert "picked / best" in reported.out
    assert "pip install 'farrow[lab]'" in reported.out
    assert str(tmp_path / "out" / "report.html") in reported.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_pictures_are_drawn(tmp_path: Path, output: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("cost.png", "samples.png", "threads.png", "pages.png", "patterns.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")


def test_memory_of_a_node_takes_part(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    before = main(["stat", "--socket", node.socket, "--json"])
    first = json.loads(capsys.readouterr().out)
    command = ["lab", "coherence", *SMALL, "--json", "--socket", node.socket, "-o", str(folder)]
    assert (before, main(command)) == (0, 0)
    reported = json.loads(capsys.readouterr().out)
    assert reported["choices"]
    assert str(folder / "report.html") in reported["files"]
    assert "memory of node" in (folder / "report.html").read_text()
    # What was written there was given back, and is no object.
    main(["stat", "--socket", node.socket, "--json"])
    assert json.loads(capsys.readouterr().out)["objects"] == first["objects"]


def test_memory_of_another_node_takes_part(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    before = nodes.client("b").stats()
    where = ["--socket", nodes.nodes["a"].socket, "--node", "b"]
    assert main(["lab", "coherence", *SMALL, "--json", *where, "-o", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["choices"]
    assert "memory of node b" in (folder / "report.html").read_text()
    regions = pq.read_table(folder / "samples.parquet").filter(pc.field("memory") == "region")
    assert set(regions["part"].to_pylist()) >= {"patterns"}
    after = nodes.client("b").stats()
    assert (after["objects"], after["used"]) == (before["objects"], before["used"])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--size-max=1PiB"], "B are available"),
        (["--pattern-bytes=1PiB"], "B are available"),
        (["--size-max=100"], "4 KiB at least"),
        (["--threads=0"], "1 to 1024"),
        (["--rounds=0"], "above zero"),
        (["--size-max=big"], "no size"),
        (["--memory-dir=/no/such/place"], "/no/such/place"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lab", "coherence", *SMALL, *options, "-q", "-o", str(tmp_path / "out")]
    assert main(command) == 1
    reported = capsys.readouterr().err
    assert part in reported
    assert reported.count("\n") == 1


def test_an_arena_keeps_to_its_buffer() -> None:
    memory = mmap.mmap(-1, 1 << 16)
    memory[:4] = b"here"
    arena = _native.LabArena.over(memory)
    assert arena.nbytes == 1 << 16
    for method in _native.lab_methods()["publish"]:
        assert len(arena.run("publish", method, state="dirty", nbytes=4096, samples=7)) == 7
    assert memory[:4] == b"here"
    arena.run("store", state="cached", nbytes=64, width=4, stride=16)
    assert memory[:20] == b"ZZZZ" + bytes(12) + b"ZZZZ"
    with pytest.raises(BufferError):
        _native.LabArena.over(b"read-only")
    for wrong in ({"nbytes": 0}, {"nbytes": 1 << 17}, {"nbytes": 64, "threads": 0}):
        with pytest.raises(ValueError, match=r"refused|fit|threads"):
            arena.run("load", state="cached", **wrong)  # type: ignore[arg-type]
    for work, method, state in (
        ("publish", "wbinvd", "dirty"), ("erase", "", "dirty"), ("load", "", "frozen"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no "):
            arena.run(work, method, state=state, nbytes=64)
    with pytest.raises(MemoryError, match="available"):
        _native.LabArena.private(1 << 50, huge=True)


def test_parts_are_left_out() -> None:
    settings = _plan.Settings(parts=("patterns",), pattern_bytes=1 << 20, threads=(1, 2))
    assert _plan.memory_needed(settings) < _plan.memory_needed(_plan.Settings(threads=(1, 2)))
    for memory in ("private", "region"):
        groups = [one for one in _plan.groups(settings) if one.memory == memory]
        works = [series.work for group in groups for series in group.series]
        assert {series.part for group in groups for series in group.series} == {"patterns"}
        assert set(works) == {"store", "load"}


def test_figures_are_those_of_the_samples() -> None:
    one = _plan.Series("lines", "refresh", "fast", "cached", 640)
    other = _plan.Series("lines", "refresh", "slow", "cached", 640)
    read = _plan.Series("patterns", "load", "", "uncached", 4096, threads=2, width=8, stride=64)
    profile = {
        "copy": "avx2",
        "copy_from_bytes": 1 << 20,
        "steps": [
            {"bytes": 64, "refresh": "fast"},
            {"bytes": 256, "refresh": "fast"},
            {"bytes": 1024, "refresh": "slow"},
        ],
    }
    samples = [
        (one, [[100.0, 101.0, 103.0], [104.0, 102.0]]),
        (other, [[150.0], [160.0], [170.0]]),
        (read, [[1000.0]]),
    ]
    run = _measure.Run(_plan.Settings(), {"line_bytes": 64}, profile, samples, {}, "")
    figures = analyse(run)
    cost = figures.costs[0]
    assert (cost.count, cost.p25, cost.p50, cost.p75) == (5, 101, 102, 103)
    assert cost.p99 == pytest.approx(103.96)
    assert cost.line_ns(64) == 10.2
    assert figures.costs[2].gib_per_s == pytest.approx(2 * 512 / 1000 * 1e9 / 2**30)
    (choice,) = figures.choices
    assert (choice.best, choice.picked) == ("fast", "slow")
    assert choice.ratio == pytest.approx(155 / 101)
    assert figures.worst is choice
    # One size is no model.
    assert figures.models == []
    picks = {size: _analyse.picked_way(profile, "refresh", size) for size in (1, 511, 512, 1 << 40)}
    assert picks == {1: "fast", 511: "fast", 512: "slow", 1 << 40: "slow"}
    assert _analyse.picked_way(profile, "copy", 1 << 20) == "avx2"
    assert _analyse.picked_way(profile, "copy", 1) == "memcpy"
    bins = _analyse.histogram([10.0, 10.0, 1000.0])
    assert sum(count for _, _, count in bins) == 3
    assert all(low < high for low, high, _ in bins)
    assert _analyse.histogram([]) == []


def test_what_was_measured_twice_is_beside_each_other() -> None:
    line, pattern = (
        ("lines", "refresh", "fast", "cached", 4096),
        ("patterns", "load", "", "uncached"),
    )
    samples = [
        (_plan.Series(*line), [[100.0]]),
        (_plan.Series(*line, pages="huge"), [[80.0]]),
        (_plan.Series("lines", "refresh", "slow", "cached", 4096), [[300.0]]),
        (_plan.Series("lines", "refresh", "fast", "dirty", 4096), [[500.0]]),
        (_plan.Series("region", *line[1:], memory="region"), [[150.0]]),
        (_plan.Series("threads", *line[1:], threads=2), [[400.0]]),
        (_plan.Series("threads", "refresh", "slow", "cached", 4096, threads=2), [[200.0]]),
        (_plan.Series(*pattern, 4096), [[1000.0]]),
        (_plan.Series(*pattern, 4096, pages="huge"), [[500.0]]),
        (_plan.Series(*pattern, 4096, memory="region"), [[2000.0]]),
    ]
    profile = {"steps": [{"bytes": 64, "refresh": "fast"}]}
    run = _measure.Run(_plan.Settings(), {"line_bytes": 64}, profile, samples, {}, "")
    figures = analyse(run)
    assert [pair.ratio for pair in _pairs.with_huge_pages(figures)] == [0.8]
    assert [pair.ratio for pair in _pairs.in_region(figures)] == [1.5]
    (pair,) = _pairs.compared_by(figures, "private", "private, huge pages")
    assert (pair.words, pair.ratio) == (("load", "64 bit", "sequential"), 0.5)
    speeds = _pairs.pattern_speeds(figures)["load", 8, 8, 1]
    assert speeds["private"] == 2 * speeds["region"] == speeds["private, huge pages"] / 2
    by_threads = {(choice.pages, choice.threads): choice for choice in figures.choices}
    assert by_threads["small", 1].ratio == 1
    assert (by_threads["small", 2].best, by_threads["small", 2].ratio) == ("slow", 2)
    # The profile looks at one thread: it is not judged by two.
    assert figures.worst is not None
    assert figures.worst.ratio == 1


def test_names_in_the_page_are_escaped() -> None:
    run = _measure.Run(
        _plan.Settings(),
        {"line_bytes": 64, "cores": 1, "processor": "<b>x</b>"},
        {"origin": "given", "path": None, "steps": [], "copy": "", "copy_from_bytes": None},
        [],
        {"private small": None},
        "<script>",
    )
    page = _report.page(run, _analyse.Figures([], [], []))
    assert "<script>" not in page
    assert "<b>x</b>" not in page


def test_a_planted_model_is_found() -> None:
    model = _native.lab_fit([(float(1 << n), 200 + 3.3 * (1 << n)) for n in range(16)])
    assert model == pytest.approx((200, 3.3, 0), abs=1e-6)
    assert _native.lab_fit([(1.0, 1.0)]) is None


def test_what_all_caches_cost_is_reported() -> None:
    found: dict[str, Any] = {"ns": 8_000_000, "publish_from_bytes": 1 << 28}
    reported = _all_caches({**found, "refresh_from_bytes": None})
    assert reported == "All caches at once: 8 ms, to publish from 256 MiB on, to refresh never."
    reported = _all_caches({"why_not": "/dev/farrow_shmem: open: no"})
    assert reported == "All caches at once: not here (/dev/farrow_shmem: open: no)."


def test_the_profile_is_retained_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep" / "profile.toml"
    monkeypatch.setenv("FARROW_PROFILE", str(path))
    profile: dict[str, Any] = _native.lab_profile(measure=True, keep=True)
    assert (profile["origin"], profile["kept"], profile["path"]) == ("measured", True, str(path))
    text = path.read_text()
    assert text.startswith("# How Farrow")
    assert f'machine = "{profile["machine"]}"' in text
    methods = _native.lab_methods()
    assert [step["bytes"] for step in profile["steps"]] == [64 << 2 * n for n in range(9)]
    for step in profile["steps"]:
        for work in ("publish", "refresh", "write"):
            assert step[work] in methods[work]
            # Of a large size that has one way left, nothing is measured.
            ns = step[f"{work}_ns"]
            assert ns is None if step["bytes"] > 256 << 10 and not ns else ns > 0
    monkeypatch.setenv("FARROW_PROFILE", "off")
    assert _native.lab_profile(measure=True, keep=True)["kept"] is False
    main(["doctor"])
    reported = capsys.readouterr().out
    assert "write and publish" in reported
    assert "All caches at once: " in reported
    assert profile["steps"][0]["refresh"] in reported
    main(["doctor", "--json"])
    assert len(json.loads(capsys.readouterr().out)["profile"]["steps"]) == 9
