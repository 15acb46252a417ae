"""Cut a physical plan of DataFusion into stages, at the operators that exchange rows.

A stage is the part of a plan between exchanges.  Its tasks run it on shares of its inputs:

- a *scan*, of which each task reads a share of the rows;
- a *partitioned* exchange, below ``RepartitionExec``: task p reads partition p of each producer;
- a *gathered* exchange, below ``CoalescePartitionsExec``, ``SortPreservingMergeExec`` and on the
  left of joins that collect it: each task reads all of it.

DataFusion planned for as many partitions as there are tasks.  A stage whose operators need all rows
in one partition has one task, which reads all of its inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from farrow_sql._errors import CannotDistribute
from farrow_sql._sessions import bytes_of
from farrow_sql._wire import replace_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import datafusion

__all__ = ["Exchange", "Node", "Scan", "Stage", "check_operators", "cut", "operators", "tree"]

# Operators that only compute.  Others may read or write files, or need their own process.
_KNOWN = frozenset(
    (
        "AggregateExec", "BoundedWindowAggExec", "CoalesceBatchesExec", "CoalescePartitionsExec",
        "CooperativeExec", "CrossJoinExec", "EmptyExec", "FilterExec", "GlobalLimitExec",
        "HashJoinExec", "LazyMemoryExec", "LocalLimitExec", "NestedLoopJoinExec",
        "PartialSortExec", "PlaceholderRowExec", "ProjectionExec", "RepartitionExec", "SortExec",
        "SortMergeJoinExec", "SortPreservingMergeExec", "UnionExec", "UnnestExec", "WindowAggExec",
    )
)  # fmt: skip
# A table of rows in the plan itself; the same operator reads files.
_VALUES = re.compile(r"DataSourceExec: partitions=\d+, partition_sizes=")
_RANGE = re.compile(r"batch_generators=\[\w+: start=(-?\d+), end=(-?\d+), ")
# Kinds of join that return no row of the left side for want of a match: each task may have all of
# that side.
_LEFT_IS_COPIED = re.compile(r"join_type=(Inner|Right|RightSemi|RightAnti|RightMark)\b")


@dataclass
class Node:
    """An operator of a plan."""

    text: str
    data: bytes
    partitions: int
    children: list[Node]

    @property
    def operator(self) -> str:
        """Its name."""
        return re.split(r"\W", self.text, maxsplit=1)[0]


@dataclass
class Scan:
    """The rows of a table, by the place of the table in the list of the query."""

    table: int
    has_columns: bool


@dataclass
class Exchange:
    """What another stage produces: of each producer the partition of the task, or all."""

    stage: Stage
    is_partitioned: bool
    # Each partition is sorted, and has to stay a partition.
    is_merged: bool = False


@dataclass
class Stage:
    """A part of a plan, and where its tasks get their rows."""

    number: int
    root: Node
    # By the identity of the node in its place.
    inputs: dict[int, Scan | Exchange] = field(default_factory=dict)
    tasks: int = 1
    # Names and types of the output, known once the plan is made.
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def exchanges(self) -> list[Exchange]:
        """Its inputs that are other stages."""
        return [one for one in self.inputs.values() if isinstance(one, Exchange)]

    def scans(self) -> list[Scan]:
        """Its inputs that are tables."""
        return [one for one in self.inputs.values() if isinstance(one, Scan)]

    def assemble(self, leaf: Callable[[Scan | Exchange], bytes]) -> bytes:
        """The plan of a task, with these plans in the places of its inputs."""
        return self._assembled(self.root, leaf)

    def _assembled(self, node: Node, leaf: Callable[[Scan | Exchange], bytes]) -> bytes:
        if id(node) in self.inputs:
            return leaf(self.inputs[id(node)])
        if not node.children:
            return node.data
        pairs = [(child.data, self._assembled(child, leaf)) for child in node.children]
        return replace_children(node.data, pairs)

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Its operators, with their depth, inputs included."""
        yield from self._below(self.root, 0)

    def _below(self, node: Node, depth: int) -> Iterator[tuple[int, Node]]:
        yield depth, node
        if id(node) not in self.inputs:
            for child in node.children:
                yield from self._below(child, depth + 1)


def tree(plan: datafusion.ExecutionPlan, context: datafusion.SessionContext) -> Node:
    """A plan as nodes.

    Raises:
        CannotDistribute: DataFusion cannot serialize it.
    """
    try:
        data = bytes_of(plan, context)
    except Exception as error:
        raise CannotDistribute(f"DataFusion cannot serialize the plan: {error}") from error
    children = [tree(child, context) for child in plan.children()]
    return Node(plan.display().strip(), data, plan.partition_count, children)


def operators(plan: datafusion.ExecutionPlan) -> Iterator[str]:
    """The text of each operator of a plan."""
    yield plan.display().strip()
    for child in plan.children():
        yield from operators(child)


def check_operators(texts: Iterator[str]) -> None:
    """Refuse operators that do more than compute.

    Raises:
        CannotDistribute: there is one.
    """
    for text in texts:
        if re.split(r"\W", text, maxsplit=1)[0] not in _KNOWN and not _VALUES.match(text):
            raise CannotDistribute(f"the operator {text[:80]!r} runs on one node only")


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

    def _visit(self, node: Node, stage: Stage) -> bool:
        """Find the inputs below a node; whether it may run on shares of them."""
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
        if operator in ("NestedLoopJoinExec", "CrossJoinExec") or "mode=CollectLeft" in node.text:
            return self._collecting_join(node, stage)
        shares = [self._visit(child, stage) for child in node.children]
        return all(shares) and self._is_wide(node)

    def _is_wide(self, node: Node) -> bool:
        return self._partitions > 1 and node.partitions % self._partitions == 0

    def _scan(self, node: Node) -> Scan | None:
        found = _RANGE.search(node.text) if node.operator == "LazyMemoryExec" else None
        table = found and self._tables.get((int(found[1]), int(found[2])))
        return None if table is None else Scan(table, b"value" in node.data)

    def _repartition(self, node: Node, stage: Stage) -> bool:
        if "preserve_order=true" in node.text:
            raise CannotDistribute("an exchange that keeps the order of its rows")
        child = node.children[0]
        scan = self._scan(child)
        if scan is not None and "RoundRobinBatch" in node.text:
            # The tasks have shares of the rows already.
            stage.inputs[id(node)] = scan
            return self._is_wide(node)
        stage.inputs[id(node)] = Exchange(self.stage(node), True)
        return self._is_wide(node)

    def _collecting_join(self, node: Node, stage: Stage) -> bool:
        left, right = node.children
        gathers = left.operator in ("CoalescePartitionsExec", "SortPreservingMergeExec")
        if gathers and left.children[0].partitions > 1:
            self._visit(left, stage)
        else:
            # Read once by one task, whatever it is, and not by each task again.
            stage.inputs[id(left)] = Exchange(self.stage(left), False)
        is_wide = self._visit(right, stage) and self._is_wide(node)
        is_copied = node.operator == "CrossJoinExec" or bool(_LEFT_IS_COPIED.search(node.text))
        return is_wide and is_copied and "null_aware" not in node.text
