"""The page of ``make reproduce``: it has every experiment, every table and figure of the works,
each published figure with work, place and page; what fails is told and takes nothing with it.

Once the figures of the works were second hand: 0.885 of Abrahamse's was said to be Groet's, and
speeds of the thesis' simple cycles stood without that word beside our temporal cycles."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import reproduce  # noqa: E402
from harness.slow_link import slow_link, why_not  # noqa: E402
from harness.tasks import Sample  # noqa: E402
from reproduction import objects  # noqa: E402
from reproduction.experiment import (  # noqa: E402
    BATCH,
    CYCLES,
    SCATTER,
    SIMPLE,
    Cells,
    Room,
    factor,
    number,
    rate,
)
from reproduction.far import GRPC, Caches, Network  # noqa: E402
from reproduction.maintenance import OTHER as FLUSHED_OTHER  # noqa: E402
from reproduction.maintenance import OWN as FLUSHED_OWN  # noqa: E402
from reproduction.maintenance import Flush, Maintenance  # noqa: E402
from reproduction.memory import Descriptor  # noqa: E402
from reproduction.page import Outcome, markdown  # noqa: E402
from reproduction.theirs import DIFFERENCES, FIGURES, LEFT_OUT, PLACES, WORKS  # noqa: E402
from reproduction.windows import (  # noqa: E402
    ALONE,
    OTHER,
    OWN,
    Modes,
    Placement,
    Windows,
    agreed,
)

if TYPE_CHECKING:
    from reproduction.experiment import Experiment


class Tags(HTMLParser):
    """Refuses what does not nest; collects attributes and text."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.seen: set[str] = set()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def made_up(experiment: Experiment) -> list[Sample]:
    """Two cases of two peers for each view, one of them of zeros and with markup in its name."""
    samples = {}
    for view in experiment.views:
        for case in ("6 h <b>", "64 KiB & more"):
            for peer, value in (("one <i>", 0.002), ("other", 0.0 if view.unit == "%" else 3.0)):
                sample = Sample(case, peer, view.variant, "s", [value, 2 * value], 1 << 20)
                samples[view.variant, case, peer] = sample
    return list(samples.values())


def page_of(folder: Path, *outcomes: Outcome) -> str:
    path = reproduce.report(outcomes, ["a note <of the run>"], True, (0.1, 0.2, 0.3), folder)
    assert path.suffix == ".html"
    document = json.loads(path.with_suffix(".json").read_text())
    assert len(document["samples"]) == sum(len(one.samples) for one in outcomes)
    assert document["experiments"][0]["failure"] == outcomes[0].failure
    table = path.with_suffix(".md").read_text()
    # It says which machine and commit it is of, and that it is a quick run's.
    first = table.partition("\n")[0]
    assert f"Commit {document['commit']['id'][:12]}" in first
    assert document["machine"]["processor"] in first
    assert "quick run" in first
    assert table.partition("\n\n")[2].startswith("| experiment |")
    return path.read_text()


def test_each_experiment_has_a_section_and_the_page_stands_alone(tmp_path: Path) -> None:
    outcomes = [Outcome(one, made_up(one), ["a <note>"], 1.5) for one in reproduce.EXPERIMENTS]
    page = page_of(tmp_path, *outcomes)
    tags = Tags(page)
    sections = [value for name, value in tags.attributes if name == "id"]
    assert sections == [one.name for one in reproduce.EXPERIMENTS]
    assert {"h1", "h2", "table", "svg", "style"} <= tags.seen
    assert not {"script", "link", "img", "iframe"} & tags.seen
    assert not {"src", "href", "onclick"} & {name for name, _ in tags.attributes}
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    words = " ".join(tags.words)
    for one in reproduce.EXPERIMENTS:
        assert one.title in words
    for what, why in LEFT_OUT:
        assert what in words
        assert why in words
    for number_text in ("nan", "inf", "None"):
        assert number_text not in words.split()
    # The machine is named, and no path of it.
    assert "cores" in words
    assert str(BENCH) not in page


