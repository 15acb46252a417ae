"""The user unit of a node under a real systemd: run by test_install_c.py in namespaces of its own.

python systemd_service.py FOLDER    $XDG_CONFIG_HOME below FOLDER has the unit
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import farrow

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_SECONDS = 60.0
OPTIONS = "--memory 16MiB"
# A manager that does not come up is a fact about this machine, not about the unit.
NO_SYSTEMD = 77


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.02)


def systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


def shown(name: str) -> str:
    return systemctl("show", f"--property={name}", "--value", "farrowd").stdout.strip()


def main_pid() -> int:
    return int(shown("MainPID") or 0)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def check(options: Path) -> None:
    options.write_text(f'FARROWD_OPTIONS="{OPTIONS}"\n')
    started = systemctl("start", "farrowd")
    assert started.returncode == 0, started.stderr
    first = main_pid()
    client = farrow.connect(timeout=LIMIT_SECONDS)
    client.put(b"for the next node", "kept")

    # Two in a row: the second one replaces a node that systemd did not start itself.
    pids = [first]
    for _ in range(2):
        done = systemctl("reload", "farrowd")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: main_pid() not in pids, "another main process")
        wait_until(lambda: not is_there(pids[-1]), "the end of the old node")
        pids.append(main_pid())
        assert shown("ActiveState") == "active"
        assert client.get("kept").to_pybytes() == b"for the next node"

    # One that cannot start changes nothing.
    options.write_text('FARROWD_OPTIONS="--no-such-option"\n')
    assert systemctl("reload", "farrowd").returncode != 0
    assert (main_pid(), shown("ActiveState")) == (pids[-1], "active")
    options.write_text(f'FARROWD_OPTIONS="{OPTIONS}"\n')

    # systemd notices the end of a main process that it did not start, and has its memory.
    (daemon,) = Path(f"/proc/{pids[-1]}/task/{pids[-1]}/children").read_text().split()
    for pid in (pids[-1], int(daemon)):
        os.kill(pid, signal.SIGSTOP)
    os.kill(pids[-1], signal.SIGKILL)
    with suppress(ProcessLookupError):  # systemd may have been first
        os.kill(int(daemon), signal.SIGKILL)
    wait_until(lambda: main_pid() not in (0, pids[-1]), "a restart")
    wait_until(lambda: shown("ActiveState") == "active", "a service that is ready")
    assert client.get("kept").to_pybytes() == b"for the next node"

    # In good order: the main process is waited for, and nothing is stored.
    done = systemctl("reload", "farrowd")
    assert done.returncode == 0, done.stderr
    assert systemctl("stop", "farrowd").returncode == 0
    assert (shown("ActiveState"), shown("Result")) == ("inactive", "success")
    assert shown("NFileDescriptorStore") in ("0", "")
    assert not Path(os.environ["XDG_RUNTIME_DIR"], "farrow", "node.sock").exists()


def main(folder: Path) -> int:
    manager = subprocess.Popen(["/lib/systemd/systemd", "--user"])
    end = time.monotonic() + LIMIT_SECONDS
    while systemctl("is-system-running").stdout.strip() not in ("running", "degraded"):
        if manager.poll() is not None or time.monotonic() > end:
            return NO_SYSTEMD
        time.sleep(0.05)
    options = folder / "farrow" / "farrowd.env"
    options.parent.mkdir()
    check(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
