"""Measure windows of a temporal graph beside Raphtory: ``python bench/temporal.py [--quick]``.

The common work of both is the fan of a row: how many sources its target has within the last day,
and how many targets its source.  (Raphtory counts motifs of three edges by the choices of their
edges, Farrow by their accounts, and its other algorithms have no window for each row.)  Raphtory
has all rows first and is queried row by row, as it has no call for many windows.  Farrow adds rows
and computes, one by one and in batches; one thread.  Sizes from 2 to 29 must be equal; larger ones
count as 30.  The rates are of the rows that all ways did.
Writes the raw samples and a table to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from graph_cluster import rows_of  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import PEERS, python_of, set_up  # noqa: E402
from harness.tasks import Sample  # noqa: E402

from farrow.graph import GraphFeatures  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

DAYS, DAY = 10, 86_400
BATCH = 2048
ROW_BY_ROW = "row by row"
FROM = 0.85
# Times are whole numbers that differ: rows of one second are numbered.
TICKS = 10_000
# Sizes from this one on share a bin; a size below 2 has none.
SIZE_MAX = 30
PEER_SECONDS_MAX = 300.0


def stream(rows: int) -> npt.NDArray[np.float64]:
    """Rows without self-loops, each with a time of its own.

    Raises:
        ValueError: a second has too many rows.
    """
    found = rows_of(DAYS, rows, 1)
    found = found[found[:, 1] != found[:, 2]]
    seconds = found[:, 3].astype(np.int64)
    starts = np.searchsorted(seconds, seconds)
    rank = np.arange(len(seconds)) - starts
    if rank.max(initial=0) >= TICKS:
        raise ValueError(f"{rank.max() + 1} rows of one second; {TICKS} at most")
    found[:, 3] = seconds * TICKS + rank
    return found


def bins_of(sizes: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """The columns that rows with these fans have: in, then out, a column a size from 2 to 29, and
    one for all larger sizes."""
    width = SIZE_MAX - 1
    found = np.zeros((len(sizes), 2 * width))
    for row, pair in enumerate(sizes):
        for side, size in enumerate(pair):
            if size >= 2:
                found[row, side * width + min(size, SIZE_MAX) - 2] = 1
    return found


def ours(
    rows: npt.NDArray[np.float64], first: int, batch: int, seconds: float
) -> tuple[list[float], npt.NDArray[np.float64], float]:
    """Seconds of each call, the columns, and rows added a second before."""
    features = GraphFeatures(patterns=("fan",), window=DAY * TICKS)
    began = time.perf_counter()
    features.partial_fit(rows[:first])
    added = first / (time.perf_counter() - began)
    taken: list[float] = []
    parts: list[npt.NDArray[Any]] = []
    until = time.perf_counter() + seconds
    for start in range(first, len(rows) - batch + 1, batch):
        began = time.perf_counter()
        parts.append(features.transform(rows[start : start + batch])[:, 4:])
        ended = time.perf_counter()
        taken.append(ended - began)
        if ended > until:
            break
    return taken, np.concatenate(parts), added


def theirs(path: Path, first: int, seconds: float) -> dict[str, Any]:
    """The answer of Raphtory's process, of a batch of rows at least."""
    script = PEERS / "raphtory" / "fans.py"
    command = [python_of("raphtory"), script, path, DAY * TICKS, first, seconds, BATCH]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=PEER_SECONDS_MAX,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Run, print, save; 1 if Raphtory cannot be set up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer rows, not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    notes: list[str] = []
    if not set_up(["raphtory"], notes, lambda text: print(text, file=sys.stderr)):
        print("; ".join(notes), file=sys.stderr)
        return 1
    rows = stream(100_000 if options.quick else 2_000_000)
    first, seconds = int(len(rows) * FROM), 2.0 if options.quick else 10.0
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, rows)
        answer = theirs(path, first, seconds)
    wanted = bins_of(answer["sizes"])
    calls: dict[tuple[str, str], tuple[list[float], int]] = {
        ("raphtory", ROW_BY_ROW): (answer["seconds"], 1)
    }
    samples = [Sample("adding rows", "raphtory", "", "rows/s", [answer["added"]])]
    for title, batch in ((ROW_BY_ROW, 1), (f"batches of {BATCH}", BATCH)):
        taken, found, added = ours(rows, first, batch, seconds)
        common = min(len(found), len(wanted))
        if not np.array_equal(found[:common], wanted[:common]):
            raise SystemExit(f"{title}: other fans than Raphtory's in {common:,} rows")
        notes.append(f"{title}: the fans of {common:,} rows are equal")
        calls["farrow", title] = (taken, batch)
        samples.append(Sample("adding rows", "farrow", title, "rows/s", [added]))
    same, common = same_rows(calls)
    notes.append(f"rates of the first {common:,} of these rows, which all ways did")
    samples = same + samples
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "temporal", _table(samples, len(rows)), Path(options.output))
    return 0


def same_rows(
    calls: Mapping[tuple[str, str], tuple[Sequence[float], int]],
) -> tuple[list[Sample], int]:
    """Seconds of a row in the calls of each way, for the first rows that all ways did: whole
    batches.

    Args:
        calls: seconds of the calls in order, and rows of a call, by peer and way.
    """
    common = min(len(taken) * batch for taken, batch in calls.values())
    common -= common % max(batch for _, batch in calls.values())
    found = [
        Sample("a row", peer, title, "s", [one / batch for one in taken[: common // batch]])
        for (peer, title), (taken, batch) in calls.items()
    ]
    return found, common


def _table(samples: Sequence[Sample], rows: int) -> str:
    """Rows a second by the time of all rows: the slow ones count."""
    slowest = statistics.fmean(samples[0].samples)
    lines = [
        f"Fans in and out of each row within a day, {rows:,} rows of {DAYS} days.", "",
        "| | rows a second | of Raphtory |", "| --- | ---: | ---: |",
    ]  # fmt: skip
    for sample in samples:
        if sample.case == "a row":
            each = statistics.fmean(sample.samples)
            title = f"{sample.peer}, {sample.variant}"
            lines.append(f"| {title} | {1 / each:,.0f} | {slowest / each:,.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
