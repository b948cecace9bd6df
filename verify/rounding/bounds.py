"""How far apart two correct evaluations of one convolution may be: bounds from the standard model of rounding.

Each product and each sum returns the exact result times 1 + ε with |ε| ≤ u, plus at most η/2 if a product underflows
(u the unit roundoff, η the smallest positive number).  A sum of products evaluated in *any* order then errs by at most
γ_n Σ|products|, γ_n = n·u/(1 − n·u), where n is the largest number of operations that one term passes through.

- The convolution: a term is multiplied once and passes at most D_in/groups·ΠK additions, the bias among them.
- The attention at full sharpness: P is exactly 0 or 1, so P X only moves numbers.  A term passes the contraction with W_val
  (at most D_in/groups operations), the one with W_out over all heads (at most N_h·D_h), and the bias.  Or the two factors are
  folded first (D_h operations, each entry off by D_h·η where products underflow), and a term passes N_h·D_in/groups more.
  The bound covers both orders: n = max(D_in/groups + N_h·D_h, D_h + N_h·D_in/groups) + 1.

In half precision both are taken to accumulate in float32; the attention rounds to half once, the convolution at most once a
tap and twice more.  That is an assumption about torch, not a theorem.

Every bound is evaluated in float64 and then widened by more than its own rounding.
"""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from verify.layers.aims import aim
from verify.layers.exact_output import tap_matrix
from verify.layers.fields import Attention
from verify.layers.reading import tap_of_shift
from verify.layers.taps import scaled_permutation_product
from verify.oracle import Convolution, float64, matmul


class OffTheKernel(ValueError):
    """Some head looks at no position of the kernel, so this layer is no evaluation of that convolution."""


def gamma(n: int, u: float) -> float:
    """γ_n = n·u/(1 − n·u); infinite where it is undefined."""
    return n * u / (1 - n * u) if n * u < 1 else float("inf")


def carried_kernel(layer: Any, absolute: bool = False) -> np.ndarray:
    """The kernel that the heads carry, Σ_h W_val^h W_out^h at the tap where head h looks, in torch's layout, float64.

    Args:
        layer: raw fields: the eight tensors, kernel_size, dilation, groups, transposed.
        absolute: use |W_val| |W_out|, the size of what the attention adds up.

    Raises:
        OffTheKernel: a head looks elsewhere, or nowhere in particular.
    """
    attention = Attention.read(layer)
    g = attention.geometry
    groups, width = attention.w_val.shape[1:3], attention.w_out.shape[3]
    kernel = np.zeros((*g.kernel_size, *groups, width))  # (*K, g, in/g, out/g)
    for head, (w_val, w_out) in enumerate(zip(attention.w_val, attention.w_out, strict=True)):
        aimed = aim(attention, head)
        tap = None if aimed is None else tap_of_shift(g, aimed.shift)
        if tap is not None:
            kernel[tap] += _product(w_val, w_out, absolute)
        # Adds exactly 0, wherever it looks, if no inner channel has a number other than 0 on both of its sides.
        elif bool(((w_val != 0).any(axis=1) & (w_out != 0).any(axis=2)).any()):
            told = "has no single best shift" if aimed is None else f"looks at {aimed.shift}, which is no tap"
            raise OffTheKernel(f"head {head} {told}")
    kernel = np.moveaxis(kernel, tuple(range(g.dims)), tuple(range(-g.dims, 0)))
    if not g.transposed:
        kernel = np.swapaxes(kernel, 1, 2)
    return kernel.reshape(-1, *kernel.shape[2:])


def carries_as_stored(attention: Attention, fields: Convolution) -> bool:
    """Whether each tap is one head's whose factors put its numbers together by no addition, and no other head is there.

    Then Σ_h |W_val^h||W_out^h| is |W|: each entry of either is the size of one product.
    """
    taken = set()
    for head, (w_val, w_out) in enumerate(zip(attention.w_val, attention.w_out, strict=True)):
        aimed = aim(attention, head)
        tap = None if aimed is None else tap_of_shift(attention.geometry, aimed.shift)
        product = None if tap is None or tap in taken else scaled_permutation_product(w_val, w_out)
        if tap is None or product is None:
            return False
        taken.add(tap)
        theirs = tap_matrix(fields, tap)
        if not (np.array_equal(product, theirs) or np.array_equal(np.abs(product), np.abs(theirs))):
            return False
    return len(taken) == prod(fields.kernel_size)


