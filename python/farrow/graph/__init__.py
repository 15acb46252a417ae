"""Features of the graph of a transaction stream.

Examples:
    >>> from farrow.graph import GraphFeatures
    >>> import numpy as np
    >>> rows = np.array([[0, 1, 9, 1], [1, 2, 9, 2], [2, 3, 9, 3]], dtype=float)
    >>> features = GraphFeatures(patterns=("fan",), window=10, bins=[2, 3])
    >>> features.fit_transform(rows)[:, 4:].tolist()
    [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farrow.graph.features import GraphFeatures

__all__ = ["GraphFeatures"]


def __getattr__(name: str) -> Any:
    # Loaders and generators work without scikit-learn.
    if name == "GraphFeatures":
        try:
            from farrow.graph.features import GraphFeatures
        except ModuleNotFoundError as error:
            needed = "farrow.graph needs NumPy and scikit-learn: pip install 'farrow[graph]'"
            raise ImportError(needed) from error

        return GraphFeatures
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
