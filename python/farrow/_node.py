"""Run a node with as little of Python as possible: the extension alone, no pyarrow, no site.

    python -I -S _node.py EXTENSION LIBARROW FLAG ...

LIBARROW is loaded first when it is not empty, for an extension whose rpath does not lead to it.
The package is not imported: that would cost more than all the rest of the start.
"""

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec

_RTLD_NOW_GLOBAL = 0x102


def _main(extension: str, libarrow: str, *flags: str) -> int:
    if libarrow:
        import ctypes

        ctypes.CDLL(libarrow, mode=_RTLD_NOW_GLOBAL)
    loader = ExtensionFileLoader("farrow._native", extension)
    native = loader.create_module(ModuleSpec("farrow._native", loader, origin=extension))
    loader.exec_module(native)
    code: int = native.node_main(list(flags))
    return code


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
