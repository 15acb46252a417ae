"""One side of two that share memory: ``side.py ADDRESS BYTES``, a line of JSON in, a line out.

The table ``shared`` of int64 is read in place, an array of as many bytes is private.  A request has
``work`` (``read`` in order, ``random`` loads, or ``write``: objects of a part of the size in the
memory of the own node), ``memory`` (``shared`` or ``private``), ``threads``, ``seconds`` and
``cores``.  The answer has the seconds of each pass and the bytes (for ``random`` the loads) of one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import farrow

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# Loads of a pass, each of a random line; the list of places is read in order.
_LOADS = 1 << 20
# Passes with places of their own: a large cache has the lines of a single pass.
_SLICES = 8
# Written objects are a part of the size, so that the node has room for them.
_WRITTEN = 8
_WAIT_SECONDS_MAX = 30.0


class Side:
    """The work of one process."""

    def __init__(self, address: str, nbytes: int) -> None:
        self._client = farrow.connect(address)
        table = self._client.get("shared", timeout=_WAIT_SECONDS_MAX)
        self._arrays = {
            "shared": table["n"].chunk(0).to_numpy(),
            "private": np.ones(nbytes // 8, dtype=np.int64),
        }
        random = np.random.default_rng(os.getpid())
        self._places = random.integers(0, nbytes // 8, (_SLICES, _LOADS))
        self._source = np.ones(nbytes // _WRITTEN, dtype=np.uint8)

    def passes(
        self, work: str, memory: str, threads: int, seconds: float, cores: list[int]
    ) -> dict[str, Any]:
        """Repeat one work in each thread for a time."""
        os.sched_setaffinity(0, cores)
        run, size = self._work(work, self._arrays[memory], threads)
        found: list[list[float]] = [[] for _ in range(threads)]
        until = time.perf_counter() + seconds

        def repeat(number: int) -> None:
            while True:
                began = time.perf_counter()
                run(number)
                ended = time.perf_counter()
                found[number].append(ended - began)
                if ended > until:
                    return

        helpers = [threading.Thread(target=repeat, args=(number,)) for number in range(1, threads)]
        for one in helpers:
            one.start()
        repeat(0)
        for one in helpers:
            one.join()
        return {"seconds": [taken for each in found for taken in each], "size": size}

    def _work(
        self, work: str, values: npt.NDArray[np.int64], threads: int
    ) -> tuple[Callable[[int], Any], int]:
        """A pass of one thread over its part, and the bytes or loads of it."""
        if work == "write":

            def write(number: int) -> None:
                writer = self._client.create(self._source.nbytes)
                writer.write(self._source)
                self._client.delete(writer.seal())

            return write, self._source.nbytes
        parts = np.array_split(values, threads)
        if work == "random":
            places = [self._places % len(part) for part in parts]
            targets = [np.empty(_LOADS, dtype=np.int64) for _ in parts]
            turns = [itertools.cycle(range(_SLICES)) for _ in parts]

            def load(number: int) -> None:
                chosen = places[number][next(turns[number])]
                np.take(parts[number], chosen, out=targets[number], mode="clip")

            return load, _LOADS
        return lambda number: int(np.add.reduce(parts[number])), parts[0].nbytes


def main() -> None:
    """Answer until there are no more lines."""
    address, nbytes = sys.argv[1:]
    side = Side(address, int(nbytes))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(side.passes(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
