"""A ruler for attention layers: how far from a convolution, where heads look, and what a convolution in their place would do.

Averaged over inputs, a layer maps token i to token o by the matrix A[o, i] = Σ_h P̄^h[o, i] W_h.  The nearest convolution with a
set of shifts has, for each shift δ, the mean of A[o, o + δ] over all o, and the distance is the relative residual,

    √(Σ ‖A[o, i] − K[i − o]‖² / Σ ‖A[o, i]‖²),    K zero at all other shifts:

0 for the same map, 1 for nothing in common, exact and over all channels.  The shifts are a centred square, as convolutions have
them, or the N_h best ones *anywhere*, which is the class of Theorem 1.  Two nulls stand beside it.  *Orders*: the same layer with
the queries and the keys of each head in random orders, so attention of the same spectrum, entropy and W_h, but without a grid.
*Sharp*: heads of the same sharpness at random centres.  A sharp head that attends by position is a tap of a convolution by the
theorem, whatever was learned, so that only a distance below this null says that centres moved to the lattice.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from construct import MHSA
from construct.encoding.encodings import Quadratic
from construct.execution.head_matrices import merged
from examples.learned.network import AttentionNet
from examples.learned.results.maps import centres_of, maps_of
from examples.learned.results.shifts import Shifts
from examples.learned.starting import SPREAD

SIZES = (1, 3, 5, 7, 9, None)
"""Taps along each axis; None for all shifts."""
DRAWS = 8
"""The number of random draws over which a null is averaged."""
NEAR = 0.25
"""A centre is near an integer shift if each component is within this: a quarter of all random centres in two dimensions."""


def measured(network: AttentionNet, before: AttentionNet, x: torch.Tensor) -> list[dict[str, Any]]:
    """Measure every attention layer of a network.

    Args:
        network: the network, in any mode.
        before: the same network before its first step.
        x: pictures over which attention is averaged, (B, C, rows, columns).

    Returns:
        For each layer ``by_size``, ``middle`` (over queries far from the border) and ``null``, a number for each of ``SIZES``;
        ``anywhere``, ``anywhere_orders`` and, of heads with centres, ``anywhere_sharp``, over the middle; ``position``;
        ``equivariance``; the results of :func:`where_heads_look` and, of heads with centres, of :func:`centres_moved`.
    """
    layers = zip(network.attentions(), before.attentions(), maps_of(network, x), equivariance(network, x), strict=True)
    return [
        {**_of_layer(layer, p, network.grid), "equivariance": error, **_of_centres(layer, first, network.grid)}
        for layer, first, p, error in layers
    ]


def _of_layer(layer: MHSA, p: np.ndarray, grid: tuple[int, int]) -> dict[str, Any]:
    """What the ruler says of any layer whose attention for several pictures is p, (B, heads, tokens, tokens)."""
    w, mean, inside = matrices_of(layer), p.mean(0), middle(grid)

    def in_other_orders(random: np.random.Generator) -> float:
        return Shifts(in_random_orders(mean, random), w, grid, inside).distance_anywhere(layer.heads)

    return {
        "by_size": by_size(mean, w, grid),
        "middle": by_size(mean, w, grid, inside),
        "null": null(mean, w, grid),
        "anywhere": Shifts(mean, w, grid, inside).distance_anywhere(layer.heads),
        "anywhere_orders": _mean_of_draws(in_other_orders),
        "position": position_share(p),
        **where_heads_look(mean.reshape(*mean.shape[:2], *grid)),
    }


def _of_centres(layer: MHSA, first: MHSA, grid: tuple[int, int]) -> dict[str, Any]:
    """What it says of heads with centres; nothing of others."""
    if layer.encoding.name != Quadratic.name:
        return {}
    return {"anywhere_sharp": anywhere_of_random_centres(layer, grid), **centres_moved(first, layer)}


def matrices_of(layer: MHSA) -> np.ndarray:
    """W_val W_out of every head, float64 (heads, D_in, D_out)."""
    return merged(layer)[:, 0].detach().double().cpu().numpy()


def middle(grid: tuple[int, int]) -> np.ndarray:
    """Whether a token is four tokens from the border, or as far as the grid allows: bool (tokens,)."""
    margin = min(4, (min(grid) - 1) // 2)
    inside = np.zeros(grid, dtype=bool)
    inside[margin : grid[0] - margin, margin : grid[1] - margin] = True
    return inside.reshape(-1)


def by_size(p: np.ndarray, w: np.ndarray, grid: tuple[int, int], queries: np.ndarray | None = None) -> list[float]:
    """The distance to the nearest convolution for each of ``SIZES``.

    Args:
        p: attention, (heads, tokens, tokens), from queries to keys.
        w: the matrices of the heads, (heads, C, D).
        grid: the grid of the tokens.
        queries: bool (tokens,), the outputs that count; by default all.

    >>> eye = np.eye(9)[None]  # one head, which looks at its own token
    >>> by_size(eye, np.ones((1, 2, 2)), (3, 3))
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    shifts = Shifts(p, w, grid, queries)
    return [shifts.distance_of_square(size) for size in SIZES]


