"""Measure the restart time of a killed node: ``python bench/restart.py [--quick]``.

A node is filled, killed, and restarted. The time runs from that start to the first answer to a
client that was connected before. The difference to an empty node is the time to adopt the objects.
Half of them have names; all are compared afterwards.
Writes the raw samples and a table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness.document import document_of, leave  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402

OBJECTS = 1_000_000
QUICK_OBJECTS = 50_000
ROUNDS = 7
# One line of memory each.
OBJECT_BYTES = 100
BATCH = 8192
SECONDS_MAX = 60.0
# The end of a node may take this long, and so may its start before that.
END_SECONDS_MAX = 15.0


class Node:
    """A node that is killed and restarted over the same memory."""

    def __init__(self, folder: str, objects: int) -> None:
        self.socket = f"{folder}/restart-{objects}.sock"
        memory = objects * 256 + (64 << 20)
        self._command = [
            *(sys.executable, "-m", "farrow.cli", "node", "--unsupervised"),
            *("--socket", self.socket),
            *("--memory", str(memory), "--memory-dir", "/dev/shm", "--evict", "none"),
            *("--objects-max", str(objects + BATCH), "--no-prepare"),
        ]
        self._start()
        self.client = self._connected()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _connected(self, seconds_max: float = SECONDS_MAX) -> farrow.Client:
        end = time.monotonic() + seconds_max
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the node ended: {self._process.returncode}")
            try:
                return farrow.connect(self.socket, timeout=seconds_max)
            except farrow.Disconnected:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    @property
    def pid(self) -> int:
        """Process id of the node."""
        return self._process.pid

    def restart(self) -> float:
        """Kill it, start it, and wait for its first answer; the seconds since the start."""
        self._process.kill()
        self._process.wait(SECONDS_MAX)
        began = time.perf_counter()
        self._start()
        self.client.stats()
        return time.perf_counter() - began

    def close(self) -> None:
        """Shut the node down, which frees its memory; a killed one is started again for that."""
        if self._process.poll() is not None:
            self._start()
            with contextlib.suppress(farrow.FarrowError, RuntimeError):
                self._connected(END_SECONDS_MAX)
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> int:
    """Run, print, save."""
    options = _options()
    objects = QUICK_OBJECTS if options.quick else OBJECTS
    samples: dict[int, Sample] = {}
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm") as folder:
        for count in (0, objects):
            node = Node(folder, count)
            try:
                refs = _filled(node.client, count)
                seconds = [node.restart() for _ in range(ROUNDS)]
                _compare(node.client, refs)
            finally:
                node.close()
            size = count * OBJECT_BYTES
            samples[count] = Sample(f"restart {count}", "farrow", "", "s", seconds, size)
    document = document_of(HERE.parent, list(samples.values()), [], options.quick)
    leave(document, "restart", _table(samples), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer objects, not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    return parser.parse_args()


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(8, "little") * (OBJECT_BYTES // 8)


def _filled(client: farrow.Client, count: int) -> list[farrow.ObjectRef]:
    """Put the objects, every other batch with names, in the order of their numbers."""
    refs: list[farrow.ObjectRef] = []
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        names = [f"object-{number}" for number in numbers] if first // BATCH % 2 else None
        refs += client.put_many([_bytes_of(number) for number in numbers], names)
    return refs


def _compare(client: farrow.Client, refs: list[farrow.ObjectRef]) -> None:
    """Check that every object exists with its bytes."""
    adopted = client.stats()["adopted"]
    if adopted != len(refs):
        raise AssertionError(f"{adopted} objects were adopted, {len(refs)} were put")
    for first in range(0, len(refs), BATCH):
        for number, found in enumerate(client.get_many(refs[first : first + BATCH]), first):
            if bytes(found) != _bytes_of(number):
                raise AssertionError(f"object {number} has changed")


def _table(samples: dict[int, Sample]) -> str:
    lines = ["| objects | median | least | most |", "| ---: | ---: | ---: | ---: |"]
    for count, sample in samples.items():
        found = sample.samples
        cells = (statistics.median(found), min(found), max(found))
        lines.append(f"| {count:,} | " + " | ".join(f"{cell:.3f} s" for cell in cells) + " |")
    empty, full = (statistics.median(sample.samples) for sample in samples.values())
    lines += ["", f"To adopt {max(samples):,} objects takes {full - empty:.3f} s.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
