"""Measure the cost of coherence: ``python bench/coherence.py [--quick]``.

Farrow's timed loops, which use the code of its regions, and an independent C program
(``peers/coherence.c``, built by ``cc -O2``) measure the same figures alternately.  The report adds
the results of ``farrow lab coherence`` in the same run: for each size the best method to publish,
refresh and write, Farrow's choice, and their ratio.  Prints both and writes samples and tables to
bench/results/.  x86-64 only.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import machine  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.tasks import Sample  # noqa: E402

from farrow import _native  # noqa: E402
from farrow.lab import Figures, Settings, analyse, measure  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Memory that both programs allocate together, and the lab after them.
MEMORY_NEEDED = 2 * GIB + 256 * MIB
_SOURCE = 64 * KIB


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of both programs; ``name`` is the request to the C program."""

    name: str
    unit: str
    work: str
    method: str
    state: str
    nbytes: int
    batch: int = 1

    def ours(self, arena: Any) -> float:
        """One sample of Farrow's loops, in the figure's unit."""
        found = arena.run(
            self.work, self.method, state=self.state, nbytes=self.nbytes, batch=self.batch,
            source=min(self.nbytes, _SOURCE),
        )  # fmt: skip
        ns: float = found[0]
        if self.unit == "GiB/s":
            return self.nbytes / ns * 1e9 / GIB
        return ns if self.unit == "ns" else ns / (self.nbytes / 64)

    def ratio(self, ours: float, theirs: float) -> float:
        """Farrow's time over that of the C program."""
        return theirs / ours if self.unit == "GiB/s" else ours / theirs


def figures(stream: str) -> list[Figure]:
    """All figures; ``stream`` is Farrow's method of non-temporal stores."""
    flush, line = "clflushopt", "ns a line"
    return [
        Figure("clflushopt clean uncached 1 GiB", line, "publish", flush, "uncached", GIB),
        Figure("clflushopt dirty 16 MiB", line, "publish", flush, "dirty", 16 * MIB),
        Figure("clflushopt dirty 1 MiB", line, "publish", flush, "dirty", MIB),
        Figure("clflush dirty 1 MiB", line, "publish", "clflush", "dirty", MIB),
        Figure("store, clwb 64 MiB", "GiB/s", "write", "clwb", "uncached", 64 * MIB),
        Figure("copy past the cache 64 MiB", "GiB/s", "write", stream, "uncached", 64 * MIB),
        Figure("fill past the cache 64 MiB", "GiB/s", "fill", stream, "uncached", 64 * MIB),
        Figure("one object of 1 KiB", "ns", "publish", "clwb", "dirty", KIB, batch=1024),
    ]


class Peer:
    """The C program, running."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise SystemExit("cc is missing: apt-get install gcc")
        binary = folder / "coherence"
        source = HERE / "peers" / "coherence.c"
        subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], check=True)
        self._process = subprocess.Popen(
            [str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, name: str) -> float:
        """One sample of a figure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line or float(line) <= 0:
            raise SystemExit(f"the C program has no answer to {name!r}")
        return float(line)

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def compare(rounds: int) -> list[tuple[Figure, Sample, Sample]]:
    """All figures by both programs alternately, in rounds; the first round is not counted."""
    streams = [way for way in _native.lab_methods()["write"] if way in ("avx512", "avx2", "sse2")]
    wanted = figures(streams[0])
    ours: dict[str, list[float]] = {figure.name: [] for figure in wanted}
    theirs: dict[str, list[float]] = {figure.name: [] for figure in wanted}
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        peer = Peer(Path(folder))
        arena = _native.LabArena.private(GIB, huge=True)
        try:
            for number in range(rounds + 1):
                for figure in wanted:
                    # Alternate the order, so that neither always runs after the other.
                    for is_peer in (number % 2 == 0, number % 2 == 1):
                        value = peer.ask(figure.name) if is_peer else figure.ours(arena)
                        if number > 0:
                            (theirs if is_peer else ours)[figure.name].append(value)
        finally:
            peer.stop()
    return [
        (
            figure,
            Sample(figure.name, "farrow", "", figure.unit, ours[figure.name]),
            Sample(figure.name, "c", "", figure.unit, theirs[figure.name]),
        )
        for figure in wanted
    ]


def table(results: list[tuple[Figure, Sample, Sample]]) -> str:
    """Markdown: medians, and Farrow's time over the C program's."""
    lines = [
        "| figure | unit | C | Farrow | Farrow's time / C's |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for figure, ours, theirs in results:
        mine, other = statistics.median(ours.samples), statistics.median(theirs.samples)
        # Pairs were measured back to back: their ratios are more precise than that of the medians.
        pairs = zip(ours.samples, theirs.samples, strict=True)
        ratio = statistics.median(figure.ratio(*pair) for pair in pairs)
        lines.append(f"| {figure.name} | {figure.unit} | {other:.3g} | {mine:.3g} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def choices(found: Figures) -> str:
    """Markdown: the best way and the picked one by size."""
    lines = [
        "| work | bytes | pages | threads | best | ns | picked | ns | picked / best |",
        "| --- | ---: | --- | ---: | --- | ---: | --- | ---: | ---: |",
    ]
    # Choices that the profile considers, then the others.
    rows = sorted(found.choices, key=lambda one: (not one.is_decided, one.threads))
    lines += [
        f"| {one.work}{'' if one.is_decided else ' *'} | {one.nbytes} | {one.pages} "
        f"| {one.threads} | {one.best} | {one.best_ns:.4g} "
        f"| {one.picked} | {one.picked_ns:.4g} | {one.ratio:.2f} |"
        for one in rows
    ]
    lines.append("")
    lines.append(
        "\\* not looked at by the profile: several threads; publish without the next store."
    )
    return "\n".join(lines) + "\n"


def judged(found: Figures) -> list[str]:
    """The numbers of choices far from the best: of the profile, and the others."""
    others = [one for one in found.choices if not one.is_decided]
    notes = []
    for name, chosen in (("picked over best", found.decided), ("not looked at", others)):
        over = sum(one.ratio > 1.1 for one in chosen)
        worst = max((one.ratio for one in chosen), default=1.0)
        notes.append(f"{name}: {over} of {len(chosen)} above 1.1, worst {worst:.2f}")
    return notes


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the lab's quick run")
    parser.add_argument("--rounds", type=int, help="turns of both programs (15; quick: 5)")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        raise SystemExit(f"the C program is for x86-64, this is {platform.machine()}")
    available = machine.available_bytes()
    if available < MEMORY_NEEDED:
        raise SystemExit(f"{MEMORY_NEEDED} B of memory are needed, {available} B are available")
    results = compare(options.rounds or (5 if options.quick else 15))
    first = table(results)
    print(first, file=sys.stderr, flush=True)
    settings = Settings.quick() if options.quick else Settings()
    found = analyse(measure(settings))
    notes = judged(found)
    samples = [sample for _, *both in results for sample in both]
    document = document_of(HERE.parent, samples, notes, options.quick)
    document["choices"] = [{**dataclasses.asdict(o), "ratio": o.ratio} for o in found.choices]
    document["models"] = [dataclasses.asdict(model) for model in found.models]
    leave(document, "coherence", f"{first}\n{choices(found)}", Path(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
