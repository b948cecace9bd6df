"""Measurements of a trained network: distance to the nearest convolution and attention centres, layer by layer."""

from collections.abc import Iterator
from math import isqrt
from typing import Any

import numpy as np
import torch

import verify
from examples.learned.network import AttentionNet

PICTURES = 100
"""Test pictures over which attention is averaged."""


def distances(network: AttentionNet, channels: int) -> list[dict[str, Any]]:
    """Audit every attention layer as a black box: its distance to the nearest convolution with as many taps as it has heads.

    Args:
        network: the network, in any mode.
        channels: the most channels to measure.

    Returns:
        For each layer: the distance over all outputs with the best-fitting padding, over the interior alone (None if there is
        none), and how far other inputs move the attention of the head that they move most.
    """
    rows = []
    for layer in network.attentions():
        side = max(1, isqrt(layer.heads))
        audit = verify.audit(layer, network.grid, kernel_size=side, most_channels=channels)
        rows.append({"distance": audit.distance, "interior": audit.interior, "content": audit.content})
    return rows


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
