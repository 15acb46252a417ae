"""The text of a plan: its stages, where their tasks run, and what moved."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from farrow.cli._output import human_bytes
from farrow_sql._plans._stages import Exchange, Scan, Stage
from farrow_sql._run._schedule import shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farrow_sql._run._query import Prepared

__all__ = ["text_of"]


def text_of(prepared: Prepared) -> str:
    """The stages of a query, producers first; after a run also rows, bytes and seconds."""
    return "\n".join(_lines(prepared)) + "\n"


def _lines(prepared: Prepared) -> Iterator[str]:
    for source, parts in zip(prepared.sources, prepared.parts, strict=True):
        nodes = Counter({part.node: 0 for part in source.parts})
        for part in source.parts:
            nodes[part.node] += part.rows
        where = ", ".join(f"{rows} on {node or 'this node'}" for node, rows in nodes.items())
        yield (
            f"table {source.name}: {len(source.parts)} of {parts} chunks, rows: {where or 'none'}"
        )
    for reason in prepared.unused:
        yield f"not used: {reason}"
    if prepared.plan is None:
        yield f"one stage, in this process: {prepared.reason}"
    else:
        for stage in prepared.plan.stages:
            yield from _stage(prepared, stage)
    if prepared.moved is not None:
        moved = prepared.moved
        yield (
            f"moved between nodes: {human_bytes(moved.exchange_bytes)} of exchanges,"
            f" {moved.table_rows} rows of tables ({human_bytes(moved.table_bytes)}),"
            f" {human_bytes(moved.result_bytes)} of the result"
        )


def _stage(prepared: Prepared, stage: Stage) -> Iterator[str]:
    is_last = prepared.plan is not None and stage is prepared.plan.stages[-1]
    title = f"stage {stage.number}{', the result' if is_last else ''}: {stage.tasks} "
    yield title + ("tasks" if stage.tasks > 1 else "task") + f", {_placed(prepared, stage)}"
    if prepared.runs:
        run = prepared.runs[stage.number]
        outputs = [one for some in run.outputs.values() for one in some]
        yield (
            f"  read {run.rows_read} rows of tables ({run.rows_moved} of other nodes,"
            f" {human_bytes(run.table_bytes_moved)})"
            f" and {human_bytes(run.bytes_moved)} of other nodes' exchanges;"
            f" produced {sum(one.rows for one in outputs)} rows,"
            f" {human_bytes(sum(one.nbytes for one in outputs))}; {run.seconds:.3f} s"
        )
    for depth, node in stage.nodes():
        found = stage.inputs.get(id(node))
        text = node.text if found is None else _input(prepared, stage, found)
        yield f"  {'  ' * depth}{text}"


def _placed(prepared: Prepared, stage: Stage) -> str:
    """The nodes of the tasks: as they ran, or as they are planned."""
    if prepared.runs:
        placed = Counter(worker.node for worker in prepared.runs[stage.number].workers.values())
    elif stage.tasks > 1:
        placed = Counter(worker.node for worker in prepared.workers)
    else:
        return "at the node with most of its input"
    return ", ".join(f"{count} on {node or 'this node'}" for node, count in placed.items())


def _input(prepared: Prepared, stage: Stage, found: Scan | Exchange) -> str:
    if isinstance(found, Exchange):
        how = "partition by partition" if found.is_partitioned and stage.tasks > 1 else "all"
        return f"stage {found.stage.number}, {how}{', merged' if found.is_merged else ''}"
    source = prepared.sources[found.table]
    if stage.tasks == 1:
        rows = source.rows if found.rows_max is None else min(source.rows, found.rows_max)
        return f"table {source.name}: {rows} rows"
    nodes = [worker.node for worker in prepared.workers]
    counts = [
        sum(end - begin for _, begin, end, _ in ranges) for ranges in shares(source.parts, nodes)
    ]
    return f"table {source.name}: {' + '.join(map(str, counts))} rows"
