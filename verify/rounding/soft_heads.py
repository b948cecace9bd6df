"""A bound on the rounding error of an attention layer's output, for heads that look anywhere, at
any sharpness.

:mod:`verify.rounding.elements` follows each term of the sum, so it must know which pixel a head
reads.  Where that is unknown, this holds: the softmax gives weights p ≥ 0 with Σp = 1, so a head's
output is at most max|x|·|W_val||W_out|, and

- scores with errors of at most s change every weight by a factor between e^−2s and e^2s;
- position scores are evaluated in float64, content scores in the type of the values, the softmax in
  float64;
- the sum over all T keys is one more sum, in any order.

It is far from tight.  It ensures that no difference that rounding could have caused is called
REFUTED.
"""

import math
from typing import Any

import numpy as np
import torch

from verify.layers.fields import Attention
from verify.layers.targets import attends_by_content, content_size, largest_encoding, target
from verify.oracle import Vector, greatest, largest
from verify.rounding.elements import attention_bound, convolution_bound
from verify.rounding.model import Format, gamma

ONE_HOT = 800
"""With a larger score gap, every weight but one is 0 in every format, for any rounding of the
scores that occurs here.
"""


def one_hot(layer: Any) -> bool:
    """Whether every head with nonzero values looks at a single key, independent of the image."""
    attention = Attention.read(layer)
    if attends_by_content(attention):
        return False
    targets = [target(attention, int(head)) for head in np.flatnonzero(attention.carrying)]
    return all(at is not None and at.gap >= ONE_HOT for at in targets)


def soft_heads_bound(
    layer: Any, conv: Any, x: torch.Tensor, output: Vector | None = None
) -> np.ndarray:
    """Elementwise bound on |layer(x) − conv(x)| if both are the same function over the reals;
    float64, possibly infinite.

    ``x`` is finite, (B, D_in, *size), on any grid; ``output`` is as in
    :func:`verify.rounding.elements.difference_bound`.

    Raises:
        Unreadable: the layer cannot be read.
    """
    attention = Attention.read(layer)
    fmt = Format.of(x.dtype)
    keys = attention.geometry.padded(x.shape[2:])
    tokens = math.prod(keys)
    brightest = largest(x)
    smallest_normal = fmt.eta / (2 * fmt.u)
    with np.errstate(over="ignore", invalid="ignore"):
        w_val, w_out = attention.magnitudes
        # Σ_h Σ_i |W_val||W_out| of each output channel, times the largest pixel, bounds every
        # convex combination.
        size = brightest * np.einsum("hgie,hgeo->go", w_val, w_out).ravel() + np.abs(
            attention.b_out
        )
        error = _score_error(attention, keys, brightest, fmt)
        moved = math.expm1(2 * error) if error < 300 else math.inf
        # The softmaxes of all axes, and weights rounded to the type of the values or lost below its
        # smallest number.
        dims = len(keys)
        growth = (1 + moved) * (1 + gamma(tokens + 12 * dims, 2.0**-53))
        growth += tokens * smallest_normal
        summed = gamma(tokens + 2 * dims, fmt.u)
        theirs = convolution_bound(conv, x, output)
        size = np.broadcast_to(size.reshape(1, -1, *(1,) * len(keys)), theirs.shape)
        attended = size * (growth * (1 + summed))
        lost = tokens * fmt.eta * (1 + float(w_val.sum())) * (1 + float(w_out.sum()))
        total = (
            theirs
            + (attended - size) * (1 + 2**-20)
            + attention_bound(attention, x, attended)
            + lost
        )
    return np.where(np.isnan(total), np.inf, total)


def _score_error(attention: Attention, keys: Vector, brightest: float, fmt: Format) -> float:
    """A bound on the error of any score."""
    dims = len(keys)
    reach = tuple((-n, n) for n in keys)  # no shift along an axis is longer
    r = np.array(largest_encoding(attention.radix, reach), dtype=float)
    d_in, key_dim = attention.w_qry.shape[1:]
    positions = np.abs(attention.v)[:, :, None] * np.abs(attention.w_key_pos)  # (heads, D_k, D_p)
    # Fourfold: an execution may expand the score around a centre, into terms up to four times as
    # large.
    error = 4 * gamma(key_dim + dims + 8, 2.0**-53) * greatest(positions.sum(axis=1) @ r)
    if attention.content.any():
        sizes = content_size(attention, brightest, r)
        error += 4 * gamma(2 * d_in + key_dim + dims + 8, fmt.u) * greatest(sizes)
    return error
