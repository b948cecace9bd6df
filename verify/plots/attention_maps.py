"""The attention maps of a layer: for some queries, where every head looks."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from construct.attention import MHSA
from verify.plots.drawing import FAINT, ORANGE, new_figure, style
from verify.plots.seen import Seen, seen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_HEADS = 64
COLUMNS = 10
"""Heads in a row."""


def attention_figure(
    layer: MHSA,
    x: torch.Tensor | None = None,
    *,
    grid: tuple[int, ...] | None = None,
    queries: Sequence[tuple[int, ...]] | None = None,
    alpha: float | None = None,
) -> "Figure":
    """Draw the attention probabilities of every head for some queries, over the padded grid of tokens.

    Args:
        layer: of 1, 2 or 3 dimensions; of three, the plane is drawn that gets most attention.
        x: as of :func:`verify.plots.seen.seen`, like ``grid`` and ``alpha``.
        grid: the spatial size of the input.
        queries: positions of the output; by default a corner and the middle.
        alpha: another sharpness.

    Returns:
        A figure with one panel for each query and head, row by row; the tokens within the frame are the input itself.

    Raises:
        ValueError: there is no such query, or see :func:`verify.plots.seen.seen`.
    """
    found = seen(layer, x, grid, alpha)
    positions = [(0,) * len(found.outputs), found.middle()] if queries is None else [tuple(q) for q in queries]
    for position in positions:
        if len(position) != len(found.outputs) or not all(
            0 <= q < o for q, o in zip(position, found.outputs, strict=True)
        ):
            raise ValueError(f"the query {position} is no position of an output of size {found.outputs}")
    positions = list(dict.fromkeys(positions))
    heads = min(layer.heads, MOST_HEADS)
    columns = min(heads, COLUMNS)
    rows = -(-heads // columns)
    flat = len(found.tokens) == 1
    panel = 0.3 if flat else 1.05
    most = float(max(found.map(h, q).max() for h in range(heads) for q in positions))
    with style():
        figure = new_figure(1.6 + columns * (1.6 if flat else 1.25), 1.3 + len(positions) * rows * (panel + 0.25))
        axes = figure.subplots(len(positions) * rows, columns, squeeze=False)
        for block, position in enumerate(positions):
            for head in range(rows * columns):
                ax = axes[block * rows + head // columns, head % columns]
                if head >= heads:
                    ax.set_axis_off()
                    continue
                title = _draw(ax, found, head, position, most)
                ax.set_title(title, fontsize=9, pad=3)
                if head == 0:
                    asked = ", ".join(map(str, position))
                    ax.set_ylabel(f"output\n({asked})", rotation=0, ha="right", va="center")
        drawn = [ax for ax in axes.flat if ax.images]
        bar = figure.colorbar(drawn[0].images[0], ax=[*axes.flat], fraction=0.03, pad=0.02)
        bar.set_label("attention probability")
        left = f"; the first {heads} of {layer.heads} heads" if heads < layer.heads else ""
        told = "for one input, on which it depends" if found.content else "the same for every input"
        figure.suptitle(f"Where each head looks, {told}{left}", fontsize=11)
        figure.supxlabel("tokens; orange: the query; within the dashed frame: the input, outside: padding", fontsize=9)
    return figure


def _draw(ax: "Axes", found: Seen, head: int, position: tuple[int, ...], most: float) -> str:
    """One panel; returns its title."""
    whole, query, title = found.map(head, position), found.query(position), f"head {head}"
    inside = found.inside
    if whole.ndim == 3:
        plane = int(whole.sum(axis=(1, 2)).argmax())
        title += f", plane {plane - query[0]:+d}" if plane != query[0] else ""
        here = plane == query[0]
        whole, query, inside = whole[plane], query[1:], inside[1:]
    else:
        here = True
    if whole.ndim == 1:
        whole, query, inside = whole[None], (0, *query), ((0, 0), *inside)
    ax.imshow(whole, cmap="Blues", vmin=0.0, vmax=most, interpolation="nearest", aspect="equal")
    Rectangle = import_module("matplotlib.patches").Rectangle
    (top, bottom), (left, right) = inside
    ax.add_patch(
        Rectangle(
            (left - 0.5, top - 0.5), right - left + 1, bottom - top + 1, fill=False, edgecolor=FAINT, ls="--", lw=0.9
        )
    )
    ax.add_patch(
        Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False, edgecolor=ORANGE, lw=1.8, ls="-" if here else ":")
    )
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.6)
    ax.set_xlim(-0.6, whole.shape[1] - 0.4)
    ax.set_ylim(whole.shape[0] - 0.4, -0.6)
    return title
