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
        tokens = tuple(n + before + after for n, (before, after) in zip(network.grid, pads, strict=True))
        inside = tuple(slice(before, before + n) for n, (before, _) in zip(network.grid, pads, strict=True))
        yield p.reshape(*p.shape[:3], *tokens)[..., *inside].reshape(*p.shape[:3], -1)


def attention_of(network: AttentionNet, x: torch.Tensor) -> list[np.ndarray]:
    """The attention of every layer, averaged over pictures, on the tokens of the image: (heads, queries, rows, columns)."""
    return [p.mean(0).reshape(*p.shape[1:3], *network.grid) for p in maps_of(network, x)]


def centres_of(attention: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the heads of a layer look from the middle query: mean shift (heads, 2) and covariance of the shift (heads, 2, 2).

    Args:
        attention: as returned by :func:`attention_of`.
    """
    rows, columns = attention.shape[2:]
    middle = (rows // 2, columns // 2)
    p = attention[:, middle[0] * columns + middle[1]].reshape(len(attention), -1)
    p = p / p.sum(axis=1, keepdims=True)
    delta = np.stack(
        np.meshgrid(*(np.arange(n) - m for n, m in zip((rows, columns), middle, strict=True)), indexing="ij"), -1
    )
    delta = delta.reshape(-1, 2).astype(float)
    mean = p @ delta
    away = delta[None] - mean[:, None]
    return mean, np.einsum("hk,hki,hkj->hij", p, away, away)
