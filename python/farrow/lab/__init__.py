"""The coherence laboratory: what publish and refresh cost on this machine, and who picks what.

``farrow lab coherence`` runs it.  The loops that are timed are Rust (``crates/memory/src/lab``) and
go through the code that regions use; this package plans the series (``_plan``), runs them
(``_measure``), makes figures of them (``_analyse``) and writes raw samples, pictures and one page
of HTML (``_files``, ``_plots``, ``_report``).
"""

from __future__ import annotations

from farrow.lab._analyse import Figures, analyse
from farrow.lab._measure import Run, measure
from farrow.lab._plan import Settings

__all__ = ["Figures", "Run", "Settings", "analyse", "measure"]
