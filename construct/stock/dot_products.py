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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isqrt

import numpy as np
import torch

from construct.encoding import quadratic
from construct.encoding.sharpness import alpha_for
from construct.stock.layout import NoStockForm, TokenLayout

DTYPES = (torch.float32, torch.float64)
"""Half precision cannot hold ‖p‖² or scores: 11 bits end at a grid of side 36, and float16 at
65504.
"""


@dataclass(frozen=True)
class HeadCentre:
    """The sharpness α and centre τ of a head, as exact fractions.

    Attributes:
        alpha: α, in units of score per squared token distance.
        tau: τ, the shift from query to key.
    """

    alpha: Fraction
    tau: tuple[Fraction, ...]

    def is_sharp(self, layout: TokenLayout) -> bool:
        """Whether exact scores give weights of exactly 0 and 1 in the dtype."""
        return all(t.denominator == 1 for t in self.tau) and self.alpha >= alpha_for(layout.dtype)

    def factor(self, head_dim: int) -> Fraction:
        """√D·α as stored: exact if √D is a power of two, else (for a sharp head) the next power of
        two.
        """
        if head_dim == next_power(4, head_dim):
            return self.alpha * isqrt(head_dim)
        return Fraction(isqrt(next_power(4, self.alpha**2 * head_dim)))

    def size(self, layout: TokenLayout) -> Fraction:
        """S of the module's docstring."""
        axes = zip(layout.reach, map(abs, self.tau), strict=True)
        if layout.null:
            return Fraction(1, 2) + sum((2 * k + t) ** 2 for k, t in axes)
        return Fraction(sum(k * (3 * k + 2 * t) for k, t in axes))

    def is_one_hot(self, layout: TokenLayout, terms: int, largest: Fraction) -> bool:
        """Whether weights are one-hot, though torch rounds scores of ``terms`` products, whose partial
        sums reach ``largest``: (rounded) of the module's docstring, or (null).
        """
        n = (terms + 5) * Fraction(torch.finfo(layout.dtype).eps) / 2
        gap = self.alpha - 2 * n / (1 - n) * largest
        return self.is_sharp(layout) and gap / (1 + layout.null) >= alpha_for(layout.dtype)

    def is_exact(self, layout: TokenLayout, head_dim: int) -> bool:
        """The condition (exact) of the module's docstring, with no over- or underflow in products
        with √D.
        """
        if layout.null or head_dim != next_power(16, head_dim):
            return False
        finfo = torch.finfo(layout.dtype)
        stored = [self.alpha, *(2 * self.alpha * t for t in self.tau)]
        if any(x.denominator & (x.denominator - 1) for x in stored):
            return False
        place = last_place(stored)
        largest = abs(self.alpha) * max(self.size(layout), 1) + max(map(abs, stored))
        return (
            largest * Fraction(finfo.eps) / 2 < place
            and place >= Fraction(finfo.tiny) * head_dim
            and largest * head_dim <= Fraction(finfo.max)
        )


def last_place(numbers: Iterable[float | Fraction]) -> Fraction | float:
    """The last binary place of numbers, the least power of two in any of them; ∞ if all are 0."""
    parts = [Fraction(x) for x in numbers if x]
    return min((Fraction(x.numerator & -x.numerator, x.denominator) for x in parts), default=inf)


def next_power(base: int, least: Fraction | int) -> int:
    """The least power of a whole number that is not less than ``least``."""
    power = 1
    while power < least:
        power *= base
    return power


def score_matrix(beta: Fraction, tau: Sequence[Fraction]) -> np.ndarray:
    """The scores as a bilinear form, (d + 2, d + 2): what multiplies p_1, …, p_d, ‖p‖² and 1 of a key,
    each as numbers that multiply those of the query; the 1 of a key counts only beside a null token.
    """
    *p, square, one = np.eye(len(tau) + 2, dtype=object)
    sign, *linear = quadratic.absolute_query(p, [t * one for t in tau], beta)
    distance = square + sum(t * (2 * x + t * one) for x, t in zip(p, tau, strict=True))  # ‖p + τ‖²
    return np.array([*linear, sign * one, beta * (Fraction(1, 2) * one - distance)])


def position_columns(
    centres: Sequence[HeadCentre], layout: TokenLayout, head_dim: int
) -> np.ndarray:
    """What multiplies (p, ‖p‖², 1) in queries, keys and values, (3, heads, D, d + 2)."""
    dims = layout.geometry.dims
    order = [dims, *range(dims), dims + 1][: layout.terms]  # ‖p‖², p and 1 of the key
    columns = np.zeros((3, len(centres), head_dim, dims + 2))
    for head, centre in enumerate(centres):
        query = score_matrix(centre.factor(head_dim), centre.tau)
        columns[:2, head, : len(order)] = query[order], np.eye(dims + 2)[order]
    return columns


def scores_hold(centres: Sequence[HeadCentre], layout: TokenLayout, head_dim: int) -> bool:
    """Whether (rounded) holds for all heads, or (exact) does; or (null), beside a null token."""
    return all(
        centre.is_one_hot(layout, layout.terms, centre.alpha * centre.size(layout))
        for centre in centres
    ) or all(centre.is_exact(layout, head_dim) for centre in centres)


def head_size(centres: Sequence[HeadCentre], layout: TokenLayout, *sizes: int) -> int:
    """The first of these head sizes with which :func:`scores_hold`.

    Raises:
        NoStockForm: there is none, or no such layout.
    """
    if layout.dtype not in DTYPES:
        what = f"{layout.dtype} cannot hold coordinates and scores"
        raise NoStockForm(f"{what}; a stock attention is float32 or float64")
    for size in sizes:
        if scores_hold(centres, layout, size):
            return size
    raise NoStockForm(too_large(centres, layout))


def too_large(centres: Sequence[HeadCentre], layout: TokenLayout) -> str:
    """Why not even a larger head size can hold the scores, in one clause with the figures."""
    dtype = layout.dtype
    limit = int(2 / torch.finfo(dtype).eps)
    sizes = [centre.size(layout) for centre in centres]
    size = max(sizes)
    head = sizes.index(size)
    soft = [head for head, centre in enumerate(centres) if not centre.is_sharp(layout)]
    if soft and layout.null:
        return f"head {soft[0]} is not one-hot, and only one-hot heads have a null token in place of padding"
    reached = f"on a padded grid of {layout.grid.shape}"
    if soft and size < limit:
        alpha = float(centres[soft[0]].alpha)
        return (
            f"head {soft[0]} is not one-hot (α = {alpha:.4g}), and its scores are not exact in {dtype}: {reached} "
            f"they reach {float(size):.4g}·α; a power of two for α needs the fewest bits"
        )
    larger = "" if dtype == torch.float64 else "; .double() has room for more"
    return (
        f"{dtype} cannot hold the scores: {reached} head {head}'s reach {float(size):.4g}·α, "
        f"and whole numbers end at {limit}{larger}"
    )
