"""Bounds, for each output, on the difference between two correct evaluations of one convolution on
given inputs.

The model is that of :mod:`verify.rounding.model`, with Σ|W||x| + |b| computed for each output.  On
samples, every rounding to half precision may go to either neighbour.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray
from torch import Tensor

from verify.layers.fields import Attention
from verify.layers.reading import taps_by_shift
from verify.layers.taps import head_product
from verify.layers.targets import target
from verify.oracle import Convolution, Vector, by_channel, float64, greatest, largest
from verify.rounding.channels import working_rounding
from verify.rounding.model import (
    WIDEN,
    Format,
    Rounding,
    attention_rounding,
    convolution_rounding,
    most_roundings,
    stored_rounding,
)


class OffTheKernel(ValueError):
    """Some head looks at no tap of the kernel, so this layer does not evaluate that convolution."""


def convolution_bound(conv: Any, x: Tensor, output: Vector | None = None) -> ndarray:
    """Elementwise bound on the error of torch's convolution of ``x`` (B, D_in, *size)."""
    fields = _fields(conv, x, output)
    fmt = Format.of(x.dtype)
    return _bound(
        convolution_rounding(fields, fmt), size_of(fields, x), most_roundings(fields), fmt
    )


def convolution_share(conv: Any, x: Tensor) -> ndarray:
    """Like :func:`convolution_bound`, but never more than the convolution's share in a
    certificate's bound.

    In half precision, taps that meet only zeros do not round, and every rounding goes to the
    nearest number.
    """
    fields = Convolution.read(conv)
    fmt = Format.of(x.dtype)
    met: Any = 0
    if fmt.stored_u:
        met = _taps_met(fields, (x != 0).any(dim=1, keepdim=True).cpu().double().numpy())
    return _bound(convolution_rounding(fields, fmt), size_of(fields, x), met + 2, fmt, units=1)


def attention_bound(attention: Attention, x: Tensor, size: ndarray) -> ndarray:
    """Elementwise bound on the error of one-hot attention on inputs ``x`` (B, D_in, *size).

    ``size`` is at least Σ_h |W_val^h||W_out^h||x| + |b_out|, for each output.
    """
    return _bound(_rounding_of(attention, x), size.copy(), 1, Format.of(x.dtype))


def difference_bound(conv: Any, layer: Any, x: Tensor, output: Vector | None = None) -> ndarray:
    """Elementwise bound on |layer(x) − conv(x)| if both compute the same function and the attention
    is fully sharp; float64.

    ``x`` is finite, (B, D_in, *size); ``output`` is the output size requested of a transposed
    layer.

    Raises:
        OffTheKernel: a head looks at no tap of the kernel.
    """
    fields = _fields(conv, x, output)
    attention = Attention.read(layer)
    fmt = Format.of(x.dtype)
    size = size_of(fields, x)
    times = most_roundings(fields)
    theirs = convolution_rounding(fields, fmt)
    ours = _rounding_of(attention, x)
    kernel = absolute_kernel(attention)
    bias = np.abs(attention.b_out)
    if np.array_equal(bias, np.abs(fields.biases)) and np.array_equal(
        kernel, np.abs(fields.weight)
    ):
        return _bound(theirs + ours, size, times + 1, fmt)
    attended = size_of(replace(fields, weight=kernel, bias=bias), x)
    return _bound(theirs, size, times, fmt) + _bound(ours, attended, 1, fmt)


def impulse_bound(
    conv: Convolution,
    attention: Attention,
    inputs: ndarray,
    fmt: Format,
    tokens: int,
) -> ndarray | None:
    """A bound on |attention − convolution| on impulses, if one-hot heads carry exactly the kernel:
    float64 (N, D_out, *output).

    It covers the rounding of the terms that an output reads; an output that reads none is 0, or the
    bias, in both layers.  Every execution rounds the weights of attention to the working type
    before it multiplies by them, so that there are no others.

    Args:
        conv: the convolution's fields.
        attention: the attention layer's fields.
        inputs: (N, D_in, *grid), with equal magnitudes in all channels of a position.
        fmt: the format of both layers.
        tokens: at least T.

    Returns:
        None if a head that carries something looks at no tap.
    """
    weight = np.abs(conv.weight)
    try:
        kernel = absolute_kernel(attention)
    except OffTheKernel:
        return None
    dims = inputs.ndim - 2
    # All channels of a position have equal magnitudes, so the weights may be summed over channels
    # first.
    x = np.abs(inputs).max(axis=1, keepdims=True)
    terms = _over_channels(conv, weight)(x)
    carried = terms
    if not np.array_equal(kernel, weight):
        carried = _over_channels(conv, kernel)(x)
    size_c = terms + by_channel(np.abs(conv.biases), dims)
    size_a = carried + by_channel(np.abs(attention.b_out), dims)
    roundings = _taps_met(conv, (x > 0).astype(float)) + 2
    total = working_rounding(conv, attention, size_c, size_a, fmt, greatest(x))
    total = total + tokens * fmt.eta * size_a
    return stored_rounding(total, [(size_c, roundings), (size_a, 1)], fmt) * WIDEN


