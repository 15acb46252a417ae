"""Errors of queries, as the client raises them."""

from __future__ import annotations

import farrow

__all__ = ["CannotDistribute", "Late", "QueryFailed", "raised", "spoken"]

# Errors that a worker reports and the client raises as the same class.
_SAME = {
    error.__name__: error
    for error in (
        farrow.CutOff,
        farrow.InvalidArgument,
        farrow.NodeLost,
        farrow.NodeUnreachable,
        farrow.NotFound,
        farrow.NotPermitted,
        farrow.OutOfMemory,
        farrow.PermissionDenied,
        farrow.QuotaExceeded,
        farrow.Timeout,
        farrow.TooLarge,
        farrow.TooManyObjects,
    )
}
# The words of DataFusion for a query that needs more than its memory pool has.
_EXHAUSTED = "Resources exhausted"


class QueryFailed(farrow.FarrowError, RuntimeError):
    """DataFusion could not run the query, or a worker failed; the message has its words."""


class Late(Exception):
    """The time of the query is over.

    Not ``farrow.Timeout``, which is also raised by an operation of the store within the query.
    """


class CannotDistribute(farrow.FarrowError):
    """A plan that cannot be cut into stages.  The query then runs on one node."""


def spoken(error: BaseException) -> tuple[str, str]:
    """The class and the message of an error, as a worker reports it."""
    text = str(error) or type(error).__name__
    if isinstance(error, farrow.FarrowError):
        return type(error).__name__, text
    if _EXHAUSTED in text:
        return farrow.OutOfMemory.__name__, text
    # An error that a function in Python raised reaches DataFusion as text only.
    return QueryFailed.__name__, text


def raised(kind: str, text: str) -> farrow.FarrowError:
    """The error for what a worker reported."""
    return _SAME.get(kind, QueryFailed)(text)
