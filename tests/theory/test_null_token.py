"""Attention on the bare image: a null token for the padding, and sparsemax for softmax, by torch's own attention (Coq:
``NullToken.v``)."""

from itertools import product
from math import exp
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from verify.strategies import convolutions, inputs_for


def scores(conv: Any, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """−‖k − t‖² of pixels k and the targets t = q + τ of taps and outputs, (taps, outputs, pixels); the taps' matrices."""
    dims = len(size)
    outputs = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(size, conv.padding, conv.dilation, conv.kernel_size, conv.stride, strict=True)
    ]
    grid = torch.tensor([*product(*map(range, size))]).double().reshape(-1, dims)
    starts = torch.tensor([*product(*map(range, outputs))]) * torch.tensor(conv.stride) - torch.tensor(conv.padding)
    taps = torch.tensor([*product(*map(range, conv.kernel_size))]) * torch.tensor(conv.dilation)
    targets = (starts[None] + taps[:, None]).double()
    return -torch.cdist(targets, grid).square().round(), conv.weight.detach().flatten(2).permute(2, 1, 0)


def attended(conv: Any, x: Tensor, weights: Tensor, matrices: Tensor) -> Tensor:
    """b + Σ_h P^h X W_h, as the convolution's output."""
    y = torch.einsum("hqk,bck,hco->boq", weights, x.flatten(2), matrices)
    return y + (0 if conv.bias is None else conv.bias.detach()[:, None])


@st.composite
def zero_padded(draw: st.DrawFn, integers: bool) -> tuple[Any, Tensor]:
    conv = draw(
        convolutions(
            transposed=[False],
            padding_modes=["zeros"],
            paddings=["numbers"],
            channels=["one", "dense"],
            dtypes=[torch.float64],
            integers=[integers],
        )
    )
    x = draw(inputs_for(conv, integers=integers))
    return conv, (x[None] if x.dim() < conv.weight.dim() else x).contiguous()


@given(zero_padded(integers=False), st.floats(1, 60))
def test_one_null_token_is_zero_padding_within_the_derived_bound(case: tuple[Any, Tensor], alpha: float) -> None:
    conv, x = case
    distances, matrices = scores(conv, tuple(x.shape[2:]))
    null = torch.full_like(distances[..., :1], -alpha / 2)
    bias = torch.cat([null, alpha * distances], dim=-1)
    heads, outputs, keys = bias.shape
    nothing = torch.zeros(heads, max(outputs, keys), 1, dtype=torch.float64)
    values = torch.eye(keys, dtype=torch.float64).expand(heads, -1, -1)  # so that the answers are the weights
    weights = scaled_dot_product_attention(nothing[:, :outputs], nothing[:, :keys], values, attn_mask=bias)[..., 1:]
    error = (attended(conv, x, weights, matrices) - conv(x).detach().flatten(2)).abs()
    theta = 1 + 2 * sum(exp(-alpha * n * n) for n in range(1, 30))
    leakage = exp(alpha / 2) * (theta ** conv.weight[0, 0].dim() - 1) + exp(-alpha / 2)
    leakage = min(leakage, (keys - 1) * exp(-alpha / 2))
    size = float(x.abs().max()) if x.numel() else 0.0
    sums = conv.weight.detach().abs().flatten(1).sum(1)
    rounding = 2**-52 * (matrices.shape[0] * keys * x.shape[1] + 40 * alpha) * (size + 1) * (sums + 1)
    assert bool((error <= (2 * size * leakage * sums + rounding)[:, None]).all())


def sparsemax(z: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex to each row (Martins and Astudillo 2016)."""
    falling = -np.sort(-z, axis=-1)
    sums = falling.cumsum(axis=-1) - 1
    kept = (falling * np.arange(1, z.shape[-1] + 1) > sums).sum(axis=-1, keepdims=True)
    return np.maximum(z - np.take_along_axis(sums, kept - 1, axis=-1) / kept, 0)


@given(zero_padded(integers=True), st.integers(1, 9))
def test_sparsemax_is_the_convolution_exactly_from_alpha_one(case: tuple[Any, Tensor], alpha: int) -> None:
    """In integers, bit for bit, on the grid with its padding tokens; at half the sharpness it is not one-hot."""
    conv, x = case
    pads = [n for pad in reversed(conv.padding) for n in (pad, pad)]
    padded = torch.nn.functional.pad(x, pads)
    expected = conv(x).detach().flatten(2)
    conv.padding = (0,) * len(conv.padding)
    distances, matrices = scores(conv, tuple(padded.shape[2:]))
    weights = torch.from_numpy(sparsemax(alpha * distances.numpy()))
    assert torch.equal(attended(conv, padded, weights, matrices), expected)
    assert sparsemax(np.array([0.5, 0.0]))[0] == 0.75
