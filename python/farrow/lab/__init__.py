"""The coherence laboratory: costs of publish and refresh on this machine, and Farrow's choices.

``farrow lab coherence`` runs it.  The timed loops are Rust (``crates/memory/src/timing``) and call
the code that regions use.  This package plans the series (``_plan``), runs them (``_measure``),
computes figures (``_analyse``) and writes raw samples, pictures and one page of HTML (``_files``,
``_plots``, ``_report``).
"""

from __future__ import annotations

from farrow.lab._analyse import Figures, analyse
from farrow.lab._measure import Run, measure
from farrow.lab._plan import Settings

__all__ = ["Figures", "Run", "Settings", "analyse", "measure"]
