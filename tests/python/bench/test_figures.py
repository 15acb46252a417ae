"""The measured figures of the documentation are those of the raw samples.

Once README had figures that no file had, a ratio of batch mode stood beside a rate of causal mode,
and a page had times of an emulation that its file gave as a tenth. Now a figure is made from its
run, and ``make lint`` fails for one that differs or has no file.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

from citations import blocks, raw  # noqa: E402
from citations.pages import faults, pages, rewritten  # noqa: E402

README = "README.md"
OTHER = "docs/design/some.md"


def of(page: str, text: str) -> list[str]:
    return list(faults(page, text))


def test_the_repository_has_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(BENCH / "figures.py")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert README in pages()


def test_a_figure_other_than_that_of_the_file_is_a_fault() -> None:
    text = (BENCH.parent / README).read_text()
    assert of(README, text) == []
    match = re.search(r"\| put 1 kB, by reference \| ([\d.]+) us", text)
    assert match is not None
    changed = text.replace(match[0], match[0].replace(match[1], "0.25"))
    (fault,) = of(README, changed)
    line = changed[: changed.index("0.25 us")].count("\n") + 1
    assert fault.startswith(f"README.md:{line}: other than ")
    assert "0.25 us" in fault
    # It is made right again, and only that.
    assert rewritten(README, changed) == text
    shorter = text.replace(next(one for one in text.splitlines() if match[0] in one) + "\n", "")
    assert "other than" in of(README, shorter)[0]
    # A new block without a text took all up to the end of the next block.
    new = "<!-- measured: readme -->\n<!-- /measured -->\n\nWords.\n\n"
    assert rewritten(README, new + text).endswith("\n\nWords.\n\n" + text)
    longer = text.replace("<!-- /measured -->", "and twice as fast\n<!-- /measured -->")
    assert "has more lines" in of(README, longer)[0]


@pytest.mark.parametrize(
    "words",
    [
        "A put takes 12 us.",
        "It reads 3.5 GiB/s here.",
        "Farrow is 12 times faster.",
        "| a | 14 ms |",
        "It does 734,000 rows a second.",
        "Two nodes do 1.7 to 2.0 times as much.",
        "It is 62x quicker, and 2x for a table.",
        "A put is 0.97 of the best copy.",
        "A get takes 12 microseconds.",
        "A put is 40 % quicker.",
        "It takes half the time of LMDB.",
        "A copy into them takes a third less time.",
    ],
)
def test_a_figure_without_a_file_is_a_fault(words: str) -> None:
    for page in (README, "docs/performance.md", OTHER):
        (fault,) = of(page, f"# Title\n\n{words}\n")
        assert fault.startswith(f"{page}:3: ")
        assert "has no raw file behind it" in fault
    # Code and links are no prose.
    assert of(OTHER, f"# Title\n\n```\n{words}\n```\n\n`{words}` [it](a-12 ms.md)\n") == []


def test_a_table_may_have_its_unit_in_the_head() -> None:
    text = "# Title\n\n| way | ns |\n| --- | --- |\n| one | 62 |\n"
    assert of(OTHER, text) == [f"{OTHER}:3: 'ns' has no raw file behind it (bench/README.md)"]
    assert of(OTHER, text.replace("62", "none").replace("ns", "why")) == []


def test_a_section_says_where_its_figures_are_from() -> None:
    text = "# Title\n\n{}\n\nA put takes 12 us.\n\n## Next\n\n{}\n"
    for mark in ("by hand a trial", "limits", "works"):
        comment = f"<!-- figures: {mark} -->"
        # A published one.
        shown = text.replace("12 us", "53.12 ms")
        assert of(OTHER, shown.format(comment, "")) == []
        # It holds for its section alone, and not on a page whose figures are made.
        assert len(of(OTHER, text.format("", comment))) == 1
        assert "made from their run" in of(README, text.format(comment, ""))[0]
    # A file has to have the number.
    retained = "<!-- figures: raw 2026-11-23-d42e20be-lab.md -->"
    assert of(OTHER, text.format(retained, "").replace("12 us", "40.1 ms")) == []
    assert of(OTHER, text.format(retained, "").replace("12 us", "40.2 ms")) == [
        f"{OTHER}:5: '40.2' is not in 2026-11-23-d42e20be-lab.md"
    ]
    for mark, words in (
        ("raw none.json", "no file named 'none.json'"),
        ("raw", "no file named ''"),
        ("by hand", "say why"),
        ("guessed", "raw FILE, by hand REASON, works or limits"),
    ):
        assert words in of(OTHER, text.format(f"<!-- figures: {mark} -->", ""))[0]


def test_a_mark_is_no_leave_for_any_figure() -> None:
    """Sections marked "works" or "limits" once passed with every figure."""
    words = "A get takes 3.7 ns, 951 times faster than Plasma."
    text = f"# Title\n\n<!-- figures: {{}} -->\n\n{words}\n"
    name = "theirs.json"
    assert of(OTHER, text.format("works")) == [
        f"{OTHER}:5: '3.7' is not in {name}", f"{OTHER}:5: '951' is not in {name}",
    ]  # fmt: skip
    assert of(OTHER, text.format("limits")) == [
        f"{OTHER}:5: '951 times faster' compares, and is no limit"
    ]
    both = text.replace("-->", "-->\n<!-- figures: works -->").format("limits")
    assert of(OTHER, both) == [f"{OTHER}:6: '951' is not in {name}"]
    published = both.replace("951 times faster", "78 to 228 times as fast")
    assert of(OTHER, published) == []
    assert of(OTHER, text.format("works").replace(words, "Cycles do 21,607 /s, or 53.12 ms.")) == []
    (fault,) = of(OTHER, "# Title\n\nA copy takes a third\nless time.\n")
    assert fault.startswith(f"{OTHER}:3: ")
    # Products and versions are no comparisons.
    assert (
        of(OTHER, "# Title\n\n128 x `objects_max`, 1000 x 1 kB, sections 2.3 and 5.4 of the\n")
        == []
    )


@pytest.mark.parametrize(("quick", "changed"), [(False, False), (True, False), (False, True)])
def test_a_raw_file_is_of_a_full_run_of_committed_files(
    quick: bool, changed: bool, tmp_path: Path
) -> None:
    document = {"quick": quick, "commit": {"id": "a", "changed": changed}}
    (tmp_path / "run.json").write_text(json.dumps(document))
    (tmp_path / "run.md").write_text("| put | 12 us |\n")
    text = "# Title\n\n<!-- figures: raw run.md -->\n\nA put takes 12 us.\n"
    found = list(faults(OTHER, text, tmp_path))
    assert [one for one in found if "quick run, or of files" not in one] == []
    assert len(found) == (quick or changed)


def test_the_ratio_of_the_graph_is_the_range_over_days_and_generators() -> None:
    """Once the ratio of one place of one stream stood beside a range that did not hold it."""
    run = raw.run_of("graph")
    samples = {
        (one["peer"], one["variant"]): one["samples"]
        for one in run.document["samples"]
        if one["case"] == "scatter-gather, 24 h" and one["variant"]
    }
    days = {variant for _, variant in samples}
    assert len(days) == 6
    ratios = [
        statistics.median(
            theirs / ours
            for ours, theirs in zip(samples["batch", day], samples["snapml", day], strict=False)
        )
        for day in days
    ]
    text = blocks.text_of("graph", "docs/performance.md")
    row = next(line for line in text.splitlines() if line.startswith("| scatter-gather |"))
    assert row.endswith(f"| {min(ratios):.0f} to {max(ratios):.0f} |")
    assert "batch mode" in text
    assert all(sentence.startswith("In causal mode") for sentence in text.splitlines()[-2:])


def test_goals_stand_beside_what_the_runs_have() -> None:
    """The page showed only where Farrow is ahead."""
    text = blocks.text_of("shortfalls", "docs/performance.md")
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    named = raw.run_of("many").median("put 1 kB", "farrow", "with a name")
    assert f"| {raw.shown(named, 'us')} | 5 us |" in rows["put 1 kB with a name"]
    # As in the table of the run.
    table = (raw.RESULTS / f"{raw.run_of('many').name}.md").read_text()
    tail = re.search(r"\| get 1 kB beside 3 clients \|(?: [^|]+\|){2} ([\d.]+) \|", table)
    assert tail is not None
    tails = "get 1 kB beside three clients that put, get, delete and evict: p99.9, longest"
    assert f"| {float(tail[1]):.0f} us, 14 ms | 15 us, 5 ms |" in rows[tails]
    rate = re.search(r"\| everything, 96 h \|  \| ([\d,]+) \|",
                     (raw.RESULTS / f"{raw.run_of('graph').name}.md").read_text())  # fmt: skip
    assert rate is not None
    assert f"| {rate[1]} | 25,000 |" in rows["all features over 96 h, rows a second"]


def test_a_mean_of_queries_has_the_spread_of_its_rounds() -> None:
    run = raw.run_of("tpch")
    queries = [f"query {number}" for number in range(1, 23)]
    pairs = [
        [run.need(one, "farrow", way) for way in ("Farrow", "DuckDB's own tables")]
        for one in queries
    ]
    means = [
        statistics.geometric_mean(ours[turn] / theirs[turn] for ours, theirs in pairs)
        for turn in range(len(pairs[0][0]))
    ]
    text = blocks.text_of("tpch", "docs/performance.md")
    row = next(line for line in text.splitlines() if line.startswith("| Farrow |"))
    assert f"| {min(means):.2g} to {max(means):.2g} |" in row
    assert f"{len(means)} rounds" in text


def test_a_run_that_is_not_committed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of the works that was known to be wrong stood for the run that had not been made."""
    names = json.loads((BENCH / "citations" / "runs.json").read_text())
    page = "docs/performance.md"
    document = {
        "quick": True, "date": "2026-12-01", "commit": {"id": "a", "changed": False},
        "machine": {"processor": "some"}, "experiments": [{"name": "flush", "failure": "late"}],
    }  # fmt: skip
    monkeypatch.setattr(raw, "RESULTS", tmp_path)
    monkeypatch.setattr(raw, "HERE", tmp_path)
    (tmp_path / "works.json").write_text(json.dumps(document))
    for name in (None, "works"):
        (tmp_path / "runs.json").write_text(json.dumps({**names, "reproduce": name}))
        raw.run_of.cache_clear()
        text = rewritten(page, "<!-- measured: reproduce -->\nold\n<!-- /measured -->\n")
        found = of(page, text)
        if name is None:
            assert "No full run of it is committed yet." in text
            assert found == []
        else:
            assert "works.html), some; not complete: flush (late)." in text
            assert "quick run, or one of files" in found[0]
    raw.run_of.cache_clear()


