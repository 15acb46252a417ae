"""pyarrow's own tests, run with Farrow's memory pool as the default one.

    python pyarrow_own.py [MODULE ...]

The tests are those of the installed pyarrow, and run twice: with pyarrow's own pool, and with the
pool of a private node. Each test that passes with pyarrow's pool has to pass with Farrow's, except
those of ``DIFFERENCES``. A test that fails or is skipped with both proves nothing about the pool:
it needs a package or data that this machine does not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES = (
    "acero", "array", "builder", "compute", "convert_builtin", "csv", "dataset", "feather", "io",
    "ipc", "json", "memory", "pandas", "scalars", "table", "tensor", "types", "parquet",
)  # fmt: skip

# Tests that differ, and why.
DIFFERENCES = {"test_memory.py::test_default_backend_name": "the pool of the test is Farrow's"}

# What the tests allocate at one time, and more.
MEMORY = "2GiB"
# All tests with one pool take a minute.
RUN_SECONDS = 1800.0
# Fewer have not tested much: a release without tests, or an option that selects none.
PASSED_MIN = 100
OUTCOMES = "FARROW_PYARROW_OUTCOMES"


class Outcomes:
    """A plugin of pytest: the outcome of each test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A failure of the setup or of the teardown is one of the test.
        has_result = report.when == "call" or report.outcome != "passed"
        if has_result and self.found.get(report.nodeid) != "failed":
            self.found[report.nodeid] = report.outcome


def main(modules: list[str]) -> int:
    """Run the tests with both pools. 0 if Farrow's fails no more of them."""
    if modules[:1] == ["--pool"]:
        return run(modules[1], modules[2:])
    import pyarrow as pa

    outcomes = {pool: outcomes_of(pool, modules) for pool in ("pyarrow", "farrow")}
    problems = judge(outcomes["pyarrow"], outcomes["farrow"])
    for problem in problems:
        print(f"pyarrow_own: {problem}", file=sys.stderr)
    counts = [sum(one == "passed" for one in outcomes[pool].values()) for pool in outcomes]
    print(
        f"pyarrow {pa.__version__}: {counts[0]} tests pass with pyarrow's own pool, "
        f"{counts[1]} with Farrow's"
    )
    return 1 if problems else 0


def outcomes_of(pool: str, modules: list[str]) -> dict[str, str]:
    """Run the tests in a process of their own: a failed one may end it.

    Raises:
        RuntimeError: the process ended before all tests had run.
        subprocess.TimeoutExpired: the tests did not end.
    """
    with tempfile.TemporaryDirectory(prefix="farrow-pyarrow-own-") as folder:
        path = Path(folder, "outcomes.json")
        runtime = Path(folder, "run")
        runtime.mkdir(mode=0o700)
        # A node of somebody else is not to be found.
        environment = {key: value for key, value in os.environ.items() if key != "FARROW_SOCKET"}
        environment |= {
            "FARROW_LINGER": "0", "FARROW_MEMORY": MEMORY, "XDG_RUNTIME_DIR": str(runtime),
            OUTCOMES: str(path),
        }  # fmt: skip
        command = [sys.executable, __file__, "--pool", pool, *modules]
        done = subprocess.run(
            command, check=False, timeout=RUN_SECONDS, cwd=folder, env=environment
        )
        if not path.exists():
            raise RuntimeError(f"the tests with the pool of {pool} ended with {done.returncode}")
        return json.loads(path.read_text())


def run(pool: str, modules: list[str]) -> int:
    """Run the tests in this process, and write their outcomes."""
    import pyarrow as pa
    import pytest

    if pool == "farrow":
        import farrow

        mine = farrow.connect().memory_pool()
        pa.set_memory_pool(mine)
    tests = Path(pa.__file__).parent / "tests"
    paths = [tests / one for name in modules or MODULES for one in (name, f"test_{name}.py")]
    found = [str(path) for path in paths if path.exists()]
    if not found:
        raise RuntimeError(f"{tests} has no tests of {', '.join(modules or MODULES)}")
    outcomes = Outcomes()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    options += ["--rootdir", str(tests), "-W", "ignore"]
    code = pytest.main([*options, *found], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r} before all tests had run")
    if pool == "farrow" and not mine.max_memory():
        raise RuntimeError("no test used Farrow's pool")
    Path(os.environ[OUTCOMES]).write_text(json.dumps(outcomes.found))
    return 0


def judge(own: Mapping[str, str], farrow: Mapping[str, str]) -> list[str]:
    """What Farrow's pool changes and ``DIFFERENCES`` does not name; empty if nothing."""
    passed = [test for test, outcome in own.items() if outcome == "passed"]
    if len(passed) < PASSED_MIN:
        return [f"only {len(passed)} tests pass with pyarrow's own pool"]
    problems = []
    for test in passed:
        outcome = farrow.get(test, "not run")
        if outcome != "passed" and test not in DIFFERENCES:
            problems.append(f"{test}: {outcome} with Farrow's pool")
        elif outcome == "passed" and test in DIFFERENCES:
            problems.append(f"{test} passes: remove it from the differences")
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
