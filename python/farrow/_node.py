"""Run a node with a minimal interpreter: only the extension, no pyarrow, no site.

    python -I -S _node.py EXTENSION FLAG ...

The package is not imported: an import would take longer than the rest of the start.
"""

import os
import signal
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec


def _main(extension: str, *flags: str) -> int:
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
