"""Check the measured figures of the documentation: ``python bench/figures.py [--write]``.

Each stands in a block that is made from the raw samples of a committed run (``citations/``), or in
a section that says why not.  ``--write`` makes all blocks again: after ``citations/runs.json``
names another run.  Standard library only; ``make lint`` runs it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from citations.pages import faults, pages, rewritten  # noqa: E402
from citations.raw import REPOSITORY  # noqa: E402

__all__ = ["main"]


def main() -> int:
    """Print all faults; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="make all blocks again")
    options = parser.parse_args()
    found = 0
    for page in pages():
        path = REPOSITORY / page
        text = path.read_text()
        if options.write:
            made = rewritten(page, text)
            if made != text:
                path.write_text(made)
                print(f"{page}: written")
            text = made
        for fault in faults(page, text):
            print(fault)
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
