"""Compute columns of tables before a limit, where the numbers of their rows are known.

DataFusion computes a column as late as it can: after a limit, so only for rows that are left.  But
a limit without an order is met by each task for its share, and then by one task for all.  To that
one the numbers of rows of other tasks mean nothing.  A limit and a projection commute.
"""

from __future__ import annotations

import re

from farrow_sql._plans._stages import Node
from farrow_sql._plans._wire import replace_children

__all__ = ["project_early"]

# The functions that read columns of tables.
_READS = re.compile(r"\bfarrow_\d+_\d+\(")
# Operators that return some of their rows, as they are.
_LIMITS = ("CoalescePartitionsExec", "GlobalLimitExec", "LocalLimitExec")


def project_early(node: Node) -> Node:
    """The plan with each projection of columns of tables below the limits that are below it."""
    pairs = [(child, project_early(child)) for child in node.children]
    if any(old is not new for old, new in pairs):
        node = _with_children(node, pairs)
    if node.operator == "ProjectionExec" and _READS.search(node.text):
        return _sunk(node)
    return node


def _sunk(projection: Node) -> Node:
    child = projection.children[0]
    if not _is_limit(child):
        return projection
    below = child.children[0]
    inner = _with_children(projection, [(child, below)])
    inner.partitions = below.partitions
    return _with_children(child, [(below, _sunk(inner))])


def _is_limit(node: Node) -> bool:
    """Whether it is a limit, or spreads the rows that one returns."""
    # Not what a column that has this name is partitioned by.
    spreads = node.text.startswith("RepartitionExec: partitioning=RoundRobinBatch(")
    if spreads and "preserve_order=true" not in node.text:
        return node.children[0].operator in _LIMITS
    return node.operator in _LIMITS


def _with_children(node: Node, pairs: list[tuple[Node, Node]]) -> Node:
    data = replace_children(node.data, [(old.data, new.data) for old, new in pairs])
    return Node(node.text, data, node.partitions, [new for _, new in pairs])
