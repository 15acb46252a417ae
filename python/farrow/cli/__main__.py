"""``python -m farrow.cli``: the same as the command ``farrow``."""

import sys

from farrow.cli import main

sys.exit(main())
