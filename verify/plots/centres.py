"""`centres_figure`: the mean and the spread of every head's attention, as circles around its
centre.
"""

import math
from importlib import import_module
from statistics import NormalDist

import numpy as np
import torch
from numpy import ndarray

from construct.attention import MHSA
from verify.oracle import Vector
from verify.plots.drawing import INK, Axes, Figure, colours, new_figure, style
from verify.plots.probabilities import LayerAttention, attention_of

SHARES = {0.5: "-", 0.9: ":"}
"""The fractions of a Gaussian inside the circles, with their line styles."""


def centres_of(attention: LayerAttention, position: Vector) -> tuple[ndarray, ndarray]:
    """The attention of every head for one query, from the probabilities alone, in tokens.

    Returns:
        The mean shift Σ_k P_k (k − q), (heads, d), and the standard deviation along each axis,
        (heads, d).
    """
    query = attention.query(position)
    heads = len(attention.probabilities)
    row = np.stack([attention.map(head, position) for head in range(heads)])
    centre, spread = np.zeros((2, heads, len(attention.tokens)))
    for axis, (n, q) in enumerate(zip(attention.tokens, query, strict=True)):
        others = tuple(a + 1 for a in range(len(attention.tokens)) if a != axis)
        marginal = row.sum(axis=others)
        shift = np.arange(n) - q
        centre[:, axis] = marginal @ shift
        spread[:, axis] = np.sqrt((marginal * (shift - centre[:, axis, None]) ** 2).sum(axis=1))
    return centre, spread


def radius(spread: ndarray, share: float) -> float:
    """The radius that contains a given fraction of an isotropic Gaussian, in one or two dimensions.

    Args:
        spread: standard deviations of one or two axes; two are replaced by their root mean square.
        share: the fraction, between 0 and 1.
    """
    if len(spread) == 1:
        return NormalDist().inv_cdf((1 + share) / 2) * float(spread[0])
    return math.sqrt(-2 * math.log1p(-share)) * math.sqrt(float((spread**2).mean()))


def centres_figure(
    layer: MHSA,
    x: torch.Tensor | None = None,
    *,
    grid: Vector | None = None,
    query: Vector | None = None,
    alpha: float | None = None,
) -> Figure:
    """Draw every head's centre of attention relative to the query, with circles for 50 % and 90 %.

    The circles are those of the Gaussian with the attention's mean and variance.  If attention is
    not Gaussian they show its width, not its extent.  The circles of a sharp head have radius 0.

    Args:
        layer: as in :func:`verify.plots.probabilities.attention_of`, like ``x``, ``grid`` and
            ``alpha``.
        x: an input.
        grid: the spatial size of the input; its border cuts off a very soft head.
        query: an output position; the middle by default.
        alpha: another sharpness.

    Returns:
        A figure with one panel; in 3-D one per plane that contains a centre.

    Raises:
        ValueError: there is no such query, or see :func:`verify.plots.probabilities.attention_of`.

    >>> import construct, torch, verify.plots
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, kernel_size=3), alpha=1.0)
    >>> len(verify.plots.centres_figure(layer).axes)
    1
    """
    attention = attention_of(layer, x, grid, alpha, larger=2)
    position = attention.middle() if query is None else tuple(query)
    attention.require_query(position)
    centre, spread = centres_of(attention, position)
    dims = len(attention.tokens)
    planes = np.rint(centre[:, 0]).astype(int) if dims == 3 else np.zeros(layer.heads, dtype=int)
    wanted = np.unique(planes)
    with style():
        if dims == 1:
            figure = new_figure(6.0, min(12.0, 1.5 + 0.3 * layer.heads))
            _intervals(figure.subplots(), centre[:, 0], spread)
        else:
            figure = new_figure(0.8 + 4.4 * len(wanted), 4.9)
            panels = figure.subplots(1, len(wanted), squeeze=False, sharex=True, sharey=True)[0]
            for ax, plane in zip(panels, wanted, strict=True):
                _circles(ax, centre[:, -2:], spread[:, -2:], np.flatnonzero(planes == plane))
                if dims == 3:
                    ax.set_title(
                        f"centred on plane {plane:+d}" if plane else "centred on the query's plane"
                    )
            first = dims - 2  # as torch counts them, from 0
            panels[0].set_ylabel(f"shift from the query along axis {first} (tokens)")
            for ax in panels:
                ax.set_xlabel(f"shift from the query along axis {first + 1} (tokens)")
        figure.suptitle(f"Centres of attention, {attention.scope}")
    return figure


def _circles(ax: Axes, centre: ndarray, spread: ndarray, heads: ndarray) -> None:
    Circle = import_module("matplotlib.patches").Circle
    Line2D = import_module("matplotlib.lines").Line2D
    halo = [import_module("matplotlib.patheffects").withStroke(linewidth=3, foreground="white")]
    ax.plot(
        [0],
        [0],
        marker="s",
        ms=11,
        mfc="none",
        mec=INK,
        mew=1.6,
        ls="none",
        label="query",
        zorder=3,
    )
    reach = 1.0
    palette = colours(len(centre))
    for head in heads:
        y, x = centre[head]
        colour = palette[head]
        for share, line in SHARES.items():
            size = radius(spread[head], share)
            ax.add_patch(
                Circle(
                    (x, y),
                    size,
                    fill=False,
                    edgecolor=colour,
                    ls=line,
                    lw=1.4,
                    gid=f"{head} {share}",
                )
            )
            reach = max(reach, abs(x) + size, abs(y) + size)
        ax.plot([x], [y], marker=".", ms=5, color=colour, gid=f"centre {head}", zorder=4)
        ax.annotate(
            str(head),
            (x, y),
            xytext=(5, 6),
            textcoords="offset points",
            color=colour,
            path_effects=halo,
            zorder=5,
        )
    reach = 1.05 * reach + 0.25
    ax.set_xlim(-reach, reach)
    ax.set_ylim(reach, -reach)  # rows count downwards
    ax.set_aspect("equal")
    ax.locator_params(integer=True)
    ax.grid()
    handles = [Line2D([], [], marker="s", ms=8, mfc="none", mec=INK, ls="none", label="query")]
    handles += [
        Line2D([], [], color=INK, ls=line, label=f"{share:.0%}") for share, line in SHARES.items()
    ]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)


def _intervals(ax: Axes, centre: ndarray, spread: ndarray) -> None:
    for head, colour in enumerate(colours(len(centre))):
        for (share, line), width in zip(SHARES.items(), (3.0, 1.4), strict=True):
            size = radius(spread[head], share)
            ax.plot(
                [centre[head] - size, centre[head] + size],
                [head, head],
                ls=line,
                lw=width,
                color=colour,
            )
        ax.plot(
            [centre[head]], [head], marker="o", ms=5, color=colour, gid=f"centre {head}", zorder=4
        )
    ax.axvline(0, color=INK, lw=0.8)
    ax.set_yticks(range(len(centre)))
    ax.set_ylim(len(centre) - 0.5, -0.5)
    ax.set_ylabel("head")
    ax.set_xlabel("shift from the query (tokens); the line at 0 is the query")
    ax.locator_params(axis="x", integer=True)
    Line2D = import_module("matplotlib.lines").Line2D
    handles = [Line2D([], [], color=INK, ls="-", lw=3.0), Line2D([], [], color=INK, ls=":", lw=1.4)]
    labels = [f"{share:.0%}" for share in SHARES]
    ax.figure.legend(handles, labels, loc="outside lower center", ncols=2)  # type: ignore[union-attr]
