"""The standard rounding model: error bounds for a convolution and an attention layer, each
evaluated in any order.

Each product and each sum returns its exact result times 1 + ε with |ε| ≤ u, and a product that
underflows errs by at most η (u is the unit roundoff, η the smallest positive number).  A sum of
products, evaluated in *any* order, then errs by at most γ_n Σ|products| plus underflow, with
γ_n = n·u/(1 − n·u) and n the largest number of operations on any one term.

**The convolution.**  A term is multiplied once and passes at most D_in/groups·ΠK additions,
including the bias: that many operations plus one, and as many products that may underflow.

**One-hot attention.**  P is exactly 0 or 1, so P X only moves numbers.  The rest may be evaluated
in two orders:

    (P X W_val) W_out   a term passes D_in/groups operations, then N_h·D_h
    P X (W_val W_out)   the factors are multiplied first: D_h operations, then N_h·D_in/groups

The bias adds one, so n = max(D_in/groups + N_h·D_h, D_h + N_h·D_in/groups) + 1.  Underflow:
D_in/groups products of X W_val are multiplied by |W_out|, and N_h·D_h follow; folded, each entry
errs by D_h·η, times |x| ≤ B, and N_h·D_in/groups follow.

**Soft attention** has weights with rounding errors, and may be evaluated as a product of d factors,
one softmax per axis, whose lengths sum to at most T + d.  A term passes 2(T + d) operations in the
sums of the softmax and over the keys, and a few in each exponential, division and cast: 2T + 4 +
12d more.  Its T + d products underflow by η times |W_out| or |W_val||W_out|.  Entries of a factor
below 2^−100 may be set to zero, which loses (T + d)·2^−100 of the attended values.  (Coq derives a
bound of this form, ``soft_runs``; a test finds it never larger.)

**Half precision.**  Both are assumed to accumulate in float32; the attention rounds to half once,
the convolution at most once per tap and twice more.  This is an assumption about torch, not a
theorem.

:mod:`verify.rounding.channels` applies it per output channel for a certificate,
:mod:`verify.rounding.elements` per output for samples.  The checker derives its bounds separately.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from verify.layers.fields import Attention
from verify.oracle import Convolution, matmul

WIDEN = 1 + 2.0**-20
"""Exceeds float64's relative error in evaluating a bound (a sum of fewer than 2^32 nonnegative
numbers).
"""
NEGLIGIBLE = 2.0**-100
"""Attention evaluated axis by axis may treat smaller weights as zero."""
LN2 = Fraction(693147180559945310, 10**18)
"""Just above ln 2."""
TINY = 2.0**-1074
"""The smallest double, which a product in float64 may lose in addition."""


@dataclass(frozen=True)
class Format:
    """A floating-point format, and the working format in which its layers compute.

    Attributes:
        name: of the stored format.
        u: unit roundoff of the working format (float32 for half precision).
        eta: smallest positive number of the working format.
        largest: largest finite number of the stored format.
        stored_u: unit roundoff of the stored format if results are rounded to it (half precision),
            else 0.
        stored_eta: smallest positive number of the stored format in that case, else 0.
    """

    name: str
    u: float
    eta: float
    largest: float
    stored_u: float
    stored_eta: float

    @staticmethod
    def of(dtype: torch.dtype) -> "Format":
        """The format of a torch dtype."""
        return FORMATS[str(dtype).removeprefix("torch.")]

    @property
    def one_hot_gap(self) -> Fraction:
        """ln(2/η), rounded up: with a larger gap, every other weight rounds to 0 even if its
        exponential errs by an ulp or two.
        """
        return LN2 * (1 + (149 if self.u == 2.0**-24 else 1074)) + Fraction(1, 2**45)

    def below(self, value: float) -> float:
        """The largest number of the stored format that is at most ``value``, which is positive."""
        value = min(value, self.largest)
        _, exponent = math.frexp(value)
        digits = -int(math.log2(self.stored_u or self.u))
        step = max(math.ldexp(1.0, max(exponent - digits, -1074)), self.stored_eta or self.eta)
        return math.floor(value / step) * step


FORMATS = {
    "float16": Format("float16", 2.0**-24, 2.0**-149, 65504.0, 2.0**-11, 2.0**-24),
    "bfloat16": Format(
        "bfloat16", 2.0**-24, 2.0**-149, (2 - 2.0**-7) * 2.0**127, 2.0**-8, 2.0**-133
    ),
    "float32": Format("float32", 2.0**-24, 2.0**-149, (2 - 2.0**-23) * 2.0**127, 0.0, 0.0),
    "float64": Format("float64", 2.0**-53, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023, 0.0, 0.0),
}


def gamma(n: int, u: float) -> float:
    """γ_n = n·u/(1 − n·u); infinite where it is undefined."""
    return n * u / (1 - n * u) if n * u < 1 else float("inf")


def widened(bound: ndarray) -> ndarray:
    """A bound, widened by more than float64 lost in evaluating it; an exact 0 stays 0."""
    with np.errstate(over="ignore"):
        return np.where(bound > 0, np.nextafter(bound * WIDEN, np.inf), bound)


def attention_size(attention: Attention, bound: float) -> ndarray:
    """B Σ |W_val^h||W_out^h| per head and output channel: float64 (heads, D_out).

    B is multiplied first, because the product of two small weights alone could underflow while B is
    large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        w_val, w_out = attention.magnitudes
        into = w_val.sum(axis=2)  # (h, g, D_h)
        into = np.where(into > 0, bound * into + TINY, 0.0)
        through = matmul(into[:, :, None], w_out)[:, :, 0] + into.shape[2] * TINY
    return np.where(np.isnan(through), np.inf, through).reshape(len(through), -1)


