"""Draws the figures of the thesis from what was measured. Needs Debian's python3-matplotlib."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .grid import (
    GIB,
    KIB,
    MIB,
    ORDER_BYTES,
    ORDERS,
    PAGE_BYTES,
    THESIS_MEDIANS_US,
    Series,
)

CAVEAT = (
    "Emulated by QEMU (TCG), which models no cache: times are those of emulated instructions, "
    "not of cache lines written back."
)
# Samples from which on percentiles are drawn.
BAND_MIN = 20
COLOURS = {"read_all": "#0072b2", "write_all": "#d55e00", "tlb": "#009e73", "munmap": "#666666"}
NAMES = {"arm64": "arm64 (dc cvac / civac)", "amd64": "x86-64 (clwb / clflushopt)"}
Drawn = tuple[str, Path, str]


def size_name(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def _pick(measured: Iterable[Series], **wanted: object) -> list[Series]:
    """Series whose architecture, function and cell are those wanted, by size and order."""

    def fits(series: Series) -> bool:
        return all(
            getattr(series, name, getattr(series.cell, name, None)) == value
            for name, value in wanted.items()
        )

    found = [series for series in measured if fits(series)]
    return sorted(found, key=lambda series: (series.cell.mapped_bytes, series.cell.order))


def _save(figure: Figure, path: Path) -> Path:
    figure.text(0.5, 0.004, CAVEAT, ha="center", va="bottom", fontsize=8, color="#a00000")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=72)
    pyplot.close(figure)
    return path


def _band(
    axes: Axes,
    places: Sequence[float],
    series: Sequence[Series],
    color: str,
    label: str,
    linestyle: str = "-",
) -> None:
    """Medians as a line, what lies between the 5th and the 95th percentile as a band: where there
    are so many samples that these mean something."""
    middle, low, high = (
        [one.percentile(percent) / 1000 for one in series] for percent in (50, 5, 95)
    )
    axes.plot(
        places, middle, marker="o", markersize=4, color=color, label=label, linestyle=linestyle
    )
    are_many = [len(one.durations_ns) >= BAND_MIN for one in series]
    axes.fill_between(places, low, high, where=are_many, alpha=0.15, color=color, linewidth=0)


def _width(names: Sequence[str]) -> float:
    """Of a figure, in inches; what is said below it has to fit too."""
    return max(6 * len(names), 8.5)


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_name(size) for size in sizes], rotation=35, ha="right", fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("mapped size, order 0")
    axes.grid(alpha=0.25)


def unmaps_of(series: Series) -> Series:
    """What the calls of each unmap took together."""
    count, values = series.cell.blocks, series.durations_ns
    sums = [sum(values[at : at + count]) for at in range(0, len(values), count)]
    return Series(series.architecture, series.cell, "unmap", sums)


def by_size(measured: Sequence[Series], folder: Path) -> Drawn:
    """Figure 3.2: a call, and a whole unmap, by what is mapped."""
    names = [name for name in NAMES if _pick(measured, architecture=name, kind="size")]
    figure, grid = pyplot.subplots(2, len(names), figsize=(_width(names), 9), squeeze=False)
    for column, name in enumerate(names):
        calls, sums = grid[0][column], grid[1][column]
        traced = _pick(measured, architecture=name, kind="traced", what="tlb_finish_mmu")
        unmaps = _pick(measured, architecture=name, kind="traced", what="__vm_munmap")
        sizes = [series.cell.mapped_bytes for series in traced]
        for program in ("read_all", "write_all"):
            series = _pick(measured, architecture=name, kind="size", program=program)
            places = [one.cell.mapped_bytes for one in series]
            _band(calls, places, series, color=COLOURS[program], label=f"maintain 4 KiB, {program}")
            label = f"maintenance of all pages, {program}"
            _band(
                sums,
                places,
                [unmaps_of(one) for one in series],
                color=COLOURS[program],
                label=label,
            )
        for axes in (calls, sums):
            _band(axes, sizes, traced, color=COLOURS["tlb"], label="tlb_finish_mmu (ftrace)")
            _size_axis(axes, sizes)
        _band(sums, sizes, unmaps, color=COLOURS["munmap"], label="munmap in all (ftrace)*")
        calls.set_title(f"{NAMES[name]}: one call")
        sums.set_title(f"{NAMES[name]}: one unmap")
        calls.set_ylabel("us; line: median, band: p5 to p95")
        sums.set_ylabel("us")
        # Room for the legends.
        calls.set_ylim(top=calls.get_ylim()[1] * 30)
        sums.set_ylim(bottom=sums.get_ylim()[0] / 50)
        calls.legend(fontsize=8, loc="upper left")
        sums.legend(fontsize=8, loc="lower right")
    note = (
        "* From 16 MiB on munmap and TLB flush are of blocks of order 10, mapped by pages too.\n"
        f"Of 64 MiB and more there are 24 to 8 unmaps. Bands are of {BAND_MIN} samples or more."
    )
    figure.suptitle(f"After figure 3.2: latency by mapped size\n{note}", fontsize=10)
    return "Latency by mapped size", _save(figure, folder / "figure-3.2-size.png"), note


def by_order(measured: Sequence[Series], folder: Path) -> Drawn:
    """Figure 3.3: a call by the order of its block, beside the thesis' medians."""
    names = [name for name in NAMES if _pick(measured, architecture=name, kind="order")]
    figure, grid = pyplot.subplots(1, len(names), figsize=(_width(names), 5), squeeze=False)
    styles = {"clean": "-", "clean+invalidate": "--"}
    for axes, name in zip(grid[0], names, strict=True):
        for program in ("read_all", "write_all"):
            for op, line in styles.items():
                series = _pick(measured, architecture=name, kind="order", program=program, op=op)
                places = [one.cell.order for one in series]
                _band(axes, places, series, COLOURS[program], f"{op}, {program}", line)
        axes.plot(
            list(THESIS_MEDIANS_US),
            list(THESIS_MEDIANS_US.values()),
            color="black",
            marker="s",
            label="thesis, table 3.4 (clean)",
        )
        axes.set_yscale("log")
        axes.set_xticks(ORDERS, [f"{order}\n{size_name(4096 << order)}" for order in ORDERS])
        axes.set_xlabel("order of the block, and its bytes")
        axes.set_ylabel("us a call; line: median, band: p5 to p95")
        axes.set_title(NAMES[name])
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    note = "The thesis measured hardware: where an emulator comes near its numbers, that is chance."
    title = "After figure 3.3: latency of a maintenance call by order"
    figure.suptitle(f"{title}\n{note}", fontsize=10)
    return "Latency by order", _save(figure, folder / "figure-3.3-order.png"), note


