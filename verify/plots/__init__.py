"""Figures: functions that return a matplotlib ``Figure``, and ``python -m verify plot``, which writes one as SVG or PNG.

Attention is drawn from the probabilities that a layer's own softmax gives, never from its geometry; errors are drawn from a
certificate file; costs from times that were measured.  matplotlib is imported when a figure is made (the extra ``viz``), and
pyplot, which keeps figures of its own, never.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.plots.attention_maps import attention_figure
    from verify.plots.centres import centres_figure
    from verify.plots.costs import cost_figure
    from verify.plots.drawing import write_figure
    from verify.plots.errors import errors_figure
    from verify.plots.sharpness import leakage_figure

_HOMES = {
    "attention_figure": "attention_maps",
    "centres_figure": "centres",
    "cost_figure": "costs",
    "errors_figure": "errors",
    "leakage_figure": "sharpness",
    "write_figure": "drawing",
}

__all__ = [
    "attention_figure",
    "centres_figure",
    "cost_figure",
    "errors_figure",
    "leakage_figure",
    "write_figure",
]


def __getattr__(name: str) -> Any:
    """Import a figure where it lives, when it is first asked for: the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify.plots' has no attribute {name!r}")
    return getattr(import_module(f"verify.plots.{_HOMES[name]}"), name)
