"""Measure Farrow against its peers and the machine: ``python bench/run.py [--quick]``.

Prints a table of ratios and writes the raw samples, the table and a plot to bench/results/.
As root it measures a second time on a tmpfs with huge pages, mounted over /dev/shm in a private
mount namespace, which ends with the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import plot, report  # noqa: E402
from harness.command import announce, fitting_rows, parser_of  # noqa: E402
from harness.document import document_of, plain, save, write  # noqa: E402
from harness.huge import can_mount, measured_inside  # noqa: E402
from harness.process import PeerError, end_on_signal, set_up  # noqa: E402
from harness.tasks import (  # noqa: E402
    ROW_BYTES,
    Plan,
    Sample,
    measure_limits,
    measure_micro,
    measure_peer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = ("farrow", "plasma", "ipc_shm", "flight")
ORDINARY = "ordinary pages"
HUGE = "huge pages"
# Flight holds tables in private memory: huge pages on tmpfs change nothing for it.
HUGE_PEERS = ("farrow", "plasma", "ipc_shm")
# Share of the time for the ordinary run, if a second run follows.
ORDINARY_SHARE = 0.6
# Tables in private memory and in the server, and a reader's copies for comparison.
MEMORY_PER_TABLE = 5.0


def main() -> int:
    """Run, print, save.  0, or 1 if Farrow itself could not be measured."""
    options = _options()
    notes: list[str] = []
    plan = Plan.quick() if options.quick else Plan()
    plan = _fitted(plan, notes)
    chosen = [name for name in PEERS if name in options.peers.split(",")]
    if options.inside:
        seconds = plan.seconds_max * (1 - ORDINARY_SHARE)
        samples = list(_measure(plan, chosen, HUGE, seconds, notes))
        write(Path(options.inside), {"samples": plain(samples), "notes": notes})
        return 0
    chosen = set_up(chosen, notes, announce)
    can_huge = not options.no_huge and can_mount(notes)
    seconds = plan.seconds_max * (ORDINARY_SHARE if can_huge else 1.0)
    samples = list(_measure(plan, chosen, ORDINARY, seconds, notes))
    if can_huge:
        peers = [peer for peer in chosen if peer in HUGE_PEERS]
        size = plan.capacity * 2
        samples += measured_inside(HERE / "run.py", size, peers, options.quick, notes)
    if not options.no_micro:
        samples += _micro(notes)
    document = document_of(HERE.parent, samples, notes, options.quick)
    _save(document, samples, Path(options.output))
    return 0 if any(sample.peer == "farrow" for sample in samples) else 1


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__, PEERS)
    parser.add_argument("--no-huge", action="store_true", help="no second run on huge pages")
    parser.add_argument("--no-micro", action="store_true", help="no Rust micro-benchmarks")
    return parser.parse_args()


def _fitted(plan: Plan, notes: list[str]) -> Plan:
    """A smaller table if memory is short."""
    rows = fitting_rows(plan.large_rows, ROW_BYTES * MEMORY_PER_TABLE, notes)
    return dataclasses.replace(plan, large_rows=rows, medium_rows=min(plan.medium_rows, rows))


def _measure(
    plan: Plan, chosen: list[str], variant: str, seconds: float, notes: list[str]
) -> Iterator[Sample]:
    """The limits, then each peer in turn within its share of the time."""
    yield from measure_limits(plan, variant)

    def say(text: str, is_note: bool) -> None:
        announce(text)
        if is_note:
            notes.append(f"{variant}: {text}")

    end = time.monotonic() + seconds
    for index, peer in enumerate(chosen):
        announce(f"{variant}: {peer} ...")
        left = end - time.monotonic()
        deadline = time.monotonic() + max(left, 0.0) / (len(chosen) - index)
        found: list[Sample] = []
        try:
            for sample in measure_peer(peer, plan, variant, deadline, say):
                found.append(sample)
        except PeerError as error:
            notes.append(f"{variant}: {error}")
            announce(f"  {error}")
        yield from found


def _micro(notes: list[str]) -> list[Sample]:
    announce("micro-benchmarks ...")
    try:
        return list(measure_micro(HERE.parent, ORDINARY))
    except PeerError as error:
        notes.append(str(error))
        return []


def _save(document: dict[str, Any], samples: list[Sample], folder: Path) -> None:
    """Print the table; write JSON, Markdown and PNG under one name."""
    stem = save(document, "", report.markdown(document, samples), folder)
    _print(document, samples)
    facts = document["machine"]
    title = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}, {ORDINARY}"
    drawn = plot.draw(samples, ORDINARY, title, stem.with_suffix(".png"))
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

    out = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    for variant in dict.fromkeys(sample.variant for sample in samples):
        peers = report.peers_of([sample for sample in samples if sample.variant == variant])
        table = Table(*report.titles(peers), box=box.SIMPLE_HEAD, title=variant)
        for line in report.lines(samples, variant):
            style = {True: "green", False: "red", None: ""}[line.met]
            row = [escape(cell) for cell in report.cells(line, peers)]
            table.add_row(*row[:-1], f"[{style}]{row[-1]}[/{style}]" if style else row[-1])
        out.print(table)
        for limit in (s for s in samples if s.variant == variant and s.case == "copy"):
            best = sorted(limit.samples)[len(limit.samples) // 2]
            out.print(f"  copy, {limit.peer}: {limit.bytes / best / 2**30:.1f} GiB/s")
    for note in document["notes"]:
        out.print(f"  note: {escape(note)}", style="yellow")


if __name__ == "__main__":
    end_on_signal()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