def distribution(measured: Sequence[Series], folder: Path) -> Drawn:
    """Figure 3.4: how the calls of each order are distributed."""
    names = [name for name in NAMES if _pick(measured, architecture=name, kind="order")]
    figure, grid = pyplot.subplots(
        len(ORDERS), len(names), figsize=(_width(names), 10), squeeze=False
    )
    for column, name in enumerate(names):
        wanted = {"architecture": name, "kind": "order", "program": "write_all", "op": "clean"}
        for row, series in enumerate(_pick(measured, **wanted)):
            axes = grid[row][column]
            values = [value / 1000 for value in series.durations_ns]
            low, high = series.percentile(0) / 1000, series.percentile(95) / 1000
            edges = [low * (max(high / low, 1.05) * 1.02) ** (i / 60) for i in range(61)]
            axes.hist(values, bins=edges, color=COLOURS["write_all"], alpha=0.75)
            median = series.percentile(50) / 1000
            axes.axvline(median, color="black", linewidth=1, label=f"median {_number(median)} us")
            axes.set_xscale("log")
            axes.set_xlim(edges[0] * 0.98, edges[-1] * 1.02)
            ticks = [low * (high / low) ** (i / 4) for i in range(5)] if high > low else [low]
            axes.set_xticks(ticks, [_number(tick) for tick in ticks], fontsize=8)
            axes.set_xticks([], minor=True)
            above = sum(value > high for value in values)
            axes.set_ylabel(f"order {series.cell.order}")
            axes.plot([], [], " ", label=f"n = {len(values)}; {above} above p95, not shown")
            axes.set_ylim(top=axes.get_ylim()[1] * 1.5)
            axes.legend(fontsize=7, loc="upper right")
        grid[0][column].set_title(NAMES[name])
        grid[-1][column].set_xlabel("us a call, logarithmic; calls up to p95")
    figure.suptitle("After figure 3.4: distribution of clean, write_all, by order", fontsize=10)
    note = "The slowest calls are mostly those in which the host took the CPU away."
    return "Distribution by order", _save(figure, folder / "figure-3.4-distribution.png"), note


