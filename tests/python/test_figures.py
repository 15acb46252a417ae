"""The measured figures of the documentation are those of the raw samples.

Once README had figures that no file had, a ratio of batch mode stood beside a rate of causal mode,
and a page had times of an emulation that its file gave as a tenth. Now a figure is made from its
run, and ``make lint`` fails for one that differs or has no file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
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
        assert of(OTHER, text.format(comment, "")) == []
        # It holds for its section alone, and not on a page whose figures are made.
        assert len(of(OTHER, text.format("", comment))) == 1
        assert "made from their run" in of(README, text.format(comment, ""))[0]
    # A file has to have the number.
    kept = "<!-- figures: raw 2026-11-23-d42e20be-lab.md -->"
    assert of(OTHER, text.format(kept, "").replace("12 us", "40.1 ms")) == []
    assert of(OTHER, text.format(kept, "").replace("12 us", "40.2 ms")) == [
        f"{OTHER}:5: '40.2' is not in 2026-11-23-d42e20be-lab.md"
    ]
    for mark, words in (
        ("raw none.json", "no file named 'none.json'"),
        ("raw", "no file named ''"),
        ("by hand", "say why"),
        ("guessed", "raw FILE, by hand REASON, works or limits"),
    ):
        assert words in of(OTHER, text.format(f"<!-- figures: {mark} -->", ""))[0]


def test_readme_cites_full_runs_of_committed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = raw.run_of("store")
    monkeypatch.setattr(raw, "RESULTS", tmp_path)
    for quick, changed, count in ((False, False, 0), (True, False, 1), (False, True, 1)):
        document = {**run.document, "quick": quick}
        document["commit"] = {**run.document["commit"], "changed": changed}
        (tmp_path / f"{run.name}.json").write_text(json.dumps(document))
        raw.run_of.cache_clear()
        text = rewritten(README, "<!-- measured: readme -->\nold\n<!-- /measured -->\n")
        found = [one for one in of(README, text) if "quick run, or one of files" in one]
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