# ---- what the heads carry ------------------------------------------------------------------------


def absolute_kernel(attention: Attention) -> ndarray:
    """Σ |W_val^h||W_out^h| over the heads h that look at each tap, the magnitude of the attention's
    terms, in torch's layout.

    Raises:
        OffTheKernel: a head looks at no tap, or has no unique best shift.
    """
    g = attention.geometry
    groups = attention.w_val.shape[1:3]
    width = attention.w_out.shape[3]
    kernel = np.zeros((*g.kernel_size, *groups, width))  # (*K, g, in/g, out/g)
    taps = taps_by_shift(g)
    for head, (w_val, w_out) in enumerate(zip(*attention.magnitudes, strict=True)):
        # A head adds exactly 0, wherever it looks, unless some inner channel is nonzero in both
        # factors.
        carries = bool(((w_val != 0).any(axis=1) & (w_out != 0).any(axis=2)).any())
        at = target(attention, head)
        if at is None:
            if carries:
                raise OffTheKernel(f"head {head} has no single best shift")
            continue
        tap = taps.get(at.shift)
        if tap is not None:
            kernel[tap] += head_product(w_val, w_out)
        elif carries:
            raise OffTheKernel(f"head {head} looks at {at.shift}, not at a tap")
    kernel = np.moveaxis(kernel, (-3, -2, -1), (0, 1, 2))
    if not g.transposed:
        kernel = kernel.swapaxes(1, 2)
    return kernel.reshape(-1, *kernel.shape[2:])


# ---- sizes and sums ------------------------------------------------------------------------------


def _fields(conv: Any, x: Tensor, output: Vector | None = None) -> Convolution:
    """The convolution's fields, with the output padding that a transposed one used for this output
    size.
    """
    fields = Convolution.read(conv)
    return fields if output is None else fields.reaching(tuple(x.shape[2:]), output)


def size_of(fields: Convolution, x: Tensor) -> ndarray:
    """Σ|W||x| + |b| for every output, in a new array."""
    return fields.absolute()(np.abs(float64(x)))


def _taps_met(fields: Convolution, nonzero: ndarray) -> ndarray:
    """For each output, how many taps meet a nonzero position, (N, 1, *output); ``nonzero`` is 1 or
    0 by position.
    """
    return _ungrouped(fields, np.ones((1, 1, *fields.geometry.kernel_size)))(nonzero)


def _over_channels(conv: Convolution, weight: ndarray) -> Convolution:
    """The convolution of one input channel for an x equal in all channels: Σ_i W_i x = (Σ_i W_i) x."""
    g = conv.geometry
    if g.transposed:
        blocks = weight.reshape(g.groups, -1, *weight.shape[1:]).sum(axis=1)  # (g, out/g, *K)
        return _ungrouped(conv, blocks.reshape(1, -1, *g.kernel_size))
    return _ungrouped(conv, weight.sum(axis=1, keepdims=True))


def _ungrouped(conv: Convolution, weight: ndarray) -> Convolution:
    """The convolution of one input channel with another kernel, without bias."""
    return Convolution(weight, None, replace(conv.geometry, groups=1))


def _rounding_of(attention: Attention, x: Tensor) -> Rounding:
    return attention_rounding(attention, largest(x), Format.of(x.dtype))


def _bound(
    rounding: Rounding, size: ndarray, roundings: Any, fmt: Format, units: int = 2
) -> ndarray:
    """The bound for outputs of these sizes, (B, D_out, *output), stored in ``size`` where possible."""
    rest = fmt.eta * by_channel(np.asarray(rounding.underflows), size.ndim - 2)
    if fmt.stored_u:
        return (
            stored_rounding(rounding.slope * size + rest, [(size, roundings)], fmt, units) * WIDEN
        )
    np.multiply(size, rounding.slope * WIDEN, out=size)
    return np.add(size, rest * WIDEN, out=size)
