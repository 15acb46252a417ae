"""``python -m farrow``: the same as the ``farrow`` command."""

from farrow.cli.__main__ import run

run()