def in_random_orders(p: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The same attention, (heads, tokens, tokens), with the queries and the keys of every head in random orders."""
    orders = [(random.permutation(p.shape[1]), random.permutation(p.shape[2])) for _ in p]
    return np.stack([head[np.ix_(*order)] for head, order in zip(p, orders, strict=True)])


def null(p: np.ndarray, w: np.ndarray, grid: tuple[int, int]) -> list[float]:
    """The distances of the same heads with their queries and keys in random orders, the mean of ``DRAWS``."""
    random = np.random.default_rng(0)
    return np.mean([by_size(in_random_orders(p, random), w, grid) for _ in range(DRAWS)], axis=0).tolist()


def _mean_of_draws(distance: Callable[[np.random.Generator], float]) -> float:
    random = np.random.default_rng(0)
    return float(np.mean([distance(random) for _ in range(DRAWS)]))


def anywhere_of_random_centres(layer: MHSA, grid: tuple[int, int]) -> float:
    """The distance to the best N_h taps anywhere of heads with the layer's α and W_h at centres as the paper draws them."""
    alpha, w = layer.centres()[0].cpu().numpy(), matrices_of(layer)

    def distance(random: np.random.Generator) -> float:
        tau = SPREAD * random.standard_normal((len(alpha), 2))
        return Shifts(gaussian_attention(alpha, tau, grid), w, grid, middle(grid)).distance_anywhere(len(alpha))

    return _mean_of_draws(distance)


def gaussian_attention(alpha: np.ndarray, tau: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Softmax over keys of −α‖k − q − τ‖² (Eq. 10 to 14 of the talk) on a grid without padding: (heads, tokens, tokens)."""
    factors = []
    for axis, n in enumerate(grid):
        delta = np.arange(n)[None] - np.arange(n)[:, None]
        scores = -alpha[:, None, None] * np.square(delta - tau[:, axis, None, None])
        exponentials = np.exp(scores - scores.max(2, keepdims=True))
        factors.append(exponentials / exponentials.sum(2, keepdims=True))
    tokens = grid[0] * grid[1]
    return np.einsum("hac,hbd->habcd", *factors).reshape(len(alpha), tokens, tokens)


def centres_moved(before: MHSA, after: MHSA) -> dict[str, Any]:
    """Where the centres are, and how far training moved them.

    Returns:
        ``alpha``, the median; ``distinct``, the number of distinct nearest integer shifts; ``near``, the share of heads within
        ``NEAR`` of one along each axis; ``moved`` and ``moved_most``, the mean and greatest displacement of τ in tokens; and
        ``log_alpha_moved``, the mean displacement of log α.
    """
    (alpha, tau), (first_alpha, first_tau) = (layer.centres() for layer in (after, before))
    displacement = (tau - first_tau).norm(dim=1)
    return {
        "alpha": float(alpha.median()),
        "distinct": len({tuple(shift) for shift in tau.round().tolist()}),
        "near": float(((tau - tau.round()).abs() <= NEAR).all(1).double().mean()),
        "moved": float(displacement.mean()),
        "moved_most": float(displacement.max()),
        "log_alpha_moved": float((alpha.log() - first_alpha.log()).abs().mean()),
    }


def where_heads_look(attention: np.ndarray) -> dict[str, float]:
    """Where the heads of a layer look from the middle query, averaged over the heads.

    Args:
        attention: averaged over pictures, (heads, queries, rows, columns).

    Returns:
        ``reach``, how far a head's mean key is from the query; ``width``, the root mean square distance of its keys from that
        mean; both in tokens; ``peak``, the weight of its greatest key.

    >>> where_heads_look(np.eye(9).reshape(1, 9, 3, 3))  # one head, which looks at its own token
    {'reach': 0.0, 'width': 0.0, 'peak': 1.0}
    """
    mean, covariance = centres_of(attention)
    rows, columns = attention.shape[2:]
    peaks = attention[:, (rows // 2) * columns + columns // 2].max((1, 2))
    parts = {"reach": np.linalg.norm(mean, axis=1), "width": np.sqrt(covariance.trace(0, 1, 2)), "peak": peaks}
    return {name: float(numbers.mean()) for name, numbers in parts.items()}


def position_share(p: np.ndarray) -> float:
    """The share of the variance of attention that the position of query and key explains: 1 without content.

    Args:
        p: attention for several pictures, (B, heads, tokens, tokens); its mean is 1 / tokens.
    """
    about = 1 / p.shape[-1]
    total = np.square(p - about, dtype=np.float64).mean(0).sum()
    return float(np.square(p.mean(0, dtype=np.float64) - about).sum() / total) if total > 1e-12 else 1.0


@torch.no_grad()
def equivariance(network: AttentionNet, x: torch.Tensor) -> list[float]:
    """After every layer, the distance of the tokens of pictures moved by one token from the moved tokens.

    √(Σ ‖a − b‖² / Σ (‖a‖² + ‖b‖²)) over the middle of the grid, around the mean token: 0 for an equivariant network, 1 for
    nothing in common.  Pictures are moved circularly, and the worse of the two axes counts.
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