def _product(w_val: np.ndarray, w_out: np.ndarray, absolute: bool) -> np.ndarray:
    """W_val W_out, or |W_val||W_out|, of one head, multiplied out only where that takes a sum."""
    product = scaled_permutation_product(w_val, w_out)
    if product is not None:  # each entry is one product, so that the sizes' is its size
        return np.abs(product) if absolute else product
    return matmul(np.abs(w_val), np.abs(w_out)) if absolute else matmul(w_val, w_out)


def convolution_bound(conv: Any, x: torch.Tensor, output: tuple[int, ...] | None = None) -> np.ndarray:
    """Elementwise: how far torch's convolution of ``x`` (B, D_in, *size) may be from the exact one."""
    fields = _fields(conv, x, output)
    return _along(_of_convolution(fields, x), _sum_of_sizes(fields, x))


def convolution_share(conv: Any, x: torch.Tensor) -> np.ndarray:
    """As :func:`convolution_bound`, without what that allows beyond need in half precision: elementwise no more than the part
    of the convolution in any bound of a certificate.

    Nothing is rounded at a tap that meets zeros alone, and to round to the nearest number errs by half of a unit.
    """
    fields = _fields(conv, x, None)
    ones = replace(fields, weight=np.ones((1, 1, *fields.kernel_size)), bias=None, groups=1)
    met = ones((x != 0).any(dim=1, keepdim=True).cpu().double().numpy())
    return _along(_of_convolution(fields, x, (met + 2) / 2), _sum_of_sizes(fields, x))


def _of_convolution(fields: Convolution, x: torch.Tensor, half_roundings: Any = None) -> tuple[Any, Any]:
    taps = int(np.prod(fields.kernel_size))
    n = _contraction(fields) * taps + 1
    half_roundings = taps + 2 if half_roundings is None else half_roundings
    return _line(n, underflows=float(n), dtype=x.dtype, half_roundings=half_roundings)


def attention_bound(layer: Any, conv: Any, x: torch.Tensor, output: tuple[int, ...] | None = None) -> np.ndarray:
    """Elementwise: how far the fully sharp attention layer applied to ``x`` may be from its exact value.

    Args:
        layer: the attention layer (raw fields).
        conv: the convolution whose geometry says which outputs there are.
        x: (B, D_in, *size).
        output: the spatial size of the output, where a transposed layer was asked for one.

    Raises:
        OffTheKernel: a head looks at no tap.
    """
    fields = _fields(conv, x, output)
    bias = float64(layer.b_out)
    return _along(
        _of_attention(Attention.read(layer), x),
        _sum_of_sizes(replace(fields, weight=carried_kernel(layer, absolute=True), bias=bias), x),
    )


def attention_bound_of(attention: Attention, x: torch.Tensor, size: np.ndarray) -> np.ndarray:
    """As :func:`attention_bound`, where Σ_h |W_val^h||W_out^h||x| + |b_out| is known to be at most ``size``."""
    return _along(_of_attention(attention, x), size.copy())


def _of_attention(attention: Attention, x: torch.Tensor) -> tuple[float, float]:
    heads, _, d_in, head_dim = attention.w_val.shape
    n = max(d_in + heads * head_dim, head_dim + heads * d_in) + 1
    # An underflow in the first contraction is multiplied by W_out in the second; one in a folded matrix by x.
    outward = float(attention.outward.max(initial=0.0))
    largest = float(x.detach().abs().max()) if x.numel() else 0.0
    underflows = d_in * outward + heads * head_dim + heads * d_in * (1 + head_dim * largest)
    return _line(n, underflows=underflows, dtype=x.dtype, half_roundings=1)


