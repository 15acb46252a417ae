"""Batches whose features are computed by several processes at once, in order."""

from __future__ import annotations

import contextlib
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def each(
    batches: Iterable[Any], begin: Callable[[Any], tuple[Any, Callable[[], Any]]]
) -> Iterator[Any]:
    """Begin batches, and return the result of each in order.

    Args:
        batches: rows, batch by batch. If one cannot be read or is refused, the results of earlier
            ones are first.
        begin: adds a batch; returns its stream, and a function that waits for the result.
    """
    ahead: deque[tuple[Any, Callable[[], Any]]] = deque()
    refused: Exception | None = None
    began = perf_counter()

    def next_result() -> Any:
        stream, awaited = ahead.popleft()
        result = awaited()
        stream.clock.add(len(result), began)
        return result

    try:
        waiting = iter(batches)
        while True:
            try:
                rows = next(waiting)
                ahead.append(begin(rows))
            except StopIteration:
                break
            except Exception as error:
                # The rows of the batches ahead are in the graph: their features are returned first.
                refused = error
                break
            if len(ahead) >= ahead[-1][0].in_flight:
                yield next_result()
                # The caller's own time does not count.
                began = perf_counter()
        while ahead:
            yield next_result()
            began = perf_counter()
        if refused is not None:
            raise refused
    finally:
        # Workers have more results, which are not taken.
        for _, awaited in ahead:
            with contextlib.suppress(Exception):
                awaited()
