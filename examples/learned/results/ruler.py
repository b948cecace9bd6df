"""A ruler for attention layers: how far from a convolution, where heads look, and what a
convolution in their place would do.

Averaged over inputs, a layer maps token i to token o by the matrix A[o, i] = Σ_h P̄^h[o, i] W_h.
The nearest convolution with a set of shifts has, for each shift δ, the mean of A[o, o + δ] over all
o, and the distance is the relative residual,

    √(Σ ‖A[o, i] − K[i − o]‖² / Σ ‖A[o, i]‖²),    K zero at all other shifts:

0 for the same map, 1 for nothing in common, exact and over all channels.  The shifts are a centred
square, as convolutions have them, or the N_h best ones *anywhere*, which is the class of Theorem 1.
Nulls stand beside it: see :mod:`examples.learned.results.nulls`.
"""

from typing import Any

import numpy as np
import torch

from construct import MHSA
from construct.execution.head_matrices import merged
from examples.learned.network import AttentionNet
from examples.learned.results import nulls
from examples.learned.results.maps import centres_of, maps_of
from examples.learned.results.nulls import Gaussians
from examples.learned.results.shifts import Shifts
from examples.learned.starting import SPREAD

SIZES = (1, 3, 5, 7, 9, None)
"""Taps along each axis; None for all shifts."""
NEAR = 0.25
"""A centre is near an integer shift if each component is within this: a quarter of all random
centres in two dimensions.
"""
SHARP = 4.0
"""Heads of a larger α are counted as sharp: at an integer shift their key has a weight of 0.93 or
more.
"""

ONE_HOT = 256.0
"""Heads as sharp as this, those of a convolution in the place of attention, are taps wherever they
look: they have no null.
"""


def measured(
    network: AttentionNet, before: AttentionNet, x: torch.Tensor, name: nulls.Name
) -> list[dict[str, Any]]:
    """Measure every attention layer of a network.

    Args:
        network: the network, in any mode.
        before: the same network before its first step.
        x: pictures over which attention is averaged, (B, C, rows, columns).
        name: of the network, by which random numbers are drawn.

    Returns:
        For each layer ``by_size``, ``middle`` (over queries far from the border) and ``null``, a
        number for each of ``SIZES``; ``anywhere`` and ``anywhere_orders``, over the middle;
        ``position``; ``equivariance``; the results of :func:`where_heads_look` and, of heads with
        centres, of :func:`centres_moved` and :func:`anywhere_of_centres`.
    """
    layers = zip(
        network.attentions(),
        before.attentions(),
        maps_of(network, x),
        equivariance(network, x),
        strict=True,
    )
    return [
        {
            **_of_layer(layer, p, network.grid, [*name, number]),
            "equivariance": error,
            **_of_centres(layer, first, network.grid, [*name, number]),
        }
        for number, (layer, first, p, error) in enumerate(layers)
    ]


def _of_layer(
    layer: MHSA, p: np.ndarray, grid: tuple[int, int], name: nulls.Name
) -> dict[str, Any]:
    """What the ruler says of any layer whose attention for several pictures is p,
    (B, heads, tokens, tokens).
    """
    w, mean, inside = matrices_of(layer), p.mean(0), middle(grid)

    def in_other_orders(random: np.random.Generator) -> float:
        mixed = nulls.in_random_orders(mean, random)[:, inside]
        return Shifts(mixed, w, grid, inside).distance_anywhere(layer.heads)

    return {
        "by_size": by_size(mean, w, grid),
        "middle": by_size(mean, w, grid, inside),
        "null": null(mean, w, grid, name),
        "anywhere": Shifts(mean[:, inside], w, grid, inside).distance_anywhere(layer.heads),
        "anywhere_orders": float(np.mean(nulls.drawn(in_other_orders, nulls.ORDERS, name))),
        "position": position_share(p),
        **where_heads_look(mean.reshape(*mean.shape[:2], *grid)),
    }