def table(measured: Sequence[Series]) -> list[list[str]]:
    """Table 3.4: medians by order, the thesis' beside ours, each relative to its order 0 too."""
    names = [name for name in NAMES if _pick(measured, architecture=name, kind="order")]
    head = ["order", "block", "thesis us", "x order 0"]
    for name in names:
        head += [f"{name} us", "p5 to p95", "x order 0", f"{name} clean+invalidate us"]
    rows = [head]
    firsts: dict[str, float] = {}
    for order in ORDERS:
        said = THESIS_MEDIANS_US[order]
        row = [str(order), size_name(4096 << order), f"{said:g}"]
        row.append(f"{said / THESIS_MEDIANS_US[0]:.1f}")
        for name in names:
            wanted = {"architecture": name, "kind": "order", "program": "write_all", "order": order}
            (clean,) = _pick(measured, **wanted, op="clean")
            (both,) = _pick(measured, **wanted, op="clean+invalidate")
            median, low, high = (clean.percentile(p) / 1000 for p in (50, 5, 95))
            firsts.setdefault(name, median)
            row += [_number(median), f"{_number(low)} to {_number(high)}"]
            row += [f"{median / firsts[name]:.1f}", _number(both.percentile(50) / 1000)]
        rows.append(row)
    return rows


def contiguity(measured: Sequence[Series]) -> list[list[str]]:
    """What contiguous blocks save: maintenance of 16 MiB at an unmap, by the order of blocks."""
    names = [name for name in NAMES if _pick(measured, architecture=name, kind="order")]
    rows = [["order", "calls", "thesis ms", *(f"{name} ms" for name in names)]]
    for order in ORDERS:
        calls = ORDER_BYTES // (PAGE_BYTES << order)
        row = [str(order), str(calls), _number(calls * THESIS_MEDIANS_US[order] / 1000)]
        for name in names:
            wanted = {"architecture": name, "kind": "order", "program": "write_all", "order": order}
            (clean,) = _pick(measured, **wanted, op="clean")
            row.append(_number(unmaps_of(clean).percentile(50) / 1e6))
        rows.append(row)
    return rows


def _number(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{value:.{max(2 - math.floor(math.log10(max(value, 1e-3))), 0)}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


# Why the shape is another one than that of the thesis.
ACCOUNT = (
    "Ours grow nearly with the bytes from the first page on; those of the thesis twofold up to "
    "64 KiB and with the bytes from there on, at 0.24 to 0.29 us a KiB. What is left of its median "
    "at order 0 without the lines of a page, some 9 us, is what a call costs by itself on that "
    "hardware. Here it is some hundred emulated instructions, next to which the five of each line "
    "weigh more: so table 3.4's first rows are not to be had from an emulator, and that the last "
    "ones of arm64 come near is chance. x86-64 is lower, since its lines take less of the host."
)


def page(
    folder: Path,
    drawn: Sequence[Drawn],
    tables: Sequence[tuple[str, str, Sequence[Sequence[str]]]],
    facts: str,
) -> Path:
    """One HTML file with everything in it; a table has a title, a text and rows."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)

    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Coherence laboratory</title>",
        "<style>body{font:15px/1.5 sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
        "td,th{padding:.2em .8em;text-align:right}th{border-bottom:1px solid}img{max-width:100%}"
        "strong{color:#a00000}pre{background:#f4f4f4;padding:1em;overflow:auto}</style>",
        f"<h1>Coherence laboratory</h1><p><strong>{html.escape(CAVEAT)}</strong></p>",
    ]
    for title, text, rows in tables:
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
        parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>")
        parts.append(f"<table><tr>{cells(rows[0], 'th')}</tr>{body}</table>")
    for title, path, note in drawn:
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(note)}</p>")
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    parts.append(f"<h2>Where and how</h2><pre>{html.escape(facts)}</pre></html>")
    target = folder / "index.html"
    target.write_text("\n".join(parts))
    return target


def draw(measured: Sequence[Series], folder: Path, facts: str) -> Path:
    """All figures, the table and the page."""
    drawn = [make(measured, folder) for make in (by_size, by_order, distribution)]
    rows, saved = table(measured), contiguity(measured)
    (folder / "table-3.4.md").write_text(f"{CAVEAT}\n\n{markdown(rows)}\n{markdown(saved)}")
    tables = [
        ("Medians by order", ACCOUNT, rows),
        (
            "With and without contiguous memory",
            "Maintenance of 16 MiB at an unmap, write_all, clean: median of the sums of its calls; "
            "of the thesis, calls times median.",
            saved,
        ),
    ]
    return page(folder, drawn, tables, facts)
