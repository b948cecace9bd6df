"""Lemma 2's scores as plain dot products of queries and keys, and how large a grid may be for them.

A stock attention has no relative positions, and needs none.  Centred integer coordinates p of the padded grid ride along as
d + 2 more input channels (p, ‖p‖², 1), d + 1 of them where the projections have biases.  With the features of
:func:`~construct.encoding.quadratic.absolute_query` and :func:`~construct.encoding.quadratic.absolute_key` (their docstring
has the proof)

    q_h·k_h/√D = α(2(p_q + τ_h)·p_k − ‖p_k‖²) = −α‖δ − τ_h‖² + (a term that is the same for every key),

D the head size, and the softmax sees Lemma 2's own scores.

Precision.  u is the unit roundoff, K_i the largest |p_i| of a token, and every partial sum of a score is at most α·S in size,

    S_h = Σ_i K_i(3K_i + 2|τ_i|)        (¾·d·n² on a grid of n a side, and a little more).

*Sharp heads* (τ integer, α at least what makes the format's weights exactly 0 and 1) all compute the same, so they get one
power of two as √D·α, with α at least 1024: stored numbers, queries and keys are whole multiples of it, hence exact.  What is
left is the product with 1/√D (torch splits it evenly between q and k on one path: two roundings of every term), d + 1
roundings of the dot product, one if the scale comes after it, two inside the softmax: at most γ_{d+6}·α·S a score, and two
scores are compared.  On every path the weights are exactly one-hot if

    α(1 − 2γ_{d+6}·S) ≥ ln(2/η)         (see :func:`~construct.encoding.sharpness.alpha_for`)                              (rounded)

*Any head* has exact scores on every path if D is a power of 16, so that 1/√D and its root are powers of two, and if

    α·S < ε/u,       ε the last binary place of α and 2ατ                                                           (exact)

All this is about IEEE products.  Where torch takes TF32 or bfloat16 for float32 (``torch.set_float32_matmul_precision`` asks
for that, and some kernels of GPUs put a product together from shorter ones), coordinates are no longer what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt, prod
from typing import Any, NoReturn

import torch
from torch import Tensor

from construct.encoding import quadratic as encoding
from construct.encoding.sharpness import ALPHA, alpha_for
from construct.errors import Refusal, UnsupportedLayer, require
from construct.geometry import ConvGeometry
from construct.tokens import TokenGrid

DTYPES = (torch.float32, torch.float64)
"""In half precision neither ‖p‖² nor a score has room: 11 bits end at a grid of 36 a side, and float16 itself at 65504."""


@dataclass(frozen=True)
class Aim:
    """Where a head looks, and how sharply, as exact numbers.

    Attributes:
        alpha: α, in units of score per squared token distance.
        tau: τ, the shift from query to key.
    """

    alpha: Fraction
    tau: tuple[Fraction, ...]

    def is_sharp(self, dtype: torch.dtype) -> bool:
        """Whether exact scores give weights that are exactly 0 and 1 in this format."""
        return all(t.denominator == 1 for t in self.tau) and self.alpha >= alpha_for(dtype)

    def sharpened(self, dtype: torch.dtype) -> "Aim":
        """The same head, with the default sharpness if it is sharp, for then every sharpness computes the same."""
        return Aim(Fraction(ALPHA), self.tau) if self.is_sharp(dtype) else self

    def factor(self, dtype: torch.dtype, head_dim: int) -> Fraction:
        """√D·α as it is stored: exactly, or for a sharp head the next power of two if that is no number of the format."""
        root = isqrt(head_dim)
        if root * root == head_dim and root & (root - 1) == 0:
            return self.alpha * root
        power = Fraction(1)
        while power * power < self.alpha * self.alpha * head_dim:
            power *= 2
        return power

    def size(self, reach: Sequence[int]) -> Fraction:
        """S, for the largest coordinates K."""
        return sum((k * (3 * k + 2 * abs(t)) for k, t in zip(reach, self.tau, strict=True)), Fraction(0))

    def is_one_hot(self, reach: Sequence[int], dtype: torch.dtype) -> bool:
        """The inequality (rounded) of the module's docstring."""
        if not self.is_sharp(dtype):
            return False
        n = (len(reach) + 6) * Fraction(torch.finfo(dtype).eps) / 2
        return self.alpha * (1 - 2 * n / (1 - n) * self.size(reach)) >= alpha_for(dtype)

    def is_exact(self, reach: Sequence[int], dtype: torch.dtype, head_dim: int) -> bool:
        """The condition (exact) of the module's docstring, D a power of 16, with room for the products with √D and 1/√D."""
        number = torch.finfo(dtype)
        stored = [x for x in (self.alpha, *(2 * self.alpha * t for t in self.tau)) if x]
        if any(x.denominator & (x.denominator - 1) for x in stored):
            return False
        place = min(Fraction(x.numerator & -x.numerator, x.denominator) for x in stored)
        largest = abs(self.alpha) * max(self.size(reach), Fraction(1)) + max(map(abs, stored))
        return (
            largest * Fraction(number.eps) / 2 < place
            and place >= Fraction(number.tiny) * head_dim
            and largest * head_dim <= Fraction(number.max)
        )


