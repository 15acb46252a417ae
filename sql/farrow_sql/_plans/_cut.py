"""Cut a physical plan of DataFusion into stages, at the operators that exchange rows.

An exchange is partitioned below ``RepartitionExec``.  It is gathered below
``CoalescePartitionsExec``, ``SortPreservingMergeExec``, on the left of joins that collect it, and
in place of the small side of a join of two partitioned sides.

DataFusion planned for as many partitions as there are tasks.  A stage whose operators need all rows
in one partition has one task, which reads all of its inputs.
"""

from __future__ import annotations

import re

from farrow_sql._errors import CannotDistribute
from farrow_sql._plans._stages import Exchange, Node, Scan, Stage

__all__ = ["cut"]

_RANGE = re.compile(r"batch_generators=\[\w+: start=(-?\d+), end=(-?\d+), ")
# What an operator says of itself is at the beginning of its text. Names and constants of the query
# follow, which may have the same words.
_JOIN = re.compile(r"\w+: (?:mode=(?P<mode>\w+), )?join_type=(?P<type>\w+)")
_EXCHANGE = re.compile(r"RepartitionExec: partitioning=(?P<kind>\w+)\(")
# Kinds of join that return no row of the left side for want of a match: each task may have all of
# that side.
_LEFT_IS_COPIED = ("Inner", "Right", "RightSemi", "RightAnti", "RightMark")
_RIGHT_IS_COPIED = ("Inner", "Left", "LeftSemi", "LeftAnti", "LeftMark")
# Joins with at most the rows of one side.
_HALVES = re.compile(r"(Left|Right)(Semi|Anti|Mark)")
# Rows of the smaller side of a join that each task reads whole: as in DataFusion, which has no
# statistics of the functions here and plans all joins partitioned.
BROADCAST_ROWS_MAX = 131_072
# Operators that treat each row, or each partition, by itself: they do not rely on equal keys being
# in one task.
_ROW_BY_ROW = re.compile(
    r"(CoalesceBatches|Cooperative|Filter|LocalLimit|Projection)Exec\b|AggregateExec: mode=Partial,"
)
_FETCH = re.compile(r"fetch=(\d+)")
_SKIP = re.compile(r"skip=(\d+)")


def cut(root: Node, partitions: int, tables: dict[tuple[int, int], int]) -> list[Stage]:
    """The stages of a plan, producers first; the last one has the result.

    Args:
        root: the plan.
        partitions: for how many partitions DataFusion planned.
        tables: by the range of rows that stands for a table, its place in the list of the query.

    Raises:
        CannotDistribute: an exchange has terms that tasks cannot meet.
    """
    cutter = _Cutter(partitions, tables)
    cutter.stage(root)
    return cutter.stages


