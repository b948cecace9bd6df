"""The error budget of a certificate, per output channel: rounding, leakage and taps, each rounded up.

With |X| ≤ B, every term of an output is at most B times a product of weights, so sums over the weights alone bound every
output of the channel at once.  The model of rounding is that of :mod:`verify.rounding.bounds`:

    convolution   γ_n (B Σ|W| + |b|),                       n = D_in/groups·ΠK + 1
    attention     γ_n (B Σ_h |W_val^h||W_out^h| + |b_out|),  n = max(D_in/groups + N_h·D_h, D_h + N_h·D_in/groups) + 1

The attention may be evaluated in two orders.  (P X W_val) W_out: a term passes D_in/groups operations and then N_h·D_h.  Or
P X (W_val W_out), the two factors folded into one matrix first: D_h operations, and then N_h·D_in/groups.  (Folding costs
nothing where one factor is the identity.)  The bias is one more.

Each product that underflows adds η, times what it is multiplied by once more: D_in/groups products of X W_val, times |W_out|,
and N_h·D_h after them; folded, N_h·D_in/groups·(1 + D_h·B), as each entry of a folded matrix is off by D_h·η and meets
|x| ≤ B.  A softmax that returns η where 0 is meant adds (T − 1)·η·B·Σ|W_val||W_out|: no exact zero is needed.  A head that
leaks ε moves its output by at most 2εB Σ|W_val||W_out| (what it loses at its key, and what it gains elsewhere).  Taps that
differ add B Σ|ΔW| + |Δb|.

Where some attention is soft, it carries rounding of its own, and may be evaluated as a product of d factors, one softmax an
axis, whose lengths n_i sum to at most T + d.  A term passes 2(T + d) operations in the sums of the softmax and over the keys,
and a few in every exponential, division and cast: 2T + 4 + 12d more.  Its products, T + d of them, underflow by η times
|W_out| or |W_val||W_out|.  Entries of a factor below 2^−100 may be set to zero, which loses (T + d)·2^−100 of what is attended.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from verify.layers.fields import Attention
from verify.oracle import Convolution, matmul
from verify.rounding.bounds import gamma

WIDEN = 1 + 2.0**-20
"""More than float64 can lose in the sums of non-negative numbers below (fewer than 2^32 terms)."""
NEGLIGIBLE = 2.0**-100
"""Where attention is evaluated axis by axis, weights below this may be taken for zero."""
LN2 = Fraction(693147180559945310, 10**18)
"""Just above ln 2."""
TINY = 2.0**-1074
"""The smallest double: what a product in float64 may lose besides."""


@dataclass(frozen=True)
class Format:
    """A floating-point format and the one that its layers compute in.

    Attributes:
        name: of the stored format.
        u: unit roundoff of the working format (float32 for half precision).
        eta: smallest positive number of the working format.
        largest: largest finite number of the stored format.
        stored_u: unit roundoff of the stored format where results are rounded to it (half precision), else 0.
        stored_eta: smallest positive number of the stored format in that case, else 0.
    """

    name: str
    u: float
    eta: float
    largest: float
    stored_u: float
    stored_eta: float

    @property
    def one_hot_gap(self) -> Fraction:
        """ln(2/η), from above: a gap beyond it makes every other weight round to zero, its exponential an ulp or two off."""
        return LN2 * (1 + (149 if self.u == 2.0**-24 else 1074)) + Fraction(1, 2**45)

    def below(self, value: float) -> float:
        """The largest number of the stored format that is not above ``value``, which is positive."""
        value = min(value, self.largest)
        _, exponent = math.frexp(value)
        digits = -int(math.log2(self.stored_u or self.u))
        step = max(math.ldexp(1.0, max(exponent - digits, -1074)), self.stored_eta or self.eta)
        return math.floor(value / step) * step


FORMATS = {
    "float16": Format("float16", 2.0**-24, 2.0**-149, 65504.0, 2.0**-11, 2.0**-24),
    "bfloat16": Format("bfloat16", 2.0**-24, 2.0**-149, (2 - 2.0**-7) * 2.0**127, 2.0**-8, 2.0**-133),
    "float32": Format("float32", 2.0**-24, 2.0**-149, (2 - 2.0**-23) * 2.0**127, 0.0, 0.0),
    "float64": Format("float64", 2.0**-53, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023, 0.0, 0.0),
}


def attention_size(attention: Attention, bound: float) -> np.ndarray:
    """B Σ |W_val^h||W_out^h| per head and output channel: float64 (heads, D_out).

    B comes first: the product of two small weights alone could underflow, and B be large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        w_val, w_out = attention.sizes
        into = w_val.sum(axis=2)  # (h, g, D_h)
        into = np.where(into > 0, bound * into + TINY, 0.0)
        through = matmul(into[:, :, None], w_out)[:, :, 0] + into.shape[2] * TINY
    return np.where(np.isnan(through), np.inf, through).reshape(len(through), -1)


