"""A seeded generator of bank transactions with the statistics of IBM's HI-Small data.

The columns are those of the IBM AML transaction files; no row is from a real file.  The stream has
the difficult properties of such data (shares are rounded from the published statistics of
HI-Small, from its ring file and from its first thousand rows):

* two accounts send 5 % of all rows, a few more half a percent each, and are sometimes paid;
  the other senders, and all receivers, follow a power law; most accounts have few rows, and many
  pairs pay repeatedly;
* paid accounts pay other accounts, in communities in which money circulates (``_chains``);
* the first half hour holds a burst of reinvestments (self-loops), weekends are quiet, the
  last working day is busy, and a few rows follow after the last day;
* amounts are log-normal by payment format, in fifteen currencies, from cents to billions;
* about one row in a thousand is laundering: rings of eight families with the sizes and time
  spans of the real ones (``_rings``), and single rows outside of rings.

The same arguments give the same table on every machine.  Five million rows take a few
seconds, see ``farrow graph generate``.

Examples:
    >>> table = transactions(1_000, seed=7)
    >>> table.num_rows, table.column_names[0], table.column_names[-1]
    (1000, 'timestamp', 'is laundering')
    >>> table.equals(transactions(1_000, seed=7))
    True
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from farrow.graph._chains import chain
from farrow.graph._rings import ACCOUNTS_MIN, FAMILIES, ROWS_PER_RING, Rings, plant

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

__all__ = ["COLUMNS", "RING_COLUMNS", "transactions", "write"]

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
RING_COLUMNS: tuple[str, ...] = ("ring", "ring family")

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# First minute of the data; 1 September 2022 was a Thursday.
_START = np.datetime64("2022-09-01T00:00", "m")
_DAY_MINUTES = 24 * 60
_FIRST_WEEKDAY = 3

# HI-Small has 5.08 M rows and 0.51 M accounts.
_ROWS_PER_ACCOUNT = 10
# Weight of a weekend's day, of the first Friday and of later ones; of other days: 1.
_WEEKEND, _FIRST_FRIDAY, _FRIDAY = 0.43, 1.55, 1.35
# The first half hour: share of all rows, and of reinvestments among them.
_BURST_MINUTES, _BURST_SHARE, _BURST_REINVEST = 30, 0.10, 0.72
# Reinvestments in any other minute.
_CALM_REINVEST = 0.025
# Days after the last one with late rows, and the share of late rows.
_LATE_DAYS, _LATE_SHARE = 8, 0.0002
_LATE_WEIGHT = 0.6

# Shares of all rows that the busiest senders send.
_HUB_SHARES = (0.033, 0.020, 0.004, 0.0037, 0.0034, 0.0027, 0.0027)
# Share of rows that pay one of them: few, but enough for searches to reach the hubs.
_HUB_PAID = 0.0005
# Exponents of rank = count * u**skew; 2.5 gives the busiest 1 % of accounts 16 %, 2.0 10 %.
_SENDER_SKEW, _RECEIVER_SKEW, _PAIR_SKEW = 2.5, 2.0, 1.5
# Rows per pair of accounts that pay each other.
_ROWS_PER_PAIR = 5

# Flagged rows that belong to no ring: HI-Small flags 5,177 rows, 3,209 of them in rings.
_LONE_PER_RING_ROW = 0.61
_LONE_ACH = 0.6
# Natural logarithm of a ring row's dollars: mean and deviation over the ring file.
_RING_LOG = (9.13, 1.52)

# name, share of payments, units that buy one US dollar (fixed; only the order of size matters)
_CURRENCY = (
    ("US Dollar", 0.364, 1.0),
    ("Euro", 0.230, 0.92),
    ("Swiss Franc", 0.046, 0.88),
    ("Yuan", 0.042, 7.1),
    ("Shekel", 0.038, 3.4),
    ("Rupee", 0.037, 83.0),
    ("UK Pound", 0.036, 0.79),
    ("Ruble", 0.031, 78.0),
    ("Yen", 0.031, 105.0),
    ("Bitcoin", 0.029, 0.000_08),
    ("Canadian Dollar", 0.028, 1.3),
    ("Australian Dollar", 0.027, 1.4),
    ("Mexican Peso", 0.022, 21.0),
    ("Saudi Riyal", 0.022, 3.75),
    ("Brazil Real", 0.017, 5.6),
)
_RATE = np.array([rate for _, _, rate in _CURRENCY])
_BITCOIN = [name for name, _, _ in _CURRENCY].index("Bitcoin")
_CROSS_CURRENCY_SHARE = 0.015

# name, share of all rows but reinvestments, log of dollars: mean and deviation
_FORMAT = (
    ("Cheque", 0.405, 9.3, 4.5),
    ("Credit Card", 0.288, 5.3, 2.75),
    ("ACH", 0.131, 9.7, 4.0),
    ("Cash", 0.107, 8.8, 3.4),
    ("Wire", 0.037, 8.5, 2.7),
    ("Bitcoin", 0.032, 7.0, 3.0),
    ("Reinvestment", 0.0, 7.0, 4.2),
)
_FORMAT_NAMES = [name for name, _, _, _ in _FORMAT]
_ACH, _BITCOIN_FORMAT, _REINVEST = (
    _FORMAT_NAMES.index(name) for name in ("ACH", "Bitcoin", "Reinvestment")
)
_DOLLARS_MIN, _DOLLARS_MAX = 0.01, 5e10


def transactions(
    rows: int,
    *,
    seed: int = 7,
    accounts: int | None = None,
    days: int = 10,
    rings: int | None = None,
    ring_columns: bool = False,
) -> pa.Table:
    """Generate a table of ``rows`` transactions, sorted by time.

    Args:
        rows: number of rows, 0 or more.
        seed: any non-negative integer; equal arguments give equal tables.
        accounts: number of accounts, 16 or more (default: a tenth of the rows).
        days: days with nearly all rows; up to nine more hold late rows.
        rings: laundering rings to plant (default: the rate of HI-Small; rings take half of the
            rows at most, and require 64 accounts).
        ring_columns: also return the columns ``RING_COLUMNS``.

    Returns:
        A table with the columns ``COLUMNS`` and ``rows`` rows in one chunk:
        ``timestamp`` is timestamp[s] (whole minutes), banks are int32, accounts are strings
        of nine hexadecimal digits, amounts are float64 with at most two decimals (six for
        Bitcoin) in units of their currency, currencies and format are strings, and
        ``is laundering`` is int8, 0 or 1.  ``ring_columns`` adds ``ring``, the int32 number of
        the ring, and ``ring family``, its name; null for all other rows.

    Raises:
        ValueError: an argument is out of its range; the message names it.

    Examples:
        >>> from farrow.graph import generate
        >>> table = generate.transactions(1_000, seed=7)
        >>> table.num_rows, table.column_names[0], table.column_names[-1]
        (1000, 'timestamp', 'is laundering')
    """
    accounts = max(16, rows // _ROWS_PER_ACCOUNT) if accounts is None else accounts
    for name, value, least in (("rows", rows, 0), ("accounts", accounts, 16), ("days", days, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be {least} or more")
    if rings is not None and rings < 0:
        raise ValueError(f"rings is {rings}; it must be 0 or more")
    random = np.random.default_rng(seed)
    planted = _rings(random, rows, accounts, days, rings)
    minute, at = _minutes(random, rows, days, planted.minute)
    how = _formats(random, minute)
    sender, receiver = _ends(random, rows, accounts, days, how)
    flagged = np.zeros(rows, dtype=np.int8)
    alone = random.integers(0, max(rows, 1), size=int(_LONE_PER_RING_ROW * len(at)))
    flagged[alone] = 1
    how[alone[random.random(len(alone)) < _LONE_ACH]] = _ACH
    sender[at], receiver[at] = planted.sender, planted.receiver
    how[at], flagged[at] = _ACH, 1
    loops = how == _REINVEST
    receiver[loops] = sender[loops]

    logarithm = random.standard_normal(rows)
    mean, deviation = (np.array([entry[place] for entry in _FORMAT]) for place in (2, 3))
    logarithm *= deviation[how]
    logarithm += mean[how]
    logarithm[at] = random.normal(*_RING_LOG, size=len(at))
    dollars = np.exp(logarithm, out=logarithm).clip(_DOLLARS_MIN, _DOLLARS_MAX, out=logarithm)
    paid_in, received_in = _currencies(random, accounts, sender, receiver, how)
    bank_of, names = _accounts(random, accounts)
    table = pa.table(
        [
            pa.array((_START + minute).astype("datetime64[s]")),
            pa.array(bank_of[sender]),
            names.take(pa.array(sender)),
            pa.array(bank_of[receiver]),
            names.take(pa.array(receiver)),
            pa.array(_amount(dollars, received_in)),
            _labels([name for name, _, _ in _CURRENCY], received_in),
            pa.array(_amount(dollars, paid_in)),
            _labels([name for name, _, _ in _CURRENCY], paid_in),
            _labels(_FORMAT_NAMES, how),
            pa.array(flagged),
        ],
        names=list(COLUMNS),
    )
    return _with_rings(table, planted, at) if ring_columns else table


def write(
    path: str | os.PathLike[str],
    rows: int,
    *,
    seed: int = 7,
    accounts: int | None = None,
    days: int = 10,
    rings: int | None = None,
    ring_columns: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Path:
    """Write ``transactions(rows, ...)`` as a file.

    Args:
        path: the file: ``.csv`` (with a header, times as ``2022/09/01 00:20`` like the IBM
            files), ``.csv.gz``, ``.parquet``, or ``.arrow`` (an Arrow IPC file).
        rows: number of rows, 0 or more.
        seed: as in ``transactions``.
        accounts: as in ``transactions``.
        days: as in ``transactions``.
        rings: as in ``transactions``.
        ring_columns: as in ``transactions``.
        progress: called with the numbers of written rows and of all rows.

    Returns:
        The path written.

    Raises:
        ValueError: the extension is unknown, or an argument is out of its range.
        OSError: the file cannot be written.

    Examples:
        >>> from farrow.graph import generate
        >>> generate.write("stream.csv", 1_000).name
        'stream.csv'
    """
    target = Path(path)
    name = target.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet", ".arrow")):
        raise ValueError(f"cannot write {target.name!r}: use .csv, .csv.gz, .parquet or .arrow")
    table = transactions(
        rows, seed=seed, accounts=accounts, days=days, rings=rings, ring_columns=ring_columns
    )
    if name.endswith((".csv", ".csv.gz")):
        table = table.set_column(0, COLUMNS[0], _printed_minutes(table.column(0)))
    # "detect" compresses by the extension; other files stay uncompressed.
    with pa.output_stream(target, compression="detect") as sink, _writer(name, sink, table) as out:
        for begin in range(0, rows, _PIECE_ROWS):
            out.write_table(table.slice(begin, _PIECE_ROWS))
            if progress is not None:
                progress(min(begin + _PIECE_ROWS, rows), rows)
    return target


_PIECE_ROWS = 1 << 20


def _writer(name: str, sink: pa.NativeFile, table: pa.Table) -> pq.ParquetWriter | pacsv.CSVWriter:
    """A writer of tables of this schema, in the format of the file name."""
    if name.endswith(".parquet"):
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        return pq.ParquetWriter(sink, table.schema, use_dictionary=texts)
    if name.endswith(".arrow"):
        return pa.ipc.new_file(sink, table.schema)
    options = pacsv.WriteOptions(quoting_style="none", quoting_header="none")
    return pacsv.CSVWriter(sink, table.schema, write_options=options)


def _rings(
    random: np.random.Generator, rows: int, accounts: int, days: int, rings: int | None
) -> Rings:
    """The rows of the rings: none if accounts are too few, half of all rows at most."""
    count = rows // ROWS_PER_RING if rings is None else rings
    planted = plant(random, count if accounts >= ACCOUNTS_MIN else 0, accounts, days)
    # Whole rings: those whose numbers are small enough.
    ends = np.cumsum(np.bincount(planted.ring, minlength=count))
    keep = planted.ring < np.searchsorted(ends, rows // 2, side="right")
    return planted if keep.all() else Rings(*(column[keep] for column in planted))


def _minutes(
    random: np.random.Generator, rows: int, days: int, ring_minute: _Ints
) -> tuple[_Ints, _Ints]:
    """Minutes since the start, in order, of shape (rows,), and the indices of the ring rows.

    The number of rows in each minute is random, not the minute of each row: no sort is needed.
    """
    weekday = (_FIRST_WEEKDAY + np.arange(days)) % 7
    day = np.where(weekday >= 5, _WEEKEND, np.where(weekday == 4, _FRIDAY, 1.0))
    day[1:2] *= _FIRST_FRIDAY / _FRIDAY
    hour = 1.0 + 1.4 * np.exp(-(((np.arange(24) - 13.0) / 4.5) ** 2))
    late = _LATE_WEIGHT ** np.arange(_LATE_DAYS)
    share = np.concatenate([day / day.sum(), _LATE_SHARE * late / late.sum()])
    minute_share = np.multiply.outer(share, np.repeat(hour / hour.sum() / 60, 60)).ravel()
    minute_share *= (1 - _BURST_SHARE) / minute_share.sum()
    minute_share[:_BURST_MINUTES] += _BURST_SHARE / _BURST_MINUTES

    ring_counts = np.bincount(ring_minute, minlength=len(minute_share))
    counts = ring_counts.copy()
    drawn = random.multinomial(rows - len(ring_minute), minute_share / minute_share.sum())
    counts[: len(drawn)] += drawn
    minute = np.repeat(np.arange(len(counts)), counts)

    # Ring rows are spread evenly among the rows of their minute, from a random start.
    first = np.cumsum(counts) - counts
    rank = np.arange(len(ring_minute)) - (np.cumsum(ring_counts) - ring_counts)[ring_minute]
    all_here, rings_here = counts[ring_minute], ring_counts[ring_minute]
    turn = random.integers(0, 1 << 30, size=len(counts))[ring_minute]
    at = first[ring_minute] + (rank * all_here // np.maximum(rings_here, 1) + turn) % all_here
    return minute, at


def _formats(random: np.random.Generator, minute: _Ints) -> npt.NDArray[np.uint8]:
    """Payment formats of shape (rows,): many reinvestments in the first half hour."""
    # A table of 65,536 entries turns two random bytes into a format: faster than a search.
    shares = np.array([share for _, share, _, _ in _FORMAT])
    ends = np.round(np.cumsum(shares) / shares.sum() * 65_536).astype(np.int64)
    table = np.repeat(np.arange(len(shares), dtype=np.uint8), np.diff(ends, prepend=0))
    how = table[random.integers(0, 65_536, size=len(minute), dtype=np.uint16)]
    burst = int(np.searchsorted(minute, _BURST_MINUTES))
    chance = random.random(len(minute), dtype=np.float32)
    how[:burst][chance[:burst] < _BURST_REINVEST] = _REINVEST
    how[burst:][chance[burst:] < _CALM_REINVEST] = _REINVEST
    return how


def _ends(
    random: np.random.Generator, rows: int, accounts: int, days: int, how: npt.NDArray[np.uint8]
) -> tuple[_Ints, _Ints]:
    """Senders and receivers, account numbers of shape (rows,)."""
    pairs = max(16, rows // _ROWS_PER_PAIR)
    # Busy senders are not busy receivers: receivers have a separate order.
    shuffled = random.permutation(accounts)
    pair_sender = (accounts * random.random(pairs) ** _SENDER_SKEW).astype(np.int64)
    pair_receiver = shuffled[(accounts * random.random(pairs) ** _RECEIVER_SKEW).astype(np.int64)]
    # A self-loop that is no reinvestment occurs only by chance.
    chance = random.random(rows)
    pair = (pairs * chance**_PAIR_SKEW).astype(np.int64)
    sender, receiver = pair_sender[pair], pair_receiver[pair]
    # One random number selects whether a hub sends, and which, among the rows outside of chains.
    chains = chain(random, rows, accounts, days)
    ends = np.cumsum(_HUB_SHARES) * rows / max(1, rows - len(chains.at))
    random.random(rows, out=chance)
    sender[chains.at], receiver[chains.at] = chains.sender, chains.receiver
    chance[chains.at] = 1.0
    hub_rows = np.flatnonzero(chance < ends[-1])
    sender[hub_rows] = np.searchsorted(ends, chance[hub_rows], side="right")
    paid = np.flatnonzero(random.random(rows, dtype=np.float32) < _HUB_PAID)
    receiver[paid] = np.searchsorted(ends, ends[-1] * random.random(len(paid)), side="right")
    # Accounts reinvest in turn, so that nearly all of them appear.
    loops = np.flatnonzero(how == _REINVEST)
    sender[loops] = shuffled[np.arange(len(loops)) % accounts]
    return sender, receiver


def _currencies(
    random: np.random.Generator,
    accounts: int,
    sender: _Ints,
    receiver: _Ints,
    how: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Currency numbers paid and received, each of shape (rows,)."""
    shares = np.array([share for _, share, _ in _CURRENCY])
    home = random.choice(len(shares), size=accounts, p=shares / shares.sum()).astype(np.uint8)
    paid = home[sender]
    paid[how == _BITCOIN_FORMAT] = _BITCOIN
    received = paid.copy()
    crossing = random.random(len(how), dtype=np.float32) < _CROSS_CURRENCY_SHARE
    crossing &= how != _REINVEST
    received[crossing] = home[receiver[crossing]]
    return paid, received


