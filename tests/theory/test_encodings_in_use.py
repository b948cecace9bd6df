"""The encodings of other networks, run as they are published, against convolutions (Coq: ``Encodings.v``)."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

ALPHA = 1024.0


def whole(*shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(sum(shape))).double()


def convolution(taps: int, padding: int = 0) -> nn.Conv1d:
    conv = nn.Conv1d(2, 3, taps, padding=padding, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(whole(*conv.weight.shape))
    return conv


def frequencies(dims: int) -> Tensor:
    """θ_j of RoPE and of sinusoidal positions."""
    return 10000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE: every pair of features turned by its position times θ_j."""
    angle = positions[:, None] * frequencies(x.shape[-1])
    even, odd = x[..., ::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


def by_heads(conv: nn.Conv1d, x: Tensor, weights: Tensor) -> Tensor:
    """Σ_h P^h X W_h of attention (taps, queries, keys)."""
    return torch.einsum("hqk,bck,och->boq", weights, x, conv.weight.detach())


def test_the_gap_of_64_rotary_dimensions_up_to_65536_tokens() -> None:
    n = torch.arange(1, 65536, dtype=torch.float64)
    gaps = (1 - (n[:, None] * frequencies(64)).cos()).sum(dim=1)
    assert gaps.min() == gaps[:2].min() == pytest.approx(1.08, abs=0.005)
    slowest = frequencies(64).min()
    wave = int(2 * math.pi / slowest)
    assert wave == 47_117
    assert bool((gaps[: wave - 1] >= 1 - slowest.cos()).all())  # Coq: cosine_gap_positive


@pytest.mark.parametrize("taps", [1, 4, 7])
def test_rotary_attention_is_any_convolution(taps: int) -> None:
    """By torch's own attention: the queries are one vector a head, the keys all alike, and each is turned by its position."""
    conv = convolution(taps)
    x = whole(2, 2, 20)
    place = torch.arange(20, dtype=torch.float64)
    theta = frequencies(64)
    queries = []
    for tau in range(taps):
        v = torch.stack([(theta * tau).cos(), (theta * tau).sin()], dim=-1).flatten()
        queries.append(rotated(v.expand(20, -1), place))
    keys = rotated(torch.tensor([1.0, 0.0]).double().repeat(32).expand(20, -1), place).expand(taps, -1, -1)
    values = torch.eye(20, dtype=torch.float64).expand(taps, -1, -1)
    weights = scaled_dot_product_attention(torch.stack(queries), keys, values, scale=ALPHA)
    assert torch.equal(by_heads(conv, x, weights)[..., : 21 - taps], conv(x).detach())


def t5_bucket(delta: Tensor) -> Tensor:
    """The bucket of a shift in T5: 32 of them, both ways, at most 128 apart."""
    away = delta.abs()
    far = 8 + ((away.clamp(min=1) / 8).log() / math.log(128 / 8) * 8).long()
    return torch.where(away < 8, away, far.clamp(max=15)) + 16 * (delta > 0)


def test_tables_express_kernels_whose_shifts_have_entries_of_their_own() -> None:
    shifts = torch.arange(-7, 8)
    assert len({*t5_bucket(shifts).tolist()}) == 15
    assert len({*t5_bucket(torch.arange(-12, 13)).tolist()}) < 25  # further ones share: no head tells them apart
    conv = convolution(15, padding=7)
    x = pad(whole(1, 2, 9), (7, 7))
    delta = torch.arange(23)[None] - torch.arange(23)[:, None]
    weights = []
    for tau in shifts:
        entries = torch.zeros(32, dtype=torch.float64)
        entries[t5_bucket(tau)] = ALPHA
        weights.append(entries[t5_bucket(delta)].softmax(dim=1))
    expected = conv(x[..., 7:-7]).detach()
    assert torch.equal(by_heads(conv, x, torch.stack(weights))[..., 7:-7], expected)


def test_a_window_with_a_table_is_any_kernel_inside_it() -> None:
    """Swin: a window of M × M tokens, and a table of (2M − 1)² entries."""
    m = 5
    place = torch.cartesian_prod(torch.arange(m), torch.arange(m))
    delta = place[None] - place[:, None] + m - 1
    index = delta[..., 0] * (2 * m - 1) + delta[..., 1]
    assert int(index.max()) == (2 * m - 1) ** 2 - 1
    conv = nn.Conv2d(1, 1, 3, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(whole(1, 1, 3, 3))
    x = whole(1, 1, m, m)
    total = torch.zeros(m * m, dtype=torch.float64)
    for a, b in torch.cartesian_prod(torch.arange(3), torch.arange(3)).tolist():
        table = torch.zeros((2 * m - 1) ** 2, dtype=torch.float64)
        table[(a - 1 + m - 1) * (2 * m - 1) + b - 1 + m - 1] = ALPHA
        total += table[index].softmax(dim=1) @ x.flatten() * conv.weight[0, 0, a, b].detach()
    assert torch.equal(total.reshape(m, m)[1:-1, 1:-1], conv(x).detach()[0, 0])


def test_alibi_alone_looks_at_the_query_or_at_nothing_fixed() -> None:
    delta = (torch.arange(33)[None] - torch.arange(33)[:, None]).double()
    for slope in (0.5, 8.0, -0.5):
        weights = (-slope * delta.abs()).softmax(dim=1)
        for tau in (-3, -1, 1, 2):
            assert float(weights.diagonal(tau)[8:-8].max()) <= 0.5
    assert bool(((-ALPHA * delta.abs()).softmax(dim=1) == torch.eye(33)).all())


def test_a_causal_mask_keeps_causal_kernels() -> None:
    conv = convolution(4)
    x = pad(whole(1, 2, 12), (3, 0))
    delta = (torch.arange(15)[None] - torch.arange(15)[:, None]).double()
    scores = torch.stack([-ALPHA * (delta - tau) ** 2 for tau in range(-3, 1)])
    weights = scores.masked_fill(delta > 0, -torch.inf).softmax(dim=-1)
    assert torch.equal(by_heads(conv, x, weights)[..., 3:], conv(x).detach())
