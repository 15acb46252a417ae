"""Laundering rings to plant: families, sizes and time spans as in IBM's HI-Small data.

The numbers below were counted over the 370 rings (3,209 rows) of ``HI-Small_Patterns.txt``
of the IBM AML data (CDLA-Sharing-1.0); no row of it is included.  Called only by ``generate``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ACCOUNTS_MIN", "FAMILIES", "ROWS_PER_RING", "Rings", "plant"]

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# HI-Small: 370 rings in 5,078,345 rows.
ROWS_PER_RING = 13_700
# A ring has up to 45 accounts; with fewer accounts than this in all, no ring is planted.
ACCOUNTS_MIN = 64

_DAY_MINUTES = 24 * 60


class Family(NamedTuple):
    """One family: its number among the 370 rings, and deciles (0 to 100 %) over its rings."""

    name: str
    rings: int
    sizes: tuple[int, ...]
    """Rows of a ring."""
    short_hours: tuple[float, ...]
    """First to last row, of rings of two or three rows."""
    long_hours: tuple[float, ...]
    """First to last row, of rings of four rows or more."""


# fmt: off
_TABLE = (
    Family("fan-in", 40, (1, 2, 2, 3, 6, 8, 10, 12, 13, 15, 16),
           (12, 16, 30, 39, 43, 49, 64, 79, 81, 84, 86),
           (61, 80, 84, 85, 87, 88, 91, 92, 94, 95, 96)),
    Family("fan-out", 48, (1, 1, 2, 2, 4, 7, 9, 11, 13, 14, 16),
           (3, 17, 29, 44, 57, 61, 62, 63, 70, 89, 96),
           (61, 70, 73, 80, 85, 88, 89, 91, 94, 95, 96)),
    Family("cycle", 54, (2, 2, 2, 3, 3, 4, 5, 7, 9, 10, 12),
           (2, 14, 23, 34, 47, 67, 68, 70, 72, 78, 89),
           (26, 52, 65, 73, 75, 82, 86, 89, 90, 91, 96)),
    Family("scatter-gather", 44, (2, 2, 2, 4, 7, 14, 18, 24, 26, 26, 32),
           (7, 25, 36, 41, 53, 60, 61, 79, 79, 80, 81),
           (36, 65, 80, 88, 90, 92, 93, 94, 95, 96, 96)),
    Family("gather-scatter", 51, (2, 2, 5, 6, 9, 14, 17, 21, 24, 26, 28),
           (0.4, 1, 2, 3, 3, 4, 5, 6, 7, 9, 12),
           (75, 104, 137, 142, 151, 159, 163, 171, 182, 186, 202)),
    Family("bipartite", 49, (1, 1, 1, 1, 2, 4, 6, 8, 10, 12, 15),
           (22, 23, 23, 24, 24, 24, 24, 25, 26, 28, 29),
           (9, 22, 31, 34, 35, 36, 38, 42, 43, 46, 47)),
    Family("stack", 43, (2, 2, 2, 2, 4, 10, 14, 15, 18, 24, 30),
           (1, 3, 9, 11, 13, 21, 27, 36, 44, 59, 69),
           (47, 72, 74, 80, 82, 86, 91, 93, 98, 104, 114)),
    Family("random", 41, (1, 1, 1, 1, 2, 3, 6, 8, 8, 10, 11),
           (2, 3, 9, 19, 21, 24, 26, 27, 32, 38, 46),
           (54, 63, 71, 77, 80, 81, 83, 86, 87, 89, 92)),
)
# fmt: on

FAMILIES: tuple[str, ...] = tuple(family.name for family in _TABLE)

# 5 of 54 real cycles do not run forwards in time.
_CYCLES_OUT_OF_ORDER = 0.09
# End of the first leg and start of the second, as shares of the span (rounded real means).
_SCATTER_UNTIL, _GATHER_FROM = 0.59, 0.52
_STACK_UNTIL = 0.42
_GATHERED_BY = 0.53


class Rings(NamedTuple):
    """The rows of all rings, in order of time; arrays of one length."""

    ring: _Ints
    """Number of the ring, from 0."""
    family: _Ints
    """Index into ``FAMILIES``."""
    minute: _Ints
    """Minutes since the start of the data."""
    sender: _Ints
    receiver: _Ints
    """Account numbers."""


def plant(random: np.random.Generator, count: int, accounts: int, days: int) -> Rings:
    """Make ``count`` rings that begin within ``days`` days, among ``accounts`` accounts."""
    shares = np.array([family.rings for family in _TABLE], dtype=np.float64)
    families = random.choice(len(_TABLE), size=count, p=shares / shares.sum())
    starts = random.integers(0, days * _DAY_MINUTES, size=count)
    parts = [
        _ring(random, _TABLE[families[number]], accounts, number, int(families[number]), start)
        for number, start in enumerate(starts.tolist())
    ]
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Rings(none, none, none, none, none)
    merged = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(merged[2], kind="stable")
    return Rings(*(column[order] for column in merged))


def _ring(
    random: np.random.Generator, family: Family, accounts: int, number: int, code: int, start: int
) -> tuple[_Ints, ...]:
    """Ring number, family, minutes, senders and receivers of one ring's rows."""
    tenths = np.linspace(0.0, 1.0, 11)
    size = round(float(np.interp(random.random(), tenths, family.sizes)))
    sender, receiver, when = _shape(random, family.name, size, accounts)
    size = len(sender)
    hours = family.short_hours if size <= 3 else family.long_hours
    span = 0.0 if size == 1 else 60.0 * float(np.interp(random.random(), tenths, hours))
    # The first row begins the span, the last one ends it.
    when = (when - when.min()) / max(float(np.ptp(when)), 1e-9)
    minute = start + np.round(when * span).astype(np.int64)
    if family.name in ("cycle", "random"):
        minute = _increasing(minute)
        if random.random() < _CYCLES_OUT_OF_ORDER:
            minute = random.permutation(minute)
    return np.full(size, number), np.full(size, code), minute, sender, receiver