def test_each_published_figure_has_work_place_and_page() -> None:
    known = {one.name: one for one in reproduce.EXPERIMENTS}
    places = {(one.work, one.place): one for one in PLACES}
    assert len({(one.work, one.place, one.what) for one in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        assert figure.work in WORKS
        assert re.fullmatch(PAGES, figure.page), figure
        assert figure.what
        assert figure.unit
        assert figure.conditions
        # A plot has no value, since none is read off it; a value is not a text.
        assert not (figure.plot and figure.value is not None), figure
        values = figure.value if isinstance(figure.value, tuple) else (figure.value,)
        assert all(value is None or isinstance(value, (int, float)) for value in values)
        assert set(figure.differs) <= DIFFERENCES.keys()
        # A counterpart of ours, or the reason why there is none.
        assert (figure.experiment is None) == (figure.key is None) != (figure.why_not is None)
        if figure.experiment is not None:
            assert known[figure.experiment].ours(Cells([]))[figure.key] is None
        if not figure.place.startswith(("Section", "Chapter")):
            place = places[figure.work, figure.place]
            assert place.page == figure.page, figure
            assert place.kind != "drawing"
        # Simple cycles are not temporal ones, and no figure of the works is of the latter.
        if "simple cycles" in figure.what and figure.experiment is not None:
            assert "cycles" in figure.differs, figure
            assert SIMPLE in str(figure.key), figure
        assert CYCLES not in str(figure.key), figure
    used = {key for figure in FIGURES for key in figure.differs}
    assert used == DIFFERENCES.keys()


# A page or a range.
PAGES = r"\d+(-\d+)?"


def test_every_table_and_figure_of_the_works_is_run_or_says_why_not() -> None:
    known = {one.name for one in reproduce.EXPERIMENTS}
    assert len({(one.work, one.place) for one in PLACES}) == len(PLACES)
    counted: dict[tuple[str, str], list[int]] = {}
    for one in PLACES:
        assert re.fullmatch(PAGES, one.page), one
        assert one.shows
        assert (one.run is None) != (one.why_not is None), one
        assert one.run is None or one.run in known
        if one.run is not None:
            # Each that is run has figures, of values or of a plot.
            found = [each for each in FIGURES if (each.work, each.place) == (one.work, one.place)]
            assert found or one.place == "Table I", one
        kind, chapter, count = NUMBERED.fullmatch(one.place).groups()  # type: ignore[union-attr]
        counted.setdefault((one.work, f"{kind} {chapter or ''}"), []).append(
            ROMAN.get(count) or int(count)
        )
    # Numbers without a gap: nothing is left out.
    for (work, kind), numbers in counted.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), (work, kind)
    assert {one.work for one in PLACES} == WORKS.keys()


NUMBERED = re.compile(r"(Table|Figure|Fig\.) (?:(\d+)\.)?(\d+|I)")
ROMAN = {"I": 1}


def test_a_figure_stands_beside_ours_with_its_source() -> None:
    text = markdown([Outcome(one, [], [], 0.0) for one in reproduce.EXPERIMENTS])
    rows = text.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(FIGURES)
    for figure in FIGURES:
        (row,) = [one for one in rows if f"| {figure.what} |" in one and figure.source in one]
        assert f"| {figure.text} |" in row
        assert "not measured in this run" in row or f"none: {figure.why_not}" in row
    for place in PLACES:
        assert f"| {place.place} | {place.page} |" in text
    for key, words in DIFFERENCES.items():
        assert f"| {key} | {words} |" in text
    known = {(one.work, one.what): one for one in FIGURES}
    slower = known["abrahamse", "reading remote objects, slower than local"]
    assert slower.text == "11.5 %"
    assert known["khalili", "latency of ThymesisFlow"].text == "850 to 950 ns"
    small = known["khalili", "scatter-gather 6 h by cache size, small"]
    assert small.text == "676, 1,776, 2,567, 4,700 rows/s"
    assert not [one for one in FIGURES if one.work == "groet" and "1000 objects" in one.what]


def test_ours_are_made_of_the_samples() -> None:
    batches = {ALONE: 0.01, OWN: 0.0125, OTHER: 0.02}
    samples = [Sample("6 h", way, SCATTER, "s", [value] * 3) for way, value in batches.items()]
    cells = Cells(samples)
    assert cells.get(SCATTER, "6 h", OTHER, rate) == BATCH / 0.02
    found = Placement().ours(cells)
    assert found["lost"] == "38 to 38 % of own node's memory; 50 to 50 % of one process"
    # The thesis' losses are of offline mode: ours are too.
    seconds = {f"offline, {way}": value for way, value in batches.items()}
    seconds[f"real time, {OTHER}"] = 0.0125
    offline = [Sample("6 h", peer, SCATTER, "s", [value] * 3) for peer, value in seconds.items()]
    modes = Modes().ours(Cells(offline))
    assert modes["lost scatter-gather 6 h"] == "38 % of own node's memory; 50 % of one process"
    assert modes["lost lc-cycle 24 h"] is None
    assert modes["rates scatter-gather 6 h"] == "102,400 (other node), 204,800 (one process) rows/s"
    lost = {one.experiment for one in FIGURES if one.place == "Section 5.3"}
    assert lost == {"modes"}
    cut = Sample("6 h", OTHER, f"{SCATTER}, cut short", "in 1000 rows", [12.0])
    rates = Windows().ours(Cells([*samples, cut]))
    assert rates["scatter-gather 6 h, local"] == "204,800 rows/s"
    assert rates["scatter-gather 6 h, remote"] == "102,400 rows/s; 12 of 1000 rows cut short"
    assert rates["scatter-gather 72 h, local"] is None
    assert [number(case) for case in ("72 h", "64 KiB", "1.5 GiB")] == [
        72,
        1 << 16,
        1.5 * (1 << 30),
    ]
    assert factor(3.0, 2.0) == "1.50 times"
    assert factor(3.0, 0.0) is None
    assert factor(None, 1.0) is None


def test_losses_are_those_of_the_algorithms_of_the_thesis() -> None:
    samples = [
        Sample("24 h", way, pattern, "s", [value])
        for pattern, far in ((SIMPLE, 0.02), (CYCLES, 0.08))
        for way, value in ((ALONE, 0.01), (OTHER, far))
    ]
    assert Placement().ours(Cells(samples))["lost"] == "50 to 50 % of one process"
    rates = Windows().ours(Cells(samples))
    assert rates["lc-cycle 24 h, remote"] == "102,400 rows/s"


def test_simple_cycles_stand_beside_the_thesis_over_the_network() -> None:
    slower = Sample("thesis, large cache", "simple cycles", "over memory", "times", [48.0])
    bare = Sample("thesis, no cache", GRPC, SIMPLE, "s", [2.048])
    found = Network().ours(Cells([slower, bare]))
    assert found["cache lc-cycle"] == "48.0 times (the thesis' design)"
    assert found["rate none lc-cycle"] == "1,000 rows/s, local server (the thesis' design)"
    sizes = [
        Sample(size, peer, f"{SIMPLE}, busy", "s", [value])
        for size, peer, value in (
            ("0 B", "thesis, no cache", 2.048),
            ("64 KiB", "thesis, LRU", 1.024),
            ("16 MiB", "thesis, LRU", 0.01024),
        )
    ]
    caches = Caches().ours(Cells(sizes))
    words = "the thesis' design: 1,000 (no cache), 2,000 (64 KiB), 200,000 (16 MiB) rows/s"
    assert caches["lc-cycle"] == caches["lc-cycle, busy"] == words
    assert caches["gain lc-cycle, busy"] == "200.0 times (the thesis' design, 16 MiB)"
    assert caches["gain lc-cycle, quiet"] is None


class Searched:
    """A run in which this many searches ended at the limit."""

    def __init__(self, cut: int) -> None:
        self.features, self.cut = self, cut

    def stats(self) -> dict[str, dict[str, int]]:
        return {"cut_short": {SIMPLE: self.cut}}


def test_runs_are_compared_unless_searches_ended_at_the_limit(tmp_path: Path) -> None:
    notes: list[str] = []
    room = Room(True, tmp_path, notes.append)
    ones, twos = [np.ones(3)], [np.full(3, 2.0)]

    def next_run(cut: int, found: list[Any], want: list[Any]) -> list[Any]:
        run: Any = Searched(cut)
        return agreed(room, "simple cycles 72 h", run, 100, found, want)

    assert next_run(0, ones, []) is ones
    assert next_run(0, [np.ones(3)], ones) is ones
    assert notes == []
    # A run that was cut short neither fails nor sets what later runs must find.
    assert next_run(3, twos, ones) is ones
    assert next_run(3, twos, []) == []
    assert set(notes) == {"simple cycles 72 h: in 3 rows 3 searches ended after 100 edges"}
    with pytest.raises(ValueError, match="simple cycles 72 h: not the features"):
        next_run(0, twos, ones)


class Tiny(Descriptor):
    """A real one, of tables of two sizes that take no time."""

    sizes_quick = ("16 KiB", "64 KiB")


def test_a_real_experiment_fills_its_section(tmp_path: Path) -> None:
    out = io.StringIO()
    reproduce.inside(Tiny(), tmp_path, True, out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    samples = [Sample(**line["sample"]) for line in lines if "sample" in line]
    ways = {"descriptor", "copy of all bytes", "Flight"}
    assert {(one.case, one.peer) for one in samples} == {
        (size, way) for size in Tiny.sizes_quick for way in ways
    }
    assert all(value > 0 for one in samples for value in one.samples)
    ours = Tiny().ours(Cells(samples))["copy"]
    assert ours is not None
    assert ours.startswith("at 64 KiB, of the descriptor's time: copy of all bytes takes")
    words = " ".join(Tags(page_of(tmp_path, Outcome(Tiny(), samples, [], 1.0))).words)
    assert ours in words


def test_classes_of_objects_are_got_from_both_nodes_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ((20, 1_000), (3, 1_000_000))
    monkeypatch.setattr(objects, "QUICK_CLASSES", classes)
    monkeypatch.setattr(objects, "CLASSES", classes)
    room = Room(True, tmp_path, lambda _: None)
    samples = list(objects.Objects().run(room))
    found = {(one.case, one.peer, one.variant) for one in samples}
    assert found == {
        (case, place, variant)
        for case in ("20 x 1 kB", "3 x 1 MB")
        for place in (objects.OWN, objects.OTHER)
        for work in ("get", "get again", "read", "read alone")
        for variant in (work, f"{work}, arrays")
    }
    ours = objects.Objects().ours(Cells(samples))
    assert re.fullmatch(r"[\d.]+ ms; as NumPy arrays [\d.]+ ms", str(ours["get 20 x 1 kB, other"]))
    for key in ("read own", "read other"):
        assert re.fullmatch(r"[\d.]+ to [\d.]+ GiB/s", str(ours[key]))
    small = r"[\d.]+ to [\d.]+ GiB/s, read by a loop in Python; [\d.]+ to [\d.]+ GiB/s with the get"
    assert re.fullmatch(small, str(ours["read small"]))
    assert "20 x 1 kB" in str(ours["get"])


def test_other_bytes_than_were_put_are_an_error() -> None:
    class Other:
        def __getattr__(self, name: str) -> object:
            return lambda *_, **__: [np.ones(8, dtype=np.uint64)]

    with pytest.raises(ValueError, match="other bytes were read than were put"):
        objects._turn(
            Other(), Other(), None, [np.zeros(8, dtype=np.uint64)], "class", objects.ARRAYS
        )


def test_maintenance_has_the_committed_run_and_loads(tmp_path: Path) -> None:
    notes: list[str] = []
    cells = Cells(list(Maintenance().run(Room(True, tmp_path, notes.append))))
    assert "-lab.csv" in notes[0]
    assert cells.cases("calls") == ["0", "2", "4", "6", "8", "10"]
    ours = Maintenance().ours(cells)
    assert ours["order 0"] == "0.416, 0.416, 0.416, 0.416 us"
    assert "ns a line" in str(ours["access"])
    flushed = [
        Sample(method, place, state, "s", [seconds])
        for method, seconds in (("clwb", 0.002), ("clflushopt", 0.001))
        for place in (FLUSHED_OWN, FLUSHED_OTHER)
        for state in ("untouched", "touched")
    ]
    assert Flush().ours(Cells(flushed))["touched, other"] == "1 ms (clflushopt)"


def test_what_fails_is_reported_and_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # No program of cargo's is there.
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    arguments = ["--quick", "--only", "network", "--output", str(tmp_path)]
    assert reproduce.main(arguments) == 1
    said = capfd.readouterr().out
    (path,) = tmp_path.glob("*.html")
    words = " ".join(Tags(path.read_text()).words)
    text = "network failed: harness.process.PeerError: farrow-bench-network is not built"
    assert text in words
    assert text in said
    assert "windows: left out by --only" in words


def test_an_experiment_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    outcome = reproduce.measured(Windows(), tmp_path, True, 0.2)
    assert outcome.failure == "it was not done after 0.2 s"
    assert outcome.samples == []


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_slow_link_holds_packets_back_and_leaves_nothing() -> None:
    with slow_link(0.02) as link:
        assert link.round_trip() >= 0.04
        names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert set(link.namespaces) <= set(names.split())
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not set(link.namespaces) & set(names.split())


def test_what_a_killed_process_wrote_counts(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    whole = [{"note": "said"}, {"sample": {**vars(Sample("a", "b", "c", "s", [1.0]))}}]
    lines = [json.dumps(one) for one in whole]
    path.write_text("\n".join([*lines, lines[1][:20]]))
    assert reproduce.read(path) == ([Sample("a", "b", "c", "s", [1.0])], ["said"])
