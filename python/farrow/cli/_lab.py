"""``farrow lab coherence``: measure costs of publish and refresh, and show Farrow's choices.

It needs no node; ``--node`` adds another node's memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrow.cli._options import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from farrow.lab import Figures, Settings

__all__ = ["add_parsers", "lab"]

_THREADS_MAX = 1024


def add_parsers(commands: Any) -> None:
    """Add ``lab`` and its action to the subcommands of ``farrow``."""
    parser = add_command(commands, "lab", "measure what coherence costs on this machine")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = add_command(
        actions,
        "coherence",
        "measure publish, refresh and access patterns",
        "It writes a report, and shows whether Farrow chooses the fastest instructions.",
    )
    one.add_argument(
        "-o", "--output", default="farrow-lab", metavar="DIR", help="folder to write (farrow-lab)"
    )
    one.add_argument("--quick", action="store_true", help="some 30 seconds, up to 16 MiB")
    one.add_argument("--size-max", metavar="SIZE", help="largest range (1 GiB; quick: 16 MiB)")
    one.add_argument(
        "--pattern-bytes",
        metavar="SIZE",
        help="range of access patterns of a thread (256 MiB; quick: 8 MiB)",
    )
    one.add_argument("--threads", metavar="N,...", help="numbers of threads (1, 2, 4, ... cores)")
    one.add_argument("--rounds", type=int, metavar="N", help="rounds of each series (5; quick: 3)")
    one.add_argument(
        "--seconds", type=float, metavar="S", help="seconds of each series (0.25; quick: 0.015)"
    )
    one.add_argument(
        "--memory-dir", default="/dev/shm", metavar="DIR", help="tmpfs for a region (/dev/shm)"
    )
    one.add_argument(
        "--socket", metavar="PATH", help="socket of a node: measure patterns in its memory"
    )
    one.add_argument(
        "--node", metavar="NAME", help="node of its cluster: measure patterns in that memory"
    )
    one.add_argument(
        "--profile", action="store_true", help="first measure the profile again, and store it"
    )
    one.add_argument("--json", action="store_true", help="print the choices and models as JSON")
    one.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no tables")


def lab(options: argparse.Namespace) -> int:
    """Run it; returns 0 even if a choice is not the best, because the report shows that."""
    from farrow import _native
    from farrow.cli._output import progress_bar
    from farrow.lab import _files, _measure, analyse, measure

    settings = _settings(options)
    _measure.check_memory(settings)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    if options.profile:
        _native.lab_profile(measure=True, keep=True)
    with (
        _region(options, settings) as (region, name),
        progress_bar("measuring", quiet=options.quiet) as progress,
    ):
        run = measure(settings, region=region, region_name=name, progress=progress)
    figures = analyse(run)
    files, has_pictures = _files.write(run, figures, folder)
    _say(options, figures, files, has_pictures)
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    from farrow.cli._output import CommandError, parse_bytes
    from farrow.lab import Settings

    settings = Settings.quick() if options.quick else Settings()
    changes: dict[str, Any] = {"memory_dir": options.memory_dir}
    for name in ("size_max", "pattern_bytes"):
        text = getattr(options, name)
        if text is not None:
            changes[name] = parse_bytes(text)
    for name in ("rounds", "seconds"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    if options.threads is not None:
        counts = tuple(int(text) for text in options.threads.split(","))
        if not all(1 <= count <= _THREADS_MAX for count in counts):
            raise CommandError(f"--threads {options.threads}: each 1 to {_THREADS_MAX}")
        changes["threads"] = counts
    settings = dataclasses.replace(settings, **changes)
    if settings.rounds < 1 or settings.seconds <= 0:
        raise CommandError("--rounds and --seconds must be above zero")
    if settings.size_max < 4096 or settings.pattern_bytes < 4096:
        raise CommandError("--size-max and --pattern-bytes must be 4 KiB at least")
    return settings


@contextlib.contextmanager
def _region(options: argparse.Namespace, settings: Settings) -> Iterator[tuple[Any, str]]:
    """Memory of a running node, freed at the end; None without --socket and --node."""
    if options.socket is None and options.node is None:
        yield None, ""
        return
    import farrow
    from farrow.lab._plan import arena_bytes

    client = farrow.connect(options.socket)
    at = client if options.node is None else client.at(options.node)
    # The object is written, and never sealed.
    writer = at.create(arena_bytes(settings, "region"))
    try:
        yield writer.buffer, f"memory of node {options.node or client.node or client.address}"
    finally:
        writer.abort()


def _say(
    options: argparse.Namespace, figures: Figures, files: list[Path], has_pictures: bool
) -> None:
    from farrow.cli._output import console, grid, human_bytes, human_ns, print_json

    if options.json:
        print_json(
            {
                "choices": [
                    {
                        **dataclasses.asdict(choice),
                        "ratio": choice.ratio,
                        "is_decided": choice.is_decided,
                    }
                    for choice in figures.choices
                ],
                "models": [dataclasses.asdict(model) for model in figures.models],
                "files": [str(path) for path in files],
            }
        )
        return
    out = console()
    if not options.quiet:
        rows = [
            (
                choice.work, human_bytes(choice.nbytes), f"{choice.pages} pages", choice.best,
                human_ns(choice.best_ns), choice.picked, human_ns(choice.picked_ns),
                f"{choice.ratio:.2f}",
            )
            for choice in figures.decided
        ]  # fmt: skip
        heads = ("", ">size", "", "best", ">", "picked", ">", ">picked / best")
        out.print(grid(heads, rows))
        models = [
            (
                model.work, model.method, model.state, f"{model.pages} pages",
                f"{model.fixed_ns:.0f} ns", f"{model.line_ns:.2f} ns", f"{model.error:.0%}",
            )
            for model in figures.models
        ]  # fmt: skip
        out.print(grid(("", "by", "lines", "", ">a call", ">a line", ">error"), models))
        worst = figures.worst
        over = sum(choice.ratio > 1.1 for choice in figures.decided)
        if worst is not None:
            out.print(
                f"Picked ways over the best: {over} of {len(figures.decided)} by more than 10 %;"
                f" worst {worst.ratio:.2f} ({worst.work}, {human_bytes(worst.nbytes)})."
            )
        if not has_pictures:
            out.print("No pictures: matplotlib is missing: pip install 'farrow[lab]'", markup=False)
    for path in files:
        out.print(str(path), markup=False, soft_wrap=True)
