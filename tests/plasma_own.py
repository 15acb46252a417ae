"""Plasma's own tests, run on ``farrow.compat.plasma`` with their import changed.

    python plasma_own.py [TEST_FILE]

The file is ``pyarrow/tests/test_plasma.py`` in the wheel of pyarrow 11, the last release with
Plasma. pip downloads the wheel into a temporary folder. The file may also be named. A test that
fails has to be one of ``DIFFERENCES``, and each of these has to fail.

The test of frames makes a batch of a frame with text, which pandas 3 stores in chunks: pyarrow
refuses it before Farrow sees it. So pip also installs pandas 2, into the same temporary folder.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION = "11.0.0"
MEMBER = "pyarrow/tests/test_plasma.py"
# One wheel that has the file. It is not installed, so it need not fit this machine and this Python.
WHEEL = ("--platform", "manylinux2014_x86_64", "--python-version", "3.11")

# Tests that differ, and the difference: bold on the page docs/coming-from/plasma.md.
DIFFERENCES = {
    "TestPlasmaClient::test_put_and_get_serialization_context": "Serialization contexts",
    "TestPlasmaClient::test_put_and_get_raw_buffer": "Functions that left pyarrow",
    "test_store_capacity": "Capacity",
    "test_plasma_deprecated": "Deprecation",
}
# Needs a folder of huge pages, and pyarrow expects it to fail.
MAY_BE_SKIPPED = "test_use_huge_pages"

# Each form of the import, and what it becomes.
IMPORTS = {
    r"^import pyarrow as pa$": "import farrow.compat.plasma\nimport pyarrow as pa",
    r"\bimport pyarrow\.plasma as plasma\b": "import farrow.compat.plasma as plasma",
    r"\bfrom pyarrow import plasma\b": "from farrow.compat import plasma",
    r"\bpa\.plasma\b": "farrow.compat.plasma",
}

PANDAS = ("pandas>=2.2,<3", "python-dateutil", "pytz", "six", "tzdata")

# A download of 35 MB, and the longest of the tests, which takes seconds.
DOWNLOAD_SECONDS = 600.0
TEST_SECONDS = 120


def main(arguments: list[str]) -> int:
    """Run the file.  0 if exactly the named tests differ."""
    with tempfile.TemporaryDirectory(prefix="farrow-plasma-own-") as folder:
        path = Path(folder)
        text = Path(arguments[0]).read_text() if arguments else downloaded(path)
        pip("install", "--target", str(path / "pandas"), *PANDAS)
        sys.path.insert(0, str(path / "pandas"))
        (path / "test_plasma.py").write_text(changed(text))
        outcomes = run(path)
    problems = judge(outcomes)
    differing = [test for test in sorted(DIFFERENCES) if outcomes.get(test) == "failed"]
    for test in differing:
        print(f"differs as documented ({DIFFERENCES[test]}): {test}")
    for problem in problems:
        print(f"plasma_own: {problem}", file=sys.stderr)
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    print(
        f"{passed} of {len(outcomes)} tests of Plasma pass, {len(differing)} differ as documented"
    )
    return 1 if problems else 0


def downloaded(folder: Path) -> str:
    """The test file in the wheel of the package registry."""
    pip("download", *WHEEL, "--dest", str(folder), f"pyarrow=={VERSION}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(MEMBER).decode()


def pip(command: str, *arguments: str) -> None:
    """Run pip without dependencies and without builds."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    line = [sys.executable, "-m", "pip", command, *options, *arguments]
    subprocess.run(line, check=True, timeout=DOWNLOAD_SECONDS)


def changed(text: str) -> str:
    """The test file with its import changed.

    Raises:
        ValueError: the file does not have an import that this knows, or has another one.
    """
    for pattern, replacement in IMPORTS.items():
        text, count = re.subn(pattern, replacement, text, flags=re.M)
        if not count:
            raise ValueError(f"the test file has nothing like {pattern}")
    if left := re.search(r"^.*\bpyarrow[. ]+(import )?plasma\b.*$", text, re.M):
        raise ValueError(f"an import that is not changed: {left[0]}")
    return text


class Outcomes:
    """A plugin of pytest: the outcome of each test, and a limit on its time."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid.partition("::")[2]
        # A failure of the setup or of the teardown is one of the test.
        has_result = report.when == "call" or report.outcome != "passed"
        if has_result and self.found.get(test) != "failed":
            self.found[test] = report.outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with limited(TEST_SECONDS):
            return (yield)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in a block that takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"the test did not end in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(folder: Path) -> dict[str, str]:
    """Run the tests: "passed", "failed" or "skipped" for each."""
    outcomes = Outcomes()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    options += ["-W", "ignore::pytest.PytestUnknownMarkWarning"]
    code = pytest.main([*options, str(folder / "test_plasma.py")], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r} before all tests had run")
    return outcomes.found


def judge(outcomes: Mapping[str, str]) -> list[str]:
    """What is not as ``DIFFERENCES`` says; empty if all is."""
    if not outcomes:
        return ["no test was run"]
    problems = []
    for test, outcome in outcomes.items():
        if outcome == "failed" and test not in DIFFERENCES:
            problems.append(f"{test} fails, and is not among the documented differences")
        elif outcome == "passed" and test in DIFFERENCES:
            problems.append(f"{test} passes: remove it from the documented differences")
        elif outcome == "skipped" and test != MAY_BE_SKIPPED:
            problems.append(f"{test} was skipped")
    missing = DIFFERENCES.keys() - outcomes.keys()
    return problems + [f"{test}: there is no such test" for test in sorted(missing)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
