"""Figures: functions that return a matplotlib ``Figure``, and ``python -m verify plot``, which writes one as SVG or PNG.

Attention is drawn from the probabilities that a layer's own softmax gives, never from its geometry; errors are drawn from a
certificate file; costs from times that were measured.  matplotlib is imported when a figure is made (the extra ``viz``), and
pyplot, which keeps figures of its own, never.
"""

from verify.plots.attention_maps import attention_figure
from verify.plots.centres import centres_figure
from verify.plots.costs import cost_figure
from verify.plots.drawing import write_figure
from verify.plots.errors import errors_figure
from verify.plots.sharpness import leakage_figure

__all__ = [
    "attention_figure",
    "centres_figure",
    "cost_figure",
    "errors_figure",
    "leakage_figure",
    "write_figure",
]
