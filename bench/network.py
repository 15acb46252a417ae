"""Measure the cost of a network for a graph: ``python bench/network.py [--quick]``.

A generated stream with the statistics of IBM's HI-Small runs through the same search with its older
days in private memory, in segments of this process, and in segments of another process.  The latter
are fetched row by row over gRPC on loopback behind a software cache, in the thesis' design and in
the best design known to us.  A model of remote memory of other speeds follows, checked by delays.
Needs ``cargo build --release -p farrow-bench-network``.  Prints tables and writes all results to
bench/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import graph  # noqa: E402
from citations.parts import off_base, slower  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import PeerError, built  # noqa: E402

PATTERNS = (("scatter-gather", 6), ("scatter-gather", 24), ("temp-cycle", 24))
# A tenth of the days that a window of 24 h touches, and all of them.
SMALL = 4 << 20
LARGE = 1 << 30
WAYS: dict[str, list[str]] = {
    "thesis, no cache": ["--design", "thesis", "--no-cache"],
    "thesis, vertices": ["--design", "thesis", "--content", "vertices", "--capacity", str(LARGE)],
    "thesis, small cache": ["--design", "thesis", "--policy", "lru", "--capacity", str(SMALL)],
    "thesis, large cache": ["--design", "thesis", "--policy", "lru", "--capacity", str(LARGE)],
    "ours, no cache": ["--design", "ours", "--no-cache"],
    "ours, small cache, FIFO": ["--policy", "fifo", "--capacity", str(SMALL)],
    "ours, small cache, random": ["--policy", "random", "--capacity", str(SMALL)],
    "ours, small cache, LRU": ["--policy", "lru", "--capacity", str(SMALL)],
    "ours, small cache, LFU": ["--policy", "lfu", "--capacity", str(SMALL)],
    "ours, large cache": ["--policy", "lru", "--capacity", str(LARGE)],
    "ours, large cache, no prefetch": [
        *("--policy", "lru", "--capacity", str(LARGE), "--prefetch", "0"),
    ],
    "thesis, all hits": ["--design", "thesis", "--capacity", str(LARGE), "--hot"],
    "ours, all hits": ["--capacity", str(LARGE), "--hot"],
}
QUICK = ("thesis, no cache", "thesis, large cache", "ours, large cache", "thesis, all hits",
         "ours, all hits")  # fmt: skip
# A way is measured again where its segments here differ from those of the other ways.
REPEATS_MAX = 2


def binary() -> Path:
    """Path of the program.

    Raises:
        PeerError: the program was not built.
    """
    return built("farrow-bench-network", "-p farrow-bench-network")


def run(program: Path, *arguments: str) -> dict[str, Any]:
    """Run the program; returns its answer."""
    done = subprocess.run(
        [program, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row(task: str, way: str, answer: dict[str, Any]) -> str:
    """One line of the table."""
    counters = answer["network"]["counters"]
    asked = counters["hits"] + counters["negative_hits"] + counters["misses"]
    hits = (counters["hits"] + counters["negative_hits"]) / asked if asked else 0.0
    cells = (
        task,
        way,
        f"{answer['private']['rows_per_second']:,.0f}",
        f"{answer['mapped']['rows_per_second']:,.0f}",
        f"{answer['network']['rows_per_second']:,.0f}",
        slower(answer),
        f"{100 * hits:.1f} %" if asked else "",
        f"{counters['calls']:,}",
        f"{counters['bytes'] / 1e6:,.1f} MB",
    )
    return f"| {' | '.join(cells)} |"


def comparable(program: Path, arguments: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """The answers of all ways of a pattern; a way of a noisy moment is measured again."""
    found = {way: run(program, *words) for way, words in arguments.items()}
    for _ in range(REPEATS_MAX):
        off = [way for way, one in found.items() if off_base(one, found.values()) is not None]
        for way in off:
            found[way] = run(program, *arguments[way])
    return found


def compared(program: Path, path: Path, quick: bool) -> tuple[list[dict[str, Any]], str]:
    """All ways over all patterns, and their tables."""
    answers = []
    lines = [
        "| pattern | way | private, rows/s | segments here | network | slower than segments here |"
        " hits | calls | fetched |",
        "| --- " * 9 + "|",
    ]
    hits = ["", "| a hit alone | entries a row | thesis | ours | ratio |", "| --- " * 5 + "|"]
    seconds, rows = ("3", "10240") if quick else ("15", "40960")
    for pattern, hours in PATTERNS[:: 2 if quick else 1]:
        task = f"{pattern}, {hours} h"
        work = ["--pattern", pattern, "--hours", str(hours), "--seconds", seconds, "--rows", rows]
        arguments = {
            way: ["compare", str(path), *work, *options]
            for way, options in WAYS.items()
            if way in QUICK or not quick
        }
        for way, answer in comparable(program, arguments).items():
            answers.append({"kind": "compare", "name": task, "way": way, **answer})
            lines.append(row(task, way, answer))
            print(lines[-1], file=sys.stderr, flush=True)
            replay = answer["replay"]
            if replay and way.startswith("thesis"):
                cells = (
                    f"{task}, rows that a search asks for",
                    f"{replay['entries_per_row']:.1f}",
                    f"{replay['thesis_ns']:.0f} ns",
                    f"{replay['ours_ns']:.0f} ns",
                    f"{replay['thesis_over_ours']:.1f}",
                )
                hits.append(f"| {' | '.join(cells)} |")
    return answers, "\n".join(lines + hits) + "\n"


def lengths(program: Path) -> tuple[list[dict[str, Any]], str]:
    """The cost of a hit by the length of its row."""
    answers: Any = run(program, "hits")
    lines = [
        "| entries a row | thesis, ns | ours | ratio | thesis, and read | ours, and read | ratio |",
        "| --- " * 7 + "|",
    ]
    for one in answers:
        cells = (
            f"{one['entries_per_row']:,.0f}",
            f"{one['thesis_ns']:,.0f}",
            f"{one['ours_ns']:,.0f}",
            f"{one['thesis_over_ours']:.1f}",
            f"{one['thesis_read_ns']:,.0f}",
            f"{one['ours_read_ns']:,.0f}",
            f"{one['thesis_over_ours_read']:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [{"kind": "hits", **one} for one in answers], "\n".join(lines) + "\n"


def predicted(program: Path, path: Path, quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Remote memory of other speeds."""
    answers = []
    lines = [
        "| pattern | link | ns | rows/s here | there | slower | predicted / with delays |",
        "| --- " * 7 + "|",
    ]
    for pattern, hours in PATTERNS[:: 2 if quick else 1]:
        work = ["--pattern", pattern, "--hours", str(hours), "--seconds", "5"]
        answer = run(program, "whatif", str(path), *work)
        answers.append({"kind": "whatif", "name": f"{pattern}, {hours} h", **answer})
        for link in answer["links"]:
            cells = (
                f"{pattern}, {hours} h",
                link["link"],
                f"{link['latency_ns']:.0f}",
                f"{answer['local_rows_per_second']:,.0f}",
                f"{link['rows_per_second']:,.0f}",
                f"{link['over_local']:.2f}",
                f"{link['check']['predicted_over_measured']:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return answers, "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer ways, less time")
    parser.add_argument("--rows", type=int, default=1_500_000, help="rows of the stream")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    try:
        program = binary()
    except PeerError as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        path = Path(folder) / "stream.bin"
        graph.stream(options.rows, path)
        answers, ways = compared(program, path, options.quick)
        hits, by_length = lengths(program)
        links, speeds = predicted(program, path, options.quick)
    notes = [
        f"{options.rows} rows; one thread; both processes on one machine, over loopback",
        "Khalili 2026, p. 36-41, has remote memory faster than gRPC with the largest cache:"
        " scatter-gather 78 to 228 times (Table 5.3), simple cycles, not temporal ones, 33 to 313"
        " times; without a cache simple cycles 965 times (Section 5.4.3)",
        f"links: misses of {links[0]['counters']}; the model's cache is empty at first, and whole"
        " rows are touched; misses do not overlap, so real links are faster",
    ]
    document = document_of(HERE.parent, [], notes, options.quick)
    document["answers"] = answers + hits + links
    leave(document, "network", f"{ways}\n{by_length}\n{speeds}", Path(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
