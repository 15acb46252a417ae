"""A reader of a graph in cluster memory: ``graph_reader.py GRAPH ADDRESS BATCHES.npy``.

Each line on standard input is a number of seconds.  The reader previews batches for that time and
answers with a line of JSON: seconds of each call, and the private bytes of this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from farrow.graph.cluster import attach
from harness.process import memory_of

_BATCH = 2048


def main() -> None:
    """Answer until there are no more lines."""
    name, address, path = sys.argv[1:]
    rows = np.load(path)
    reader = attach(name, address)
    print(json.dumps({"segments": reader.stats()["segments"]}), flush=True)
    at = 0
    for line in sys.stdin:
        calls = []
        until = time.perf_counter() + float(line)
        while time.perf_counter() < until:
            began = time.perf_counter()
            reader.preview(rows[at : at + _BATCH])
            calls.append(time.perf_counter() - began)
            at = (at + _BATCH) % (len(rows) // _BATCH * _BATCH)
        print(json.dumps({"calls": calls, "own": memory_of(os.getpid()).own}), flush=True)


if __name__ == "__main__":
    main()
