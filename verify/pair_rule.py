"""How an error passes a convolution in one network and its attention layer in the other, and the certificate that it needs.

The certificate proves that both compute one exact function, W∗x + bias.  Then, with |a| ≤ m and |b − a| ≤ e,

    |MHSA(b) − Conv(a)| ≤ |W|∗e + rounding of the convolution at m + rounding of the attention at m + e,

both roundings as in :mod:`verify.budget`, but element by element, where each output really looks.
"""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from verify.aims import aim
from verify.balls import Ball, Call, NoBound, up
from verify.budget import operations, underflows
from verify.certificate import Certificate
from verify.certification import certify, for_larger_inputs
from verify.fields import TENSORS, Attention, digest, stated_geometry
from verify.linear_rules import spread
from verify.oracle import Convolution
from verify.reading import tap_of_shift, token_count
from verify.taps import products


class Certifier:
    """Certificates of layers, worked out when they are first needed.

    Args:
        given: path → certificate that is there already; it is used where it speaks of these very layers (by digest), of a
            grid and an input bound at least as large as what is needed.
    """

    def __init__(self, given: Mapping[str, Certificate] | None = None):
        self.given = dict(given or {})
        self.used: dict[str, Certificate] = {}
        self.kernels: dict[str, np.ndarray] = {}
        """Σ_h |W_val^h||W_out^h| of each layer, in the kernel's layout."""

    def certificate(self, path: str, conv: Any, layer: Any, grid: tuple[int, ...], bound: float) -> Certificate:
        """A PROVED certificate for inputs of this grid up to this bound.

        Raises:
            NoBound: there is none; the message says what became of it.
        """
        known = self.used.get(path)
        if known is None or not _covers(known, conv, layer, grid, bound):
            given = self.given.get(path)
            if given is not None and not _same_layers(given, conv, layer):
                given = None
            fits = given is not None and _covers(given, conv, layer, grid, bound)
            known = given if given is not None and fits else self._worked_out(conv, layer, grid, bound, given)
        if known.verdict.name != "PROVED" or not _covers(known, conv, layer, grid, bound):
            raise NoBound(f"its certificate says {known.verdict}")
        self.used[path] = known
        return known

    def _worked_out(
        self, conv: Any, layer: Any, grid: tuple[int, ...], bound: float, given: Certificate | None
    ) -> Certificate:
        """For other inputs than ``given``, which is of these very layers, speaks of; of a difference only if that is what it is."""
        leaking = given is not None and given.within is not None
        proved = given is not None and not leaking and given.verdict.name == "PROVED"

        def certified(most: float) -> Certificate:
            if given is not None and proved and _covers(given, conv, layer, grid, 0.0):
                return for_larger_inputs(given, conv, layer, most)
            return _certified(conv, layer, grid, most, leaking)

        largest = float(torch.finfo(layer.w_val.dtype).max)
        wider = 2.0 ** np.ceil(np.log2(max(bound, 2.0**-10)))  # for later inputs too
        try:
            return certified(min(wider, largest))
        except ValueError:
            try:
                return certified(max(bound, 2.0**-10))
            except ValueError as error:
                raise NoBound(f"no certificate: {error}") from error


def _certified(conv: Any, layer: Any, grid: tuple[int, ...], bound: float, leaking: bool) -> Certificate:
    """A certificate of the same function; or, of attention that may leak, of a difference within its bound."""
    found = certify(conv, layer, grid=grid, input_bound=bound)
    most = float(found.bound.max(initial=0.0))
    if leaking and found.verdict.name == "UNDECIDED" and found.leakage.any() and np.isfinite(most):
        return certify(conv, layer, grid=grid, input_bound=bound, within=most)
    return found


def _covers(known: Certificate, conv: Any, layer: Any, grid: tuple[int, ...], bound: float) -> bool:
    """Whether it speaks of this geometry, of inputs of this size and as large as this."""
    return (
        len(known.grid) == len(grid)
        and all(n <= most for n, most in zip(grid, known.grid, strict=True))
        and bound <= known.input_bound
        and known.conv_geometry == stated_geometry(conv)
        and known.mhsa_geometry == stated_geometry(layer)
    )


def _same_layers(known: Certificate, conv: Any, layer: Any) -> bool:
    """Whether it speaks of these numbers."""
    return known.conv_sha256 == digest(conv, ("weight", "bias")) and known.mhsa_sha256 == digest(layer, TENSORS)


