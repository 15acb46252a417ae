"""Figures of the thesis and the papers, each with its source.

These are only figures from the project's issues: the texts of the theses were not available.
``None`` is a published figure that is unknown to us; none is invented, and none is read off a plot.
"""

from __future__ import annotations

import dataclasses

__all__ = ["FIGURES", "LEFT_OUT", "UNKNOWN", "Figure"]

UNKNOWN = "not known to us"
_THESIS = "Khalili 2026, as issue 6 quotes it"
_THESIS_GAP = "Khalili 2026: no text of it was at hand"
_PAPERS = "Groet 2023 and HCDS 2024, as issue 4 quotes them"
_PAPERS_ARROW = "the papers, as issue 2 quotes them"
_PAPERS_GAP = "Groet 2023 and HCDS 2024: the figures are in no issue"
_SNAPML = "snapml on such a machine, one thread, a stream like HI-Small, as issue 5 has it"
_LINKS = "published or announced, as issue 6 has it"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One published figure; ``key`` is its name within its experiment."""

    experiment: str
    key: str
    what: str
    value: str | None
    source: str


FIGURES: tuple[Figure, ...] = (
    Figure("windows", "72", "scatter-gather 72 h, rows a second", None, _THESIS_GAP),
    Figure("windows", "240", "scatter-gather 240 h, rows a second", None, _THESIS_GAP),
    Figure("windows", "720", "scatter-gather 720 h, rows a second", None, _THESIS_GAP),
    Figure("windows", "bytes", "bytes a live edge, all in one process", "340 to 600", _SNAPML),
    Figure("placement", "lost", "throughput lost in remote memory", "33 to 61 %", _THESIS),
    Figure("placement", "scatter-gather 6 h", "scatter-gather 6 h, rows a second, one process",
           "38,300", _SNAPML),
    Figure("placement", "scatter-gather 72 h", "the same, 72 h", "636", _SNAPML),
    Figure("placement", "temp-cycle 24 h", "temporal cycles 24 h, rows a second, one process",
           "19,000", _SNAPML),
    Figure("placement", "temp-cycle 72 h", "the same, 72 h", "669", _SNAPML),
    Figure("enlarged", "enlarged", "throughput as data grow", None, _THESIS_GAP),
    Figure("modes", "modes", "offline beside real-time mode", None, _THESIS_GAP),
    Figure("network", "cache", "remote memory faster than gRPC with its best cache",
           "33 to 313 times", _THESIS),
    Figure("network", "none", "remote memory faster than gRPC without a cache", "965 times",
           _THESIS),
    Figure("network", "hits", "gRPC with every row in its cache, no call made: slower than memory",
           "18.6 times", _THESIS),
    Figure("caches", "sizes", "throughput and hit rates by size of the cache", None, _THESIS_GAP),
    Figure("whatif", "ThymesisFlow", "latency of ThymesisFlow", "900 ns", _LINKS),
    Figure("whatif", "CXL", "latency of CXL", "170 to 400 ns", _LINKS),
    Figure("whatif", "Power10", "latency of Power10's memory inception", "150 ns", _LINKS),
    Figure("whatif", "predicted", "throughput predicted for them", None, _THESIS_GAP),
    Figure("initialisation", "allocate", "allocate in another node's memory", "4.99 ms", _PAPERS),
    Figure("initialisation", "rest own", "all but the copy, own memory", "58 of 68 ms", _PAPERS),
    Figure("initialisation", "rest other", "all but the copy, another node's memory",
           "118 of 300 ms", _PAPERS),
    Figure("initialisation", "send", "descriptor to a node", "3.2 ms, one after the other",
           _PAPERS),
    Figure("initialisation", "get own", "1000 objects of 1 kB, own memory", "1.89 ms", _PAPERS),
    Figure("initialisation", "get other", "1000 objects of 1 kB, another node's memory", "5.05 ms",
           _PAPERS),
    Figure("initialisation", "describe", "describe and rebuild a batch of 3 columns",
           "58 and 19 us", _PAPERS_ARROW),
    Figure("strided", "read", "reading remote memory, of local", "0.885", _PAPERS),
    Figure("strided", "strides", "strided reads and writes by element width", None, _PAPERS_GAP),
    Figure("descriptor", "copy", "descriptor against full copy", None, _PAPERS_GAP),
)  # fmt: skip

# Published results that are not run here, with the reason.
LEFT_OUT: tuple[tuple[str, str], ...] = (
    (
        "ThymesisFlow, and any remote memory that is really slower",
        "not on this machine: nodes are processes that map each other's memory, which is as fast as"
        " their own. Slower links are predicted, and the sum is checked by delays.",
    ),
    (
        "IBM's AML data",
        "not shipped with the project: streams are generated with the statistics of HI-Small.",
    ),
    (
        "Chen's thesis (cache maintenance in the kernel)",
        "make lab runs it in emulated machines, its figures beside ours: kernel/README.md.",
    ),
    (
        "Plasma, Flight and other stores; snapml in the same run",
        "make bench, make bench-store and make bench-graph do that.",
    ),
)