@dataclass(frozen=True)
class Rounding:
    """An error of at most ``slope``·Σ|products| + η·``underflows``, which is a number or one per
    output channel.
    """

    slope: float
    underflows: Any

    def __add__(self, other: "Rounding") -> "Rounding":
        return Rounding(self.slope + other.slope, self.underflows + other.underflows)


def convolution_rounding(conv: Convolution, fmt: Format) -> Rounding:
    """The rounding of a convolution, in the working format."""
    g = conv.geometry
    n = g.in_channels // g.groups * math.prod(g.kernel_size) + 1
    return Rounding(gamma(n, fmt.u), float(n))


def attention_rounding(
    attention: Attention, bound: float, fmt: Format, soft_tokens: int = 0
) -> Rounding:
    """The rounding of an attention layer, in the working format, for |x| ≤ bound.

    ``soft_tokens`` is T if attention weights other than 0 and 1 occur; 0 for one-hot attention.
    """
    heads, _, d_in, head_dim = attention.w_val.shape
    n = max(d_in + heads * head_dim, head_dim + heads * d_in) + 1
    underflows = d_in * attention.outward + heads * head_dim + heads * d_in * (1 + head_dim * bound)
    if not soft_tokens:
        return Rounding(gamma(n, fmt.u), underflows)
    dims = attention.geometry.dims
    with np.errstate(over="ignore", invalid="ignore"):
        carried = attention_size(attention, 1.0).sum(axis=0)
        underflows = underflows + (soft_tokens + dims) * (attention.outward + carried)
    slope = gamma(n + 2 * soft_tokens + 4 + 12 * dims, fmt.u) + (soft_tokens + dims) * NEGLIGIBLE
    return Rounding(slope, underflows)


def stored_rounding(
    error: ndarray, results: Sequence[tuple[Any, Any]], fmt: Format, units: int = 1
) -> ndarray:
    """An error in the working format, plus, in half precision, that of rounding the results to the
    stored format.

    Args:
        error: of all results together, before they are stored.
        results: |result| and its number of roundings, for each.
        fmt: the format.
        units: unit roundoffs per rounding: 1 to the nearest number, 2 to either neighbour.
    """
    if not fmt.stored_u:
        return error
    roundings = sum(times for _, times in results)
    size = sum(times * size for size, times in results)
    return error + units * fmt.stored_u * (size + roundings * error) + roundings * fmt.stored_eta


def most_roundings(conv: Convolution) -> int:
    """The most roundings to the stored format of a half-precision convolution: one per tap, and two
    more.
    """
    return math.prod(conv.geometry.kernel_size) + 2