def reach(grid: TokenGrid) -> tuple[int, ...]:
    """K, the largest centred coordinate of a token on each axis."""
    return tuple(n // 2 for n in grid.shape)


def positions(grid: TokenGrid, constant: bool) -> Tensor:
    """The channels of position, (p, ‖p‖²) or (p, ‖p‖², 1), float64 (T, d + 1 or d + 2)."""
    axes = [torch.arange(n, dtype=torch.float64) - n // 2 for n in grid.shape]
    square, *p = encoding.absolute_key([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")])
    return torch.stack([*p, square, *([torch.ones_like(square)] if constant else [])], dim=1)


def sources(grid: TokenGrid, size: Sequence[int]) -> Tensor:
    """What each token is, int64 (T,): 0 a zero, i + 1 a copy of input position i, row-major in an input of this size."""
    copied, real = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for n, source in zip(size, grid.sources, strict=True):
        copied = copied[..., None] * n + source
        real = real[..., None] & (source >= 0)
    return torch.where(real, copied + 1, 0).flatten()


def head_size(aims: Sequence[Aim], grid: TokenGrid, dtype: torch.dtype, least: int) -> int | None:
    """The least head size with room for ``least`` numbers that keeps the function: (rounded) with any, (exact) with some.

    None if neither holds for all heads.
    """
    if all(aim.is_one_hot(reach(grid), dtype) for aim in aims):
        return least
    size = 1
    while size < least:
        size *= 16
    return size if all(aim.is_exact(reach(grid), dtype, size) for aim in aims) else None


def too_large(aims: Sequence[Aim], grid: TokenGrid, dtype: torch.dtype) -> str:
    """Why there is no head size for these heads on this grid in this format, in one clause with the figures."""
    limit = int(2 / torch.finfo(dtype).eps)
    head, size = max(enumerate(aim.size(reach(grid)) for aim in aims), key=lambda pair: pair[1])
    soft = [head for head, aim in enumerate(aims) if not aim.is_sharp(dtype)]
    if soft and size < limit:
        aim = aims[soft[0]]
        return (
            f"head {soft[0]} is not one-hot (α = {float(aim.alpha):.4g}), and its scores are not exact in {dtype}: on a padded "
            f"grid of {grid.shape} they reach {float(size):.4g}·α; a power of two for α needs the fewest bits"
        )
    larger = "" if dtype == torch.float64 else "; .double() has room for more"
    return (
        f"{dtype} cannot hold the scores: on a padded grid of {grid.shape} head {head}'s reach {float(size):.4g}·α, "
        f"and whole numbers end at {limit}{larger}"
    )


def token_grid(geometry: ConvGeometry, grid: Any) -> TokenGrid:
    """The tokens of an input of spatial size ``grid``.

    Raises:
        ValueError: ``grid`` is no size that this geometry takes.
        NotEnoughMemory: not even the numbers of its tokens would fit.
    """
    whole = isinstance(grid, tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in grid)
    if not whole or len(grid) != geometry.dims:
        raise ValueError(f"MHSA: grid is {grid!r}, not a tuple of {geometry.dims} whole numbers")
    lengths = [*map(abs, geometry.token_shape(grid)), *map(abs, geometry.output_size(grid))]
    tokens = (
        8 * (6 + 3 * geometry.dims) * prod(lengths[: geometry.dims])
    )  # their positions, sources, and what makes them
    require(32 * sum(lengths) + tokens, torch.device("cpu"), f"numbering the padded grid of an input of size {grid}")
    try:
        return TokenGrid.of(geometry, grid)
    except RuntimeError as error:  # as a call would put it
        raise ValueError(str(error)) from error


def refuse(module: object, reason: str) -> NoReturn:
    """Raise the one error of this kind: the class, and why not."""
    raise UnsupportedLayer([Refusal("", type(module).__name__, reason)])