def rounding_part(
    conv: Convolution, attention: Attention, bound: float, fmt: Format, tokens: int, soft: bool
) -> np.ndarray:
    """Rounding of both layers and the η of the softmax, per output channel; rounded up.

    Args:
        conv: the convolution's fields.
        attention: the attention layer's fields.
        bound: B.
        fmt: the format of both layers.
        tokens: T.
        soft: whether attention weights other than 0 and 1 occur; they then carry rounding of their own.
    """
    bias_c = np.zeros(attention.geometry.out_channels) if conv.bias is None else np.abs(conv.bias)
    taps = int(np.prod(conv.kernel_size))
    attended = attention_size(attention, bound).sum(axis=0)
    size_c = bound * conv.sizes + bias_c
    size_a = attended + np.abs(attention.b_out)
    total = working_rounding(conv, attention, size_c, size_a, fmt, tokens, soft, bound)
    total = total + (tokens - 1) * fmt.eta * attended
    return _up(stored_rounding(total, size_c, size_a, fmt, taps + 2))


def working_rounding(
    conv: Convolution,
    attention: Attention,
    size_c: np.ndarray,
    size_a: np.ndarray,
    fmt: Format,
    tokens: int,
    soft: bool,
    bound: float,
) -> np.ndarray:
    """γ_n times the sizes, and what underflows, in the working format; by output channel first, then anything.

    Args:
        conv: the convolution's fields.
        attention: the attention layer's fields.
        size_c: Σ|W||x| + |b|, (D_out, …).
        size_a: Σ|W_val||W_out||x| + |b_out|, (D_out, …).
        fmt: the format of both layers.
        tokens: T.
        soft: as in :func:`rounding_part`.
        bound: the greatest |x|.
    """
    taps, d_in, dims = int(np.prod(conv.kernel_size)), attention.w_val.shape[2], len(conv.kernel_size)
    n_conv, n_att = d_in * taps + 1, operations(attention)
    underflow = n_conv + underflows(attention, bound)
    if soft:
        n_att += 2 * tokens + 4 + 12 * dims
        carried = attention_size(attention, 1.0).sum(axis=0)
        underflow = underflow + (tokens + dims) * (attention.outward + carried)
    with np.errstate(over="ignore", invalid="ignore"):
        lost = fmt.eta * underflow.reshape(-1, *(1,) * (size_c.ndim - 1))
        if soft:
            lost = lost + (tokens + dims) * NEGLIGIBLE * size_a
        return gamma(n_conv, fmt.u) * size_c + gamma(n_att, fmt.u) * size_a + lost


def operations(attention: Attention) -> int:
    """The most operations that a term of one-hot attention passes, in either order of summation."""
    heads, _, d_in, head_dim = attention.w_val.shape
    return max(d_in + heads * head_dim, head_dim + heads * d_in) + 1


def underflows(attention: Attention, bound: float) -> np.ndarray:
    """How many η one-hot attention may lose in products that underflow, per output channel, in either order of summation.

    Args:
        attention: the attention layer's fields.
        bound: the greatest |x|.
    """
    heads, _, d_in, head_dim = attention.w_val.shape
    return d_in * attention.outward + heads * head_dim + heads * d_in * (1 + head_dim * bound)


def stored_rounding(
    total: np.ndarray, size_c: np.ndarray, size_a: np.ndarray, fmt: Format, roundings: int | np.ndarray
) -> np.ndarray:
    """``total``, and in half precision the roundings of the convolution to the stored format, and one of the attention."""
    if not fmt.stored_u:
        return total
    rounded = roundings * size_c + size_a
    return total + fmt.stored_u * (rounded + (roundings + 1) * total) + (roundings + 1) * fmt.stored_eta


def leakage_part(attention: Attention, bound: float, leaks: np.ndarray) -> np.ndarray:
    """2B Σ_h ε_h |W_val^h||W_out^h| per output channel; ``leaks`` holds ε_h, rounded up."""
    size = attention_size(attention, bound)
    leaking = leaks > 0  # an exact 0 stays one, whatever the size
    return _up(2 * (leaks[leaking, None] * size[leaking] + TINY).sum(axis=0))


def largest_intermediate(conv: Convolution, attention: Attention, bound: float) -> float:
    """No number on the way exceeds this, in either layer; silent content terms are worked out too, and must not overflow."""
    bias = 0.0 if conv.bias is None else float(np.abs(conv.bias).max(initial=0))
    with np.errstate(over="ignore"):
        into = [
            attention.sizes[0].sum(axis=2),
            *(np.abs(w).sum(axis=1) for w in (attention.w_qry, attention.w_key)),
        ]
        values = bound * np.array([w.max(initial=0) for w in into])
        through = attention_size(attention, bound).sum(axis=0) + np.abs(attention.b_out)
        direct = bound * conv.sizes + bias
        folded = folded_size(attention)
        # Rounding on the way cannot double a bounded sum.
        return 2 * float(np.max([bound, *values, through.max(initial=0), direct.max(initial=0), folded]))


def folded_size(attention: Attention) -> float:
    """No entry of a folded |W_val||W_out| exceeds this: row sums times the greatest entries, whichever way is less."""
    w_val, w_out = attention.sizes
    with np.errstate(over="ignore", invalid="ignore"):
        by_column = matmul(w_val.max(axis=2, initial=0)[:, :, None], w_out).max(initial=0)
        by_row = matmul(w_val, w_out.max(axis=3, initial=0)[..., None]).max(initial=0)
    return float(min(by_column, by_row))


def _up(part: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.where(part > 0, np.nextafter(part * WIDEN, np.inf), part)
