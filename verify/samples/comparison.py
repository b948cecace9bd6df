"""``compare``: the observed difference between a convolution and a layer on one input, separately
for interior and border.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from verify.layers.reading import interior
from verify.oracle import Geometry, Vector, float64, greatest


@dataclass(frozen=True)
class Discrepancy:
    """The observed difference between two outputs.

    Attributes:
        max_abs: the largest ``|difference|``; NaN if an output is NaN, infinite if only one output
            is infinite.
        max_ulp: the largest ``|difference|`` in ulps of the larger of the two values.
        interior: the largest ``|difference|`` among outputs that read no padding; 0 if there is
            none.
        border: the same among outputs that read padding.
        worst: the index ``(batch, channel, *position)`` of the largest ``|difference|``; empty if
            nothing was compared.
        expected: the convolution's value there.
        actual: the layer's value there.
        compared: the number of outputs compared.

    >>> import verify
    >>> verify.compare(torch.nn.Conv1d(1, 1, 2), torch.nn.Conv1d(1, 1, 2), torch.ones(1, 1, 8)).compared
    7
    """

    max_abs: float
    max_ulp: float
    interior: float
    border: float
    worst: Vector
    expected: float
    actual: float
    compared: int


def compare(conv: Any, layer: Any, x: Tensor, **call: Any) -> Discrepancy:
    """The largest difference between a convolution and a layer on one input.

    Args:
        conv: a torch convolution.
        layer: any module with the same call signature, for instance
            ``construct.conv_to_mhsa(conv)``.
        x: ``(B, D_in, *size)`` or ``(D_in, *size)``.
        call: further arguments of the call (``output_size``).

    Returns:
        The observed difference, without a verdict.

    Raises:
        ValueError: the outputs differ in shape, or are complex.

    >>> import construct
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=3, padding=1)
    >>> difference = compare(conv, construct.conv_to_mhsa(conv), torch.randn(2, 3, 16, 16))
    >>> difference.max_abs < 1e-5, difference.compared
    (True, 4096)
    """
    with torch.no_grad():
        expected = conv(x, **call)
        attended = layer(x, **call)
    x, a, b, error = subtracted(conv, x, expected, attended)
    return of_errors(conv, x, expected.dtype, a, b, error)


def subtracted(
    conv: Any, x: Tensor, expected: Tensor, attended: Tensor
) -> tuple[Tensor, ndarray, ndarray, ndarray]:
    """Input and outputs a and b as float64 with a batch axis, and |a − b|, which is 0 where both
    are equal, even if infinite.

    Raises:
        ValueError: the outputs differ in shape, or are complex.
    """
    if expected.is_complex() or attended.is_complex():
        raise ValueError("the outputs are complex, and only real numbers are compared")
    if expected.shape != attended.shape:
        raise ValueError(
            f"the outputs have shapes {tuple(expected.shape)} and {tuple(attended.shape)}"
        )
    if x.dim() < conv.weight.dim():
        x = x[None]
        expected = expected[None]
        attended = attended[None]
    a = float64(expected)
    b = float64(attended)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        error = np.subtract(a, b)
    np.abs(error, out=error)
    if not np.isfinite(error.max(initial=0.0)):
        error[a == b] = 0.0
    return x, a, b, error


def of_errors(
    conv: Any, x: Tensor, dtype: torch.dtype, a: ndarray, b: ndarray, error: ndarray
) -> Discrepancy:
    """The difference of two float64 batches of outputs, a and b, from ``error`` = |a − b|."""
    if a.size == 0:
        return Discrepancy(0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0)
    with np.errstate(invalid="ignore"):
        ulps = _ulp(np.maximum(np.abs(a), np.abs(b)), dtype)
        np.divide(error, ulps, out=ulps)
    inside = interior(Geometry.read(conv), x.shape[2:], a.shape[2:])
    worst = np.unravel_index(int(np.argmax(error)), error.shape)  # argmax treats NaN as largest
    places = error.max(axis=(0, 1))
    return Discrepancy(
        max_abs=float(error[worst]),
        max_ulp=float(ulps.max()),
        interior=greatest(places[inside]),
        border=greatest(places[~inside]),
        worst=tuple(int(i) for i in worst),
        expected=float(a[worst]),
        actual=float(b[worst]),
        compared=a.size,
    )


def _ulp(size: ndarray, dtype: torch.dtype) -> ndarray:
    """The distance from |value| to the next number of its format, stored in the float64 array
    ``size``.
    """
    info = torch.finfo(dtype)
    np.clip(size, info.tiny, 2.0**1023, out=size)
    return np.multiply(np.spacing(size, out=size), info.eps * 2.0**52, out=size)


def ratios(error: ndarray, allowed: ndarray) -> ndarray:
    """|a − b|/allowed, from ``error`` = |a − b|; 0 where a = b, whatever is allowed."""
    with np.errstate(all="ignore"):
        return np.where(error == 0, 0.0, error / allowed)


def bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor's numbers, as integers."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits."""
    return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(bits(a), bits(b))
