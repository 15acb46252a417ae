"""Measured figures in the documentation: made from raw samples, and checked by ``make lint``.

``runs.json`` names the raw file behind each kind of figure.  ``blocks`` makes the text between
``<!-- measured: NAME -->`` and ``<!-- /measured -->``; ``pages`` finds figures that nothing backs.
"""
