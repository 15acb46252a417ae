"""Chains of payments: paid accounts pay other accounts, and money returns to its origin.

Without chains a stream has few cycles besides its rings, and a search for cycles has little to do.
Of the real data only the rings and a first half hour are available.  The numbers below, and the
rate of payments to hubs, are therefore chosen, not counted: public snapml should be about as fast
on a generated stream as on HI-Small.  Its rows a second in batches of 2048, generated and HI-Small:
temporal cycles over 24 h 18,900 and 19,000, over 72 h 510 to 640 and 670; cycles of up to ten
payments over 24 h 1,100 and 1,540; fans over 24 h 5,400 and 5,500, degrees 13,500 and 15,600.
Scatter-gathers are harder on generated streams: over 6 h 13,100 and 38,300, over 24 h 970 and
4,200.  Called only by ``generate``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Chains", "chain"]

_Ints = npt.NDArray[np.int64]

# Share of rows in chains, and rows of one chain.
_ROW_SHARE, _LENGTH = 0.1, 12
# Share of accounts in chains, and accounts of one community.
_ACCOUNT_SHARE, _COMMUNITY = 0.03, 14
# Share of accounts that send more than those in chains.
_BUSIER_SHARE = 0.04
# Payees of an account, and the share of them from any community; skews as in `generate`.
_PAYEES, _AWAY, _POPULAR_SKEW, _PAYEE_SKEW = 4, 0.02, 1.5, 1.5
# Mean time from one payment of a chain to the next.
_REST_DAYS = 5.0


class Chains(NamedTuple):
    """The rows of all chains; arrays of one length."""

    at: _Ints
    """Places in the table, increasing."""
    sender: _Ints
    receiver: _Ints
    """Account numbers."""


def chain(random: np.random.Generator, rows: int, accounts: int, days: int) -> Chains:
    """Make the chains of a table of ``rows`` rows: none if accounts are too few."""
    at = np.flatnonzero(random.random(rows, dtype=np.float32) < _ROW_SHARE)
    communities = int(accounts * _ACCOUNT_SHARE) // _COMMUNITY
    if communities == 0 or len(at) == 0:
        none = np.zeros(0, dtype=np.int64)
        return Chains(none, none, none)
    payees = _payees(random, communities)
    count = -(-len(at) // _LENGTH)
    who = np.empty((_LENGTH + 1, count), dtype=np.int64)
    who[0] = random.integers(0, len(payees), size=count)
    for hop in range(_LENGTH):
        choice = (_PAYEES * random.random(count) ** _PAYEE_SKEW).astype(np.int64)
        who[hop + 1] = payees[who[hop], choice]
    # Times, counted in rows; times after the last row wrap around to the beginning.
    rest = random.exponential(_REST_DAYS * rows / days, (_LENGTH, count))
    rest[0] = random.random(count) * rows
    order = np.argsort(np.cumsum(rest, axis=0).ravel() % rows, kind="stable")[: len(at)]
    first = int(accounts * _BUSIER_SHARE)
    return Chains(at, first + who[:-1].ravel()[order], first + who[1:].ravel()[order])


def _payees(random: np.random.Generator, communities: int) -> _Ints:
    """The payees of each account, int64 of shape (accounts, _PAYEES); never itself."""
    accounts = communities * _COMMUNITY
    own = np.arange(accounts)[:, np.newaxis]
    first = own - own % _COMMUNITY
    popular = (_COMMUNITY * random.random((accounts, _PAYEES)) ** _POPULAR_SKEW).astype(np.int64)
    away = random.random(popular.shape) < _AWAY
    payees = np.where(away, random.integers(0, accounts, size=popular.shape), first + popular)
    neighbour: _Ints = np.where(payees == own, first + (own + 1 - first) % _COMMUNITY, payees)
    return neighbour
