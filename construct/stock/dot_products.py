"""Lemma 2's position scores as plain dot products of queries and keys, and the largest grid on
which they stay exact.

``nn.MultiheadAttention`` has no relative positions, and needs none.  Centred integer coordinates p
of the padded grid are d + 2 more input channels (p, ‖p‖², 1), or d + 1 if the projections have
biases.  With the features of :func:`~construct.encoding.quadratic.absolute_query` and
:func:`~construct.encoding.quadratic.absolute_key` (their docstring has the proof)

    q_h·k_h/√D = α(2(p_q + τ_h)·p_k − ‖p_k‖²) = −α‖δ − τ_h‖² + (a term that is the same for every
    key),

where D is the head size, so the softmax sees Lemma 2's own scores.

Precision.  u is the unit roundoff, K_i the largest ``|p_i|`` of a token, and every partial sum of
a score is at most α·S in size,

    S_h = Σ_i K_i(3K_i + 2|τ_i|)        (¾·d·n² on a grid of n a side, and a little more).

*Sharp heads* (τ integer, α large enough for weights of exactly 0 and 1 in the dtype) compute the
same at every α, so √D·α is set to one power of two, with α at least 1024: stored numbers, queries
and keys are multiples of it, hence exact.  Roundings remain in the product with 1/√D (two per term,
as torch may split it between q and k), in the dot product (d + 1), in a scale after it (one) and in
the softmax (two): at most γ_{d+6}·α·S per score, and two scores are compared.  On every path the
weights are one-hot if

    α(1 − 2γ_{d+6}·S) ≥ ln(2/η)         (see :func:`~construct.encoding.sharpness.alpha_for`)                              (rounded)

*Any head* has exact scores on every path if D is a power of 16 (so 1/√D and its root are powers of
two) and

    α·S < ε/u,       ε the last binary place of α and 2ατ                                                           (exact)

*A null token* in place of padding tokens (Coq: NullToken.v).  ``add_zero_attn`` gives every query
one more key, whose score and value are exactly 0.  One more feature lowers all scores of a query so
that its target's is α/2,

    q_h·k_h/√D = α(½ − ‖k − q − τ_h‖²) = α(2(p_q + τ_h)·p_k − ‖p_k‖² + ½ − ‖p_q + τ_h‖²),

so a target on the image has score α/2 and every other key −α/2 or less: where there is no target,
the null token wins, and zeros are read.  Partial sums are at most α·S in size for
``S_h = ½ + Σ_i (2K_i + |τ_i|)²``, there is one product more, and only one of two scores is rounded:
weights are one-hot if

    α(½ − γ_{d+7}·S) ≥ ln(2/η)                                                                        (null)

This assumes IEEE products.  If torch uses TF32 or bfloat16 for float32
(``torch.set_float32_matmul_precision``, and some GPU kernels), coordinates are rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt, prod
from typing import Any

import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.encoding.sharpness import ALPHA, alpha_for
from construct.errors import require
from construct.geometry import ConvGeometry, whole_numbers
from construct.tokens import TokenGrid

DTYPES = (torch.float32, torch.float64)
"""Half precision cannot hold ‖p‖² or scores: 11 bits end at a grid of side 36, and float16 at
65504.
"""


class NoStockForm(ValueError):
    """Why scores have no stock form, or no kernel can be read from one."""


@dataclass(frozen=True)
class HeadCentre:
    """The sharpness α and centre τ of a head, as exact fractions.

    Attributes:
        alpha: α, in units of score per squared token distance.
        tau: τ, the shift from query to key.
    """

    alpha: Fraction
    tau: tuple[Fraction, ...]

    def is_sharp(self, dtype: torch.dtype) -> bool:
        """Whether exact scores give weights of exactly 0 and 1 in this dtype."""
        return all(t.denominator == 1 for t in self.tau) and self.alpha >= alpha_for(dtype)

    def sharpened(self, dtype: torch.dtype, null: bool = False) -> "HeadCentre":
        """The default sharpness, twice that with a null token, for a sharp head, which computes the
        same at every sharpness; other heads unchanged.
        """
        alpha = Fraction(ALPHA) * (1 + null)
        return HeadCentre(alpha, self.tau) if self.is_sharp(dtype) else self

    def factor(self, dtype: torch.dtype, head_dim: int) -> Fraction:
        """√D·α as stored: exact if √D is a power of two, else (for a sharp head) the next power of
        two.
        """
        root = isqrt(head_dim)
        if root * root == head_dim and root & (root - 1) == 0:
            return self.alpha * root
        power = Fraction(1)
        while power * power < self.alpha * self.alpha * head_dim:
            power *= 2
        return power

    def size(self, reach: Sequence[int], null: bool = False) -> Fraction:
        """S, for the largest coordinates K; that of (null) with a null token."""
        axes = [(k, abs(t)) for k, t in zip(reach, self.tau, strict=True)]
        if null:
            return sum(((2 * k + t) ** 2 for k, t in axes), Fraction(1, 2))
        return sum((k * (3 * k + 2 * t) for k, t in axes), Fraction(0))

    def is_one_hot(self, reach: Sequence[int], dtype: torch.dtype, null: bool = False) -> bool:
        """The inequality (rounded) of the module's docstring, or (null)."""
        if not self.is_sharp(dtype):
            return False
        n = (len(reach) + 6 + null) * Fraction(torch.finfo(dtype).eps) / 2
        gap = 1 - 2 * n / (1 - n) * self.size(reach, null)
        return self.alpha * gap / (1 + null) >= alpha_for(dtype)

    def is_exact(self, reach: Sequence[int], dtype: torch.dtype, head_dim: int) -> bool:
        """The condition (exact) of the module's docstring for D a power of 16, with no over- or
        underflow in products with √D.
        """
        finfo = torch.finfo(dtype)
        stored = [x for x in (self.alpha, *(2 * self.alpha * t for t in self.tau)) if x]
        if any(x.denominator & (x.denominator - 1) for x in stored):
            return False
        place = min(Fraction(x.numerator & -x.numerator, x.denominator) for x in stored)
        largest = abs(self.alpha) * max(self.size(reach), Fraction(1)) + max(map(abs, stored))
        return (
            largest * Fraction(finfo.eps) / 2 < place
            and place >= Fraction(finfo.tiny) * head_dim
            and largest * head_dim <= Fraction(finfo.max)
        )