def _shape(
    random: np.random.Generator, name: str, size: int, accounts: int
) -> tuple[_Ints, _Ints, _Floats]:
    """Senders, receivers and moments (shares of the span) of a ring of about ``size`` rows."""
    if name in ("scatter-gather", "stack"):
        return _two_legs(random, name, max(size // 2, 1), accounts)
    when = np.sort(random.random(size))
    if name == "gather-scatter":
        gathered = int(random.integers(1, size)) if size > 1 else 1
        who = _members(random, accounts, size + 1)
        hub = np.full(size, who[0])
        gather = np.arange(size) < gathered
        when = np.where(
            gather,
            random.random(size) * _GATHERED_BY,
            _GATHERED_BY + random.random(size) * (1 - _GATHERED_BY),
        )
        return np.where(gather, who[1:], hub), np.where(gather, hub, who[1:]), when
    if name == "bipartite":  # as in IBM's data: pairs of accounts that share only the time
        who = _members(random, accounts, 2 * size)
        return who[:size], who[size:], when
    if name == "cycle":
        who = _members(random, accounts, size)
        return who, np.roll(who, -1), when
    who = _members(random, accounts, size + 1)
    if name == "random":  # a walk
        return who[:-1], who[1:], when
    hub = np.full(size, who[0])
    return (who[1:], hub, when) if name == "fan-in" else (hub, who[1:], when)


def _two_legs(
    random: np.random.Generator, name: str, middles: int, accounts: int
) -> tuple[_Ints, _Ints, _Floats]:
    """Rows in two legs over ``middles`` accounts, leg by leg."""
    if name == "stack":
        who = _members(random, accounts, 3 * middles).reshape(3, middles)
        first, middle, last = who
        scatter = random.random(middles) * _STACK_UNTIL
        gather = scatter + (1 - scatter) * random.random(middles)
    else:
        who = _members(random, accounts, middles + 2)
        middle = who[2:]
        first, last = np.full(middles, who[0]), np.full(middles, who[1])
        scatter = random.random(middles) * _SCATTER_UNTIL
        # As in the real rings, a tenth of the middles pay before they are paid.
        gather = _GATHER_FROM + random.random(middles) * (1 - _GATHER_FROM)
    return (
        np.concatenate([first, middle]),
        np.concatenate([middle, last]),
        np.concatenate([scatter, gather]),
    )


def _members(random: np.random.Generator, accounts: int, count: int) -> _Ints:
    """Distinct account numbers, int64 of shape (count,)."""
    # Drawing a few more is much cheaper than a permutation of all accounts.
    while True:
        drawn = np.unique(random.integers(0, accounts, size=count + 8))
        if len(drawn) >= count:
            chosen: _Ints = random.permutation(drawn)[:count]
            return chosen


def _increasing(minute: _Ints) -> _Ints:
    """The same minutes in order, ties moved to the next free one."""
    places = np.arange(len(minute))
    moved: _Ints = np.maximum.accumulate(np.sort(minute) - places) + places
    return moved