def difference_bound(conv: Any, layer: Any, x: torch.Tensor, output: tuple[int, ...] | None = None) -> np.ndarray:
    """Elementwise bound on |layer(x) − conv(x)| if both compute the same function and the attention is fully sharp.

    Args:
        conv: a torch convolution.
        layer: the attention layer.
        x: finite, (B, D_in, *size).
        output: the spatial size of the output, where a transposed layer was asked for one.

    Returns:
        float64, of the shape of the output.

    Raises:
        OffTheKernel: a head looks at no tap of the kernel.
    """
    fields, attention = _fields(conv, x, output), Attention.read(layer)
    bias = np.abs(attention.b_out)
    theirs = _sum_of_sizes(fields, x)
    here, there = _of_convolution(fields, x), _of_attention(attention, x)
    same_bias = np.array_equal(bias, 0 * bias if fields.bias is None else np.abs(fields.bias))
    if same_bias and carries_as_stored(attention, fields):
        return _along((here[0] + there[0], here[1] + there[1]), theirs)
    ours = _sum_of_sizes(replace(fields, weight=carried_kernel(layer, absolute=True), bias=bias), x)
    return _along(here, theirs) + _along(there, ours)


def _fields(conv: Any, x: torch.Tensor, output: tuple[int, ...] | None) -> Convolution:
    """The fields of the convolution; a weight that is float32 is left so."""
    weight = conv.weight.detach().cpu().resolve_neg()
    fields = Convolution.read(conv, weight.numpy() if weight.dtype == torch.float32 else None)
    return fields if output is None else fields.reaching(tuple(x.shape[2:]), output)


def _contraction(fields: Convolution) -> int:
    """D_in/groups."""
    return fields.weight.shape[0] // fields.groups if fields.transposed else fields.weight.shape[1]


def _sum_of_sizes(fields: Convolution, x: torch.Tensor) -> np.ndarray:
    """Σ|W||x| + |b| for every output, or little more, in a new array."""
    single = fields.weight.dtype == np.float32 and x.dtype == torch.float32
    size = single_sum(fields, x.detach().cpu().abs().numpy()) if single else None
    if size is None:
        wide = fields if fields.weight.dtype == np.float64 else replace(fields, weight=fields.weight.astype(np.float64))
        size = wide.spread(x.detach().cpu().double().abs().numpy())
    return (
        size if fields.bias is None else np.add(size, np.abs(fields.bias).reshape(-1, *(1,) * (x.dim() - 2)), out=size)
    )


def single_sum(fields: Convolution, x: np.ndarray) -> np.ndarray | None:
    """Σ|W|x of float32 numbers x ≥ 0 from above, summed in float32; None where that may overflow or says little.

    A term passes a product and fewer than n additions, nothing cancels, and a product that underflows loses less than η:
    the sum found is at least (1 − (n + 1)u)Σ − n·η, so that Σ is at most (found + n·η)(1 + 2(n + 1)u) as long as (n + 1)u ≤ ½.
    """
    n, single = _contraction(fields) * prod(fields.kernel_size), np.finfo(np.float32)
    lost = (n + 1) * float(single.eps) / 2
    if lost > 2.0**-8:
        return None
    with np.errstate(over="ignore"):
        found = fields.spread(x)
    if not np.isfinite(found.max(initial=0.0)):
        return None
    size = found.astype(np.float64)
    size += n * float(single.smallest_subnormal)
    size *= 1 + 2 * lost
    return size


def _line(n: int, underflows: float, dtype: torch.dtype, half_roundings: Any) -> tuple[Any, Any]:
    """The rounding of n operations, and what underflows and is stored in half precision, as slope·size + rest; widened."""
    working = torch.finfo(torch.promote_types(dtype, torch.float32))
    slope, rest = gamma(n, working.eps / 2), underflows * working.tiny * working.eps
    if dtype in (torch.float16, torch.bfloat16):
        stored = torch.finfo(dtype)
        slope = slope + half_roundings * stored.eps * (1 + slope)
        rest = rest + half_roundings * (stored.eps * rest + stored.tiny * stored.eps)
    return slope * WIDEN, rest * WIDEN


def _along(line: tuple[Any, Any], size: np.ndarray) -> np.ndarray:
    """slope·size + rest, in the place of ``size``."""
    np.multiply(size, line[0], out=size)
    return np.add(size, line[1], out=size)


WIDEN = 1 + 2**-20
"""Far above what float64 loses in evaluating the bounds themselves."""
