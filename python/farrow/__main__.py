"""``python -m farrow``: the same as the ``farrow`` command."""

import sys

from farrow.cli import main

sys.exit(main())
