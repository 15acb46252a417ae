"""A second generator of bank transactions, which shares no code with ``farrow.graph.generate``.

Ratios measured on one generated stream may be those of its generator.  This one has the published
statistics of IBM's HI-Small as well, by other means:

* times are drawn row by row and sorted;
* senders and receivers have Zipf-Mandelbrot weights, whose exponents are solved for the published
  share of the busiest accounts;
* a sender repeats an earlier payee of its own with a chance that gives five rows for each pair;
* money circulates in circles of friends of many sizes, of which each row takes two members;
* rings of laundering have simple shapes of the published sizes and spans.

HI-Small does not publish how money circulates.  Here it is a choice; it was not compared with how
fast snapml is on HI-Small itself, as that of the first generator was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    _Ints = npt.NDArray[np.int64]
    _Floats = npt.NDArray[np.float64]

__all__ = ["DAY", "transfers"]

DAY = 86_400
# 1 September 2022, a Thursday.
_START = 1_661_990_400
_FIRST_WEEKDAY = 3
_ROWS_PER_ACCOUNT = 10
# A day's rows, of those of a working day: Saturday and Sunday, the first Friday, later ones.
_WEEKEND, _FIRST_FRIDAY, _FRIDAY = 0.43, 1.55, 1.35
# The first half hour: share of all rows, and of self-loops in it; of self-loops elsewhere.
_BURST_SECONDS, _BURST_SHARE, _BURST_LOOPS, _CALM_LOOPS = 1800, 0.10, 0.72, 0.025
# Shares of the busiest senders, and of rows that pay one of them.
_HUBS = (0.033, 0.020, 0.004, 0.0037, 0.0034, 0.0027, 0.0027)
_HUBS_PAID = 0.0005
# Share of the busiest hundredth of accounts among the other senders, and among receivers.
_SENDERS_TOP, _RECEIVERS_TOP = 0.16, 0.10
# Rows for each pair of accounts.
_PER_PAIR = 5
# Circles: share of rows and of accounts in them, and their sizes.
_CIRCLE_ROWS, _CIRCLE_ACCOUNTS, _CIRCLE_SIZES = 0.06, 0.04, (6, 24)
# Rings: one for so many rows; rows of one, and hours from its first to its last (published means).
_RING_EVERY, _RING_ROWS, _RING_HOURS = 13_700, 8.7, (24, 96)


def transfers(
    rows: int, *, seed: int = 11, days: int = 10, accounts: int | None = None
) -> npt.NDArray[np.int64]:
    """Rows of edge id, source, target and epoch second (whole minutes), sorted by time.

    Args:
        rows: number of rows, a thousand or more.
        seed: equal arguments give equal arrays.
        days: days of the stream.
        accounts: number of accounts; default: a tenth of the rows.

    Returns:
        int64 of shape (4, rows).

    Raises:
        ValueError: too few rows or accounts.
    """
    accounts = rows // _ROWS_PER_ACCOUNT if accounts is None else accounts
    if rows < 1000 or accounts < 100:
        raise ValueError(f"{rows} rows and {accounts} accounts; 1000 and 100 are the least")
    random = np.random.Generator(np.random.SFC64(seed))
    second = _times(random, rows, days)
    # Ranks are shuffled into numbers, so that a busy account is nowhere in particular.
    number = random.permutation(accounts)
    source = _senders(random, rows, accounts)
    target = _payees(random, source, accounts)
    _circle(random, source, target, accounts)
    paid = np.flatnonzero(random.random(rows) < _HUBS_PAID)
    target[paid] = random.choice(len(_HUBS), size=len(paid), p=np.array(_HUBS) / sum(_HUBS))
    burst = second < _BURST_SECONDS
    loops = np.flatnonzero(random.random(rows) < np.where(burst, _BURST_LOOPS, _CALM_LOOPS))
    # Accounts reinvest in turn.
    source[loops] = np.arange(len(loops)) % accounts
    target[loops] = source[loops]
    chance = np.flatnonzero((source == target) & ~np.isin(np.arange(rows), loops))
    target[chance] = (target[chance] + 1) % accounts
    _plant(random, second, source, target, accounts)
    return np.stack([np.arange(rows), number[source], number[target], _START + second // 60 * 60])


def _times(random: np.random.Generator, rows: int, days: int) -> _Ints:
    """Seconds since the start, sorted: a day, then a time of it."""
    weekday = (_FIRST_WEEKDAY + np.arange(days)) % 7
    weight = np.select([weekday >= 5, weekday == 4], [_WEEKEND, _FRIDAY], 1.0)
    if days > 1:
        weight[1] = _FIRST_FRIDAY
    day = random.choice(days, size=rows, p=weight / weight.sum())
    # Half of the rows at any time, half around noon.
    noon = random.normal(13.0, 3.5, rows) % 24
    hour = np.where(random.random(rows) < 0.5, random.random(rows) * 24, noon)
    found = (day * DAY + hour * 3600).astype(np.int64)
    burst = random.random(rows) < _BURST_SHARE
    found[burst] = random.integers(0, _BURST_SECONDS, size=int(burst.sum()))
    found.sort()
    return found


def _weights(count: int, top: float) -> _Floats:
    """Falling weights whose first hundredth has the share ``top``; they sum to 1."""
    first = max(1, count // 100)
    rank = np.arange(1, count + 1) + count / 1000
    low, high = 0.0, 4.0
    # Halving forty times ends below the precision of a share.
    for _ in range(40):
        middle = (low + high) / 2
        weight = rank**-middle
        low, high = (middle, high) if weight[:first].sum() < top * weight.sum() else (low, middle)
    weight = rank**-low
    return weight / weight.sum()


def _drawn(random: np.random.Generator, weight: _Floats, count: int) -> _Ints:
    ends = np.cumsum(weight)
    found = np.searchsorted(ends, random.random(count) * ends[-1], side="right")
    return np.minimum(found, len(weight) - 1).astype(np.int64)


def _senders(random: np.random.Generator, rows: int, accounts: int) -> _Ints:
    # Rows of circles and loops take their sender from elsewhere.
    loops = _BURST_SHARE * _BURST_LOOPS + (1 - _BURST_SHARE) * _CALM_LOOPS
    hubs = np.array(_HUBS) / ((1 - loops) * (1 - _CIRCLE_ROWS))
    others = _weights(accounts - len(hubs), _SENDERS_TOP) * (1 - hubs.sum())
    return _drawn(random, np.concatenate([hubs, others]), rows)


def _payees(random: np.random.Generator, source: _Ints, accounts: int) -> _Ints:
    """A new payee, or that of an earlier row of the same sender."""
    rows = len(source)
    target = random.permutation(accounts)[_drawn(random, _weights(accounts, _RECEIVERS_TOP), rows)]
    # The rows of a sender, one after the other.
    order = np.argsort(source, kind="stable")
    starts = np.flatnonzero(np.diff(source[order], prepend=-1))
    place = np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))
    # Senders with few rows have few to repeat; those with many make up for it.
    again = (place > 0) & (random.random(rows) < 1 - 1 / _PER_PAIR)
    back = 1 + (random.random(rows) * place).astype(np.int64)
    from_ = np.arange(rows) - np.where(again, back, 0)
    # Follow repeats of repeats to the row that chose.
    while not np.array_equal(further := from_[from_], from_):
        from_ = further
    found = np.empty_like(target)
    found[order] = target[order][from_]
    return found


def _circle(random: np.random.Generator, source: _Ints, target: _Ints, accounts: int) -> None:
    """Some rows are between two members of a circle; circles lie among less busy accounts."""
    least, most = _CIRCLE_SIZES
    first, members = accounts // 10, int(accounts * _CIRCLE_ACCOUNTS)
    sizes = random.integers(least, most + 1, size=max(1, 2 * members // (least + most)))
    begins = first + np.cumsum(sizes) - sizes
    at = np.flatnonzero(random.random(len(source)) < _CIRCLE_ROWS)
    # A larger circle has more rows.
    which = random.choice(len(sizes), size=len(at), p=sizes / sizes.sum())
    size = sizes[which]
    one = (random.random(len(at)) * size).astype(np.int64)
    step = 1 + (random.random(len(at)) * (size - 1)).astype(np.int64)
    source[at] = begins[which] + one
    target[at] = begins[which] + (one + step) % size


def _plant(
    random: np.random.Generator, second: _Ints, source: _Ints, target: _Ints, accounts: int
) -> None:
    """Rings, in the rows nearest to their times."""
    for number in range(len(second) // _RING_EVERY):
        size = 2 + int(random.geometric(1 / (_RING_ROWS - 1)))
        span = random.uniform(*_RING_HOURS) * 3600
        begin = random.random() * max(1.0, float(second[-1]) - span)
        at = np.searchsorted(second, np.sort(begin + random.random(size) * span))
        at = np.unique(np.minimum(at, len(second) - 1))
        pairs = _ring(number % 4, len(at), random.choice(accounts, size=len(at) + 2, replace=False))
        source[at], target[at] = pairs[0][: len(at)], pairs[1][: len(at)]


def _ring(shape: int, size: int, who: _Ints) -> tuple[_Ints, _Ints]:
    """A fan out, a fan in, a cycle, or a scatter and then a gather, of ``size`` rows."""
    if shape == 0:
        return np.full(size, who[0]), who[1 : size + 1]
    if shape == 1:
        return who[1 : size + 1], np.full(size, who[0])
    if shape == 2:
        return who[:size], np.append(who[1:size], who[0])
    half = (size + 1) // 2
    between = who[2 : half + 2]
    return (
        np.concatenate([np.full(half, who[0]), between]),
        np.concatenate([between, np.full(half, who[1])]),
    )
