"""``python -m farrow.cli``: the same as the command ``farrow``."""

import sys
from typing import NoReturn

from farrow.cli import main


def run() -> NoReturn:
    """Run the command line of this process, and end it."""
    code = main()
    if "datafusion" in sys.modules:
        from farrow._scan import _ending

        _ending.end_process(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
