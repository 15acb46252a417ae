"""A seeded generator of bank transactions, for demos, tests and benchmarks.

The columns are those of the IBM AML transaction files (timestamp, sending and receiving
bank and account, amounts and currencies on both sides, payment format, a laundering flag);
no row comes from a real file.  What makes such data awkward is kept:

* a few accounts take part in a large share of all transfers, most in one or two
  (a power law over account ranks);
* amounts are log-normal, from cents to millions;
* the day has a rhythm, the week has a weekend, day one holds a burst of reinvestments;
* a small share of the rows belongs to planted rings (cycles, fan-in, fan-out), spread over
  a few days and flagged.

The same ``rows`` and ``seed`` give the same table on every machine.  A million rows take
well under a second; writing them as CSV takes another one.

Example:
    >>> table = transactions(1_000, seed=7)
    >>> table.num_rows, table.column_names[0], table.column_names[-1]
    (1000, 'timestamp', 'is laundering')
    >>> table.equals(transactions(1_000, seed=7))
    True
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["COLUMNS", "transactions", "write"]

COLUMNS: tuple[str, ...] = (
    "timestamp",
    "from bank",
    "from account",
    "to bank",
    "to account",
    "amount received",
    "receiving currency",
    "amount paid",
    "payment currency",
    "payment format",
    "is laundering",
)

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# First minute of the data and its span: 18 days from 1 September 2022.
_START = np.datetime64("2022-09-01T00:00", "m")
_DAYS = 18
_DAY_MINUTES = 24 * 60

# Rows per account: HI-Small, the smallest IBM file, has about 5 M rows and 0.5 M accounts.
_ROWS_PER_ACCOUNT = 10
# Exponent of rank = accounts * u**_SKEW; 3 gives the busiest 1 % of accounts 21 % of the rows.
_SKEW = 3.0
# One ring for so many rows, of 4 to 16 transfers: about 0.1 % of rows are flagged.
_ROWS_PER_RING = 10_000
_RING_SIZES = (4, 17)
_RING_DAYS = 4

_CURRENCIES = ("US Dollar", "Euro", "Yuan", "Yen", "Rupee", "UK Pound", "Swiss Franc", "Bitcoin")
_CURRENCY_SHARE = (0.42, 0.26, 0.09, 0.06, 0.06, 0.05, 0.04, 0.02)
# Units of the currency that buy one US dollar (fixed; only the order of size matters).
_RATE = np.array([1.0, 0.92, 7.1, 145.0, 83.0, 0.79, 0.88, 0.000_02])

_FORMATS = ("Cheque", "Credit Card", "ACH", "Cash", "Reinvestment", "Wire", "Bitcoin")
_FORMAT_SHARE = (0.37, 0.26, 0.12, 0.10, 0.09, 0.04, 0.02)
_FORMAT_ACH = _FORMATS.index("ACH")
_FORMAT_REINVEST = _FORMATS.index("Reinvestment")
_FORMAT_BITCOIN = _FORMATS.index("Bitcoin")
_CURRENCY_BITCOIN = _CURRENCIES.index("Bitcoin")
_CROSS_CURRENCY_SHARE = 0.015


def transactions(rows: int, *, seed: int = 7) -> pa.Table:
    """Make a table of ``rows`` transactions, sorted by time.

    Args:
        rows: number of rows, 0 or more.
        seed: any non-negative integer; equal seeds give equal tables.

    Returns:
        A table with the columns ``COLUMNS`` and ``rows`` rows in one chunk:
        ``timestamp`` is timestamp[s] (whole minutes), banks are int32, accounts are strings
        of nine hexadecimal digits, amounts are float64 with at most two decimals (six for
        Bitcoin) in units of their currency, currencies and format are strings, and
        ``is laundering`` is int8, 0 or 1.

    Raises:
        ValueError: ``rows`` is negative.
    """
    if rows < 0:
        raise ValueError(f"rows is {rows}; it must be 0 or more")
    random = np.random.default_rng(seed)
    accounts = max(16, rows // _ROWS_PER_ACCOUNT)
    minute = _minutes(random, rows)
    sender = _ranks(random, rows, accounts)
    receiver = _ranks(random, rows, accounts)
    how = random.choice(len(_FORMATS), size=rows, p=_FORMAT_SHARE).astype(np.int64)
    flagged = np.zeros(rows, dtype=np.int8)
    _plant_rings(random, accounts, minute, sender, receiver, how, flagged)

    # A reinvestment stays where it is.
    receiver = np.where(how == _FORMAT_REINVEST, sender, receiver)
    order = np.argsort(minute, kind="stable")
    minute, sender, receiver = minute[order], sender[order], receiver[order]
    how, flagged = how[order], flagged[order]

    home_currency = random.choice(len(_CURRENCIES), size=accounts, p=_CURRENCY_SHARE)
    paid_in, received_in = _currencies(random, home_currency, sender, receiver, how)
    dollars = np.exp(random.normal(5.5, 2.4, size=rows)).clip(0.01, 5e8)
    bank_of, names = _accounts(random, accounts)
    return pa.table(
        [
            pa.array((_START + minute).astype("datetime64[s]")),
            pa.array(bank_of[sender]),
            names.take(pa.array(sender)),
            pa.array(bank_of[receiver]),
            names.take(pa.array(receiver)),
            pa.array(_amount(dollars, received_in)),
            _labels(_CURRENCIES, received_in),
            pa.array(_amount(dollars, paid_in)),
            _labels(_CURRENCIES, paid_in),
            _labels(_FORMATS, how),
            pa.array(flagged),
        ],
        names=list(COLUMNS),
    )


def write(path: str | os.PathLike[str], rows: int, *, seed: int = 7) -> Path:
    """Write ``transactions(rows, seed=seed)`` as a file.

    Args:
        path: where to; ``.csv`` (with a header, times as ``2022/09/01 00:20`` like the IBM
            files), ``.csv.gz``, or ``.parquet``.
        rows: number of rows, 0 or more.
        seed: seed of the generator.

    Returns:
        The path written.

    Raises:
        ValueError: the extension is none of the three, or ``rows`` is negative.
        OSError: the file cannot be written.
    """
    target = Path(path)
    name = target.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise ValueError(f"cannot write {target.name!r}: use .csv, .csv.gz or .parquet")
    table = transactions(rows, seed=seed)
    if name.endswith(".parquet"):
        pq.write_table(table, target, row_group_size=1 << 20)
        return target
    table = table.set_column(0, COLUMNS[0], _printed_minutes(table.column(0)))
    options = pacsv.WriteOptions(quoting_style="none", quoting_header="none")
    # "detect" compresses by the extension.
    with pa.output_stream(target, compression="detect") as sink:
        pacsv.write_csv(table, sink, write_options=options)
    return target


def _minutes(random: np.random.Generator, rows: int) -> _Ints:
    """Minutes since the start, int64 of shape (rows,): busy days, quiet nights and weekends."""
    day_weight = np.array([1.0 if (4 + day) % 7 < 5 else 0.45 for day in range(_DAYS)])
    # 1 September 2022 was a Thursday; IBM's day one is the fullest.
    day_weight[0] = 2.5
    hour_weight = 1.0 + 1.4 * np.exp(-(((np.arange(24) - 13.0) / 4.5) ** 2))
    day = random.choice(_DAYS, size=rows, p=day_weight / day_weight.sum())
    hour = random.choice(24, size=rows, p=hour_weight / hour_weight.sum())
    minute = random.integers(0, 60, size=rows)
    return (day * _DAY_MINUTES + hour * 60 + minute).astype(np.int64)


def _ranks(random: np.random.Generator, rows: int, accounts: int) -> _Ints:
    """Account numbers in [0, accounts), int64 of shape (rows,), heavy-tailed: 0 is busiest."""
    return (accounts * random.random(rows) ** _SKEW).astype(np.int64)


def _plant_rings(
    random: np.random.Generator,
    accounts: int,
    minute: _Ints,
    sender: _Ints,
    receiver: _Ints,
    how: _Ints,
    flagged: npt.NDArray[np.int8],
) -> None:
    """Overwrite a small share of the rows, in place, with cycles, fan-ins and fan-outs."""
    rows = len(minute)
    rings = rows // _ROWS_PER_RING
    if rings == 0:
        return
    largest = _RING_SIZES[1] - 1
    places = random.choice(rows, size=rings * largest, replace=False).reshape(rings, largest)
    sizes = random.integers(*_RING_SIZES, size=rings)
    families = random.integers(0, 3, size=rings)
    starts = random.integers(0, (_DAYS - _RING_DAYS) * _DAY_MINUTES, size=rings)
    for ring in range(rings):
        size = int(sizes[ring])
        at = places[ring, :size]
        members = random.choice(accounts, size=size + 1, replace=accounts <= size)
        if families[ring] == 0:  # cycle: each pays the next, the last pays the first
            sender[at], receiver[at] = members[:size], np.roll(members[:size], -1)
        elif families[ring] == 1:  # fan-in
            sender[at], receiver[at] = members[1:], members[0]
        else:  # fan-out
            sender[at], receiver[at] = members[0], members[1:]
        span = np.sort(random.integers(0, _RING_DAYS * _DAY_MINUTES, size=size))
        minute[at] = starts[ring] + span
        how[at] = _FORMAT_ACH
        flagged[at] = 1


def _currencies(
    random: np.random.Generator, home: _Ints, sender: _Ints, receiver: _Ints, how: _Ints
) -> tuple[_Ints, _Ints]:
    """Currency numbers paid and received, each int64 of shape (rows,)."""
    paid = np.where(how == _FORMAT_BITCOIN, _CURRENCY_BITCOIN, home[sender])
    crossing = (random.random(len(how)) < _CROSS_CURRENCY_SHARE) & (how != _FORMAT_REINVEST)
    return paid, np.where(crossing, home[receiver], paid)


def _amount(dollars: _Floats, currency: _Ints) -> _Floats:
    """Dollars as units of each row's currency, rounded as a bank would, never zero."""
    value = dollars * _RATE[currency]
    cents = np.maximum(np.round(value, 2), 0.01)
    coins = np.maximum(np.round(value, 6), 1e-6)
    rounded: _Floats = np.where(currency == _CURRENCY_BITCOIN, coins, cents)
    return rounded


