"""What was observed: the difference between a convolution and a layer on one input, interior and border apart."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verify.oracle import Convolution


@dataclass(frozen=True)
class Discrepancy:
    """The observed difference between two outputs.

    Attributes:
        max_abs: the greatest |difference|; not a number if an output is, infinite if only one output is infinite.
        max_ulp: the greatest |difference| in units of the last place of the larger of the two values.
        interior: the greatest |difference| among outputs that read no padding; 0 if there is none.
        border: the same among outputs that read some.
        worst: the index (batch, channel, *position) of the greatest |difference|; empty if nothing was compared.
        expected: the convolution's value there.
        found: the layer's value there.
        compared: how many outputs.
    """

    max_abs: float
    max_ulp: float
    interior: float
    border: float
    worst: tuple[int, ...]
    expected: float
    found: float
    compared: int


def compare(conv: Any, layer: Any, x: torch.Tensor, **call: Any) -> Discrepancy:
    """Run a convolution and a layer on one input and tell how far apart they are.

    Args:
        conv: a torch convolution.
        layer: any module with the same call, for instance ``construct.conv_to_mhsa(conv)``.
        x: (B, D_in, *size) or (D_in, *size).
        call: further arguments of the call (``output_size``).

    Returns:
        What was observed; no judgement.

    Raises:
        ValueError: the outputs differ in shape.
    """
    with torch.no_grad():
        return discrepancy(conv, x, conv(x, **call), layer(x, **call))


def discrepancy(conv: Any, x: torch.Tensor, expected: torch.Tensor, found: torch.Tensor) -> Discrepancy:
    """The difference of two outputs that are there already; ``conv`` and ``x`` tell interior from border.

    Raises:
        ValueError: the outputs differ in shape.
    """
    if expected.shape != found.shape:
        raise ValueError(f"the outputs have shapes {tuple(expected.shape)} and {tuple(found.shape)}")
    dims = conv.weight.dim() - 2
    if x.dim() == dims + 1:
        x, expected, found = x[None], expected[None], found[None]
    a, b = (t.detach().cpu().double().numpy() for t in (expected, found))
    if a.size == 0:
        return Discrepancy(0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        error = np.where(a == b, 0.0, np.abs(a - b))
        ulps = error / _ulp(np.maximum(np.abs(a), np.abs(b)), expected.dtype)
    inside = Convolution.read(conv).interior(tuple(x.shape[2:]), a.shape[2:])
    worst = np.unravel_index(int(np.argmax(error)), error.shape)  # a NaN counts as greatest
    return Discrepancy(
        max_abs=float(error.max()),
        max_ulp=float(ulps.max()),
        interior=float(error[..., inside].max(initial=0.0)),
        border=float(error[..., ~inside].max(initial=0.0)),
        worst=tuple(int(i) for i in worst),
        expected=float(a[worst]),
        found=float(b[worst]),
        compared=a.size,
    )


def _ulp(size: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance from |value| to the next number of its format."""
    info = torch.finfo(dtype)
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(np.maximum(size, info.tiny))
    return np.ldexp(info.eps, exponent - 1)
