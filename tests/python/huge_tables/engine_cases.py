"""Random tables of the types that filters know, and random filters over them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = dt.datetime(2020, 1, 1)
LETTERS = ["", "a", "b", "ab", "\u00e9", "\U0010ffff", "z" * 40, "z" * 39 + "y", "\ud7ff" * 20]


def _decimal(rng: random.Random) -> decimal.Decimal:
    return decimal.Decimal(rng.randrange(-3000, 3000)).scaleb(-2)


def _float(rng: random.Random) -> float:
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0]
    return rng.choice(special) if rng.random() < 0.1 else rng.uniform(-5, 5)


def _time(rng: random.Random) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=rng.randrange(-100_000, 100_000))


def _zoned(rng: random.Random) -> dt.datetime:
    return _time(rng).replace(tzinfo=dt.timezone.utc)


def _text(rng: random.Random) -> str:
    return rng.choice(LETTERS) + rng.choice(LETTERS)


def _signed(rng: random.Random) -> int:
    return rng.randrange(-60, 60)


def _unsigned(rng: random.Random) -> int:
    return rng.randrange(120)


# Type, a value of it, and whether Arrow orders such columns in a filter.
KINDS: list[tuple[pa.DataType, Callable[[random.Random], Any]]] = [
    *[(kind, _signed) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    *[(kind, _unsigned) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())],
    (pa.float32(), _float),
    (pa.float64(), _float),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.string(), _text),
    (pa.large_string(), _text),
    (pa.binary(), lambda rng: rng.choice([b"", b"\xff" * 40, b"\0", _text(rng).encode()])),
    (pa.binary(3), lambda rng: rng.choice([b"abc", b"abd", b"\xff\xff\xff", b"\0\0\0"])),
    (pa.decimal128(10, 2), _decimal),
    (pa.decimal256(40, 2), _decimal),
    (pa.date32(), lambda rng: _time(rng).date()),
    (pa.date64(), lambda rng: _time(rng).date()),
    (pa.timestamp("s"), _time),
    (pa.timestamp("ns"), _time),
    (pa.timestamp("us", "UTC"), _zoned),
    (pa.timestamp("ms", "Europe/Berlin"), _zoned),
    (pa.time32("s"), lambda rng: dt.time(rng.randrange(24), 5)),
    (pa.time64("us"), lambda rng: dt.time(rng.randrange(24), 5)),
    (pa.duration("ms"), lambda rng: dt.timedelta(seconds=_signed(rng))),
    (pa.dictionary(pa.int8(), pa.string()), _text),
    (pa.dictionary(pa.int32(), pa.int64()), _signed),
    (pa.dictionary(pa.uint8(), pa.float64()), _float),
    (pa.dictionary(pa.int16(), pa.timestamp("us", "UTC")), _zoned),
    (pa.dictionary(pa.int64(), pa.decimal128(10, 2)), _decimal),
    (pa.string_view(), _text),
    (pa.binary_view(), lambda rng: _text(rng).encode()),
    (pa.large_binary(), lambda rng: _text(rng).encode()),
    (pa.decimal32(7, 2), _decimal),
    (pa.decimal64(12, 2), _decimal),
    (pa.time32("ms"), lambda rng: dt.time(rng.randrange(24), 5)),
    (pa.time64("ns"), lambda rng: dt.time(rng.randrange(24), 5)),
    (pa.timestamp("ms"), _time),
    (pa.timestamp("ns", "America/New_York"), _zoned),
    (pa.duration("ns"), lambda rng: dt.timedelta(seconds=_signed(rng))),
    (pa.null(), lambda _: None),
    (pa.list_(pa.int64()), lambda rng: [_signed(rng)] * rng.randrange(3)),
    (pa.large_list(pa.string()), lambda rng: [_text(rng)] * rng.randrange(3)),
    (pa.list_(pa.float32(), 2), lambda rng: [_float(rng), _float(rng)]),
    (pa.map_(pa.string(), pa.int64()), lambda rng: [(_text(rng), _signed(rng))]),
]
# Those whose sorted chunks are read in part.
RANGED = [
    one
    for one in KINDS
    if pa.types.is_integer(one[0]) or pa.types.is_timestamp(one[0]) or pa.types.is_date(one[0])
]
# Columns that are filtered by nulls only: Arrow compares no such values.
NESTED = (pa.types.is_nested, pa.types.is_null)


def _has_order(values: list[Any]) -> bool:
    return all(value is not None and value == value for value in values)


class RandomTable:
    """Chunks of a table with columns of random types, sorted or not, with and without nulls."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kinds = [self.rng.choice(RANGED), *self.rng.sample(KINDS, 3)]
        names = [f"c{number}" for number in range(len(self.kinds))]
        fields = [pa.field(name, kind) for name, (kind, _) in zip(names, self.kinds, strict=True)]
        inner, self.inner = self.rng.choice(KINDS[:19])
        fields.append(pa.field("s", pa.struct([pa.field("x", inner)])))
        self.schema = pa.schema(fields)
        self.chunks = [self._chunk() for _ in range(self.rng.randrange(1, 7))]

    def _chunk(self) -> pa.RecordBatch:
        rows = self.rng.choice([1, 2, 5, 30])
        columns = [self._column(kind, make, rows) for kind, make in self.kinds]
        child = self._column(self.schema.field("s").type.field(0).type, self.inner, rows)
        mask = pa.array([self.rng.random() < 0.1 for _ in range(rows)])
        field = self.schema.field("s").type.field(0)
        columns.append(pa.StructArray.from_arrays([child], fields=[field], mask=mask))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        # A part of longer buffers, as slices and imports have them.
        return batch.slice(1) if rows == 30 else batch

    def _column(self, kind: pa.DataType, make: Callable[..., Any], rows: int) -> pa.Array:
        nulls = self.rng.choice([0.0, 0.0, 0.3, 1.0])
        common = make(self.rng) if self.rng.random() < 0.3 else None
        values = [make(self.rng) if common is None else common for _ in range(rows)]
        holes = [None if self.rng.random() < nulls else value for value in values]
        if self.rng.random() < 0.4 and not pa.types.is_nested(kind) and _has_order(holes):
            holes.sort(reverse=self.rng.random() < 0.4)
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.array(holes, plain)
        return array.dictionary_encode().cast(kind) if plain != kind else array

    def filter(self) -> pc.Expression:
        """A random filter: comparisons, null tests and lists of values, joined."""
        if self.rng.random() < 0.3:
            return self._range()
        expression = self._term()
        for _ in range(self.rng.randrange(3)):
            other = self._term()
            expression = expression & other if self.rng.random() < 0.6 else expression | other
        return ~expression if self.rng.random() < 0.15 else expression

    def _range(self) -> pc.Expression:
        """Comparisons of the first column, as engines make them of a range."""
        kind, make = self.kinds[0]
        field = pc.field("c0")
        low, high = (pa.scalar(make(self.rng), kind) for _ in range(2))
        least = field > low if self.rng.random() < 0.5 else field >= low
        most = field < high if self.rng.random() < 0.5 else field <= high
        shape = self.rng.randrange(4)
        if shape == 0:
            return field == low
        if shape == 1:
            return self.rng.choice([least, most])
        return least & most if shape == 2 else (least & most) & field.is_valid()

    def _term(self) -> pc.Expression:
        number = self.rng.randrange(len(self.kinds) + 1)
        if number == len(self.kinds):
            field, make = pc.field("s", "x"), self.inner
            kind = self.schema.field("s").type.field(0).type
        else:
            field = pc.field(f"c{number}")
            kind, make = self.kinds[number]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        choice = self.rng.random()
        if any(is_so(kind) for is_so in NESTED):
            choice /= 5
        if choice < 0.1:
            return field.is_null()
        if choice < 0.2:
            return field.is_valid()
        if choice < 0.3:
            values = pa.array([make(self.rng) for _ in range(3)], kind)
            return field.isin(values)
        value = pa.scalar(make(self.rng), kind)
        compare = self.rng.choice(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
        term: pc.Expression = getattr(field, compare)(value)
        return ~term if self.rng.random() < 0.2 else term
