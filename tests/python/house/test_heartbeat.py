"""Steps of the Makefile that print nothing for minutes have a line every ten seconds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import LIMIT_SECONDS

ROOT = Path(__file__).resolve().parents[3]
HEARTBEAT = ROOT / "packaging/heartbeat.sh"
MAKEFILE = ROOT / "Makefile"
# What `make demo` and `make test` run.
STEPS = ("$(VENV)/environment", "$(VENV)/peers", "$(VENV)/tools", "demo", "test-rust")
STEPS += ("test-cross", "test-install", "test-python", "test-pyarrow")


def start(*command: str, seconds: str = "0.2") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(HEARTBEAT), "the step", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HEARTBEAT_SECONDS": seconds},
    )


def test_lines_come_while_the_command_runs() -> None:
    process = start("sh", "-c", "sleep 1.5; echo done")
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, out) == (0, "done\n")
    lines = err.splitlines()
    assert 3 <= len(lines) <= 7
    assert all(re.fullmatch(r"the step: [012] s", line) for line in lines)


def test_a_failure_is_that_of_the_command() -> None:
    process = start("sh", "-c", "echo broken >&2; exit 7")
    assert process.communicate(timeout=LIMIT_SECONDS) == ("", "broken\n")
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_lines_end_with_an_interrupted_step(number: signal.Signals) -> None:
    process = start("sleep", "600")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("the step: ")
    # As the terminal does, to all. A line would hold standard error open, and time out here.
    os.killpg(process.pid, number)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_one_process_ends_the_command(number: signal.Signals) -> None:
    """``make`` sends SIGTERM to its child alone."""
    process = start("sleep", "600")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("the step: ")
    process.send_signal(number)
    # The command holds standard output open.
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -number


def test_what_a_command_leaves_running_does_not_hold_it() -> None:
    began = time.monotonic()
    process = start("sh", "-c", "sleep 600 >&- 2>&- &")
    try:
        process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0
        assert time.monotonic() - began < LIMIT_SECONDS
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def recipe(target: str) -> list[str]:
    """The commands of a target, each on one line."""
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE.read_text(), re.M)
    assert found, f"no target {target}"
    return [line.strip() for line in found[1].replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("target", STEPS)
def test_a_step_that_prints_nothing_has_a_heartbeat(target: str) -> None:
    slow = [line for line in recipe(target) if not line.startswith(("touch ", "rm "))]
    assert slow
    assert [line for line in slow if "$(BEAT) " not in line] == []


def test_each_step_of_the_wheel_has_a_heartbeat() -> None:
    for target in ("$(VENV)/package", "$(VENV)/optimized"):
        assert 'packaging/wheel_into.sh "$(WHEELHOUSE)"' in recipe(target)
    script = (ROOT / "packaging" / "wheel_into.sh").read_text().splitlines()
    steps = [line for line in script if "pip " in line and not line.startswith("#")]
    assert len(steps) == 3
    assert [line for line in steps if not line.startswith('"$beat" ')] == []
