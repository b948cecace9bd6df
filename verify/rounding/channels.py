"""The error bound of a certificate, per output channel: rounding, leakage and taps, each rounded
up.

With |X| ≤ B, every term of an output is at most B times a product of weights, so sums over the
weights alone bound all outputs of the channel: B Σ|W| + |b| for the convolution, B Σ_h
|W_val^h||W_out^h| + |b_out| for the attention, in the model of :mod:`verify.rounding.model`.

A softmax that returns η instead of 0 adds (T − 1)·η·B·Σ|W_val||W_out|, so no exact zero is needed.
A head that leaks ε moves its output by at most 2εB Σ|W_val||W_out| (its loss at its key and its
gain elsewhere).  Taps that differ add B Σ|ΔW| + |Δb|.
"""

from collections.abc import Iterable

import numpy as np
from numpy import ndarray

from verify.layers.fields import Attention
from verify.layers.targets import content_size
from verify.oracle import Convolution, by_channel, matmul
from verify.rounding.model import (
    FORMATS,
    TINY,
    Format,
    attention_rounding,
    attention_size,
    convolution_rounding,
    gamma,
    most_roundings,
    stored_rounding,
    widened,
)


def rounding_part(
    conv: Convolution,
    attention: Attention,
    bound: float,
    fmt: Format,
    tokens: int,
    soft: bool,
) -> ndarray:
    """Rounding of both layers, including the softmax's η, float64 (D_out,).

    ``soft`` says whether attention weights other than 0 and 1 occur, which have rounding errors of
    their own.
    """
    attended = attention_size(attention, bound).sum(axis=0)
    size_c = bound * conv.sizes + np.abs(conv.biases)
    size_a = attended + np.abs(attention.b_out)
    total = working_rounding(conv, attention, size_c, size_a, fmt, bound, tokens * soft)
    total = total + (tokens - 1) * fmt.eta * attended
    return widened(stored_rounding(total, [(size_c, most_roundings(conv)), (size_a, 1)], fmt))


def working_rounding(
    conv: Convolution,
    attention: Attention,
    size_c: ndarray,
    size_a: ndarray,
    fmt: Format,
    bound: float,
    soft_tokens: int = 0,
) -> ndarray:
    """Rounding of both layers in the working format.

    ``size_c`` is Σ|W||x| + |b| and ``size_a`` is Σ|W_val||W_out||x| + |b_out|, with |x| ≤ bound,
    (D_out,) each or (N, D_out, *output); ``soft_tokens`` is T if attention weights other than 0 and
    1 occur.
    """
    theirs = convolution_rounding(conv, fmt)
    ours = attention_rounding(attention, bound, fmt, soft_tokens)
    with np.errstate(over="ignore", invalid="ignore"):
        lost = fmt.eta * (theirs.underflows + ours.underflows)
        return theirs.slope * size_c + ours.slope * size_a + by_channel(lost, size_c.ndim - 2)


def leakage_part(attention: Attention, bound: float, leaks: ndarray) -> ndarray:
    """2B Σ_h ε_h |W_val^h||W_out^h|, float64 (D_out,); ``leaks`` holds ε_h, rounded up."""
    size = attention_size(attention, bound)
    leaking = leaks > 0  # an exact 0 stays 0, even with an infinite size
    return widened(2 * (leaks[leaking, None] * size[leaking] + TINY).sum(axis=0))


def taps_part(differences: Iterable[ndarray], bias_difference: ndarray, bound: float) -> ndarray:
    """B Σ|ΔW| + |Δb|, float64 (D_out,), from |ΔW| of each tap, (groups, D_in/groups, D_out/groups)."""
    total = bias_difference
    for difference in differences:
        size = difference.sum(axis=1).reshape(-1)
        total = total + np.where(size > 0, bound * size + TINY, 0.0)  # the product may underflow
    return widened(total)


def content_overflows(
    attention: Attention, bound: float, fmt: Format, tokens: int, largest: ndarray
) -> ndarray:
    """Which heads of a layer with content may meet infinity on the way, bool (heads,).

    torch's fused attention forms scores with content in the layer's type and those of positions in
    the working type, less a maximum, and adds up the values of all keys before it divides.
    """
    v = np.abs(attention.v)
    w_key_pos = np.abs(attention.w_key_pos)
    by_position = np.einsum("hk,hkp,p->h", v, w_key_pos, largest)
    scores = by_position + content_size(attention, bound, largest)
    values = bound * attention.magnitudes[0].sum(axis=2).max(axis=(1, 2), initial=0)
    added_up = tokens * (1 + gamma(tokens + 8, fmt.u)) * values
    working = max(fmt.largest, FORMATS["float32"].largest)
    most = np.where(attention.content, fmt.largest, working)
    finite_scores = 5 * scores < most
    finite_sums = 5 * added_up < working
    return ~(finite_scores & finite_sums)


def largest_intermediate(conv: Convolution, attention: Attention, bound: float) -> float:
    """A bound on every intermediate of both layers; zero content terms are evaluated too, and must
    not overflow.
    """
    bias = float(np.abs(conv.biases).max(initial=0))
    w_val, w_out = attention.magnitudes
    # Positional weights may be of a wider type, and are rounded to the layer's before they are used.
    query, key = (max(bound, 1) * np.abs(w).sum(axis=1) for w in (attention.w_qry, attention.w_key))
    asking = query + np.abs(attention.u)
    values = [w.max(initial=0) for w in (bound * w_val.sum(axis=2), asking, key)]
    through = attention_size(attention, bound).sum(axis=0) + np.abs(attention.b_out)
    direct = bound * conv.sizes + bias
    # Entries of |W_val||W_out|: at most sums of one factor times maxima of the other, whichever way
    # is smaller.
    by_column = matmul(w_val.max(axis=2, initial=0)[:, :, None], w_out).max(initial=0)
    by_row = matmul(w_val, w_out.max(axis=3, initial=0)[..., None]).max(initial=0)
    # The rounding of intermediate results cannot double a bounded sum.
    return 2 * float(
        np.max(
            [bound, *values, through.max(initial=0), direct.max(initial=0), min(by_column, by_row)]
        )
    )