class _Cutter:
    def __init__(self, partitions: int, tables: dict[tuple[int, int], int]) -> None:
        self._partitions = partitions
        self._tables = tables
        self.stages: list[Stage] = []

    def stage(self, root: Node) -> Stage:
        """A stage, after all of its producers."""
        stage = Stage(0, root)
        writes = root.operator == "RepartitionExec"
        is_wide = self._visit(root.children[0] if writes else root, stage)
        if writes:
            # The place of the child stays; what is cut from it are its own inputs.
            is_wide = is_wide and self._partitions > 1
        stage.tasks = self._partitions if is_wide else 1
        stage.number = len(self.stages)
        self.stages.append(stage)
        return stage

    def _visit(self, node: Node, stage: Stage, by_key: bool = False) -> bool:
        """Find the inputs below a node; whether it may run on shares of them.

        Args:
            node: the node.
            stage: the stage that gets the inputs.
            by_key: an operator above relies on rows with equal keys being in one task.
        """
        scan = self._scan(node)
        if scan is not None:
            stage.inputs[id(node)] = scan
            return self._is_wide(node)
        operator = node.operator
        if operator == "RepartitionExec":
            return self._repartition(node, stage)
        if operator in ("CoalescePartitionsExec", "SortPreservingMergeExec"):
            child = node.children[0]
            if child.partitions > 1:
                is_merged = operator == "SortPreservingMergeExec"
                stage.inputs[id(child)] = Exchange(self.stage(child), False, is_merged)
                return False
        if operator in ("NestedLoopJoinExec", "CrossJoinExec") or _mode(node) == "CollectLeft":
            return self._collecting_join(node, stage, by_key)
        if operator == "HashJoinExec" and not by_key:
            small = self._small_side(node)
            if small is not None:
                return self._broadcasting_join(node, small, stage)
        if operator == "GlobalLimitExec" and self._limit(node, stage):
            return False
        by_key = by_key or not _ROW_BY_ROW.match(node.text)
        shares = [self._visit(child, stage, by_key) for child in node.children]
        return all(shares) and self._is_wide(node)

    def _is_wide(self, node: Node) -> bool:
        return self._partitions > 1 and node.partitions % self._partitions == 0

    def _scan(self, node: Node) -> Scan | None:
        rows = _range_of(node)
        table = None if rows is None else self._tables.get((rows.start, rows.stop))
        return None if table is None else Scan(table, b"value" in node.data)

    def _repartition(self, node: Node, stage: Stage) -> bool:
        if "preserve_order=true" in node.text:
            raise CannotDistribute("an exchange that keeps the order of its rows")
        child = node.children[0]
        scan = self._scan(child)
        if scan is not None and _exchange_kind(node) == "RoundRobinBatch":
            # The tasks have shares of the rows already.
            stage.inputs[id(node)] = scan
            return self._is_wide(node)
        stage.inputs[id(node)] = Exchange(self.stage(node), True)
        return self._is_wide(node)

    def _collecting_join(self, node: Node, stage: Stage, by_key: bool) -> bool:
        left, right = node.children
        gathers = left.operator in ("CoalescePartitionsExec", "SortPreservingMergeExec")
        if gathers and left.children[0].partitions > 1:
            self._visit(left, stage)
        else:
            # Read once by one task, whatever it is, and not by each task again.
            stage.inputs[id(left)] = Exchange(self.stage(left), False)
        is_wide = self._visit(right, stage, by_key) and self._is_wide(node)
        is_copied = node.operator == "CrossJoinExec" or _join_type(node) in _LEFT_IS_COPIED
        return is_wide and is_copied and "null_aware" not in node.text

    def _small_side(self, node: Node) -> int | None:
        """The side of a join that each task may read whole, instead of a partition of both."""
        sides = node.children
        if "null_aware" in node.text:
            return None
        bounds = [_rows_bound(side) for side in sides]
        for small, copied in enumerate((_LEFT_IS_COPIED, _RIGHT_IS_COPIED)):
            rows, others = bounds[small], bounds[1 - small]
            if (
                _is_hash_exchange(sides[small])
                and rows is not None
                and rows <= BROADCAST_ROWS_MAX
                # Otherwise the copies are more than what is saved.
                and (others is None or rows * self._partitions <= others)
                and _join_type(node) in copied
                and self._is_divided(_before_exchange(sides[1 - small]))
            ):
                return small
        return None

    def _broadcasting_join(self, node: Node, small: int, stage: Stage) -> bool:
        """A join of all rows of one side with a share of the other: the tasks have shares already,
        and no row of the first is returned for want of a match."""
        side, other = node.children[small], node.children[1 - small]
        stage.inputs[id(side)] = Exchange(self.stage(side.children[0]), False)
        if _is_hash_exchange(other):
            stage.bypassed.add(id(other))
        return self._visit(_before_exchange(other), stage) and self._is_wide(node)

    def _is_divided(self, node: Node) -> bool:
        """Whether each task has one partition of these rows without a further exchange."""
        if self._partitions < 2 or node.partitions != self._partitions:
            return False
        if node.operator == "RepartitionExec":
            return True
        if node.operator == "HashJoinExec" and _mode(node) == "Partitioned":
            return all(self._is_divided(child) for child in node.children)
        is_simple = len(node.children) == 1 and _ROW_BY_ROW.match(node.text) is not None
        return is_simple and self._is_divided(node.children[0])

    def _limit(self, node: Node, stage: Stage) -> bool:
        """Whether the first rows of a table are all that is asked for: no others are read."""
        fetch, skip = _FETCH.search(node.text), _SKIP.search(node.text)
        below = node.children[0]
        while below.operator == "ProjectionExec":
            below = below.children[0]
        scan = self._scan(below)
        if scan is None or fetch is None:
            return False
        scan.rows_max = int(fetch[1]) + (int(skip[1]) if skip else 0)
        stage.inputs[id(below)] = scan
        return True


def _mode(node: Node) -> str:
    """How a hash join reads its sides; empty for other operators."""
    found = _JOIN.match(node.text)
    return (found["mode"] or "") if found else ""


def _join_type(node: Node) -> str:
    """Empty for operators that join nothing, and for cross joins."""
    found = _JOIN.match(node.text)
    return found["type"] if found else ""


def _exchange_kind(node: Node) -> str:
    """How an exchange partitions its rows; empty for other operators."""
    found = _EXCHANGE.match(node.text)
    return found["kind"] if found else ""


def _range_of(node: Node) -> range | None:
    """The numbers of the rows of a table."""
    found = _RANGE.search(node.text) if node.operator == "LazyMemoryExec" else None
    return range(int(found[1]), int(found[2])) if found else None


def _is_hash_exchange(node: Node) -> bool:
    return _exchange_kind(node) == "Hash"


def _before_exchange(node: Node) -> Node:
    """What a hash exchange spreads, or the node itself."""
    return node.children[0] if _is_hash_exchange(node) else node


def _rows_bound(node: Node) -> int | None:
    """The most rows that a plan can return; None: not known."""
    rows = _range_of(node)
    if rows is not None:
        return len(rows)
    bounds = [_rows_bound(child) for child in node.children]
    known = [bound for bound in bounds if bound is not None]
    if not bounds or len(known) < len(bounds) or node.operator == "UnnestExec":
        return None
    if node.operator == "UnionExec":
        return sum(known)
    if len(known) == 2:
        half = _HALVES.fullmatch(_join_type(node))
        if half is not None:
            return known[half[1] == "Right"]
        # Of an outer join at least the rows of each side.
        return max(known[0] * known[1], known[0] + known[1])
    fetch = _FETCH.search(node.text) if "LimitExec" in node.operator else None
    return known[0] if fetch is None else min(known[0], int(fetch[1]))
