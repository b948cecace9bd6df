"""Data from which the page computes a layer's output at any sharpness, for one output channel and
one crop of the input.

By Eq. 3 the output is y(q) = b + Σ_h Σ_k P_h(q, k) · z_h(k), with z_h = X W_val^h W_out^h.  The
page computes P; b and z do not depend on the sharpness and are shipped in float64, with the
convolution's own output for the same crop.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verify.oracle import Convolution, float64, times
from verify.report.layer import (
    NoPicture,
    ReportLayer,
    as_base64,
    most_varied,
    require_finite,
    shades,
)
from verify.samples.sampling import called, evaluating

MOST_VALUES = 15_000
"""The most numbers z of a layer to ship, eight bytes each."""
MOST_PRODUCTS = 4_000_000
"""The most (head, query, key) triples, which the page recomputes at every step of the slider."""
CLASSES = [(n,) for n in range(2, 11)]
"""The shapes of class scores that are shown: of at most ten classes."""
WHOLE = {1: 64, 2: 16, 3: 6}
"""By dimension, inputs with at most this many positions along every axis are drawn whole."""


def crop(x: Tensor, size: Sequence[int]) -> tuple[Tensor, str]:
    """The middle of an input (1, C, *n), and which part this is, in words; empty if it is the whole
    input.
    """
    whole = tuple(x.shape[2:])
    first = [(n - small) // 2 for n, small in zip(whole, size, strict=True)]
    part = x[:1, :, *(slice(a, a + n) for a, n in zip(first, size, strict=True))]
    if whole == tuple(size):
        return part, ""
    names = ("slices", "rows", "columns")[-len(whole) :] if len(whole) > 1 else ("positions",)
    spans = [f"{name} {a}–{a + n - 1}" for name, a, n in zip(names, first, size, strict=True)]
    return part, f"a crop, {', '.join(spans)} of {times(whole)}, taken as the whole input"


def grey(x: Tensor) -> dict[str, Any]:
    """One byte per position of (1, C, *n): the lightness of a colour picture, or the channel that
    varies most.
    """
    values = float64(x)[0]
    require_finite("input", values)
    if len(values) == 3 and values.ndim == 3:
        plane = np.tensordot([0.299, 0.587, 0.114], values, 1)
        of = "its three channels as one grey"
    else:
        channel = most_varied(values)
        plane = values[channel]
        of = f"channel {channel} of {len(values)}"
    low = float(plane.min())
    high = float(plane.max())
    return {"bytes": as_base64(shades(plane, low, high)), "of": of, "low": low, "high": high}


@np.errstate(all="ignore")  # non-finite numbers are refused at the end
def live(layer: ReportLayer, part: Tensor, keys: int) -> dict[str, Any]:
    """The values z, the bias and the convolution's output, for the output channel that varies most
    on this crop, (1, C, *n).

    Raises:
        NoPicture: the page cannot compute this layer; the message says why.
    """
    mhsa = layer.mhsa
    positions = prod(part.shape[2:])
    if mhsa.heads * positions > MOST_VALUES:
        raise NoPicture(
            f"{mhsa.heads} heads over {positions} positions are too many to compute anew in the page"
        )
    x = float64(part)
    expected = Convolution.read(layer.conv)(x)[0]
    if mhsa.heads * keys * prod(expected.shape[1:]) > MOST_PRODUCTS:
        raise NoPicture("it has too many attention probabilities to compute anew in the page")
    channel = most_varied(expected)
    group, inner = divmod(channel, mhsa.out_channels // mhsa.groups)
    own = np.split(x[0].reshape(x.shape[1], -1), mhsa.groups)[group]  # (D_in/g, positions)
    taps = np.einsum(
        "hce,he->hc", float64(mhsa.w_val)[:, group], float64(mhsa.w_out)[:, group, :, inner]
    )
    z = taps @ own
    bias = float(float64(mhsa.b_out)[channel])
    require_finite("input of this crop", x)
    require_finite("output of this crop", expected[channel])
    require_finite("attention's values of this crop", z + bias)
    return {
        "channel": channel,
        "of": len(expected),
        "values": as_base64(z),
        "bias": bias,
        "expected": as_base64(expected[channel]),
    }


@torch.no_grad()
def class_scores(
    original: nn.Module, converted: nn.Module, x: Any, factors: Mapping[str, Sequence[float]]
) -> list[list[float]]:
    """The scores that a classifier of few classes gives the first example of ``x``: with its
    convolutions, then with attention at every stop of the slider; empty for another network.

    Args:
        original: with convolutions.
        converted: with attention, each layer at its own sharpness, as it is left too.
        x: a batched input, or arguments.
        factors: by the path of each attention layer, what multiplies its scores at each stop.
    """
    named = dict(converted.named_parameters(remove_duplicate=False))
    pairs = [(v, v.clone()) for path in factors if (v := named.get(f"{path}.v")) is not None]
    if len(pairs) < len(factors):  # a layer is kept in a list, or its v is parametrized
        return []
    with evaluating(original, converted):
        runs = [called(original, x)]
        if not isinstance(runs[0], Tensor) or runs[0].shape[1:] not in CLASSES:
            return []
        try:
            for row in zip(*factors.values(), strict=True):
                for (v, stored), factor in zip(pairs, row, strict=True):
                    v.copy_(factor * stored)
                runs.append(called(converted, x))
        finally:
            for v, stored in pairs:
                v.copy_(stored)
    scores = torch.stack(runs)[:, 0]
    return scores.tolist() if scores.isfinite().all() else []
