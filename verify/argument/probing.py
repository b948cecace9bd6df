"""The run-time side of a certificate: every execution of the layer, on inputs made to align rounding errors.

A certificate speaks of Eq. 3; that a given execution computes Eq. 3 is an assumption, and this is its test.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from construct.attention import EXECUTIONS, smaller_blocks
from verify.layers.fields import Attention, Geometry
from verify.layers.reading import tap_of_shift, token_count
from verify.layers.taps import scaled_permutation_product
from verify.oracle import Convolution, full_precision
from verify.rounding.bounds import convolution_share
from verify.rounding.budget import WIDEN, Format, leakage_part, stored_rounding, working_rounding
from verify.samples.reference import Deviation, Outputs

LABOUR, EXPONENTIAL = 2**33, 64
"""Multiplications of one run beyond which an execution is not run but noted, some ten seconds of one core; and as how many of
them the softmax counts for each pair of a query and a key."""


@dataclass(frozen=True)
class Probe:
    """What the runs of one execution showed.

    Attributes:
        execution: its name.
        inputs: how many inputs were run.
        grid: their spatial size.
        observed: the greatest |execution − convolution| per output channel, float64 (D_out,).
        worst: the greatest |difference|/bound over all outputs.
        note: why it was not run; empty if it was.
        broken: whether it was not run because it raised an error other than want of memory.
        over: where a run is over the bound, an output that tells which side is off the exact value.
        at: the input (D_in, *grid) of that output.
    """

    execution: str
    inputs: int
    grid: tuple[int, ...]
    observed: np.ndarray
    worst: float
    note: str = ""
    broken: bool = False
    over: Deviation | None = None
    at: np.ndarray | None = None

    @property
    def refutes(self) -> bool:
        """Whether it is the attention that is off; torch's own convolution may be."""
        return not self.worst <= 1 and (self.over is None or self.over.refutes)


def impulse_bound(
    conv: Convolution,
    attention: Attention,
    shifts: Sequence[tuple[int, ...] | None],
    inputs: np.ndarray,
    fmt: Format,
    tokens: int,
    as_stored: bool = False,
    remainders: np.ndarray | None = None,
) -> np.ndarray | None:
    """How far one-hot attention that carries exactly the kernel may be off on these inputs: float64 (N, D_out, *output).

    At each output, the rounding of the terms that it meets, and nothing where it meets none: there both sides give 0, or the
    bias.  But heads that are one-hot in the working type need not be so in float64, in which the softmax is evaluated: with a
    gap between ln(2/η) of the one and of the other (104 and 745 for float32) a weight e^−gap that float32 would round to 0 is a
    number, and an execution that multiplies by it in float64 (``sdpa``) keeps e^−gap·x, which float32 has room for where x is
    large.  A head of sharpness α that leaks ε = 1 − Π 1/(1 + s_i) over the reals moves an output by at most
    2ε·max|x|·Σ|W_val||W_out|, wherever the input is; so this is added, and it is exactly 0 where the gap beats float64 too, as
    at the default α.  An execution that rounds the weights to the working type first stays within this also.

    Args:
        conv: the convolution's fields.
        attention: the attention layer's fields.
        shifts: where each head looks; None for one that carries nothing.
        inputs: (N, D_in, *grid).
        fmt: the format of both layers.
        tokens: at least T.
        as_stored: whether Σ_h|W_val^h||W_out^h| is known to be |W| at every tap.
        remainders: ε of every head, (heads,), as a softmax in float64 has it; none by default.

    Returns:
        None if a head that carries something looks at no tap.
    """
    g, weight = attention.geometry, np.abs(conv.weight)
    kernel = weight if as_stored else np.zeros_like(weight)
    for w_val, w_out, shift in () if as_stored else zip(*attention.sizes, shifts, strict=True):
        carried = scaled_permutation_product(w_val, w_out)  # (g, i, o)
        carried = np.matmul(w_val, w_out) if carried is None else carried
        tap = None if shift is None else tap_of_shift(g, shift)
        if tap is not None:
            blocks = carried if g.transposed else np.swapaxes(carried, 1, 2)
            kernel[(..., *tap)] += blocks.reshape(-1, blocks.shape[2])
        elif carried.any():
            return None
    largest = float(np.abs(inputs).max(initial=0.0))
    bias = 0.0 if conv.bias is None else np.abs(conv.bias).reshape(-1, *(1,) * (inputs.ndim - 2))
    # The channels of these inputs are alike, so the weights may be summed over them first.
    x = np.abs(inputs).max(axis=1, keepdims=True)
    terms = _over_channels(conv, weight)(x)
    carried = terms if as_stored or np.array_equal(kernel, weight) else _over_channels(conv, kernel)(x)
    size_c, size_a = terms + bias, carried + np.abs(attention.b_out).reshape(-1, *(1,) * (inputs.ndim - 2))
    # To half precision: once for each tap that meets something, once with the bias, once in the end.
    one = replace(conv, weight=np.ones((1, 1, *conv.kernel_size)), bias=None, groups=1)
    roundings = one((x > 0).astype(float)) + 2
    left = 0.0
    if remainders is not None and remainders.any():
        left = leakage_part(attention, largest, remainders).reshape(-1, *(1,) * (inputs.ndim - 2))
    bounds = []
    for c, a, count in zip(size_c, size_a, roundings, strict=True):
        total = working_rounding(conv, attention, c, a, fmt, tokens, soft=False, bound=largest)
        bounds.append(stored_rounding(total + tokens * fmt.eta * a + left, c, a + left, fmt, count))
    return np.stack(bounds) * WIDEN


