"""The attention of a trained network, layer by layer, and where its heads look."""

from collections.abc import Iterator

import numpy as np
import torch

from examples.learned.network import AttentionNet

PICTURES = 100
"""Test pictures over which attention is averaged."""


@torch.no_grad()
def maps_of(network: AttentionNet, x: torch.Tensor) -> Iterator[np.ndarray]:
    """The attention of each layer in turn, for every picture: (B or 1, heads, queries, keys).

    Padding tokens, which a layer that started as a convolution has, are left out.
    """
    network.eval()
    for layer, state in zip(network.attentions(), network.states(x), strict=False):
        p = layer.attention_probabilities(state).cpu().numpy()
        pads = layer.geometry.pads
        tokens = tuple(
            n + before + after for n, (before, after) in zip(network.grid, pads, strict=True)
        )
        inside = tuple(
            slice(before, before + n) for n, (before, _) in zip(network.grid, pads, strict=True)
        )
        yield p.reshape(*p.shape[:3], *tokens)[..., *inside].reshape(*p.shape[:3], -1)


def attention_of(network: AttentionNet, x: torch.Tensor) -> list[np.ndarray]:
    """The attention of every layer, averaged over pictures, on the tokens of the image: (heads,
    queries, rows, columns).
    """
    return [p.mean(0).reshape(*p.shape[1:3], *network.grid) for p in maps_of(network, x)]


def centres_of(attention: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the heads of a layer look from the middle query: mean shift (heads, 2) and covariance
    of the shift (heads, 2, 2).

    Of a head that looks at padding tokens alone both are 0.

    Args:
        attention: as returned by :func:`attention_of`.
    """
    rows, columns = attention.shape[2:]
    middle = (rows // 2, columns // 2)
    p = attention[:, middle[0] * columns + middle[1]].reshape(len(attention), -1)
    p = p / p.sum(axis=1, keepdims=True).clip(min=1e-12)
    delta = np.stack(
        np.meshgrid(
            *(np.arange(n) - m for n, m in zip((rows, columns), middle, strict=True)), indexing="ij"
        ),
        -1,
    )
    delta = delta.reshape(-1, 2).astype(float)
    mean = p @ delta
    away = delta[None] - mean[:, None]
    return mean, np.einsum("hk,hki,hkj->hij", p, away, away)


def moved_queries(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Three queries along the diagonal: at a quarter, in the middle, as in :func:`centres_of`, and
    at three quarters.
    """
    rows, columns = grid
    return [(rows * part // 4, columns * part // 4) for part in (1, 2, 3)]


def followed(attention: np.ndarray) -> tuple[float, float]:
    """Whether the profile of a head moves with the query.

    Args:
        attention: as returned by :func:`attention_of`.

    Returns:
        The weight that a query's profile shares with that of the middle query moved along with it,
        and with that of the middle query where it is, Σ_k min; means over the heads and the other
        queries from the first to the last of :func:`moved_queries`.  1 and less: it follows; less
        and 1: it stays; 1 and 1: it is the same everywhere.

    >>> followed(np.eye(64).reshape(1, 64, 8, 8))  # one head, which looks at its own token
    (1.0, 0.0)
    """
    rows, columns = attention.shape[2:]
    (top, left), (row, column), (bottom, right) = moved_queries((rows, columns))
    middle = attention[:, row * columns + column]
    follows, stays = [], []
    for down in range(top - row, bottom - row + 1):
        for across in range(left - column, right - column + 1):
            if (down, across) == (0, 0):
                continue
            profile = attention[:, (row + down) * columns + column + across]
            moved = profile[:, _shared(down), _shared(across)]
            follows.append(
                np.minimum(moved, middle[:, _shared(-down), _shared(-across)]).sum((1, 2)).mean()
            )
            stays.append(np.minimum(profile, middle).sum((1, 2)).mean())
    return float(np.mean(follows)), float(np.mean(stays))


def _shared(shift: int) -> slice:
    """The tokens of an axis that are still tokens when they are moved back by a shift."""
    return slice(shift, None) if shift >= 0 else slice(None, shift)
