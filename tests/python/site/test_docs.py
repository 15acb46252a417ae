"""The documentation runs: every block of every page, in the order of the page.

Readers copy code out of the documentation.  A page whose code does not run costs each of them an
hour, so each page is a test.  What a fence says after its backticks decides:

``python``                 runs in one Python process for the whole page
``python title="a.py"``    is written to the file ``a.py`` (so is any language with a title)
``python requires="a"``    runs where the package ``a`` is installed
``sh``                     runs in a shell in the same folder, with ``farrow`` on the path
anything else              is output or a fragment, and only shown

An HTML comment that begins with ``run`` is Python that the reader does not see, such as example
data.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))

import _c_reference  # noqa: E402
import _flowcharts  # noqa: E402

# Pages of the site that hold code; design notes and formats hold fragments only.
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not {"design", "formats"} & set(page.relative_to(ROOT).parts)
)
# Blocks that run only where a package is installed, by page and package: each other one runs in
# every run of the tests.
CONDITIONAL = {
    ("docs/how-to/dask.md", "distributed"): 4,
    ("docs/how-to/engines.md", "datafusion"): 1,
    ("docs/how-to/flight.md", "duckdb._seam"): 2,
    ("docs/how-to/ray.md", "ray"): 6,
    ("docs/how-to/spark.md", "pyspark"): 4,
    ("docs/how-to/sql.md", "farrow_sql"): 4,
    ("docs/tutorials/torch.md", "torch"): 1,
}
PAGE_SECONDS_MAX = 120.0
FENCE = re.compile(
    r"^<!-- run\n(?P<hidden>.*?)^-->$|^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.M | re.S
)


class Step(NamedTuple):
    """One block of a page: its language, its title ("" for none), its code, and its line."""

    language: str
    title: str
    code: str
    line: int


def steps_of(text: str) -> list[Step]:
    """The blocks of a page that do something, in order."""
    steps = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        if match["hidden"] is not None:
            steps.append(Step("python", "", match["hidden"], line))
            continue
        language, _, rest = match["info"].strip().partition(" ")
        needed = re.search(r'requires="([^"]+)"', rest)
        if needed and importlib.util.find_spec(needed[1]) is None:
            continue
        title = re.search(r'title="([^"]+)"', rest)
        step = Step(language, title[1] if title else "", match["code"], line)
        if step.title or step.language in ("python", "sh"):
            steps.append(step)
    return steps


# Runs the steps of a page: Python in one namespace, so that a page reads as one program.
RUNNER = """
import json, subprocess, sys, pathlib
steps = json.load(sys.stdin)
names = {"__name__": "__main__"}
for language, title, code, line in steps:
    if title:
        pathlib.Path(title).write_text(code)
    elif language == "python":
        exec(compile("\\n" * (line - 1) + code, sys.argv[1], "exec"), names)
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], stdin=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"{sys.argv[1]}:{line}: the shell block ended with {done.returncode}")
"""


def environment(folder: Path) -> dict[str, str]:
    """A user's environment: a home of its own, and the commands that an installation brings."""
    commands = folder / "bin"
    commands.mkdir()
    for name, words in {"farrow": "-m farrow.cli", "python": ""}.items():
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (folder / "run").mkdir(mode=0o700)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FARROW_")}
    return inherited | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "FARROW_MEMORY": "128MiB",
        "FARROW_LINGER": "0",
        "REPOSITORY": str(ROOT),
    }


def end_all(group: int) -> None:
    """End what a page left running, nodes in the background above all, in good order."""
    end = time.monotonic() + 30.0
    try:
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
        pytest.fail("a process of the page did not end by SIGTERM")
    except ProcessLookupError:
        pass


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    steps = steps_of(page.read_text())
    if not steps:
        pytest.skip("no code on this page")
    folder = tmp_path_factory.mktemp("page")
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(page)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment(folder),
        start_new_session=True,
    )
    log = ""
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(steps))
        process.stdin.close()
        process.stdin = None
        process.wait(PAGE_SECONDS_MAX)
    finally:
        process.kill()
        end_all(process.pid)
        assert process.stdout is not None
        log = process.stdout.read()
    assert process.returncode == 0, log


