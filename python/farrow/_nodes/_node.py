"""Run a node with a minimal interpreter: only the extension, no pyarrow, no site.

    python -I -S _node.py EXTENSION FLAG ...

The package is not imported: an import would take longer than the rest of the start.
"""

import contextlib
import os
import signal
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec


def _close_inherited() -> None:
    """Close what the program that starts a private node left open for its children.  The pipe by
    which ``multiprocessing`` sees the end of a process, and a port, would stay open with the node.
    """
    with contextlib.suppress(OSError):
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2:
                # The folder itself is closed by now.
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _main(extension: str, *flags: str) -> int:
    # The daemon of such a node inherits nothing more from its supervisor.
    if "--private" in flags:
        _close_inherited()
    # Before anything else gets one of the descriptors of a closed standard stream.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # The node ends in order at Ctrl-C.  Python would print where it was interrupted after that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    loader = ExtensionFileLoader("farrow._native", extension)
    native = loader.create_module(ModuleSpec("farrow._native", loader, origin=extension))
    loader.exec_module(native)
    code: int = native.node_main(list(flags))
    return code


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
