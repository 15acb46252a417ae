"""``farrow doctor``: capabilities of this machine, and commands that fix deficiencies.

The extension (``farrow._native.survey()``) surveys the machine like the daemon does.  This module
gives the advice: one ``Finding`` for each deficiency, with its consequence.  If a node answers and
is being drained, the state of the drain is the first line.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import farrow
from farrow import _native
from farrow.cli import _client
from farrow.cli._node._doctor_drain import DrainStatus, drain_status
from farrow.cli._node._finding import Finding
from farrow.cli._output import CommandError, console, grid, human_bytes, human_ns, print_json

if TYPE_CHECKING:
    import argparse

__all__ = ["Finding", "findings", "run"]

# A node that takes longer to answer is surveyed without its drain.
_ANSWER_SECONDS = 5.0
# One descriptor for each client and region, and a reserve.
_FILES_WANTED = 4096
# One mapping for each writable extent in use, and for each library of the process.
_MAPS_WANTED = 65_530
# Mounts that are not for data, even if they are tmpfs.
_NO_PLACE = ("/sys", "/proc", "/dev/hugepages")
_SHM_SHARE_WANTED = 0.25
_BYTE_WORDS = ("bytes", "size", "free", "memory", "memlock", "address_space", "total", "available")


def run(options: argparse.Namespace) -> int:
    """Print the survey and the findings; 1 if a node could not work here, else 0."""
    survey = _native.survey()
    if isinstance(survey.get("tmpfs"), list):
        survey["tmpfs"] = _tmpfs(survey)
    drain = _drain_of(options)
    obstacles = [] if drain is None else drain.obstacles
    found = [*findings(survey), *_leftover_findings(), *obstacles]
    profile = _native.lab_profile()
    if options.json:
        rows = [dataclasses.asdict(one) for one in found]
        document = {"survey": survey, "profile": profile, "findings": rows}
        if drain is not None:
            facts = dataclasses.asdict(drain)
            # They are among the findings.
            del facts["obstacles"]
            document["drain"] = facts
        print_json(document)
    else:
        if drain is not None and (verdict := drain.verdict()):
            console().print(verdict, style="bold", markup=False, soft_wrap=True)
            _print_findings(obstacles)
        _print(survey, profile, [one for one in found if one.level != "drain"])
    return int(any(one.level == "error" for one in found))


def _drain_of(options: argparse.Namespace) -> DrainStatus | None:
    """The drain of the running node; None if no node answers."""
    options.timeout = _ANSWER_SECONDS
    try:
        with _client.connect(options) as client:
            return drain_status(client)
    except CommandError:
        # The machine is surveyed without a node too.
        if options.socket is not None:
            raise
    except farrow.FarrowError as error:
        if options.socket is not None:
            raise
        print(f"farrow: the state of a drain is not known: {error}", file=sys.stderr)
    return None


def findings(survey: dict[str, Any]) -> list[Finding]:
    """Deficiencies of a machine with this survey, most serious first.

    Missing keys of the survey are ignored.
    """
    found = [
        *_tmpfs_findings(survey),
        *_huge_page_findings(survey),
        *_limit_findings(survey),
        *_window_findings(survey),
    ]
    return sorted(found, key=lambda one: one.level != "error")


def _tmpfs_findings(survey: dict[str, Any]) -> list[Finding]:
    places = _places(survey)
    if not places:
        return [
            Finding(
                "error",
                "no tmpfs that you may write to",
                "a node has no place for its memory",
                "sudo mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm",
            )
        ]
    total = _number(survey.get("memory"), "total_bytes", "total") or _physical_bytes()
    largest = max(places, key=lambda place: _number(place, "size_bytes", "size") or 0)
    size = _number(largest, "size_bytes", "size") or 0
    if total and size < _SHM_SHARE_WANTED * total:
        path = str(largest.get("path", "/dev/shm"))
        return [
            Finding(
                "advice",
                f"the largest tmpfs, {path}, holds {human_bytes(size)} of"
                f" {human_bytes(total)} of memory",
                "no larger region can be made (containers: docker run --shm-size=8g)",
                f"sudo mount -o remount,size=50% {path}",
            )
        ]
    return []


def _huge_page_findings(survey: dict[str, Any]) -> list[Finding]:
    if (survey.get("node_memory") or {}).get("huge_pages"):
        return []
    places = _places(survey)
    offered = any(
        str(place.get("huge") or "never") not in ("never", "None", "False", "0", "deny")
        for place in places
    )
    settings = survey.get("huge_pages") or {}
    shmem = _chosen(settings.get("shmem_enabled") or settings.get("shmem"))
    if offered or not places or shmem in ("always", "force", "within_size", "advise"):
        return []
    path = str(places[0].get("path", "/dev/shm"))
    consequence = "regions use 4 KiB pages: a process pays about 0.2 us for each one that it maps"
    if shmem == "deny":
        what = "huge pages on tmpfs are denied on this machine"
        command = "echo never | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled"
        return [Finding("advice", what, consequence, f"{command}, then farrow doctor again")]
    return [
        Finding(
            "advice",
            f"{path} offers no huge pages",
            consequence,
            f"sudo mount -o remount,huge=advise {path}",
        )
    ]


def _limit_findings(survey: dict[str, Any]) -> list[Finding]:
    limits = survey.get("limits") or {}
    found = []
    files = _number(limits, "open_files", "nofile", "files")
    if files is not None and 0 < files < _FILES_WANTED:
        found.append(
            Finding(
                "advice",
                f"at most {files:,} open files for each process",
                f"a node serves fewer than {files:,} clients",
                f"ulimit -Hn {_FILES_WANTED}  # as root, or in limits.conf",
            )
        )
    maps = _number(limits, "map_count", "max_map_count", "maps")
    if maps is not None and 0 < maps < _MAPS_WANTED:
        found.append(
            Finding(
                "advice",
                f"at most {maps:,} mappings for each process",
                "a client that fills many objects at a time runs out of them",
                f"sudo sysctl vm.max_map_count={_MAPS_WANTED}",
            )
        )
    space = _number(limits, "address_space", "as")
    if space is not None and 0 < space < 1 << 46:
        found.append(
            Finding(
                "advice",
                f"address space is limited to {human_bytes(space)}",
                "regions are mapped wherever there is room, not at one address in all processes",
                "ulimit -v unlimited",
            )
        )
    return found


def _window_findings(survey: dict[str, Any]) -> list[Finding]:
    window = survey.get("fixed_window") or survey.get("window")
    if not isinstance(window, dict):
        return []
    free = window.get("free", window.get("available"))
    if free is None or bool(free):
        return []
    return [
        Finding(
            "advice",
            "the fixed address window is taken in this process",
            "regions are mapped at any address; all works, only raw pointers differ",
            "unset LD_PRELOAD  # or run without the tool that maps there (TSAN, valgrind)",
        )
    ]


def _leftover_findings() -> list[Finding]:
    """Files of ended nodes; their memory is retained for the next node at the same socket."""
    found = []
    for one in _native.leftovers([]):
        what = f"{one['path']} ({one['kind']}) was left by a node that ended"
        consequence = f"it keeps {human_bytes(one['bytes'])} until a node starts there again"
        found.append(Finding("advice", what, consequence, "farrow clean --dry-run"))
    return found


def _tmpfs(survey: dict[str, Any]) -> list[dict[str, Any]]:
    places = survey.get("tmpfs") or survey.get("tmpfs_dirs") or []
    if isinstance(places, dict):
        places = [{"path": path, **facts} for path, facts in places.items()]
    return [place for place in places if not str(place.get("path")).startswith(_NO_PLACE)]


def _places(survey: dict[str, Any]) -> list[dict[str, Any]]:
    """Mounts that a new node could use: not those that a node mounted for itself."""
    return [place for place in _tmpfs(survey) if not place.get("of_node")]


def _number(group: Any, *names: str) -> int | None:
    """The first of the named entries that is a number; None for "unlimited" and absent ones."""
    if not isinstance(group, dict):
        return None
    for name in names:
        value = group.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _chosen(setting: Any) -> str:
    """``advise`` of ``always within_size [advise] never``."""
    text = str(setting or "")
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else text


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _print(survey: dict[str, Any], profile: dict[str, Any], found: list[Finding]) -> None:
    """The verdict and the findings, then single values and groups, one line each, then lists."""
    out = console()
    out.print(_verdict(found), style="bold", markup=False)
    _print_findings(found)
    rows = []
    for key, value in survey.items():
        if isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values()):
            facts = [f"{_words(name)} {_text(name, item)}" for name, item in value.items()]
            rows.append((_words(key), "; ".join(facts)))
        elif not isinstance(value, (list, dict)):
            rows.append((_words(key), _text(key, value)))
    out.print(grid(("this machine", ""), rows))
    for key, value in survey.items():
        if isinstance(value, list) or (
            isinstance(value, dict) and any(isinstance(v, dict) for v in value.values())
        ):
            _print_rows(out, _words(key), value)
    _print_profile(out, profile)
    devices = _devices()
    if devices:
        out.print(grid(("devices a node can lend (--device PATH)",), [(one,) for one in devices]))


def _print_findings(found: list[Finding]) -> None:
    out = console()
    for one in found:
        mark = "[bold red]error[/]" if one.level == "error" else f"[yellow]{one.level}[/]"
        out.print(mark, end=" ")
        out.print(f"{one.what}: {one.consequence}.", markup=False)
        out.print(f"       {one.command}\n", style="bold", markup=False)


def _verdict(found: list[Finding]) -> str:
    """One line that says whether a node works here."""
    errors = sum(one.level == "error" for one in found)
    if errors:
        count = "an error prevents it" if errors == 1 else f"{errors} errors prevent it"
        return f"A node cannot work here: {count}."
    if found:
        count = "one change would make" if len(found) == 1 else f"{len(found)} changes would make"
        return f"A node works here; {count} it faster, larger or tidier."
    return "A node works here, with all that it can use."


def _print_profile(out: Any, profile: dict[str, Any]) -> None:
    """Farrow's cache methods on this machine by size, with their measured times."""
    rows = [
        (
            human_bytes(step["bytes"]),
            *(_way(step, work) for work in ("publish", "refresh", "write")),
        )
        for step in profile["steps"]
    ]
    out.print(grid((">caches, ranges of", "publish", "refresh", "write and publish"), rows))
    origin = f"From {profile['origin']}"
    if profile["path"]:
        origin += f", stored in {profile['path']}"
    text = f"{_all_caches(profile['all_caches'])}\n{origin}. farrow lab coherence measures more.\n"
    out.print(text, markup=False, soft_wrap=True)