def test_a_wrong_page_fails() -> None:
    """The canary: blocks are found, hidden ones and titled ones too, and nothing else is."""
    hidden = "<!-- run\na = 1\n-->\n```python\nassert a == 1\n```\n"
    assert len(steps_of('```python requires="json"\n1\n```\n')) == 1
    assert steps_of('```python requires="nowhere_at_all"\n1\n```\n') == []
    text = hidden + '```text\nno\n```\n```c title="a.c"\n;\n```\n'
    assert [(step.language, step.title, step.line) for step in steps_of(text)] == [
        ("python", "", 2),
        ("python", "", 5),
        ("c", "a.c", 11),
    ]


def conditional(text: str) -> list[str]:
    """The packages of the blocks that are skipped without them."""
    infos = [match["info"] or "" for match in FENCE.finditer(text)]
    return [found[1] for info in infos if (found := re.search(r'requires="([^"]+)"', info))]


def test_a_skipped_block_is_known() -> None:
    """A block with a misspelt package would never run again, and nobody would see it."""
    found: Counter[tuple[str, str]] = Counter()
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        found.update((name, package) for package in conditional(page.read_text()))
    assert dict(found) == CONDITIONAL


def test_a_block_that_is_skipped_is_counted() -> None:
    """The canary."""
    assert conditional('```python requires="nowhere"\n1\n```\n```python\n1\n```\n') == ["nowhere"]


def test_each_status_of_c_has_a_remedy() -> None:
    header = (ROOT / "cpp/include/farrow/farrow.h").read_text()
    known = re.findall(r"^  (FARROW_\w+) = \d+", header.partition("} FarrowStatus;")[0], re.M)
    assert len(known) > 10
    rows = (ROOT / "docs/tutorials/cpp.md").read_text()
    reported = re.findall(r"^\| `(FARROW_\w+)` \| .+ \| .+ \|$", rows, re.M)
    assert reported == [name for name in known if name != "FARROW_OK"]


def test_the_reference_of_c_is_whole() -> None:
    """Each function that the header declares is on the page, with a text of its own."""
    header = (ROOT / "cpp/include/farrow/farrow.h").read_text()
    known = _c_reference.declarations(header)
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    functions = re.findall(r"\b(farrow_\w+)\(", code)
    assert [one.name for one in known if one.name.startswith("farrow_")] == functions
    assert [one.name for one in known if not one.text and "*/" not in one.code] == []
    page = _c_reference.page(header)
    for one in known:
        assert f"`{one.name}`" in page
    for target in re.findall(r"\]\(#(\w+)\)", page):
        assert f"### `{target}`\n" in page.lower()


def test_a_line_of_a_header_that_is_not_read_is_seen() -> None:
    """The canary."""
    one, two = _c_reference.declarations("/* One. */\nint one(void);\nint two(int);\n")
    assert (one.name, one.text, two.name, two.text) == ("one", "One.", "two", "")
    with pytest.raises(ValueError, match="neither a declaration nor a comment"):
        _c_reference.declarations("?\n")


def test_the_reference_of_rust_has_each_public_crate() -> None:
    manifests = [path.read_text() for path in ROOT.glob("crates/*/Cargo.toml")]
    public = {
        name[1].replace("-", "_")
        for text in manifests
        if (name := re.search(r'^name = "(.+)"$', text, re.M)) and "publish = false" not in text
    }
    page = (ROOT / "docs/reference/rust.md").read_text()
    assert set(re.findall(r'href="../../rust/(\w+)/index.html"', page)) == public


