"""Rules of ``make reproduce`` that need no node: figures without exponents, steps that are left out
for lack of memory or time, and the model of many objects.

Once 1,234 ms stood on the page as 1.23e+03, and a failure at 5 M objects left no model of 1 and
2 M."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import temporal  # noqa: E402
from harness.tasks import Sample  # noqa: E402
from reproduction import batches, count, experiment, together, whole  # noqa: E402
from reproduction.count import ManyObjects  # noqa: E402
from reproduction.experiment import Cells, Room, significant  # noqa: E402
from reproduction.steps import IN_PLACE, ONE, SENT, ExecutionGraph  # noqa: E402
from reproduction.together import Contention  # noqa: E402
from reproduction.whole import PASSED, STORED, SendWhole, WriteThrough  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from reproduction.experiment import Experiment


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234.4, 3, "1,234"),
        (1234.4, 2, "1,234"),
        (999.6, 3, "1,000"),
        (99.96, 3, "100"),
        (160.0, 3, "160"),
        (1.0, 3, "1"),
        (0.4161, 3, "0.416"),
        (0.0000123, 3, "0.0000123"),
        (0.96, 1, "1"),
        (-1234.4, 3, "-1,234"),
        (0.0, 3, "0"),
        (float("inf"), 3, "inf"),
    ],
)
def test_figures_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_large_figures_are_shown_in_full() -> None:
    both = [
        Sample("both", way, "own node", "s", [seconds], 1 << 30)
        for way, seconds in ((STORED, 2.3456), (PASSED, 1.2344))
    ]
    shown = str(WriteThrough().ours(Cells(both))["written"])
    assert shown.startswith("1,234 in place of 2,346 ms")
    times = [
        *(Sample("all steps", way, "whole", "s", [9.0]) for way in (IN_PLACE, SENT, ONE)),
        *(Sample("all", way, "hand-over", "s", [1.234]) for way in (IN_PLACE, SENT)),
    ]
    assert "hand-overs 1,234 ms" in str(ExecutionGraph().ours(Cells(times))["steps"])


# --- Steps that are left out


def free(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let this much memory be available."""
    for module in (experiment, whole):
        monkeypatch.setattr(module, "available_bytes", lambda: nbytes)


def test_a_step_without_time_or_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 10 << 30)
    now = time.monotonic()
    step = batches._Step
    assert batches._why_not(None, 60, now) is None
    assert batches._why_not(step(4, 2.0, 0.1, 1e6), 8, now + 60) is None
    assert "would take some 60 s, and" in str(
        batches._why_not(step(1, 1.0, 0.0, 1e6), 60, now + 30)
    )
    assert "would take some 60.0 GB" in str(batches._why_not(step(1, 0.01, 0.0, 1e9), 60, now + 60))
    # The measured calls end at their limit, for any number of copies.
    assert batches._why_not(step(1, 0.1, 15.0, 1e6), 60, now + 30) is None
    assert "would take some 21 s" in str(batches._why_not(step(1, 0.1, 15.0, 1e6), 60, now + 15))


def no_nodes(*_: Any, **__: Any) -> Any:
    raise AssertionError("nodes were started")


@pytest.mark.parametrize("one", [SendWhole(), WriteThrough(), Contention(), ManyObjects()])
def test_nothing_starts_without_memory(
    one: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 1 << 20)
    for module, name in ((whole, "running"), (whole, "_unmapped"), (together, "running"),
                         (count, "Node")):  # fmt: skip
        monkeypatch.setattr(module, name, no_nodes)
    notes: list[str] = []
    assert list(one.run(Room(False, tmp_path, notes.append))) == []
    assert notes
    assert [note for note in notes if "not run, it would take some" in note]


