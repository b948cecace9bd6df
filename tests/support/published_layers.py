"""Two published attention layers that are said to express convolutions, written from their equations, for audits.

- :class:`GaussianAttention`: the paper's own code (Cordonnier, Loukas, Jaggi 2020), with its Gaussian-blur shortcut.
- :class:`GatedAttention`: gated positional self-attention (ConViT, d'Ascoli et al. 2021).

Both take images and attend over their pixels, unpadded.  Each can be given the weights of a convolution by hand.  The originals'
behaviour at borders, with too few heads or channels, and by default is unchanged: audits should detect it.
"""

from collections.abc import Sequence
from itertools import product
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn


def _shifts(rows: int, columns: int) -> Tensor:
    """δ = key − query between all pixels of an image: float64 (T, T, 2), row and column."""
    axes = [torch.arange(n, dtype=torch.float64) for n in (rows, columns)]
    place = torch.cartesian_prod(*axes)
    return place[None] - place[:, None]


def _taps(conv: Any) -> tuple[Tensor, list[tuple[int, int]]]:
    """The matrices of a convolution's taps, (taps, D, C), and their shifts from the query.

    Raises:
        ValueError: it is not two-dimensional with stride 1, one group and an odd kernel.
    """
    weight = conv.weight.detach()
    odd = weight.dim() == 4 and all(k % 2 for k in weight.shape[2:])
    if not odd or conv.groups != 1 or tuple(conv.stride) != (1, 1) or conv.transposed:
        raise ValueError("the published layers take 2-D convolutions with stride 1, one group and odd kernels")
    steps = [[dil * (j - k // 2) for j in range(k)] for k, dil in zip(weight.shape[2:], conv.dilation, strict=True)]
    return weight.flatten(2).permute(2, 0, 1), list(product(*steps))


class GaussianAttention(nn.Module):
    """Attention by a Gaussian of the shift: P^h = softmax over keys of −½ ‖M_h (δ − Δ_h)‖², and one linear map of all heads.

    Args:
        in_channels: C.
        out_channels: D.
        heads: N_h.
        blur: whether to use the code's shortcut: one 7 × 7 depthwise filter per head instead of attention, divided by its
            output on an image of ones.

    Attributes:
        centres: Δ, (heads, 2).
        spreads: M = Σ^(−½), (heads, 2, 2).
        value: the linear map, (D, heads·C).
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int, blur: bool = False):
        super().__init__()
        self.in_channels, self.out_channels, self.heads, self.blur = in_channels, out_channels, heads, blur
        self.centres = nn.Parameter(torch.zeros(heads, 2).normal_(0.0, 2.0))
        self.spreads = nn.Parameter(torch.eye(2).repeat(heads, 1, 1))
        self.value = nn.Linear(heads * in_channels, out_channels)

    @classmethod
    @torch.no_grad()
    def of_convolution(cls, conv: Any, alpha: float, blur: bool = False) -> "GaussianAttention":
        """Build a layer with the taps of a convolution: M_h = √(2α)·1, Δ_h the tap's shift.

        Raises:
            ValueError: the layer cannot hold such a convolution.
        """
        taps, shifts = _taps(conv)
        layer = cls(conv.in_channels, conv.out_channels, len(taps), blur).to(taps.dtype)
        layer.centres.copy_(torch.tensor(shifts))
        layer.spreads.copy_((2 * alpha) ** 0.5 * torch.eye(2).expand_as(layer.spreads))
        layer.value.weight.copy_(taps.permute(1, 0, 2).flatten(1))
        layer.value.bias.zero_() if conv.bias is None else layer.value.bias.copy_(conv.bias)
        return layer

    def attention_probabilities(self, x: Tensor) -> Tensor | None:
        """P for an input (B, C, rows, columns): (1, heads, T, T); None with the shortcut, which computes none."""
        return None if self.blur else self._attention(x)

    def _attention(self, x: Tensor) -> Tensor:
        away = _shifts(*x.shape[2:]).to(x)[None] - self.centres[:, None, None]  # (heads, T, T, 2)
        score = -torch.einsum("hij,hqkj->hqki", self.spreads, away).square().sum(-1) / 2
        return torch.softmax(score, dim=-1)[None]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, D, rows, columns)."""
        if self.blur:
            mixed = self._blurred(x)
        else:
            p = self._attention(x)[0]
            mixed = torch.einsum("hqk,bck->bhcq", p, x.flatten(2)).flatten(1, 2)
        y = self.value(mixed.flatten(2).transpose(1, 2))
        return y.transpose(1, 2).unflatten(2, x.shape[2:])

    def _blurred(self, x: Tensor) -> Tensor:
        """The shortcut as published.

        The filter's first axis runs along the columns, and filters are stored head by head, although a grouped convolution
        reads them channel by channel.
        """
        channels, side = x.shape[1], torch.arange(-3, 4).to(x)
        first, second = torch.meshgrid(side, side, indexing="ij")
        filters = []
        for centre, spread in zip(self.centres, self.spreads, strict=True):
            away = torch.stack([second, first], dim=-1) - centre  # the axes in the other order
            weight = torch.exp(-(away @ spread.T).square().sum(-1) / 2)
            filters.append((weight / weight.sum()).expand(channels, 1, 7, 7))
        stacked = torch.cat(filters)
        blurred = nn.functional.conv2d(x, stacked, padding=3, groups=channels)
        return blurred / nn.functional.conv2d(torch.ones_like(x[:1]), stacked, padding=3, groups=channels)


class GatedAttention(nn.Module):
    """Gated positional self-attention, without a class token:

        P^h = (1 − σ(λ_h)) softmax(Q^h K^hᵀ / √D_h) + σ(λ_h) softmax(w_h·(δ_column, δ_row, ‖δ‖²)),      out = proj(P V)

    Args:
        dim: the width of the tokens; each head has dim / heads of it.
        heads: N_h.
        in_channels: C; the input is padded with zeros to ``dim``.
        out_channels: D; the first D channels of the output are kept.

    Raises:
        ValueError: the heads do not divide ``dim``, or ``dim`` is too small for the channels.
    """

    def __init__(self, dim: int, heads: int, in_channels: int | None = None, out_channels: int | None = None):
        super().__init__()
        if dim % heads or dim < max(in_channels or dim, out_channels or dim):
            raise ValueError(f"{heads} heads do not divide {dim}, or it is narrower than the channels")
        self.in_channels, self.out_channels = in_channels or dim, out_channels or dim
        self.dim, self.heads = dim, heads
        self.qk = nn.Linear(dim, 2 * dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(heads, 3))
        self.gate = nn.Parameter(torch.ones(heads))
        self.local()

    @torch.no_grad()
    def local(self, strength: float = 1.0) -> None:
        """The published initialisation: ⌊√heads⌋² heads around the centre of a square of that side, v the identity."""
        self.v.weight.copy_(torch.eye(self.dim))
        side = isqrt(self.heads)  # as published: heads beyond the square keep their random values
        middle = (side - 1) / 2 if side % 2 == 0 else side // 2
        for row, column in product(range(side), repeat=2):
            self._aim(row + side * column, (row - middle, column - middle), strength)

    def _aim(self, head: int, shift: Sequence[float], strength: float) -> None:
        """Scores −strength·(‖δ‖² − 2 shift·δ)."""
        numbers = [2.0 * shift[1], 2.0 * shift[0], -1.0]
        self.pos[head] = strength * torch.tensor(numbers, dtype=self.pos.dtype)

    @classmethod
    @torch.no_grad()
    def of_convolution(cls, conv: Any, strength: float, gate: float, dim: int | None = None) -> "GatedAttention":
        """Build a layer with one head per tap of a convolution: W_out^h W_val^h is the tap, truncated to rank dim / heads.

        Args:
            conv: a torch convolution.
            strength: the locality strength, α.
            gate: λ of every head; 1 is the default of the published layer.
            dim: by default heads·C, so that every head holds all channels.

        Raises:
            ValueError: the layer cannot hold such a convolution.
        """
        taps, shifts = _taps(conv)
        heads = len(taps)
        layer = cls(dim or heads * max(taps.shape[1:]), heads, conv.in_channels, conv.out_channels).to(taps.dtype)
        size = layer.dim // heads
        for weight in (layer.v.weight, layer.proj.weight, layer.proj.bias):
            weight.zero_()
        for head, (tap, shift) in enumerate(zip(taps, shifts, strict=True)):
            left, values, right = torch.linalg.svd(tap, full_matrices=False)
            rank, rows = min(size, len(values)), head * size
            layer.v.weight[rows : rows + rank, : conv.in_channels] = right[:rank]
            layer.proj.weight[: conv.out_channels, rows : rows + rank] = left[:, :rank] * values[:rank]
            layer._aim(head, shift, strength)
        if conv.bias is not None:
            layer.proj.bias[: conv.out_channels] = conv.bias
        layer.gate.fill_(gate)
        return layer

    def _tokens(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, T, dim)."""
        tokens = x.flatten(2).transpose(1, 2)
        return nn.functional.pad(tokens, (0, self.dim - tokens.shape[2]))

    def attention_probabilities(self, x: Tensor) -> Tensor:
        """P for an input (B, C, rows, columns): (B, heads, T, T)."""
        tokens = self._tokens(x)
        query, key = self.qk(tokens).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, T, D_h)
        content = torch.softmax(query @ key.transpose(2, 3) * (self.dim // self.heads) ** -0.5, dim=-1)
        delta = _shifts(*x.shape[2:]).to(x)
        encoded = torch.stack([delta[..., 1], delta[..., 0], delta.square().sum(-1)], dim=-1)
        position = torch.softmax(torch.einsum("qkp,hp->hqk", encoded, self.pos), dim=-1)
        open_ = torch.sigmoid(self.gate)[:, None, None]
        return (1 - open_) * content + open_ * position

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, D, rows, columns)."""
        values = self.v(self._tokens(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, D_h)
        mixed = (self.attention_probabilities(x) @ values).transpose(1, 2).flatten(2)
        y = self.proj(mixed)[..., : self.out_channels]
        return y.transpose(1, 2).unflatten(2, x.shape[2:])
