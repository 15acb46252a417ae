"""Rows of a list of objects: their times do not fit Python's datetime, so they are
integers, or text, and no row needs pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from farrow._values._listed import listed_rows

if TYPE_CHECKING:
    import farrow

# A nanosecond beyond what a datetime holds.
SEALED_AT = 1_700_000_000_000_000_001


def test_times_are_integers_of_nanoseconds_or_text() -> None:
    times = pa.array([SEALED_AT, None], pa.timestamp("ns", "UTC"))
    listed = pa.table({"name": ["a", None], "sealed_at": times, "bytes": [1, 2]})
    first, second = listed_rows(listed)
    assert first == {"name": "a", "sealed_at": SEALED_AT, "bytes": 1}
    assert second == {"name": None, "sealed_at": None, "bytes": 2}
    texts = [row["sealed_at"] for row in listed_rows(listed, times=pa.string())]
    assert texts == ["2023-11-14 22:13:20.000000001Z", None]
    assert listed_rows(listed.select(["bytes"])) == [{"bytes": 1}, {"bytes": 2}]


def test_a_list_of_a_node_becomes_rows(client: farrow.Client) -> None:
    client.put(b"bytes", "one")
    listed = client.list()
    (row,) = listed_rows(listed)
    assert set(row) == set(listed.column_names)
    assert row["sealed_at"] == listed["sealed_at"][0].value