def test_a_smaller_object_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1 << 30)
    sizes: list[int] = []

    class Nodes:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def measure(nodes: Any, size: int, repeats: int) -> list[Sample]:
        sizes.append(size)
        return []

    monkeypatch.setattr(whole, "measure_memory", measure)
    monkeypatch.setattr(whole, "running", lambda *_, **__: Nodes())
    notes: list[str] = []
    assert list(WriteThrough().run(Room(False, Path(), notes.append))) == []
    assert sizes == [128 << 20]
    assert notes == ["objects of 128 MiB, instead of 1024: memory is short; medians"]


# --- The model of many objects


class Few(ManyObjects):
    counts_quick = (1_000, 2_000, 4_000)


def quantities(number: int, _: Path) -> dict[str, list[float]]:
    names = (*count._TOTALS, *count._EACH)
    return {name: [float(number)] for name in names}


def modelled(
    monkeypatch: pytest.MonkeyPatch, fails_at: int, error: Callable[[], BaseException]
) -> tuple[list[Sample], list[str]]:
    """A run that fails at a number of objects."""

    def measured(number: int, folder: Path) -> dict[str, list[float]]:
        if number == fails_at:
            raise error()
        return quantities(number, folder)

    monkeypatch.setattr(count, "_measured", measured)
    notes: list[str] = []
    samples: list[Sample] = []
    run = Few().run(Room(True, Path(), notes.append))
    with pytest.raises(type(error())):
        # A list would lose the samples before the error.
        for sample in run:
            samples.append(sample)
    return samples, notes


@pytest.mark.parametrize("error", [lambda: ValueError("lost"), lambda: SystemExit(143)])
def test_a_failed_count_leaves_the_model_of_the_counts_before_it(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    samples, notes = modelled(monkeypatch, 4_000, error)
    cells = Cells(samples)
    assert cells.cases("total") == ["0.001 M", "0.002 M"]
    # A second for each object.
    model = cells.get("model", "restart after a kill, s", "most")
    assert model == pytest.approx(count.TARGET)
    assert notes[0].startswith("0.004 M: failed, ")
    assert notes[1].startswith("100 M objects, from 0.001 to 0.002 M: ")


def test_a_single_count_has_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, notes = modelled(monkeypatch, 2_000, lambda: ValueError("lost"))
    assert not [one for one in samples if one.variant == "model"]
    assert notes[1] == "1 of 3 numbers of objects: no model"


def test_counts_without_memory_are_left_out_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "_measured", quantities)
    free(monkeypatch, 3_000 * count._OBJECT_MEMORY)
    notes: list[str] = []
    samples = list(Few().run(Room(True, Path(), notes.append)))
    assert [one for one in samples if one.variant == "model"]
    assert notes[0].startswith("0.004 M: not run, it would take some")
    assert notes[1].startswith("100 M objects, from 0.001 to 0.002 M: ")


# --- Beside Raphtory


def test_rates_beside_raphtory_are_of_the_same_rows() -> None:
    calls = {
        ("raphtory", "row by row"): ([1.0] * 7, 1),
        ("farrow", "row by row"): ([0.5] * 9, 1),
        ("farrow", "batches"): ([2.0, 4.0, 6.0], 2),
    }
    samples, common = temporal.same_rows(calls)
    assert common == 6
    assert [one.samples for one in samples] == [[1.0] * 6, [0.5] * 6, [1.0, 2.0, 3.0]]
    table = temporal._table(samples, 100)
    assert "| raphtory, row by row | 1 | 1.0 |" in table
    # Six rows in twelve seconds.
    assert samples[2].samples == [1.0, 2.0, 3.0]
    assert "| farrow, row by row | 2 | 2.0 |" in table
    assert "| farrow, batches | 0 | 0.5 |" in table


def test_sizes_from_30_on_share_a_column() -> None:
    columns = temporal.bins_of([(1, 2), (29, 30), (0, 31)])
    assert columns.shape == (3, 58)
    marked = [[int(place) for place in row.nonzero()[0]] for row in columns]
    assert marked == [[29], [27, 57], [57]]