@pytest.mark.parametrize("page", [README, "docs/performance.md"])
def test_a_strict_page_cites_full_runs_of_committed_files(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = raw.run_of("store")
    monkeypatch.setattr(raw, "RESULTS", tmp_path)
    for quick, changed, count in ((False, False, 0), (True, False, 1), (False, True, 1)):
        document = {**run.document, "quick": quick}
        document["commit"] = {**run.document["commit"], "changed": changed}
        (tmp_path / f"{run.name}.json").write_text(json.dumps(document))
        raw.run_of.cache_clear()
        text = rewritten(page, "<!-- measured: readme -->\nold\n<!-- /measured -->\n")
        found = [one for one in of(page, text) if "quick run, or one of files" in one]
        assert len(found) == count
        # Another page may cite it, and says so.
        other = rewritten(OTHER, text.replace("readme", "stores"))
        assert of(OTHER, other) == []
        assert ("quick run of" in other, "not committed" in other) == (quick, changed)
    raw.run_of.cache_clear()


def test_broken_blocks_are_faults() -> None:
    whole = "<!-- measured: {} -->\nold\n<!-- /measured -->\n"
    assert "no block named 'nothing'" in of(README, whole.format("nothing"))[0]
    assert "no beginning or no end" in of(README, "<!-- measured: readme -->\nold\n")[0]
    assert "no beginning or no end" in of(README, "old\n<!-- /measured -->\n")[0]
    assert blocks.BLOCKS.keys() == blocks.KINDS.keys()


def test_medians_and_spreads_have_two_digits_or_three() -> None:
    assert [raw.shown(one * 1e-6, "us") for one in (0.521, 9.96, 72.6, 517.4)] == [
        "0.52 us", "10 us", "73 us", "517 us",
    ]  # fmt: skip
    assert raw.shown(3.04, "us") == "3.0 s"
    assert raw.shown(0.9996e-1, "ms") == "100 ms"
    assert raw.spread([1e-6, 2e-6, 3e-6, 4e-6, 5e-6], "us") == "2.0 to 4.0"
    assert raw.spread([1e-6] * 3, "us") == "1.0"
