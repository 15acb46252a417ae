"""The table and the plot of a run over several nodes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from harness.tasks import Sample

__all__ = ["plot", "table"]

# (case, title, the papers' figure for another node's memory)
_PAIRS = (
    ("copied allocate", "allocate {size}", "4.99 ms"),
    ("copied write", "copy it in: `write`, all cores", ""),
    ("copied publish", "publish: seal it under a name", ""),
    ("stored allocate", "allocate {size} again", ""),
    ("stored write", "write it in place: plain stores of one thread", ""),
    ("stored publish", "publish that", ""),
    ("put", "put a table of {size}: one copy, all cores", ""),
    ("publish of a put", "of which publishing lines", ""),
    ("get a table", "get a table of {size}, caches full of its bytes", ""),
    ("first value of a table", "then its first value", ""),
    ("first value of a private table", "the same of a private table: pyarrow alone", ""),
    ("sum", "read {size}: sum, cached mappings", "1.13 x own"),
    ("allocate 64 KiB", "allocate 64 KiB, extent granted ahead", "4.99 ms"),
    ("get 1000 x 1 kB", "get 1000 objects of 1 kB, one by one", "5.05 ms, 2.7 x own"),
    ("get_many of 1000 x 1 kB", "the same by get_many", ""),
)


def _median(samples: Sequence[Sample], case: str, variant: str) -> float:
    for sample in samples:
        if (sample.case, sample.variant) == (case, variant):
            return statistics.median(sample.samples)
    raise KeyError((case, variant))


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def table(samples: Sequence[Sample], large_bytes: int, lease_seconds: float) -> str:
    """Markdown: own memory, another node's, and their ratio, from one run."""
    size = f"{large_bytes / 2**30:.3g} GiB"
    lines = []
    for suffix in ("", ", node-local"):
        title = "medians" if not suffix else "the same, declared node-local"
        lines += [
            f"| {title} | own node | another node | ratio | papers, another node |",
            "| --- | --- | --- | --- | --- |",
            *_memory(samples, size, suffix),
        ]
        if suffix:
            line = _median(samples, "refresh a line", f"other{suffix}")
            again = _median(samples, "lines refreshed by a second get", f"other{suffix}")
            lines.append(f"| refresh, a line | | {_seconds(line)} | | 3.3 ns uncached |")
            lines.append(f"| lines refreshed by a second get | | {again:.0f} | | |")
        lines.append("")
    lines += ["| three nodes | | papers |", "| --- | --- | --- |"]
    barrier = _median(samples, "barrier of 3", "other")
    lines.append(f"| barrier of 3 clients, each at a node | {_seconds(barrier)} | 3.2 ms a call |")
    kill = _median(samples, "kill to error", "other")
    text = f"{kill:.2f} s, {kill / lease_seconds:.2f} leases"
    lines.append(f"| kill -9 of a node to its error at others | {text} | |")
    lines += [
        "",
        "| nodes | find a name | delete what all hold | idle bytes/s a node |",
        "| --- " * 4 + "|",
    ]
    for variant in _counts(samples):
        find, delete = (
            _median(samples, case, variant) for case in ("find a name", "delete what all hold")
        )
        idle = _median(samples, "idle traffic of a node", variant)
        lines.append(f"| {variant} | {_seconds(find)} | {_seconds(delete)} | {idle:,.0f} |")
    return "\n".join(lines) + "\n"


def _memory(samples: Sequence[Sample], size: str, suffix: str) -> Iterator[str]:
    """Rows about memory of one class."""
    places = [f"own{suffix}", f"other{suffix}"]
    for case, title, theirs in _PAIRS:
        own, other = (_median(samples, case, place) for place in places)
        ratio = f"{other / own:.2f}" if own else ""
        cells = (title.format(size=size), _seconds(own), _seconds(other), ratio)
        yield f"| {' | '.join(cells)} | {theirs} |"
    for way, title in (("copied", "all but the copy"), ("stored", "all but plain stores")):
        shares = []
        for place in places:
            steps = ("allocate", "write", "publish")
            parts = [_median(samples, f"{way} {step}", place) for step in steps]
            rest = parts[0] + parts[2]
            shares.append(f"{_seconds(rest)}, {100 * rest / parts[1]:.2g} %")
        theirs = "58 of 68 ms; 118 of 300" if way == "copied" else ""
        yield f"| {title} | {shares[0]} | {shares[1]} | | {theirs} |"


def _counts(samples: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(one.variant for one in samples if one.variant.endswith(" nodes")))


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Plot lookup, delete and idle traffic by the number of nodes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    variants = _counts(samples)
    # Costs grow with the number of other nodes.
    others = [int(variant.split()[0]) - 1 for variant in variants]
    cases = (("find a name", "us", 1e6), ("delete what all hold", "us", 1e6),
             ("idle traffic of a node", "kB/s", 1e-3))  # fmt: skip
    figure, axes = pyplot.subplots(1, len(cases), figsize=(12, 3.5))
    for axis, (case, unit, factor) in zip(axes, cases, strict=True):
        values = [_median(samples, case, variant) * factor for variant in variants]
        axis.plot(others, values, "o-")
        axis.plot([0, others[-1]], [0, values[0] * others[-1] / others[0]], ":", label="linear")
        axis.set(title=case, xlabel="other nodes", ylabel=unit, xlim=(0, None), ylim=(0, None))
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
