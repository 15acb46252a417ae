"""The report: what it counts, which patterns it keeps, and that its page stands alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pyarrow as pa
import pytest

from farrow.graph import _svg, data, report
from farrow.graph._found import Largest, drawn


def patterns(*rows: tuple[str, int, int, list[int], list[int]]) -> pa.Table:
    names = ("kind", "size", "trigger", "accounts", "edges")
    columns = list(zip(*rows, strict=True))
    lists = [pa.array(column, pa.list_(pa.int64())) for column in columns[3:]]
    return pa.table([*columns[:3], *lists], names=list(names))


@pytest.fixture
def read() -> data.Transactions:
    """A pays x twice, b and itself; everybody pays a; names that are markup."""
    return data.from_table(
        pa.table(
            {
                "source": ["<a>", "<a>", "<a>", "<a>", "x", "b"],
                "target": ["x", "x", "b", "<a>", "<a>", "<a>"],
                "timestamp": [0, 60, 1_600_000_000, 1_600_000_060, 1_600_000_120, 1_600_000_180],
                "amount": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            }
        )
    )


def test_distributions() -> None:
    counts = report.Distributions(["fan_in[2]", "fan_in[3]", "ratio"])
    counts.add(np.array([[1.0, 0.0, -2.0], [0.0, 0.0, -3.0]]))
    counts.add(np.zeros((0, 3)))
    counts.add(np.array([[4.0, 0.0, 0.0]]))
    assert counts.rows == 3
    assert counts.nonzero.tolist() == [2, 0, 2]
    assert counts.largest.tolist() == [4.0, 0.0, 0.0]
    assert counts.blocks() == {"fan_in": [0, 1], "ratio": [2]}
    with pytest.raises(ValueError, match="2 columns where 3"):
        counts.add(np.zeros((1, 2)))


def test_largest_keeps_one_of_each_centre() -> None:
    largest = Largest(2)
    largest.add(
        patterns(
            ("fan_in", 2, 1, [9, 1, 2], [0, 1]),
            ("fan_in", 3, 2, [9, 1, 2, 3], [0, 1, 2]),  # the same one, grown
            ("temp-cycle", 3, 2, [1, 2, 3], [3, 4, 5]),
        )
    )
    largest.add(
        patterns(
            ("fan_in", 2, 1, [9, 1, 2], [0, 1]),
            ("fan_in", 4, 2, [8, 1, 2, 3, 4], [0, 1, 2, 3]),
            ("fan_in", 2, 2, [7, 1, 2], [0, 1]),
            ("temp-cycle", 3, 2, [2, 3, 1], [6, 7, 8]),  # the same accounts
            ("scatter-gather", 2, 2, [5, 6, 1, 2], [0, 1, 2, 3]),
            ("scatter-gather", 3, 2, [5, 6, 1, 2, 3], [0, 1, 2, 3]),
        )
    )
    retained = [(row["kind"], row["size"], row["accounts"][0]) for row in largest.all()]
    assert retained == [
        ("fan_in", 4, 8),
        ("fan_in", 3, 9),
        ("scatter-gather", 3, 5),
        ("temp-cycle", 3, 1),
    ]
    assert Largest(2).all() == []


def test_patterns_are_drawn_with_their_payments(read: data.Transactions) -> None:
    found = [
        {"kind": "fan_out", "size": 2, "trigger": 2, "accounts": [0, 1, 2], "edges": [0, 1, 2, 3]},
        {"kind": "temp-cycle", "size": 2, "trigger": 4, "accounts": [0, 1], "edges": [1, 4]},
    ]
    fan, cycle = drawn(read, found)
    assert fan.accounts == ("<a>", "x", "b")
    assert [(hop.source, hop.target, hop.payments, hop.is_trigger) for hop in fan.hops] == [
        ("<a>", "x", 2, False),
        ("<a>", "b", 1, True),
        ("<a>", "<a>", 1, False),
    ]
    assert fan.hops[0].label.splitlines() == ["<a> to x", "t = 0  1.00", "t = 60  2.00"]
    assert "t = 0 to 2020-09-13 12:27" in fan.caption
    assert fan.caption.startswith("4 payments, 3 accounts")
    assert [(hop.source, hop.target) for hop in cycle.hops] == [("<a>", "x"), ("x", "<a>")]


@pytest.mark.parametrize(
    "kind", ["fan_in", "fan_out", "gather-scatter", "scatter-gather", "temp-cycle", "lc-cycle"]
)
@pytest.mark.parametrize("middles", [1, 5, 80])
def test_every_drawing_is_valid_and_bounded(kind: str, middles: int) -> None:
    names = [f"<{number}>&" for number in range(middles + 2)]
    hops = [_svg.Hop(names[0], name, "l<", 3) for name in names[1:]]
    hops += [_svg.Hop(name, names[1], "l", 1, True) for name in names[2:]]
    hops += [_svg.Hop(names[0], names[0], "loop", 1), _svg.Hop(names[1], names[0], "back", 9)]
    root = ElementTree.fromstring(_svg.drawing(kind, names, hops, size=250))
    dots = [item for item in root.iter("circle") if item.get("class") in ("node", "centre")]
    assert 2 <= len(dots) <= 24
    assert all(0 < float(dot.get("cx", "-1")) < 250 for dot in dots)
    assert all(0 < float(dot.get("cy", "-1")) < 250 for dot in dots)
    text = " ".join(item.text or "" for item in root.iter("text"))
    assert ("more accounts" in text) == (len(dots) < len(names))


def test_charts_are_valid() -> None:
    for counts in ([], [0.0, 0.0], [1.0, 10.0, 12_345_678.0]):
        names = [f"n{place}" for place in range(len(counts))]
        root = ElementTree.fromstring(_svg.bars(names, counts))
        assert len(list(root.iter("rect"))) == len(counts)
    for points in ([], [(10.0, 5.0)], [(0.0, 0.0)], [(x * 1e6, 1e5 / (x + 1)) for x in range(9)]):
        ElementTree.fromstring(_svg.line(points))
    assert [_svg.human(value) for value in (0, 12, 12_345, 4.56e6, 7.2e9)] == [
        "0",
        "12",
        "12.3 k",
        "4.56 M",
        "7.2 G",
    ]


def test_page_stands_alone(read: data.Transactions) -> None:
    counts = report.Distributions(["fan_in[2]", "fan_in[3]"])
    counts.add(np.ones((1_000, 2)))
    found = [{"kind": "fan_out", "size": 2, "trigger": 2, "accounts": [0, 1, 2], "edges": [0, 2]}]
    run = report.StreamRun(
        "<title>",
        {"window": "<24h>"},
        counts,
        [(number * 10, 0.001) for number in range(1, 101)],
        {"edges": 7, "bytes": 448, "cut_short": {"fan_in": 2}, "now": 5},
        drawn(read, found),
    )
    page = report.page(run)
    assert "1,000" in page
    assert "10,000" in page.replace("1,000,000", "")  # ten rows in a millisecond
    assert "searches cut short" in page
    assert "&lt;a&gt; to b" in page
    assert "&lt;24h&gt;" in page
    assert "<a>" not in page
    assert not re.search(r"(https?:|//|url\(|<script|<link|<img|@import)", page)
    bare = report.page(report.StreamRun("t", {}, counts, [], {}))
    assert "nothing was measured" in bare
    assert "none was found" in bare
