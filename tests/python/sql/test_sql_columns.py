"""Columns whose chunks have dictionaries with nulls, as DataFusion makes them of ``array_agg``:
Arrow joins no such chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("datafusion")
pytest.importorskip("farrow_sql")


def words(*of: str | None) -> pa.Array:
    """Two of the words, the other one, and a null that is none of the words."""
    return pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None], pa.int32()), pa.array(of))


def lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1, None, 4], pa.int32()), values)


def structs(values: pa.Array) -> pa.Array:
    nulls = pa.array([False, True, False, False])
    return pa.StructArray.from_arrays([values], ["word"], mask=nulls)


@pytest.mark.parametrize(
    "of",
    [
        lambda values: values,
        lists,
        structs,
        lambda values: lists(structs(values)),
        lambda values: values.slice(1),
        lambda values: lists(values).slice(1),
        lambda values: structs(values).slice(1),
    ],
)
def test_chunks_with_dictionaries_with_nulls(of: Callable[[pa.Array], pa.Array]) -> None:
    from farrow_sql._columns import Column

    values = pa.chunked_array([of(words("a", None)), of(words(None, "b")), of(words("c", "a"))])
    column = Column(values, 7)
    rows = range(7, 7 + len(values))
    found = column(pa.array(rows))
    found.validate(full=True)
    assert found.to_pylist() == values.to_pylist()
    # Not all rows, and in another order.
    found = column(pa.array([*rows][::-2]))
    assert found.to_pylist() == values.to_pylist()[::-2]
