"""The stages of a query: parts of a physical plan of DataFusion between exchanges of rows.

The tasks of a stage run it on shares of its inputs:

- a *scan*, of which each task reads a share of the rows;
- a *partitioned* exchange: task p reads partition p of each producer;
- a *gathered* exchange: each task reads all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from farrow_sql._errors import CannotDistribute
from farrow_sql._plans._wire import replace_children
from farrow_sql._sessions import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import datafusion

__all__ = ["Exchange", "Node", "Scan", "Stage", "check_operators", "operators", "tree"]

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
    # The stage needs no more rows than that, whichever they are; None: all.
    rows_max: int | None = None


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
    # By their identity, exchanges that are left out: their child is in their place.
    bypassed: set[int] = field(default_factory=set)
    tasks: int = 1
    # Names and types of the output, known once the plan is made.
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def exchanges(self) -> list[Exchange]:
        """Its inputs that are other stages."""
        return [one for one in self.inputs.values() if isinstance(one, Exchange)]

    def scans(self) -> list[Scan]:
        """Its inputs that are tables."""
        return [one for one in self.inputs.values() if isinstance(one, Scan)]

    def rows_max(self, table: int) -> int | None:
        """The most rows of a table that it needs, whichever they are; None: all."""
        limits = [scan.rows_max for scan in self.scans() if scan.table == table]
        known = [limit for limit in limits if limit is not None]
        return max(known) if limits and len(known) == len(limits) else None

    def assemble(self, leaf: Callable[[Scan | Exchange], bytes]) -> bytes:
        """The plan of a task, with these plans in the places of its inputs."""
        return self._assembled(self.root, leaf)

    def _assembled(self, node: Node, leaf: Callable[[Scan | Exchange], bytes]) -> bytes:
        if id(node) in self.inputs:
            return leaf(self.inputs[id(node)])
        if id(node) in self.bypassed:
            return self._assembled(node.children[0], leaf)
        if not node.children:
            return node.data
        pairs = [(child.data, self._assembled(child, leaf)) for child in node.children]
        return replace_children(node.data, pairs)

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Its operators, with their depth, inputs included."""
        yield from self._below(self.root, 0)

    def _below(self, node: Node, depth: int) -> Iterator[tuple[int, Node]]:
        if id(node) in self.bypassed:
            yield from self._below(node.children[0], depth)
            return
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
