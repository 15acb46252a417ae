"""Checks and stress of the module in a guest, and canaries that have to fail."""

from __future__ import annotations

from pathlib import Path

from .guests import Failure, Laboratory, Outcome, say

PROCESSES = 4
# Several times what an idle machine of two cores takes.
CHECK_SECONDS_MAX = 240
STRESS_SECONDS_MAX = 300
# What a kernel has free differs by less than so much between two looks at it, with nothing leaked.
FREE_KIB_MAX = 1024
# Slab objects are checked for use after free and for stores beyond their end.
APPEND = "slub_debug=FZPU"
# Must be zero when nobody uses the module.
LIVE = ("blocks_live", "spaces_live", "mappings_live")
# -DFARROW_SHMEM_LEAK: frees missing and counted, frees missing and hidden.
CANARIES = {1: "pages_freed", 2: "the kernel has"}


def check(laboratory: Laboratory) -> None:
    """Raises if a promise of the module is not kept."""
    module = laboratory.build_module()
    outcome = laboratory.boot(module, "load\ncheck || bad check\n", CHECK_SECONDS_MAX, cpus=2)
    _raise(outcome)
    if "lab: PASS" not in outcome.console:
        raise Failure(f"{laboratory.architecture.name}: the check came to no end")
    for line in outcome.console:
        if line.startswith("lab: ok: "):
            say(f"{laboratory.architecture.name}: {line.removeprefix('lab: ok: ')}")


def leaks(outcome: Outcome) -> list[str]:
    """What is not back where it was, by the module's own counters and by the kernel's."""
    counts = outcome.reported
    wanted = {"pages_allocated", "pages_freed", "free_kib_before", "free_kib_after", *LIVE}
    if not wanted <= counts.keys():
        return [f"the guest did not say {', '.join(sorted(wanted - counts.keys()))}"]
    found = [f"{name} is {counts[name]}, not 0" for name in LIVE if counts[name] != 0]
    if counts["pages_allocated"] != counts["pages_freed"]:
        found.append(f"pages_freed is {counts['pages_freed']} of {counts['pages_allocated']}")
    lost = counts["free_kib_before"] - counts["free_kib_after"]
    if lost > FREE_KIB_MAX:
        found.append(f"the kernel has {lost} KiB less than before")
    return found


def stress(laboratory: Laboratory, seed: int, operations: int) -> None:
    """Raises if something leaks or the kernel warns, or if a leaking module goes unnoticed."""
    name = laboratory.architecture.name
    say(f"{name}: {operations} operations of {PROCESSES} processes, seed {seed}")
    outcome = _run(laboratory, laboratory.build_module(), seed, operations)
    _raise(outcome)
    found = leaks(outcome)
    if found:
        raise Failure(f"{name}: {'; '.join(found)}")
    counts = outcome.reported
    lost = counts["free_kib_before"] - counts["free_kib_after"]
    say(
        f"{name}: {counts['pages_allocated']} pages allocated and freed,"
        f" {counts['faults']} faults, {counts['faults_refused']} refused;"
        f" the kernel has {lost} KiB less; {outcome.seconds:.0f} s"
    )
    for leak, expected in CANARIES.items():
        module = laboratory.build_module(f"-DFARROW_SHMEM_LEAK={leak}")
        outcome = _run(laboratory, module, seed, operations)
        _raise(outcome)
        noticed = [words for words in leaks(outcome) if words.startswith(expected)]
        if not noticed:
            raise Failure(f"{name}: a module that leaks (kind {leak}) went unnoticed")
        say(f"{name}: canary: noticed: {'; '.join(leaks(outcome))}")


def _run(laboratory: Laboratory, module: Path, seed: int, operations: int) -> Outcome:
    # The guest's own limit is the first to strike: then its console says where it was.
    words = f"stress {seed} {operations} {PROCESSES} {STRESS_SECONDS_MAX // 2}"
    return laboratory.boot(module, words + "\n", STRESS_SECONDS_MAX, cpus=2, append=APPEND)


def _raise(outcome: Outcome) -> None:
    if outcome.failures:
        say("console:")
        print("\n".join(outcome.console), flush=True)
    outcome.check()
