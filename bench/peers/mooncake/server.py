"""Mooncake's master and the client that holds the memory: ``server.py DIRECTORY BYTES``.

Both end with this process.  ``ports`` in the directory has their ports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

# Objects are allocated with a header each, and the store evicts beyond nine tenths.
_ROOM = 1.3


def main() -> int:
    """Run both until SIGTERM or the end of one."""
    directory, capacity = sys.argv[1], int(sys.argv[2])
    with open(os.path.join(directory, "ports")) as file:
        ports = json.load(file)
    programs = os.path.join(os.path.dirname(sys.executable))
    environment = dict(os.environ)
    libraries = library_folders()
    if libraries:
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
    started: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        master = [os.path.join(programs, "mooncake_master"), "-rpc_address=127.0.0.1"]
        master += [f"-rpc_port={ports['master']}", "-metrics_host=127.0.0.1"]
        master += [f"-metrics_port={ports['metrics']}"]
        started.append(subprocess.Popen(master, env=environment))
        client = [os.path.join(programs, "mooncake_client"), "-host=127.0.0.1"]
        client += [f"-port={ports['client']}", "-metadata_server=P2PHANDSHAKE"]
        client += [f"-master_server_address=127.0.0.1:{ports['master']}"]
        client += [f"-global_segment_size={int(capacity * _ROOM) >> 20} MB"]
        started.append(subprocess.Popen(client, env=environment))
        return started[-1].wait()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait()


def library_folders() -> list[str]:
    """Folders of the libraries that ``setup`` unpacked; none if the system has them."""
    debian = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "debian")
    machine = f"{os.uname().machine}-linux-gnu"
    places = [os.path.join(debian, *part, "lib", machine) for part in ((), ("usr",))]
    return [place for place in places if os.path.isdir(place)]


if __name__ == "__main__":
    sys.exit(main())