def _all_caches(found: dict[str, Any]) -> str:
    """The cost of writing back all caches of the machine, used for the largest ranges."""
    if "why_not" in found:
        return f"All caches at once: not here ({found['why_not']})."
    words = [f"All caches at once: {human_ns(found['ns'])}"]
    for work in ("publish", "refresh"):
        nbytes = found[f"{work}_from_bytes"]
        words.append(f"to {work} {'never' if nbytes is None else f'from {human_bytes(nbytes)} on'}")
    return ", ".join(words) + "."


def _way(step: dict[str, Any], work: str) -> str:
    ns = step[f"{work}_ns"]
    return f"{step[work]}  {human_ns(ns)}" if ns else str(step[work])


def _devices() -> list[str]:
    """Memory devices that a node could share; other mappable files also work."""
    patterns = ("dax*", "mishmem*", "cxl/mem*")
    return sorted(str(path) for pattern in patterns for path in Path("/dev").glob(pattern))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _print_rows(out: Any, title: str, value: Any) -> None:
    """A list or dict of similar entries, as one table."""
    if isinstance(value, dict):
        entries = [
            {"": name, **(item if isinstance(item, dict) else {"value": item})}
            for name, item in value.items()
        ]
    else:
        entries = [item if isinstance(item, dict) else {"": item} for item in value]
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    names.sort(key=lambda name: name not in ("", "path", "kind", "name"))
    if not names:
        return
    rows = [[_text(name, entry.get(name)) for name in names] for entry in entries]
    heads = [f"{title} {names[0]}".strip(), *names[1:]]
    out.print(grid([_words(head) for head in heads], rows))


def _text(name: str, value: Any) -> str:
    if value is None:
        return "none" if name in ("huge", "huge_pages") else "unlimited"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name in ("start", "end", "base", "address"):
            return f"{value:#x}"
        is_bytes = name.endswith(_BYTE_WORDS)
        return human_bytes(value) if is_bytes and value >= 1024 else f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(name, item) for item in value)
    return str(value)