def query_rows(beta: Fraction, tau: Sequence[Fraction]) -> list[list[Fraction]]:
    """What multiplies p_1, …, p_d, ‖p‖² and 1 of a key, each as numbers that multiply those of the
    query; the 1 of a key counts only beside a null token.
    """
    zeros = [Fraction(0)] * (len(tau) + 1)
    square, *linear = quadratic.absolute_query(zeros[1:], tau, beta)
    rows = [[*zeros, constant] for constant in (*linear, square)]
    for axis in range(len(tau)):
        rows[axis][axis] = 2 * beta
    rest = beta * (Fraction(1, 2) - sum(t * t for t in tau))
    return [*rows, [*(-2 * beta * t for t in tau), -beta, rest]]


def reach(grid: TokenGrid) -> tuple[int, ...]:
    """K, the largest centred coordinate of a token on each axis."""
    return tuple(n // 2 for n in grid.shape)


def without_padding(grid: TokenGrid) -> TokenGrid:
    """The same queries among the tokens of the image alone.

    Raises:
        NoStockForm: tokens are copies, or zeros between inputs, or a query is a padding token.
    """
    if grid.affine is None or set(grid.stuffing) != {1} or min(map(min, grid.pads)) < 0:
        raise NoStockForm("a null token stands for zeros around the input, and for nothing else")
    first = tuple(q - before for q, (before, _) in zip(grid.first, grid.pads, strict=True))
    bare = replace(grid, pads=((0, 0),) * len(first), mode="zeros", first=first)
    if not stays_on(bare, (0,) * len(first)):
        raise NoStockForm(
            "the query of some output is a padding token, and without these it has none"
        )
    return bare


def stays_on(grid: TokenGrid, tau: Sequence[Any]) -> bool:
    """Whether every query has a key at the shift τ."""
    axes = zip(tau, grid.common_box, strict=True)
    return all(least <= t <= most for t, (least, most) in axes)


def positions(grid: TokenGrid, constant: bool) -> Tensor:
    """The position channels (p, ‖p‖²) or (p, ‖p‖², 1), float64 (T, d + 1 or d + 2)."""
    axes = [torch.arange(n, dtype=torch.float64, device="cpu") - n // 2 for n in grid.shape]
    square, *p = quadratic.absolute_key(
        [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")]
    )
    return torch.stack([*p, square, *[torch.ones_like(square)] * constant], dim=1)


def sources(grid: TokenGrid) -> Tensor:
    """The source of each token, int64 (T,): 0 for zeros, i + 1 for a copy of input position i
    (row-major).
    """
    numbers = torch.arange(1, prod(grid.size) + 1, device="cpu")
    return grid.gather(numbers.view(1, 1, *grid.size)).flatten()


def head_size(
    centres: Sequence[HeadCentre],
    grid: TokenGrid,
    dtype: torch.dtype,
    least: int,
    null: bool = False,
) -> int | None:
    """The least head size ≥ ``least`` with which (rounded) or (exact) holds for all heads, or (null)
    with a null token; None if there is none.
    """
    if all(centre.is_one_hot(reach(grid), dtype, null) for centre in centres):
        return least
    if null:
        return None
    size = 1
    while size < least:
        size *= 16
    return size if all(centre.is_exact(reach(grid), dtype, size) for centre in centres) else None


def too_large(
    centres: Sequence[HeadCentre], grid: TokenGrid, dtype: torch.dtype, null: bool = False
) -> str:
    """Why :func:`head_size` is None, in one clause with the figures."""
    limit = int(2 / torch.finfo(dtype).eps)
    sizes = [centre.size(reach(grid), null) for centre in centres]
    size = max(sizes)
    head = sizes.index(size)
    soft = [head for head, centre in enumerate(centres) if not centre.is_sharp(dtype)]
    if soft and null:
        return f"head {soft[0]} is not one-hot, and only one-hot heads have a null token in place of padding"
    if soft and size < limit:
        centre = centres[soft[0]]
        return (
            f"head {soft[0]} is not one-hot (α = {float(centre.alpha):.4g}), and its scores are not exact in {dtype}: on a padded "
            f"grid of {grid.shape} they reach {float(size):.4g}·α; a power of two for α needs the fewest bits"
        )
    larger = "" if dtype == torch.float64 else "; .double() has room for more"
    return (
        f"{dtype} cannot hold the scores: on a padded grid of {grid.shape} head {head}'s reach {float(size):.4g}·α, "
        f"and whole numbers end at {limit}{larger}"
    )


def token_grid(geometry: ConvGeometry, grid: Any, null: bool = False) -> TokenGrid:
    """The tokens of an input of spatial size ``grid``, without padding beside a null token.

    Raises:
        NoStockForm: see :func:`without_padding`.
        ValueError: this geometry accepts no input of size ``grid``.
        NotEnoughMemory: even the token numbers would not fit.
    """
    size = whole_numbers(grid)
    if size is None or len(size) != geometry.dims or not isinstance(grid, tuple):
        raise ValueError(f"MHSA: grid is {grid!r}, not a tuple of {geometry.dims} whole numbers")
    lengths = [*map(abs, geometry.token_shape(size)), *map(abs, geometry.output_size(size))]
    # positions, sources, intermediate tensors
    tokens = 8 * (6 + 3 * geometry.dims) * prod(lengths[: geometry.dims])
    require(
        32 * sum(lengths) + tokens,
        torch.device("cpu"),
        f"numbering the padded grid of an input of size {grid}",
    )
    try:
        padded = TokenGrid.of(geometry, size)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return without_padding(padded) if null else padded