def _over_channels(conv: Convolution, weight: np.ndarray) -> Convolution:
    """A convolution of one input channel: Σ_i W_i x = (Σ_i W_i) x, where x is the same in all channels."""
    if conv.transposed:
        blocks = weight.reshape(conv.groups, -1, *weight.shape[1:]).sum(axis=1)  # (g, out/g, *K)
        summed = blocks.reshape(1, -1, *conv.kernel_size)
    else:
        summed = weight.sum(axis=1, keepdims=True)
    return replace(conv, weight=summed, bias=None, groups=1)


def run_executions(
    conv_module: Any,
    layer: Any,
    inputs: np.ndarray,
    bound: np.ndarray,
    names: tuple[str, ...] | None = None,
    queries: int | None = None,
) -> list[Probe]:
    """Run every execution of ``layer`` against the convolution, in full precision.

    Args:
        conv_module: the torch convolution.
        layer: the attention layer; its ``execution`` is restored.
        inputs: (N, D_in, *grid) float64, rounded here to the layer's type.
        bound: per output channel (D_out,), or for every output of every input (N, D_out, *output).
        names: executions to run; all by default, ``auto`` among them.
        queries: the most of one block, for executions that work in blocks; None for their usual blocks, which only large
            inputs fill.
    """
    weight = layer.w_val
    x = torch.from_numpy(inputs).to(weight.dtype).to(weight.device)
    grid = tuple(x.shape[2:])
    before, nothing = layer.execution, np.zeros(len(layer.b_out))
    probes = []
    blocks = nullcontext() if queries is None else smaller_blocks(queries)
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False), full_precision(), blocks:
        expected = conv_module(x).double().cpu().numpy()
        difference = np.empty_like(expected)
        pairs = len(layer.v) * expected[0, 0].size * token_count(Geometry.read(layer), grid)
        for name in names or tuple(EXECUTIONS):
            layer.execution = name
            try:
                labour = layer.products(x.shape, name)
                labour += EXPONENTIAL * pairs * (labour >= pairs)  # else it does not go over all pairs
                if labour > LABOUR:
                    raise MemoryError(f"{labour:.2g} multiplications are too many to run")
                found = layer(x).double().cpu().numpy()
            except (MemoryError, NotImplementedError) as error:
                probes.append(Probe(name, 0, grid, nothing, 0.0, str(error)))
                continue
            except (RuntimeError, ValueError, IndexError) as error:  # where the convolution has an output
                told = f"{type(error).__name__}: {error}"
                probes.append(Probe(name, 0, grid, nothing, 0.0, told, broken=True))
                continue
            finally:
                layer.execution = before
            if found.shape != expected.shape:
                probes.append(Probe(name, len(x), grid, nothing + np.inf, np.inf, "outputs differ in shape"))
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                np.subtract(found, expected, out=difference)
            per_channel, worst = _judged(np.abs(difference, out=difference), bound)
            over = at = None
            if not worst <= 1:
                over = _over(conv_module, x, expected, found, ~(_ratio(difference, bound) <= 1), bound)
                at = x[over.index[0]].double().cpu().numpy()
            probes.append(Probe(name, len(x), grid, per_channel, worst, over=over, at=at))
    return probes


def _over(
    conv_module: Any, x: torch.Tensor, theirs: np.ndarray, ours: np.ndarray, over: np.ndarray, bound: np.ndarray
) -> Deviation:
    """Which side is off where a run is over its bound."""
    allowed = np.broadcast_to(bound.reshape(-1, *(1,) * (ours.ndim - 2)) if bound.ndim == 1 else bound, ours.shape)
    fields, explained = Convolution.read(conv_module), convolution_share(conv_module, x)
    numbers = x.double().cpu().numpy()
    return Outputs(fields, Geometry.read(conv_module), numbers, theirs, ours, allowed, explained).deviation(over)


def _judged(difference: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, float]:
    """The greatest |difference| of every output channel, and the greatest |difference|/bound anywhere."""
    per_channel = difference.max(axis=(0, *range(2, difference.ndim)))
    # Of a channel with one bound, the greatest difference has the greatest ratio: rounded division keeps the order.
    ratio = _ratio(per_channel, bound) if bound.ndim == 1 else _ratio(difference, bound)
    return per_channel, float(ratio.max(initial=0.0))


def _ratio(difference: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """|difference|/bound: an infinite bound claims nothing; else whatever is not a number is over it."""
    allowed = bound.reshape(-1, *(1,) * (difference.ndim - 2)) if bound.ndim < difference.ndim else bound
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if bound.min(initial=1.0) > 0 and bound.max(initial=0.0) < np.inf:
            return difference / allowed
        return np.where((difference == 0) | np.isinf(allowed), 0.0, difference / allowed)
