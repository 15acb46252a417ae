"""Blocks of figures about object stores, and tables handed from process to process.

Objects with a name stand beside objects with a name, and rows of large objects say on which pages
all peers are.  A run that lacks Farrow's side of a row has no such row.
"""

from __future__ import annotations

import re
import statistics

from citations.raw import Run, run_of, shown, spread, table

__all__ = ["readme", "stores", "tables"]

_TITLES = {
    "farrow": "Farrow",
    "plasma": "Plasma",
    "ray": "Ray",
    "vineyard": "Vineyard",
    "mooncake": "Mooncake",
    "redis": "Redis",
    "lmdb": "LMDB",
    "ipc_shm": "plain files",
    "iceoryx2": "iceoryx2",
}
# All objects of these have names.
_NAMES_ONLY = ("plasma", "mooncake", "redis", "lmdb", "ipc_shm")
_NAMED = re.compile(r"^(write|get batch|get|put|rate|memory per) ")
_OWN, _SMALL_PAGES, _HUGE_PAGES = "own pages", "ordinary pages", "huge pages"
_PUT_1 = ("put 1 kB", "put 1 kB", "us")
_GET_1 = ("get 1 kB", "get 1 kB", "us")
_PUT_1000 = ("put 1000 x 1 kB", "write 1000 x 1 kB", "ms")
_README_ROWS = (_PUT_1, _GET_1, _PUT_1000)
_ROWS = (
    _PUT_1,
    _GET_1,
    _PUT_1000,
    ("get them one by one", "get 1000 x 1 kB", "ms"),
    ("get them in a batch", "get batch 1000 x 1 kB", "ms"),
    ("put 100 x 1 MB", "write 100 x 1 MB", "ms"),
)
_PUT_LARGE = ("put 10 x 100 MB", "write 10 x 100 MB", "ms")
_READ_LARGE = ("get and read them in a new process", "scan first 10 x 100 MB", "ms")
_Found = dict[str, list[float]]


def _by_peer(run: Run, case: str, word: str, variant: str = _OWN) -> _Found:
    """The samples of each peer with names, without, or either."""
    named = _NAMED.sub(r"\1 named ", case)
    found = {}
    for peer in _TITLES:
        samples = run.samples(case, peer, variant)
        if word == "name":
            own = run.samples(named, peer, variant)
            samples = own or (samples if peer in _NAMES_ONLY else [])
        elif word == "reference" and peer in _NAMES_ONLY:
            samples = []
        found[peer] = samples
    return found


def _pairs(run: Run, case: str) -> list[tuple[str, _Found]]:
    """A row with names and one by reference, each if Farrow has it."""
    rows = []
    for word, title in (("name", "with a name"), ("reference", "by reference")):
        found = _by_peer(run, case, word)
        if found["farrow"]:
            rows.append((title, found))
    return rows


def _same_pages(run: Run, case: str) -> list[tuple[str, _Found]]:
    """A row for each size of pages that all peers had."""
    rows = []
    peers = _by_peer(run, case, "")
    ours = run.samples(case, "farrow", _SMALL_PAGES)
    if ours:
        rows.append(("all on 4 KiB pages", {**peers, "farrow": ours}))
    huge = _by_peer(run, case, "", _HUGE_PAGES)
    if huge["farrow"]:
        # Vineyard's memory is a memfd, whose pages no mount changes.
        huge["vineyard"] = []
        rows.append(("all on huge pages", huge))
    return rows or [("", peers)]


def _all_rows(run: Run, small: tuple[tuple[str, str, str], ...]) -> list[tuple[str, str, _Found]]:
    """Title, unit and samples of each row."""
    rows = []
    for title, case, unit in small:
        rows += [(f"{title}, {word}", unit, found) for word, found in _pairs(run, case)]
    for title, case, unit in (_PUT_LARGE, _READ_LARGE):
        for word, found in _same_pages(run, case):
            rows.append((f"{title}, {word}" if word else title, unit, found))
    return rows


# What a reader has to know of the peers, and of the pages.
_WORDS = (
    "iceoryx2 is a queue: a reader receives an object once, and with a name it updates and"
    " copies an entry made beforehand. Plain files count no readers.\nRedis has its values in"
    " private memory and Vineyard in a memfd: no mount gives them huge pages. A node that runs as"
    " root takes huge pages by itself, and the other peers have the 4 KiB pages of `/dev/shm`."
)


def readme(page: str) -> str:
    """Object stores, with the middle half of the samples."""
    run = run_of("store")
    rows = []
    singles = False
    for title, unit, by_peer in _all_rows(run, _README_ROWS):
        cells = [title]
        for found in by_peer.values():
            half = f" ({spread(found, unit)})" if len(found) > 1 else ""
            cells.append(f"{shown(statistics.median(found), unit)}{half}" if found else "")
            singles = singles or len(found) == 1
        rows.append(cells)
    lead = (
        "Medians, and the middle half of the samples in parentheses, on"
        f" {run.document['machine']['cores']} shared virtual cores; compare ratios.\n"
        "`make bench-store` runs Farrow and its peers one after another"
        f" ({run.link(page)}):\n\n"
    )
    once = " A cell without parentheses is one sample." if singles else ""
    text = f"{_WORDS}{once}{_best_copy(run)}"
    return lead + table(["", *_TITLES.values()], rows) + f"\n\n{text}"