def _of_centres(
    layer: MHSA, first: MHSA, grid: tuple[int, int], name: nulls.Name
) -> dict[str, Any]:
    """What it says of heads with centres; nothing of others."""
    heads, first_heads = Gaussians.of(layer), Gaussians.of(first)
    if heads is None or first_heads is None:
        return {}
    moved = centres_moved(first_heads, heads)
    if heads.alpha.min() >= ONE_HOT:
        return moved
    return moved | anywhere_of_centres(layer, heads, first_heads, grid, name)


def matrices_of(layer: MHSA) -> np.ndarray:
    """W_val W_out of every head, float64 (heads, D_in, D_out)."""
    return merged(layer)[:, 0].detach().double().cpu().numpy()


def margin(grid: tuple[int, int]) -> int:
    """How far from the border a token of the middle is: four tokens, or as far as the grid allows."""
    return min(4, (min(grid) - 1) // 2)


def middle(grid: tuple[int, int]) -> np.ndarray:
    """Whether a token is in the middle: bool (tokens,)."""
    edge = margin(grid)
    inside = np.zeros(grid, dtype=bool)
    inside[edge : grid[0] - edge, edge : grid[1] - edge] = True
    return inside.reshape(-1)


def by_size(
    p: np.ndarray, w: np.ndarray, grid: tuple[int, int], queries: np.ndarray | None = None
) -> list[float]:
    """The distance to the nearest convolution for each of ``SIZES``.

    Args:
        p: attention, (heads, tokens, tokens), from queries to keys.
        w: the matrices of the heads, (heads, C, D).
        grid: the grid of the tokens.
        queries: bool (tokens,), the queries that count; by default all.

    >>> eye = np.eye(9)[None]  # one head, which looks at its own token
    >>> by_size(eye, np.ones((1, 2, 2)), (3, 3))
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    shifts = Shifts(p if queries is None else p[:, queries], w, grid, queries)
    return [shifts.distance_of_square(size) for size in SIZES]


def null(p: np.ndarray, w: np.ndarray, grid: tuple[int, int], name: nulls.Name) -> list[float]:
    """The distances of the same heads with their queries and keys in random orders, the mean of the
    draws.
    """
    distances = nulls.drawn(
        lambda random: by_size(nulls.in_random_orders(p, random), w, grid), nulls.ORDERS, name
    )
    return np.mean(distances, axis=0).tolist()


def anywhere_of_centres(
    layer: MHSA, heads: Gaussians, first: Gaussians, grid: tuple[int, int], name: nulls.Name
) -> dict[str, float]:
    """The distance to the best N_h taps anywhere with the layer's sharpness and W_h, but with its
    heads at other centres.

    Returns:
        ``anywhere_first_centres``, at the centres of ``first``: what is left of the distance by
        sharpening alone; of centres as the paper draws them the mean ``anywhere_sharp`` and the
        sample deviation ``anywhere_sharp_deviation``; and the share of these that are at least as
        near as the layer is, ``anywhere_sharp_nearer``, and at least as far,
        ``anywhere_sharp_further``, the layer itself counted as one.
    """
    w, inside = matrices_of(layer), middle(grid)

    def at(tau: np.ndarray) -> float:
        there = Gaussians(heads.forms, tau)
        p = nulls.gaussian_attention(there, grid, layer.geometry.pads, inside)
        return Shifts(p, w, grid, inside).distance_anywhere(layer.heads)

    own = at(heads.tau)
    draws = np.array(
        nulls.drawn(
            lambda random: at(SPREAD * random.standard_normal(heads.tau.shape)), nulls.DRAWS, name
        )
    )
    return {
        "anywhere_first_centres": at(first.tau),
        "anywhere_sharp": float(np.mean(draws)),
        "anywhere_sharp_deviation": float(np.std(draws, ddof=1)),
        "anywhere_sharp_nearer": float((1 + (draws <= own).sum()) / (1 + len(draws))),
        "anywhere_sharp_further": float((1 + (draws >= own).sum()) / (1 + len(draws))),
    }


def centres_moved(before: Gaussians, after: Gaussians) -> dict[str, Any]:
    """Where the centres are, and how far training moved them.

    Returns:
        ``alpha``, the median; ``distinct``, the number of distinct nearest integer shifts;
        ``heads``, how many there are; ``near``, the share of those within ``NEAR`` of one along
        each axis; ``sharp``, how many are sharper than ``SHARP``, and ``sharp_near``, how many of
        these are near; ``moved`` and ``moved_most``, the mean and greatest displacement of τ in
        tokens; and ``log_alpha_moved``, the mean displacement of log α.
    """
    displacement = np.linalg.norm(after.tau - before.tau, axis=1)
    near = (np.abs(after.tau - after.tau.round()) <= NEAR).all(1)
    sharp = after.alpha > SHARP
    return {
        "alpha": float(np.median(after.alpha)),
        "distinct": len({tuple(shift) for shift in after.tau.round().tolist()}),
        "near": float(near.mean()),
        "heads": len(after.tau),
        "sharp": int(sharp.sum()),
        "sharp_near": int((sharp & near).sum()),
        "moved": float(displacement.mean()),
        "moved_most": float(displacement.max()),
        "log_alpha_moved": float(np.abs(np.log(after.alpha / before.alpha)).mean()),
    }


def where_heads_look(attention: np.ndarray) -> dict[str, float]:
    """Where the heads of a layer look from the middle query, averaged over the heads.

    Args:
        attention: averaged over pictures, (heads, queries, rows, columns).

    Returns:
        ``reach``, how far a head's mean key is from the query; ``width``, the root mean square
        distance of its keys from that mean; both in tokens; ``peak``, the weight of its greatest
        key.

    >>> where_heads_look(np.eye(9).reshape(1, 9, 3, 3))  # one head, which looks at its own token
    {'reach': 0.0, 'width': 0.0, 'peak': 1.0}
    """
    mean, covariance = centres_of(attention)
    rows, columns = attention.shape[2:]
    peaks = attention[:, (rows // 2) * columns + columns // 2].max((1, 2))
    parts = {
        "reach": np.linalg.norm(mean, axis=1),
        "width": np.sqrt(covariance.trace(0, 1, 2)),
        "peak": peaks,
    }
    return {name: float(numbers.mean()) for name, numbers in parts.items()}


def position_share(p: np.ndarray) -> float:
    """The share of the variance of attention that the position of query and key explains: 1 without
    content.

    Args:
        p: attention for several pictures, (B, heads, tokens, tokens); its mean is 1 / tokens.
    """
    about = 1 / p.shape[-1]
    total = np.square(p - about, dtype=np.float64).mean(0).sum()
    return (
        float(np.square(p.mean(0, dtype=np.float64) - about).sum() / total)
        if total > 1e-12
        else 1.0
    )


@torch.no_grad()
def equivariance(network: AttentionNet, x: torch.Tensor) -> list[float]:
    """After every layer, the distance of the tokens of pictures moved by one token from the moved
    tokens.

    √(Σ ‖a − b‖² / Σ (‖a‖² + ‖b‖²)) over the middle of the grid, around the mean token: 0 for an
    equivariant network, 1 for nothing in common.  Pictures are moved circularly, and the worse of
    the two axes counts.
    """
    network.eval()
    inside = torch.from_numpy(middle(network.grid)).to(x.device)
    still, errors = network.states(x)[1:], []
    for axis in (2, 3):
        moved = network.states(x.roll(2, axis))[1:]  # two pixels are a token
        off = []
        for before, after in zip(still, moved, strict=True):
            a, b = (t.flatten(2)[..., inside].double() for t in (before.roll(1, axis), after))
            mean = (a.mean((0, 2), keepdim=True) + b.mean((0, 2), keepdim=True)) / 2
            size = (a - mean).square().sum() + (b - mean).square().sum()
            off.append(float(((a - b).square().sum() / size).sqrt()) if size > 0 else 0.0)
        errors.append(off)
    return [max(pair) for pair in zip(*errors, strict=True)]