def _amount(dollars: _Floats, currency: npt.NDArray[np.uint8]) -> _Floats:
    """Dollars as units of each row's currency, rounded to its decimals, never zero."""
    value: _Floats = dollars * _RATE[currency]
    coins = np.flatnonzero(currency == _BITCOIN)
    in_coins = np.maximum(np.round(value[coins], 6), 1e-6)
    value = np.maximum(np.round(value, 2, out=value), 0.01, out=value)
    value[coins] = in_coins
    return value


def _accounts(
    random: np.random.Generator, accounts: int
) -> tuple[npt.NDArray[np.int32], pa.StringArray]:
    """The bank (int32) and the name (nine hexadecimal digits) of each account."""
    banks = max(4, accounts // 20)
    bank_of = (1 + banks * random.random(accounts) ** 2).astype(np.int32)
    # Multiplying by an odd number permutes 0..2**32: distinct numbers keep distinct names.
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


def _with_rings(table: pa.Table, planted: Rings, at: _Ints) -> pa.Table:
    """The table with ``RING_COLUMNS`` added, null for rows of no ring."""
    number = np.zeros(table.num_rows, dtype=np.int32)
    family = np.zeros(table.num_rows, dtype=np.int32)
    outside = np.ones(table.num_rows, dtype=bool)
    number[at], family[at], outside[at] = planted.ring, planted.family, False
    families = pa.array(FAMILIES).take(pa.array(family, mask=outside))
    columns = (pa.array(number, mask=outside), families)
    for name, column in zip(RING_COLUMNS, columns, strict=True):
        table = table.append_column(name, column)
    return table


def _labels(words: Sequence[str], number: npt.NDArray[np.uint8]) -> pa.StringArray:
    """The word of each number, as plain strings."""
    return pa.array(words, type=pa.string()).take(pa.array(number))


def _printed_minutes(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as ``2022/09/01 00:20``; each distinct minute is formatted once."""
    encoded = times.combine_chunks().dictionary_encode()
    printed = pc.strftime(encoded.dictionary, format="%Y/%m/%d %H:%M")
    return pa.chunked_array([printed.take(encoded.indices)])