def paired(call: Call, path: str, conv: Any, layer: Any, certifier: Certifier) -> Ball:
    """The rule, for one call of a convolution.

    Args:
        call: of the convolution.
        path: where it sits.
        conv: the convolution.
        layer: the attention layer in its place.
        certifier: for its certificate.

    Raises:
        NoBound: there is no certificate.
    """
    ball = call.get(0, "input")
    if not isinstance(ball, Ball):
        raise NoBound("its input is no activation")
    dims = conv.weight.dim() - 2
    grid, output = tuple(ball.error.shape[-dims:]), tuple(call.output.shape[-dims:])
    fields = Convolution.read(conv)
    if call.get(1, "output_size") is not None:
        fields = fields.reaching(grid, output)
    conv, layer = _bare(conv, layer, fields.output_padding)
    largest = float(ball.reach.max()) if ball.reach.numel() else 0.0
    certificate = certifier.certificate(path, conv, layer, grid, largest)
    moved = up(spread(fields, fields.weight, ball.error))
    size = up(spread(fields, fields.weight, ball.size, fields.bias))
    call.must_not_overflow(size + moved)
    taps = prod(fields.kernel_size)
    terms = fields.weight[:, 0].size // fields.groups if fields.transposed else fields.weight[0].size
    here = call.rounding(size, terms + 1, stores=taps + 2)
    if certificate.within is None:
        attention = Attention.read(layer)
        if path not in certifier.kernels:
            certifier.kernels[path] = _absolute_kernel(attention, fields)
        there = _attention_rounding(call, ball, attention, fields, certifier.kernels[path], size + moved)
    else:  # through the convolution of b: its rounding, and the bound per channel between the two layers there
        per_channel = torch.from_numpy(certificate.bound).reshape(-1, *(1,) * dims)
        there = call.rounding(up(size + moved), terms + 1, stores=taps + 2) + per_channel
    return Ball.around_zero(up(size + here), up(moved + here + there))


def _attention_rounding(
    call: Call, ball: Ball, attention: Attention, fields: Convolution, kernel: np.ndarray, of_kernel: torch.Tensor
) -> torch.Tensor:
    """γ_n (Σ_h |W_val^h||W_out^h| |b| + |b_out|), in either order of summation.

    Operations and underflow are as in the budget, and so is what a softmax adds that returns η where 0 is meant:
    (T − 1)·η·max|b|·Σ|W_val||W_out|.  ``of_kernel`` is |W|(|a| + e) + |bias|, widened: the same sum, where one factor of every
    head is a partial permutation, so that |W_val||W_out| = |W|.
    """
    dims = len(fields.kernel_size)
    tokens = token_count(attention.geometry, tuple(ball.error.shape[-dims:]))
    carried = np.einsum("hge,hgeo->go", np.abs(attention.w_val).sum(axis=2), np.abs(attention.w_out)).reshape(-1)
    most = float(ball.reach.max()) if ball.reach.numel() else 0.0
    underflow = torch.from_numpy(underflows(attention, most) + tokens * most * carried)
    bias = np.zeros_like(attention.b_out) if fields.bias is None else fields.bias
    if np.array_equal(kernel, np.abs(fields.weight)) and np.array_equal(np.abs(attention.b_out), np.abs(bias)):
        size = of_kernel
    else:
        size = spread(fields, kernel, ball.reach, attention.b_out)
    return call.rounding(up(size), operations(attention), up(underflow).reshape(-1, *(1,) * dims), stores=1)


def _absolute_kernel(attention: Attention, fields: Convolution) -> np.ndarray:
    """Σ_h |W_val^h||W_out^h| at the tap where head h looks, in torch's layout.

    Raises:
        NoBound: a head that carries something looks at no tap.
    """
    g = attention.geometry
    every = products(*attention.sizes)  # (heads, g, in/g, out/g)
    kernel = np.zeros((*g.kernel_size, *every.shape[1:]))
    for head, carried in enumerate(every):
        if not carried.any():
            continue
        aimed = aim(attention, head)
        tap = None if aimed is None else tap_of_shift(g, aimed.shift)
        if tap is None:
            raise NoBound(f"head {head} looks at no tap of the kernel")
        kernel[tap] += carried
    blocks = np.moveaxis(kernel, tuple(range(g.dims)), tuple(range(-g.dims, 0)))  # (g, in/g, out/g, *K)
    if not g.transposed:
        blocks = np.swapaxes(blocks, 1, 2)
    kernel = blocks.reshape(-1, *blocks.shape[2:])
    assert kernel.shape == fields.weight.shape
    return kernel


def _bare(conv: Any, layer: Any, output_padding: tuple[int, ...]) -> tuple[Any, Any]:
    """Both layers without the recorder's hooks, and with the output padding that a call asked for through ``output_size``."""
    conv, layer = copy.copy(conv), copy.copy(layer)
    for module in (conv, layer):
        module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict()
    if tuple(conv.output_padding) != tuple(output_padding):
        conv.output_padding = tuple(output_padding)
        layer.geometry = replace(layer.geometry, output_padding=tuple(output_padding))
    return conv, layer
