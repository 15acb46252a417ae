"""Measure Farrow as an object store against its peers: ``python bench/store.py [--quick]``.

Prints a table of ratios and writes the raw samples, the table and a plot to bench/results/.
A peer that cannot be set up or measured is reported with its error; the run continues.
Each peer first has the pages that it takes by itself: as root Farrow mounts a tmpfs with huge
pages, the others have the ordinary pages of /dev/shm.  The largest objects and the table are
measured again with Farrow on ordinary pages, and as root with all peers on huge pages, mounted
over /dev/shm as by ``run.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import store_plot, store_report  # noqa: E402
from harness.command import announce, fitting_rows, parser_of  # noqa: E402
from harness.document import document_of, plain, save, write  # noqa: E402
from harness.huge import can_mount, measured_inside  # noqa: E402
from harness.process import PeerError, end_on_signal, set_up  # noqa: E402
from harness.store_tasks import (  # noqa: E402
    StorePlan,
    measure_large,
    measure_limits,
    measure_store,
)
from harness.tasks import ROW_BYTES, Sample  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = ("farrow", *store_report.PEERS)
# The pages of a tmpfs change nothing for private memory (Redis, Mooncake) and a memfd (Vineyard).
HUGE_PEERS = tuple(peer for peer in PEERS if peer not in ("redis", "vineyard", "mooncake"))
# Private tables in the writer, one of them serialised, two in the server.
MEMORY_PER_TABLE = 6.0


def main() -> int:
    """Run, print, save.  0, or 1 if Farrow itself could not be measured."""
    options = _options()
    notes: list[str] = []
    plan = _fitted(StorePlan.quick() if options.quick else StorePlan(), notes)
    wanted = options.peers.split(",")
    if unknown := sorted(set(wanted) - set(PEERS)):
        raise SystemExit(f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    chosen = [name for name in PEERS if name in wanted]
    if options.inside:
        samples = list(_measure_large(plan, chosen, store_report.HUGE, notes))
        write(Path(options.inside), {"samples": plain(samples), "notes": notes})
        return 0
    chosen = set_up(chosen, notes, announce)
    samples = list(_measure(plan, chosen, notes))
    if not options.no_pages:
        own = [peer for peer in chosen if peer == "farrow"]
        samples += _measure_large(plan, own, store_report.ORDINARY, notes)
    if not options.no_pages and can_mount(notes):
        peers = [peer for peer in chosen if peer in HUGE_PEERS]
        size = plan.capacity * 2
        samples += measured_inside(HERE / "store.py", size, peers, options.quick, notes)
    document = document_of(HERE.parent, samples, notes, options.quick)
    _save(document, samples, Path(options.output))
    return 0 if any(sample.peer == "farrow" for sample in samples) else 1


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__, PEERS)
    parser.add_argument("--no-pages", action="store_true", help="no second run on other pages")
    return parser.parse_args()


def _fitted(plan: StorePlan, notes: list[str]) -> StorePlan:
    """A smaller table if memory is short."""
    rows = fitting_rows(plan.large_rows, ROW_BYTES * MEMORY_PER_TABLE, notes)
    return dataclasses.replace(plan, large_rows=rows)


def _measure(plan: StorePlan, chosen: list[str], notes: list[str]) -> Iterator[Sample]:
    """The limits, then each peer in turn within its share of the time."""
    yield from measure_limits(plan, store_report.OWN)

    def say(text: str, is_note: bool) -> None:
        announce(text)
        if is_note:
            notes.append(text)

    end = time.monotonic() + plan.seconds_max
    for index, peer in enumerate(chosen):
        announce(f"{peer} ...")
        left = end - time.monotonic()
        deadline = time.monotonic() + max(left, 0.0) / (len(chosen) - index)
        try:
            yield from measure_store(peer, plan, store_report.OWN, deadline, say)
        except PeerError as error:
            say(f"{peer} is not measured further: {error}", True)


def _measure_large(
    plan: StorePlan, chosen: list[str], variant: str, notes: list[str]
) -> Iterator[Sample]:
    """The largest objects and the table of each peer, all of them in /dev/shm."""

    def say(text: str, is_note: bool) -> None:
        announce(text)
        if is_note:
            notes.append(f"{variant}: {text}")

    os.environ["FARROW_BENCH_MEMORY_DIR"] = "/dev/shm"
    for peer in chosen:
        announce(f"{variant}: {peer} ...")
        try:
            yield from measure_large(peer, plan, variant, say)
        except PeerError as error:
            say(f"{peer}: {error}", True)
    del os.environ["FARROW_BENCH_MEMORY_DIR"]


def _save(document: dict[str, Any], samples: list[Sample], folder: Path) -> None:
    """Print the table; write JSON, Markdown and PNG under one name."""
    stem = save(document, "store", store_report.markdown(document, samples), folder)
    _print(document, samples)
    facts = document["machine"]
    title = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}"
    drawn = store_plot.draw(samples, title, stem.with_suffix(".png"))
    files = f"{stem.name}.json, .md" + (
        " and .png" if drawn else "; no plot: matplotlib is missing"
    )
    print(f"\nIn bench/results: {files}" if folder == HERE / "results" else f"\nWrote {files}")


def _print(document: dict[str, Any], samples: list[Sample]) -> None:
    """The report on the terminal."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    out = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    peers = store_report.peers_of(samples)
    table = Table(*store_report.titles(peers), box=box.SIMPLE_HEAD)
    for row in store_report.rows(samples):
        style = {True: "green", False: "red", None: ""}[row.met]
        texts = [escape(cell) for cell in store_report.cells(row, peers)]
        table.add_row(*texts[:-1], f"[{style}]{texts[-1]}[/{style}]" if style else texts[-1])
    out.print(table)
    for line in (*store_report.limits(samples), *store_report.same_pages(samples)):
        out.print(f"  {escape(line)}")
    for note in document["notes"]:
        out.print(f"  note: {escape(note)}", style="yellow")


if __name__ == "__main__":
    end_on_signal()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
