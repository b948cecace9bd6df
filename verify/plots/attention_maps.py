"""`attention_figure`: the attention maps of every head for some queries."""

from collections.abc import Sequence
from importlib import import_module

import torch

from construct.attention import MHSA
from verify.oracle import Vector
from verify.plots.drawing import FAINT, ORANGE, Axes, Figure, new_figure, style
from verify.plots.probabilities import LayerAttention, attention_of

MOST_HEADS = 64
COLUMNS = 10
"""Heads per row."""


def attention_figure(
    layer: MHSA,
    x: torch.Tensor | None = None,
    *,
    grid: Vector | None = None,
    queries: Sequence[Vector] | None = None,
    alpha: float | None = None,
) -> Figure:
    """Draw the attention probabilities of every head for some queries, over the padded token grid.

    Args:
        layer: a layer in 1, 2 or 3 dimensions; in 3-D the plane with the most attention is drawn.
        x: as in :func:`verify.plots.probabilities.attention_of`, like ``grid`` and ``alpha``.
        grid: the spatial size of the input.
        queries: positions of the output; by default a corner and the middle.
        alpha: another sharpness.

    Returns:
        A figure with one panel for each query and head; the dashed frame is the input, padding lies
        outside.

    Raises:
        ValueError: there is no such query, or see :func:`verify.plots.probabilities.attention_of`.

    >>> import construct, torch, verify.plots
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, kernel_size=3, padding=1))
    >>> figure = verify.plots.attention_figure(layer, grid=(4, 4), queries=[(0, 0)])
    >>> len(figure.axes)  # nine heads in one row of ten panels at most, and the colour bar
    10
    """
    attention = attention_of(layer, x, grid, alpha)
    positions = (
        [(0,) * len(attention.outputs), attention.middle()]
        if queries is None
        else [tuple(q) for q in queries]
    )
    for position in positions:
        attention.require_query(position)
    positions = list(dict.fromkeys(positions))
    heads = min(layer.heads, MOST_HEADS)
    columns = min(heads, COLUMNS)
    rows = -(-heads // columns)
    flat = len(attention.tokens) == 1
    panel = 0.3 if flat else 1.05
    most = float(max(attention.map(h, q).max() for h in range(heads) for q in positions))
    with style():
        figure = new_figure(
            1.6 + columns * (1.6 if flat else 1.25), 1.3 + len(positions) * rows * (panel + 0.25)
        )
        axes = figure.subplots(len(positions) * rows, columns, squeeze=False)
        for block, position in enumerate(positions):
            for head in range(rows * columns):
                ax = axes[block * rows + head // columns, head % columns]
                if head >= heads:
                    ax.set_axis_off()
                    continue
                ax.set_title(_draw(ax, attention, head, position, most), fontsize=9, pad=3)
                if head == 0:
                    asked = ", ".join(map(str, position))
                    ax.set_ylabel(f"output\n({asked})", rotation=0, ha="right", va="center")
        drawn = [ax for ax in axes.flat if ax.images]
        bar = figure.colorbar(drawn[0].images[0], ax=[*axes.flat], fraction=0.03, pad=0.02)
        bar.set_label("attention probability")
        omitted = f"; the first {heads} of {layer.heads} heads" if heads < layer.heads else ""
        figure.suptitle(f"Where each head looks, {attention.scope}{omitted}")
        figure.supxlabel(
            "tokens; orange: the query; within the dashed frame: the input, outside: padding",
            fontsize=9,
        )
    return figure


def _draw(ax: Axes, attention: LayerAttention, head: int, position: Vector, most: float) -> str:
    """Draw one panel and return its title."""
    weights = attention.map(head, position)
    query = attention.query(position)
    title = f"head {head}"
    inside = attention.inside
    query_on_plane = True
    if weights.ndim == 3:
        plane = int(weights.sum(axis=(1, 2)).argmax())
        query_on_plane = plane == query[0]
        title += "" if query_on_plane else f", plane {plane - query[0]:+d}"
        weights = weights[plane]
        query = query[1:]
        inside = inside[1:]
    if weights.ndim == 1:
        weights = weights[None]
        query = (0, *query)
        inside = ((0, 0), *inside)
    ax.imshow(weights, cmap="Blues", vmin=0.0, vmax=most, interpolation="nearest", aspect="equal")
    Rectangle = import_module("matplotlib.patches").Rectangle
    (top, bottom), (left, right) = inside
    look = {"fill": False, "edgecolor": FAINT, "ls": "--", "lw": 0.9}
    ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left + 1, bottom - top + 1, **look))
    look = {"fill": False, "edgecolor": ORANGE, "ls": "-" if query_on_plane else ":", "lw": 1.8}
    ax.add_patch(Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, **look))
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.6)
    ax.set_xlim(-0.6, weights.shape[1] - 0.4)
    ax.set_ylim(weights.shape[0] - 0.4, -0.6)
    return title
