"""Run the series of a plan: methods that are compared alternate, round by round."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import time
from typing import TYPE_CHECKING, Any

from farrow import _native
from farrow.lab._plan import arena_bytes, groups, memory_needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from farrow.lab._plan import Group, Series, Settings

__all__ = ["Run", "check_memory", "measure"]

# Samples of each round: another program can disturb a single one.
_SAMPLES_MIN = 3


@dataclasses.dataclass
class Run:
    """Settings, machine, profile and samples of a run."""

    settings: Settings
    machine: dict[str, Any]
    profile: dict[str, Any]
    samples: list[tuple[Series, list[list[float]]]]
    """Nanoseconds of a range, by series and round."""
    huge_bytes: dict[str, int | None]
    """Bytes that did lie in huge pages, by kind of arena (``private small``)."""
    region: str
    """What stood for another node's memory."""
    seconds: float = 0.0


def check_memory(settings: Settings) -> None:
    """Reject a run that does not fit, before any allocation.

    Raises:
        MemoryError: the run does not fit; the message has the bytes needed and available.
    """
    needed = memory_needed(settings)
    available = _native.survey()["memory"]["available_bytes"]
    if available is not None and needed > available:
        raise MemoryError(
            f"the run needs {needed} B of memory, {available} B are available:"
            " choose a smaller --size-max or --pattern-bytes, or --quick"
        )


def measure(
    settings: Settings,
    *,
    region: Any = None,
    region_name: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Measure all series of a plan, which compared instructions take in turns.

    Args:
        settings: the measurements to run, and their time.
        region: a writable buffer in another node's memory, of ``pattern_bytes`` times the largest
            number of threads; None: create and map a region on a tmpfs of this machine.
        region_name: description of the buffer, for the report.
        progress: called with the numbers of finished and of all series.

    Returns:
        The samples in nanoseconds, with the machine and the settings.

    Raises:
        MemoryError: the run does not fit; nothing was measured.

    Examples:
        >>> from farrow import lab
        >>> settings = lab.Settings(size_max=4096, rounds=1, seconds=0.001, parts=("lines",))
        >>> len(lab.measure(settings).samples) > 0
        True
    """
    check_memory(settings)
    began = time.monotonic()
    plan = list(groups(settings))
    total = sum(len(group.series) for group in plan)
    run = Run(
        settings,
        machine(),
        _native.lab_profile(),
        [],
        {},
        region_name or f"a region on {settings.memory_dir}",
    )
    arena: Any = None
    key = ("", "")
    for group in plan:
        if (group.memory, group.pages) != key:
            key = (group.memory, group.pages)
            # Release the previous arena first: the memory check counts one arena at a time.
            arena = None
            arena = _arena(settings, *key, region)
            run.huge_bytes[" ".join(key)] = arena.huge_bytes
        run.samples.extend(_take_turns(arena, group, settings))
        progress(len(run.samples), total)
    run.seconds = time.monotonic() - began
    return run


def _arena(settings: Settings, memory: str, pages: str, region: Any) -> Any:
    nbytes = arena_bytes(settings, memory)
    if memory == "private":
        return _native.LabArena.private(nbytes, huge=pages == "huge")
    if region is not None:
        return _native.LabArena.over(region)
    return _native.LabArena.region(nbytes, settings.memory_dir)


def _take_turns(
    arena: Any, group: Group, settings: Settings
) -> list[tuple[Series, list[list[float]]]]:
    """Run all series of a group, taking part of each one's samples in every round."""
    found: list[tuple[Series, list[list[float]]]] = [(series, []) for series in group.series]
    counts = [1] * len(found)
    for number in range(settings.rounds + 1):
        for place, (series, rounds) in enumerate(found):
            began = time.monotonic()
            taken = arena.run(samples=counts[place], **series.arguments())
            if number == 0:
                # The first sample warms up, and gives the number that fits the time.
                seconds = max(time.monotonic() - began, 1e-6)
                wanted = int(settings.seconds / settings.rounds / seconds)
                most = settings.samples_max // settings.rounds
                counts[place] = max(min(_SAMPLES_MIN, most), min(wanted, most))
            else:
                rounds.append(taken)
    return found


def machine() -> dict[str, Any]:
    """The machine and versions of the figures."""
    survey = _native.survey()
    methods = _native.lab_methods()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _native.lab_profile()["machine"],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": survey["memory"]["total_bytes"],
        "line_bytes": methods["line_bytes"],
        "clock_ns": methods["clock_ns"],
        "huge_pages": survey["huge_pages"]["enabled"],
        "python": platform.python_version(),
        "farrow": _native.__version__,
    }