def test_the_pyarrows_with_a_memory_pool() -> None:
    """The scripts that build them have the numbers."""
    script = (ROOT / "packaging/wheels.sh").read_text()
    wheels = re.search(r"^pyarrows=\((\d+) .* (\d+)\)$", script, re.M)
    build = re.search(r"SERIES_MIN: u32 = (\d+)00;", (ROOT / "crates/python/build.rs").read_text())
    assert wheels
    assert build
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"for pyarrow {wheels[1]} and later, a build for" in changes
    assert f"the pyarrow of its environment, from {build[1]} on." in changes
    install = " ".join((ROOT / "docs/how-to/install.md").read_text().split())
    assert f"pools for pyarrow {wheels[1]} to {wheels[2]}." in install
    assert f"for the pyarrow of the environment, from {build[1]} on," in install


def flowcharts() -> list[tuple[str, str]]:
    """Page and text of each flowchart."""
    pages = [ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    return [
        (str(page.relative_to(ROOT)), match["code"])
        for page in pages
        for match in FENCE.finditer(page.read_text())
        if match["info"] == "mermaid"
    ]


CHARTS = flowcharts()
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("number", range(len(CHARTS)), ids=lambda number: CHARTS[number][0])
def test_a_flowchart_is_drawn(number: int) -> None:
    """Each box and arrow is there, and no box lies over another one or out of the picture."""
    chart = _flowcharts.parsed(CHARTS[number][1])
    drawing = ET.fromstring(_flowcharts.svg(chart))
    boxes = [
        [float(rect.attrib[side]) for side in ("x", "y", "width", "height")]
        for rect in drawing.iter(f"{SVG}rect")
    ]
    assert len(boxes) == len(chart.nodes) > 3
    arrows = [path for path in drawing.iter(f"{SVG}path") if "marker-end" in path.attrib]
    assert len(arrows) == len(chart.edges)
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    shown = "".join(text.text or "" for text in drawing.iter(f"{SVG}text"))
    for node in chart.nodes.values():
        assert all(word in shown for word in re.findall(r"\w+", node.text)), node.text
    reported = _flowcharts.steps(chart)
    for step, node in zip(reported, chart.nodes.values(), strict=True):
        assert step.startswith(node.text)


def test_a_wrong_flowchart_is_seen() -> None:
    """The canary; a circle is drawn, too."""
    assert len(CHARTS) > 4
    with pytest.raises(ValueError, match="no line of a flowchart"):
        _flowcharts.parsed('flowchart TD\n  A["a"] ==> B["b"]\n')
    circle = _flowcharts.parsed("flowchart TD\n  a --> b --> c\n  c --> a\n")
    drawing = ET.fromstring(_flowcharts.svg(circle))
    assert len(list(drawing.iter(f"{SVG}rect"))) == 3


def rooms() -> dict[str, str]:
    """The directory of each room, by the table of ARCHITECTURE.md."""
    rows = re.findall(
        r"^\| `(\w+)/` \| `([\w/]+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M
    )
    return dict(rows)


def named_paths(text: str) -> list[str]:
    """The paths in a text, from the root of the repository; those of rooms and whole ones."""
    known = rooms()
    pattern = (
        rf"(?<![\w/.])((?:{'|'.join(known)}|crates|tests|docs|bench|python/farrow)/[\w/.-]*\w/?)"
    )
    paths = []
    for path in re.findall(pattern, text):
        first, _, rest = path.partition("/")
        is_whole = (ROOT / path).exists() or first not in known
        paths.append(path if is_whole else f"{known[first]}/{rest}")
    return paths


@pytest.mark.parametrize(
    ("page", "fewest"),
    [("ARCHITECTURE.md", 20), ("CONTRIBUTING.md", 20), ("docs/design/room.md", 7)],
)
def test_paths_exist(page: str, fewest: int) -> None:
    """A walk that names a file which has moved misleads each newcomer."""
    paths = named_paths((ROOT / page).read_text())
    assert len(paths) >= fewest
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_missing_path_is_seen() -> None:
    """The canary."""
    (path,) = named_paths("see `daemon/protocol/nowhere.rs`")
    assert not (ROOT / path).exists()


def test_the_plan_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 2000
