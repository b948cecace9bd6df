"""Step 5: how far rounding moves the outputs of both layers, in any order of summation."""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from verify.recheck.exact import gamma
from verify.recheck.heads import FORMATS
from verify.recheck.layer_pair import LayerPair

MOST_TERMS = 2**26
"""The most terms of a sum that are provided for."""


class Magnitudes(NamedTuple):
    """The sums of the magnitudes of all terms, for inputs |x| ≤ B."""

    through: ndarray  # (heads, D_out): B Σ|W_val||W_out| of each head
    conv: ndarray  # (D_out,): B Σ|W| + |b|
    attention: ndarray  # (D_out,): of all heads, and |b_out|
    largest: float  # of any intermediate


def magnitudes_of(pair: LayerPair) -> Magnitudes:
    """Add up the magnitudes of both layers' terms."""
    bound = pair.stated.input_bound
    w_val = np.abs(pair.a["w_val"])
    w_out = np.abs(pair.a["w_out"])
    into = bound * w_val.sum(axis=2)
    through = np.matmul(into[:, :, None], w_out).reshape(len(w_val), -1)
    conv = bound * np.abs(pair.kernel).sum(axis=(0, 2)).reshape(-1) + np.abs(pair.bias)
    attention = through.sum(axis=0) + np.abs(pair.a["b_out"])
    by_column = np.matmul(w_val.max(axis=2, initial=0)[:, :, None], w_out).max(initial=0)
    by_row = np.matmul(w_val, w_out.max(axis=3, initial=0)[..., None]).max(initial=0)
    folded = min(by_column, by_row)  # bounds |W_val W_out|
    # what has a type of its own is rounded to that of the values
    query, key = (max(bound, 1) * np.abs(pair.a[name]).sum(axis=1) for name in ("w_qry", "w_key"))
    content = np.stack([query + np.abs(pair.a["u"]), key]).max(initial=0)
    largest = np.max([bound, folded, content, into.max(initial=0), *conv, *attention])
    return Magnitudes(through, conv, attention, float(largest))


def rounding_of(pair: LayerPair, sizes: Magnitudes, tokens: int, soft: bool) -> ndarray:
    """An upper bound on the rounding of both layers, (D_out,), infinite for sums of too many terms.

    Args:
        pair: the two layers.
        sizes: the magnitudes of their terms.
        tokens: T, the number of keys.
        soft: whether a head gives weight to more than one key.
    """
    number = FORMATS[pair.stated.dtype]
    heads, _, d_in, head_dim = pair.a["w_val"].shape
    taps = len(pair.kernel)
    dims = len(pair.conv.kernel)
    # Rounded operations per term: (X W_val) W_out, or X (W_val W_out) folded.  Soft heads add sums
    # over at most T + d keys and d softmaxes, whose weights below 2^−100 may be dropped.
    n_conv = d_in * taps + 1
    n_att = max(d_in + heads * head_dim, head_dim + heads * d_in) + 1
    if soft:
        n_att += 2 * tokens + 4 + 12 * dims
    if n_conv + n_att > MOST_TERMS:
        return np.full_like(sizes.conv, np.inf)
    rounding = gamma(n_conv, number.u) * sizes.conv + gamma(n_att, number.u) * sizes.attention
    # An underflow errs by η, times the factors that follow; the softmax may give η instead of 0 at
    # T − 1 keys.
    w_out = np.abs(pair.a["w_out"])
    outward = w_out.sum(axis=(0, 2)).reshape(-1)
    lost = (
        n_conv
        + heads * head_dim
        + d_in * outward
        + heads * d_in * (1 + head_dim * pair.stated.input_bound)
    )
    if soft:
        w_val = np.abs(pair.a["w_val"]).sum(axis=2)
        carried = np.matmul(w_val[:, :, None], w_out).sum(axis=0).reshape(-1)
        lost = lost + (tokens + dims) * (outward + carried)
        rounding += (tokens + dims) * 2.0**-100 * sizes.attention
    eta = 2.0**-number.log_eta
    rounding += eta * lost
    rounding += (tokens - 1) * eta * sizes.through.sum(axis=0)
    if number.stored_u:
        stored = (taps + 2) * sizes.conv + sizes.attention + (taps + 3) * rounding
        rounding += number.stored_u * stored + (taps + 3) * number.stored_eta
    return rounding