def _accounts(
    random: np.random.Generator, accounts: int
) -> tuple[npt.NDArray[np.int32], pa.StringArray]:
    """The bank (int32) and the name (nine hexadecimal digits) of each account rank."""
    banks = max(4, accounts // 20)
    bank_of = (1 + banks * random.random(accounts) ** 2).astype(np.int32)
    # Multiplying by an odd number permutes 0..2**32: distinct ranks keep distinct names.
    scrambled = (np.arange(accounts, dtype=np.uint64) * np.uint64(2_654_435_761)) % (1 << 32)
    digits = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
    text = np.empty((accounts, 9), dtype=np.uint8)
    text[:, 0] = ord("8")
    for place in range(8):
        shift = np.uint64(4 * (7 - place))
        text[:, place + 1] = digits[(scrambled >> shift) & np.uint64(15)]
    offsets = np.arange(accounts + 1, dtype=np.int32) * 9
    names = pa.StringArray.from_buffers(accounts, pa.py_buffer(offsets), pa.py_buffer(text))
    return bank_of, names


def _labels(words: Sequence[str], number: _Ints) -> pa.StringArray:
    """The word of each number, as plain strings."""
    return pa.array(words, type=pa.string()).take(pa.array(number))


def _printed_minutes(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as ``2022/09/01 00:20``; each distinct minute is formatted once."""
    encoded = times.combine_chunks().dictionary_encode()
    printed = pc.strftime(encoded.dictionary, format="%Y/%m/%d %H:%M")
    return pa.chunked_array([printed.take(encoded.indices)])


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m farrow.synthetic FILE [--rows N] [--seed N]``: write a file; 0 or 1."""
    parser = argparse.ArgumentParser(prog="farrow.synthetic", description=write.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(arguments)
    try:
        path = write(given.file, given.rows, seed=given.seed)
    except (OSError, ValueError, pa.ArrowException) as error:
        print(f"farrow.synthetic: {error}", file=sys.stderr)
        return 1
    print(f"{path.name}: {given.rows} rows, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
