"""Figures of attention, leakage, errors and cost, as matplotlib ``Figure`` objects;
``python -m verify plot`` writes them.

Attention comes from the layer's own softmax, never from its geometry; errors come from a
certificate file, costs from measured times.  matplotlib (the extra ``viz``) is imported when a
figure is drawn; pyplot, which has global state, is never imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.plots.attention_maps import attention_figure
    from verify.plots.centres import centres_figure
    from verify.plots.costs import cost_figure
    from verify.plots.drawing import write_figure
    from verify.plots.errors import errors_figure
    from verify.plots.leakage import leakage_figure

_HOMES = {
    "attention_figure": "attention_maps",
    "centres_figure": "centres",
    "cost_figure": "costs",
    "errors_figure": "errors",
    "leakage_figure": "leakage",
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
    """Import a figure's module on first use, so that the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify.plots' has no attribute {name!r}")
    return getattr(import_module(f"verify.plots.{_HOMES[name]}"), name)