def _best_copy(run: Run) -> str:
    """Shares of the best copy, if the copy had huge pages as a node has."""
    if run.copy_pages != "huge":
        return ""
    case = _PUT_LARGE[1]
    copy = case.replace("write", "copy in turn")
    texts = []
    for title, variant in (
        ("on the pages that a node takes by itself", _OWN),
        ("on 4 KiB pages", _SMALL_PAGES),
    ):
        copies = run.samples(copy, "farrow", variant)
        if copies:
            found = run.ratios(case, "farrow", copy, "farrow", variant)
            texts.append(
                f"{statistics.median(found):.2f} {title} ({min(found):.2f} to {max(found):.2f},"
                f" {len(found)} pairs, the copy {shown(statistics.median(copies), 'ms')})"
            )
    if not texts:
        return ""
    return (
        "\nA put of 10 x 100 MB, each of other bytes, was compared with the best copy of as many"
        " bytes just before it, with all cores between private buffers in huge pages. It reached"
        f" this share of the speed: {'; '.join(texts)}."
    )


def stores(page: str) -> str:
    """Object stores: medians, and the spread of Farrow's."""
    run = run_of("store")
    rows = []
    for title, unit, by_peer in _all_rows(run, _ROWS):
        medians = [shown(statistics.median(one), unit) if one else "" for one in by_peer.values()]
        ours = by_peer["farrow"]
        rows.append([title, *medians, spread(ours, unit) if len(ours) > 1 else ""])
    rows += _scaling(run)
    title = "memory for an object of 1000 B, beyond its bytes"
    for word, found in _pairs(run, "memory per object"):
        cells = [f"{one[0]:,.0f} B" if one else "" for one in found.values()]
        rows.append([f"{title}, {word}" if word else title, *cells, ""])
    heads = ["", *_TITLES.values(), "Farrow, middle half"]
    lead = f"`make bench-store`, {run.link(page)}. Medians.\n\n"
    return lead + table(heads, rows) + f"\n\n{_WORDS}{_best_copy(run)}"


def _scaling(run: Run) -> list[list[str]]:
    """How much more two clients do than one."""
    rows = []
    for word, title in (("name", "with a name"), ("reference", "by reference")):
        one, two = (_by_peer(run, f"rate {count}", word) for count in ("1 client", "2 clients"))
        cells, ours = [], []
        for peer in _TITLES:
            pairs = [b / a for a, b in zip(one[peer], two[peer], strict=False)]
            cells.append(f"{statistics.median(pairs):.2f}" if pairs else "")
            ours = pairs if peer == "farrow" else ours
        span = f"{min(ours):.2f} to {max(ours):.2f} (all)" if ours else ""
        rows.append([f"two clients over one, {title}", *cells, span])
    return rows


def tables(page: str) -> str:
    """A table of 1.6 GiB."""
    run = run_of("tables")
    columns = (
        ("farrow", _SMALL_PAGES), ("plasma", _SMALL_PAGES), ("ipc_shm", _SMALL_PAGES),
        ("flight", _SMALL_PAGES), ("farrow", _HUGE_PAGES), ("plasma", _HUGE_PAGES),
        ("ipc_shm", _HUGE_PAGES),
    )  # fmt: skip
    rows = []
    for title, case, unit in (
        ("put the table, by copy", "put large", "ms"),
        ("put the table, built in the pool", "put built large", "ms"),
        ("get the table", "get large", "us"),
        ("get the table, first call of a process", "get large first", "us"),
        ("first read of every byte in a new process", "pass bytes first", "ms"),
        ("put a small object with a name", "put small, named", "us"),
        ("get a small object by name", "get small, by name", "us"),
        ("put a small object by reference", "put small", "us"),
        ("get a small object by reference", "get small", "us"),
    ):
        found = [run.samples(case, *one) for one in columns]
        cells = [shown(statistics.median(one), unit) if one else "" for one in found]
        rows.append([title, *cells, spread(found[0], unit) if len(found[0]) > 1 else ""])
    case = "memory of readers beyond one copy"
    sizes = [run.samples(case, *one) for one in columns]
    title = "three readers, memory beyond the one copy"
    rows.append([title, *(_bytes(one[0]) if one else "" for one in sizes), ""])
    heads = ["", "Farrow, 4 KiB pages", "Plasma, 4 KiB", "Arrow IPC in /dev/shm, 4 KiB", "Flight",
             "Farrow, huge pages", "Plasma, huge", "Arrow IPC in /dev/shm, huge",
             "Farrow, 4 KiB, middle half"]  # fmt: skip
    lead = (
        f"`make bench`, {run.link(page)}: a table of 1.6 GiB (157,286,400 rows of int64, int8,"
        " uint16) and objects of 1 kB. Medians. All peers have the same pages; Flight has its"
        " tables in private memory.\n\n"
    )
    return lead + table(heads, rows) + _shares(run)


def _shares(run: Run) -> str:
    """What a copying put reaches of the best copy, if that had huge pages as a node can have."""
    if run.copy_pages != "huge":
        return ""
    texts = []
    for title, pages in (("4 KiB", _SMALL_PAGES), ("huge", _HUGE_PAGES)):
        best = run.median("copy", "limit", pages)
        reached = 100 * best / run.median("put large", "farrow", pages)
        texts.append(f"on {title} pages {reached:.0f} % (the copy took {shown(best, 'ms')})")
    return (
        "\n\nA copying put reaches this share of the speed of the best copy of the table, with all"
        " cores between private buffers in huge pages, in the same part of the run:\n"
        f"{' and '.join(texts)}. On 4 KiB pages mapping a page costs more than filling it."
    )


def _bytes(value: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g} {unit}"
    return f"{value:.0f} B" if value else "0"
