"""The encodings of other networks, run as they are published, against convolutions (Coq: ``Encodings.v``)."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

ALPHA = 1024.0


def frequencies(dims: int) -> Tensor:
    """θ_j of RoPE and of sinusoidal positions."""
    return 10000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE: every pair of features turned by its position times θ_j."""
    angle = positions[:, None] * frequencies(x.shape[-1])
    even, odd = x[..., ::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


def t5_bucket(delta: Tensor) -> Tensor:
    """The bucket of a shift in T5: 32 of them, both ways, at most 128 apart."""
    away = delta.abs()
    far = 8 + ((away.clamp(min=1) / 8).log() / math.log(128 / 8) * 8).long()
    return torch.where(away < 8, away, far.clamp(max=15)) + 16 * (delta > 0)


def rotary(tau: int, place: Tensor) -> Tensor:
    """The queries are one vector, the keys all alike, and each is turned by its position."""
    v = torch.stack([(frequencies(64) * tau).cos(), (frequencies(64) * tau).sin()], dim=-1).flatten()
    key = torch.tensor([1.0, 0.0]).double().repeat(32)
    queries, keys = (rotated(vector.expand(len(place), -1), place.double()) for vector in (v, key))
    return ALPHA * queries @ keys.T


def table(tau: int, place: Tensor) -> Tensor:
    """T5: one of 32 entries is high."""
    entries = torch.zeros(32, dtype=torch.float64)
    entries[t5_bucket(torch.tensor(tau))] = ALPHA
    return entries[t5_bucket(place - place[:, None])]


def causal(tau: int, place: Tensor) -> Tensor:
    """The paper's scores under a causal mask."""
    delta = place - place[:, None]
    return (-ALPHA * (delta - tau).double() ** 2).masked_fill(delta > 0, -torch.inf)


CASES = [*product((rotary, table), (range(-7, 8), range(-3, 1), range(1))), (causal, range(-3, 1))]


@pytest.mark.parametrize(("scores", "shifts"), CASES)
def test_heads_of_an_encoding_in_use_are_any_convolution(scores: Callable[..., Tensor], shifts: range) -> None:
    """On integers, where all keys are inside, by torch's own attention."""
    generator = torch.Generator().manual_seed(len(shifts))
    conv = nn.Conv1d(2, 3, len(shifts), bias=False).double().requires_grad_(False)
    conv.weight.copy_(torch.randint(-9, 10, conv.weight.shape, generator=generator))
    x = torch.randint(-9, 10, (2, 2, 23), generator=generator).double()
    bias = torch.stack([scores(tau, torch.arange(23)) for tau in shifts])
    nothing = torch.zeros(len(shifts), 23, 1, dtype=torch.float64)
    values = torch.eye(23, dtype=torch.float64).expand(len(shifts), -1, -1)  # so that the answers are the weights
    weights = scaled_dot_product_attention(nothing, nothing, values, attn_mask=bias)
    output = torch.einsum("hqk,bck,och->boq", weights, x, conv.weight)
    expected = conv(x)
    assert torch.equal(output[..., -shifts[0] :][..., : expected.shape[2]], expected)


def test_a_window_with_a_table_is_any_kernel_inside_it() -> None:
    """Swin: a window of M × M tokens, and a table of (2M − 1)² entries."""
    m = 5
    place = torch.cartesian_prod(torch.arange(m), torch.arange(m))
    index = ((place[None] - place[:, None] + m - 1) * torch.tensor([2 * m - 1, 1])).sum(dim=-1)
    generator = torch.Generator().manual_seed(0)
    kernel, x = (torch.randint(-9, 10, (1, 1, n, n), generator=generator).double() for n in (3, m))
    total = torch.zeros(m * m, dtype=torch.float64)
    for (a, b), weight in np.ndenumerate(kernel[0, 0].numpy()):
        entries = torch.zeros((2 * m - 1) ** 2, dtype=torch.float64)
        entries[(a + m - 2) * (2 * m - 1) + b + m - 2] = ALPHA
        total += entries[index].softmax(dim=1) @ x.flatten() * weight
    assert torch.equal(total.reshape(m, m)[1:-1, 1:-1], nn.functional.conv2d(x, kernel)[0, 0])


def test_the_gap_of_64_rotary_dimensions_up_to_65536_tokens() -> None:
    n = torch.arange(1, 65536, dtype=torch.float64)
    gaps = (1 - (n[:, None] * frequencies(64)).cos()).sum(dim=1)
    assert gaps.min() == gaps[:2].min() == pytest.approx(1.08, abs=0.005)
    slowest = frequencies(64).min()
    wave = int(2 * math.pi / slowest)
    assert wave == 47_117
    assert bool((gaps[: wave - 1] >= 1 - slowest.cos()).all())  # Coq: cosine_gap_positive


def test_further_shifts_share_an_entry_so_no_head_tells_them_apart() -> None:
    assert len({*t5_bucket(torch.arange(-7, 8)).tolist()}) == 15
    assert len({*t5_bucket(torch.arange(-12, 13)).tolist()}) < 25


def test_alibi_alone_looks_at_the_query_or_at_nothing_fixed() -> None:
    delta = (torch.arange(33)[None] - torch.arange(33)[:, None]).double()
    for slope in (0.5, 8.0, -0.5):
        weights = (-slope * delta.abs()).softmax(dim=1)
        for tau in (-3, -1, 1, 2):
            assert float(weights.diagonal(tau)[8:-8].max()) <= 0.5
    assert bool(((-ALPHA * delta.abs()).softmax(dim=1) == torch.eye(33)).all())
