"""Experiments of ``make reproduce`` on what the works name and did not run: they do what their page
text says, compare what they measure, and extrapolate by a stated rule.

An extrapolation from one slope would hide that 1, 2 and 5 M objects need not lie on a line: its
spread is that of all pairs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

from harness import store_report  # noqa: E402
from harness.tasks import Sample  # noqa: E402
from reproduction import batches, filling, whole, windows  # noqa: E402
from reproduction.batches import Copies, Infinite, copied  # noqa: E402
from reproduction.count import ManyObjects, extrapolated  # noqa: E402
from reproduction.experiment import CYCLES, SCATTER, SIMPLE, Cells, Experiment, Room, rate  # noqa: E402
from reproduction.filling import Filling  # noqa: E402
from reproduction.steps import EDGES, IN_PLACE, ONE, SENT, ExecutionGraph, _Found  # noqa: E402
from reproduction.together import SIDES, Contention  # noqa: E402
from reproduction.whole import (  # noqa: E402
    DESCRIPTOR,
    GET,
    PASSED,
    PUT,
    STORED,
    SendWhole,
    WriteThrough,
)
from reproduction.windows import ALONE, OTHER  # noqa: E402

from farrow.graph import data  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


def ran(experiment: Experiment, folder: Path) -> tuple[list[Sample], list[str]]:
    """A quick run: its samples and notes."""
    notes: list[str] = []
    samples = list(experiment.run(Room(True, folder, notes.append)))
    assert samples
    assert all(value >= 0 for one in samples for value in one.samples)
    assert {one.variant for one in samples} >= {view.variant for view in experiment.views}
    return samples, notes


# --- 100 million objects


def test_a_total_is_extrapolated_by_the_slopes_between_all_counts() -> None:
    straight = extrapolated((1, 2, 5), [[100.0], [200.0], [500.0]], 100, is_total=True)
    assert straight == pytest.approx((10_000.0, 10_000.0))
    bent = extrapolated((1, 2, 5), [[100.0], [200.0], [800.0]], 105, is_total=True)
    # Slopes of 100, 175 and 200, from the last count on.
    assert bent == pytest.approx((800.0 + 100 * 100.0, 800.0 + 100 * 200.0))
    noisy = extrapolated((1, 2), [[100.0], [150.0, 250.0]], 3, is_total=True)
    assert noisy == pytest.approx((150.0 + 50.0, 250.0 + 150.0))
    # Memory and time do not become less with more objects.
    assert extrapolated((1, 2), [[5.0], [4.0]], 10, is_total=True) == pytest.approx((4.0, 4.0))


def test_a_call_is_extrapolated_as_constant_and_by_doublings() -> None:
    assert extrapolated((1, 4), [[2.0], [2.0]], 16, is_total=False) == pytest.approx((2.0, 2.0))
    # Twice as many objects cost one more; from 4 to 16 are two doublings.
    assert extrapolated((1, 4), [[1.0], [3.0]], 16, is_total=False) == pytest.approx((3.0, 5.0))


@pytest.mark.parametrize("counts", [(5,), (5, 5), (5, 3)])
def test_fewer_than_two_counts_are_an_error(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two or more that increase"):
        extrapolated(counts, [[1.0]] * len(counts), 100, is_total=True)


def test_objects_are_counted_listed_and_adopted(tmp_path: Path) -> None:
    class Few(ManyObjects):
        counts_quick = (9_000, 18_000)

    samples, notes = ran(Few(), tmp_path)
    cells = Cells(samples)
    assert cells.cases("total") == ["0.009 M", "0.018 M"]
    each = cells.get("bytes", "0.018 M", "heap and records")
    # An object of 100 bytes takes 128 at the least, and a record.
    assert each is not None
    assert 128 <= each < 1000
    (said,) = [note for note in notes if note.startswith("100 M objects")]
    assert re.search(r"heap and records [\d.]+ to [\d.]+ GiB", said)
    span = [cells.get("model", "heap and records, GiB", end) for end in ("least", "most")]
    assert span[0] is not None
    assert span[1] is not None
    assert 100e6 * 100 / (1 << 30) < span[0] <= span[1]


# --- Batches and copies


def test_copies_are_those_of_the_package() -> None:
    rows = np.array([[0, 1, 0, 10], [1, 0, 1, 20], [2, 2, 1, 20]], dtype=np.float64)
    table = pa.table(
        {
            "source": ["1", "0", "2"],
            "target": ["0", "1", "1"],
            "timestamp": [10, 20, 20],
            "amount": [1.0, 2.0, 3.0],
        }
    )
    wanted = data.enlarge(data.from_table(table), 3).table
    names = data.from_table(table).accounts.names.to_pylist()
    found = copied(rows, 3, 3, first=7)
    assert found[:, 0].tolist() == list(range(7, 16))
    assert found[:, 3].tolist() == wanted["timestamp"].to_pylist()
    for place, column in ((1, "source"), (2, "target")):
        # The package numbers accounts by their first row.
        shifted = [int(names[one % 3]) + one // 3 * 3 for one in wanted[column].to_pylist()]
        assert found[:, place].tolist() == shifted


def test_copies_grow_the_graph_and_not_the_searches(tmp_path: Path) -> None:
    class Few(Copies):
        rows_quick = 60_000
        numbers_quick = (1, 3)
        _MEASURED = 2048

    samples, notes = ran(Few(), tmp_path)
    assert not [note for note in notes if "not run" in note]
    cells = Cells(samples)
    for way in (ALONE, OTHER):
        one, three = (cells.get(f"{CYCLES}, edges", case, way) for case in ("1 x", "3 x"))
        assert one is not None
        assert three == pytest.approx(3 * one, rel=0.02)
    # As many batches as copies.
    calls = {one.case: len(one.samples) for one in samples if one.variant == SCATTER}
    assert calls == {"1 x": 1, "3 x": 3}
    ours = Few().ours(cells)
    assert "of 1 x at 3 x, other node" in str(ours["copies"])
    assert "B an edge of" in str(ours["bytes"])


def test_what_has_no_time_is_said(tmp_path: Path) -> None:
    class Late(Copies):
        rows_quick = 60_000
        numbers_quick = (1, 30)
        seconds_max = (0.01, 0.01)

    notes: list[str] = []
    samples = list(Late().run(Room(True, tmp_path, notes.append)))
    assert {one.case for one in samples} == {"1 x"}
    left_out = [note for note in notes if note.startswith("30 x") and "not run" in note]
    assert len(left_out) == 4
    assert Late().ours(Cells(samples))["copies"] is None


def test_one_call_finds_what_batches_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Few(Infinite):
        rows_quick = 60_000
        batches_quick = 2

    samples, _ = ran(Few(), tmp_path)
    cases = {(one.case, one.peer) for one in samples}
    assert cases == {(case, call) for case in ("1 thread", "2 threads") for call in batches._CALLS}
    ours = Few().ours(Cells(samples))
    assert re.search(
        r"rows/s in one call with 2 threads, other node: [\d.]+ of batches, [\d.]+ of 1 thread",
        str(ours["lc-cycle 24 h"]),
    )
    monkeypatch.setattr(windows, "same", lambda one, other: False)
    with pytest.raises(ValueError, match="not the features of an earlier run"):
        list(Few().run(Room(True, tmp_path, lambda _: None)))


# --- A window while it fills


def test_a_window_that_fills_is_measured_in_each_quarter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Few(Filling):
        rows_quick = 60_000
        filled = ((SIMPLE, 72, 40_000), (SIMPLE, 240, 18_000), (SCATTER, 720, 80_000))

    samples, _ = ran(Few(), tmp_path)
    cells = Cells(samples)
    assert cells.cases("lc-cycle 240 h") == [
        f"{rows:g} M rows" for rows in (0.00225, 0.00675, 0.01125, 0.01575)
    ]
    # No more rows than the stream has.
    assert cells.cases("scatter-gather 720 h")[-1] == "0.04725 M rows"
    ours = Few().ours(cells)
    assert re.fullmatch(r"[\d,]+ rows/s; \d+ cycles found a row", str(ours["lc-cycle 72 h, local"]))
    assert re.fullmatch(r"[\d,]+ rows/s", str(ours["scatter-gather 720 h, remote"]))
    monkeypatch.setattr(filling, "same", lambda one, other: one is other)
    with pytest.raises(ValueError, match="other node, 5,000 rows: not the features of one process"):
        list(Few().run(Room(True, tmp_path, lambda _: None)))


def test_the_rate_of_all_quarters_is_that_of_their_time() -> None:
    # Quarters of equal rows that take 1, 1, 1 and 5 s a batch: 4 batches in 8 s.
    samples = [
        Sample(f"{rows} M rows", ALONE, "lc-cycle 72 h", "s", times)
        for rows, times in enumerate([[1.0], [0.5, 1.5], [1.0], [1.0, 9.0]])
    ]
    samples.append(Sample("3 M rows", ALONE, "lc-cycle 72 h, cut short", "in 1000 rows", [8.0]))
    ours = Filling().ours(Cells(samples))
    assert (
        ours["lc-cycle 72 h, local"]
        == "1,024 rows/s; 0 cycles found a row; 2 of 1000 rows cut short"
    )
    assert ours["lc-cycle 72 h, remote"] is None


# --- Lender and borrower


def test_lender_and_borrower_work_alone_and_at_once(tmp_path: Path) -> None:
    class Small(Contention):
        bytes_quick = 4 << 20
        rows_quick = 100_000

    samples, _ = ran(Small(), tmp_path)
    cells = Cells(samples)
    peers = {one.peer for one in samples if one.variant == "bandwidth"}
    assert peers == {f"{side} {how}" for side in SIDES for how in ("alone", "beside")}
    assert cells.cases("graph") == ["1 at a time", "both at once"]
    writes = [case for case in cells.cases("bandwidth") if "writes" in case]
    assert not [case for case in writes if case.startswith("private")]
    ours = Small().ours(cells)
    for key in ("bus", "random"):
        assert re.fullmatch(
            r"lender [\d.]+, borrower [\d.]+ of alone; in private memory lender .*", str(ours[key])
        )
    assert "times one process with both" in str(ours["graph"])


def test_what_remains_is_a_ratio_of_speeds() -> None:
    case = "both read in order, a thread each"
    seconds = {"alone": 1.0, "beside": 2.0}
    samples = [
        Sample(case, f"{side} {how}", "bandwidth", "s", [taken], 1 << 30)
        for side in SIDES
        for how, taken in seconds.items()
    ]
    loads = "both load at random, a thread each"
    samples += [
        Sample(loads, f"{side} {how}", "random", "ns", [10 * taken])
        for side in SIDES
        for how, taken in seconds.items()
    ]
    samples += [
        Sample(found, side, "graph", "s", [taken])
        for side in SIDES
        for found, taken in (("1 at a time", 1.0), ("both at once", 1.25))
    ]
    ours = Contention().ours(Cells(samples))
    assert ours["bus"] == "lender 0.50, borrower 0.50 of alone"
    assert ours["random"] == "lender 0.50, borrower 0.50 of alone"
    assert str(ours["graph"]).startswith("1.60 times one process with both; lender 0.80")


# --- Whole tables


class Tiny(SendWhole):
    sizes_quick = ("64 KiB", "256 KiB")


def test_a_whole_table_arrives_by_each_call(tmp_path: Path) -> None:
    samples, _ = ran(Tiny(), tmp_path)
    assert {(one.case, one.peer) for one in samples} == {
        (size, way) for size in Tiny.sizes_quick for way in (DESCRIPTOR, PUT, GET)
    }
    ours = Tiny().ours(Cells(samples))
    assert re.match(
        r"put\(node=\): [\d.]+ ms at 256 KiB, [\d.]+ GiB/s; get over", str(ours["call"])
    )
    assert "of the descriptor's time" in str(ours["copy"])


def test_another_table_than_was_sent_is_an_error() -> None:
    want = whole._table(64 << 10)
    other = want.set_column(0, "a", pa.array(np.zeros(want.num_rows, dtype=np.int64)))
    with pytest.raises(ValueError, match=f"not {want.num_rows} up to"):
        list(whole._timed("64 KiB", PUT, want, lambda: other, lambda: None, 1))


def test_the_sum_of_stores_and_flush_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(*_: Any) -> Iterator[Sample]:
        for place in ("own", "other"):
            for way, stores, flush in (("stored", 0.2, 0.1), ("copied", 0.15, 0.01)):
                yield Sample(f"{way} allocate", "farrow", place, "s", [9.0] * 2, 1 << 30)
                yield Sample(f"{way} write", "farrow", place, "s", [stores] * 2, 1 << 30)
                yield Sample(f"{way} publish", "farrow", place, "s", [flush] * 2, 1 << 30)
            yield Sample("put", "farrow", place, "s", [9.0], 1 << 30)

    class Nodes:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(whole, "measure_memory", parts)
    monkeypatch.setattr(whole, "running", lambda *_, **__: Nodes())
    cells = Cells(list(WriteThrough().run(Room(True, Path(), lambda _: None))))
    assert cells.get("another node", "both", STORED) == pytest.approx(0.3)
    assert cells.get("own node", "both", PASSED) == pytest.approx(0.16)
    assert cells.cases("own node") == ["the stores", "the flush", "both"]
    shown = str(WriteThrough().ours(cells)["written"])
    assert shown.startswith("160 in place of 300 ms (another node's memory")


# --- An execution graph


def test_steps_find_the_same_weights_in_all_ways(tmp_path: Path) -> None:
    class Few(ExecutionGraph):
        rows_quick = 2_000

    samples, _ = ran(Few(), tmp_path)
    cells = Cells(samples)
    for way in (IN_PLACE, SENT, ONE):
        assert cells.get("whole", "all steps", way)
    assert {f"to {consumer}" for _, consumer in EDGES} | {"all"} == set(cells.cases("hand-over"))
    assert re.match(
        r"[\d,]+ ms \([\d,]+ in one process\), of which", str(Few().ours(cells)["steps"])
    )


def test_other_weights_are_an_error() -> None:
    found = _Found()
    found._compare(IN_PLACE, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"sent by Flight: weights \[1.0, 3.0\], not \[1.0, 2.0\]"):
        found._compare(SENT, [1.0, 3.0])


def test_the_report_of_stores_has_mooncake_by_name() -> None:
    assert "mooncake" in store_report.PEERS
    # All of its objects have names, so they stand beside Farrow's with names.
    assert "mooncake" in store_report._NAMES_ONLY
    assert (BENCH / "peers" / "mooncake" / "setup").stat().st_mode & 0o100
    assert rate(Sample("", "", "", "s", [1.0])) == 2048
