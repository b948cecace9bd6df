"""A ruler for attention layers: how far from a convolution by kernel size, where heads look, how equivariant.

Averaged over inputs, a layer maps token i to token o by the matrix A[o, i] = Σ_h P̄^h[o, i] W_h.  The nearest convolution with a
window of shifts has, for each shift δ, the mean of A[o, o + δ] over all o, and the distance is the relative residual,

    √(Σ ‖A[o, i] − K[i − o]‖² / Σ ‖A[o, i]‖²),    K zero outside the window:

0 for the same map, 1 for nothing in common, exact and over all channels.  With the window of all shifts it says how far A is from
translating with its input at all.  The null is the same layer with the queries and the keys of each head in random orders:
attention with the same spectrum, the same entropy and the same W_h, but without a grid.
"""

from typing import Any

import numpy as np
import torch

from construct.execution.head_matrices import merged
from examples.learned.network import AttentionNet
from examples.learned.results.measuring import centres_of, maps_of

SIZES = (1, 3, 5, 7, 9, None)
"""Taps along each axis; None for all shifts."""
DRAWS = 8
"""The number of random orders over which the null is averaged."""


def measured(network: AttentionNet, x: torch.Tensor) -> list[dict[str, Any]]:
    """Measure every attention layer: the distances by size, the null, the share of position, and the error of equivariance.

    Args:
        network: the network, in any mode.
        x: pictures over which attention is averaged, (B, C, rows, columns).

    Returns:
        For each layer ``by_size``, ``middle`` (over queries far from the border) and ``null``, a number for each of
        ``SIZES``; ``position``; ``equivariance``; and the result of :func:`where_heads_look`.
    """
    errors, rows = equivariance(network, x), []
    for layer, p, error in zip(network.attentions(), maps_of(network, x), errors, strict=True):
        w = merged(layer.w_val, layer.w_out)[:, 0].detach().double().cpu().numpy()
        mean = p.mean(0)
        rows.append(
            {
                "by_size": by_size(mean, w, network.grid),
                "middle": by_size(mean, w, network.grid, middle(network.grid)),
                "null": null(mean, w, network.grid),
                "position": position_share(p),
                "equivariance": error,
                **where_heads_look(mean.reshape(*mean.shape[:2], *network.grid)),
            }
        )
    return rows


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
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1).reshape(-1, 2)
    queries = np.ones(len(places), dtype=bool) if queries is None else queries
    values, vectors = np.linalg.eigh(np.einsum("hcd,gcd->hg", w, w))
    root = vectors * np.sqrt(values.clip(min=0))  # ‖A[o, i]‖ is the length of p[:, o, i] @ root
    a = np.einsum("hoi,hk->koi", p[:, queries], root).reshape(len(root), -1)
    delta = (places[None] - places[queries][:, None]).reshape(-1, 2)
    shifts, which = np.unique(delta, axis=0, return_inverse=True)
    which = which.reshape(-1)
    sums = np.stack([np.bincount(which, weights=row, minlength=len(shifts)) for row in a])
    means = np.square(sums).sum(0) / np.bincount(which)  # what the mean of each shift explains
    total = float(np.square(a).sum())
    reach = np.abs(shifts).max(1)
    left = [1 - means[reach <= (size // 2 if size else max(grid))].sum() / total if total else 0.0 for size in SIZES]
    return [float(np.sqrt(max(0.0, share))) if share > 1e-14 else 0.0 for share in left]


def null(p: np.ndarray, w: np.ndarray, grid: tuple[int, int]) -> list[float]:
    """The distances of the same heads with their queries and keys in random orders, the mean of ``DRAWS``."""
    random, drawn = np.random.default_rng(0), []
    for _ in range(DRAWS):
        orders = [(random.permutation(p.shape[1]), random.permutation(p.shape[2])) for _ in p]
        drawn.append(by_size(np.stack([q[np.ix_(*order)] for q, order in zip(p, orders, strict=True)]), w, grid))
    return np.mean(drawn, axis=0).tolist()


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
