"""How an error passes a convolution in one network and its attention layer in the other, and the certificate that it needs.

The certificate proves that both compute one exact function, W∗x + bias.  Then, with |a| ≤ m and |b − a| ≤ e,

    |MHSA(b) − Conv(a)| ≤ |W|∗e + rounding of the convolution at m + rounding of the attention at m + e,

both roundings as in :mod:`verify.budget`, but element by element, where each output really looks.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch

from verify.aims import aim
from verify.argument import Fields
from verify.balls import Ball, Call, NoBound, up
from verify.budget import attention_size, operations, underflows
from verify.certificate import Certificate
from verify.certification import certify, for_larger_inputs
from verify.fields import TENSORS, Attention, Geometry, digest, stated_geometry
from verify.linear_rules import spread
from verify.oracle import Convolution
from verify.reading import tap_of_shift, token_count
from verify.rounding import carries_as_stored
from verify.taps import products


@dataclass(frozen=True)
class Pair:
    """A convolution and its attention layer at one call.

    Attributes:
        conv: the convolution.
        layer: the attention layer.
        fields: of the convolution.
    """

    conv: Any
    layer: Any
    fields: Convolution

    @cached_property
    def attention(self) -> Attention:
        """The raw fields of the attention layer."""
        return Attention.read(self.layer)

    @property
    def read(self) -> Fields:
        """What an argument reads of both."""
        return self.fields, Geometry.read(self.conv), self.attention


Making = Callable[[str, Pair], Certificate | None]
"""Of a path and the layers there: their certificate, made as they are at that moment; None if there is none."""


class Certifier:
    """Certificates of layers, worked out when they are first needed.

    Args:
        given: path → certificate that is there already; it is used where it speaks of these very layers (by digest), of a
            grid and an input bound at least as large as what is needed.
        first: a certifier of the same run, whose certificates are tried before ``given``: these layers are what they speak of.
        making: makes one of a layer of which there is none yet, when that is first called.
    """

    def __init__(
        self,
        given: Mapping[str, Certificate] | None = None,
        first: "Certifier | None" = None,
        making: Making | None = None,
    ):
        self.given: dict[str, Certificate] = dict(given or {}) if first is None else first.given
        self.first, self.making = first, making
        self.used: dict[str, Certificate] = {}
        self.carried: dict[str, Carried] = {} if first is None else first.carried
        """What each layer carries, worked out at its first call."""

    def certificate(self, path: str, pair: Pair, grid: tuple[int, ...], bound: float) -> Certificate:
        """A PROVED certificate for inputs of this grid up to this bound.

        Raises:
            NoBound: there is none; the message says what became of it.
        """
        known = self.used.get(path)
        if known is None or not _covers(known, pair, grid, bound):
            given = self._of_these(path, pair)
            fits = given is not None and _covers(given, pair, grid, bound)
            known = given if given is not None and fits else self._worked_out(pair, grid, bound, given)
        if known.verdict.name != "PROVED" or not _covers(known, pair, grid, bound):
            raise NoBound(f"its certificate says {known.verdict}")
        self.used[path] = known
        return known

    def _of_these(self, path: str, pair: Pair) -> Certificate | None:
        """A certificate of these very layers, of whatever inputs."""
        found = None if self.first is None else self.first.used.get(path)
        if found is None:
            found = self.given.get(path)
            if found is not None and not _same_layers(found, pair):
                found = None
            elif found is None and self.making is not None:
                found = self.making(path, pair)  # of these very layers: they are as they are now
                if found is not None:
                    self.given[path] = found
        return found

    def _worked_out(self, pair: Pair, grid: tuple[int, ...], bound: float, given: Certificate | None) -> Certificate:
        """For other inputs than ``given``, which is of these very layers, speaks of; of a difference only if that is what it is."""
        leaking = given is not None and given.within is not None
        proved = given is not None and not leaking and given.verdict.name == "PROVED"

        def certified(most: float) -> Certificate:
            if given is not None and proved and _covers(given, pair, grid, 0.0):
                return for_larger_inputs(given, pair.conv, pair.layer, most, pair.read)
            return _certified(pair, grid, most, leaking)

        largest = float(torch.finfo(pair.layer.w_val.dtype).max)
        wider = 2.0 ** np.ceil(np.log2(max(bound, 2.0**-10)))  # for later inputs too
        try:
            return certified(min(wider, largest))
        except ValueError:
            try:
                return certified(max(bound, 2.0**-10))
            except ValueError as error:
                raise NoBound(f"no certificate: {error}") from error


def _certified(pair: Pair, grid: tuple[int, ...], bound: float, leaking: bool) -> Certificate:
    """A certificate of the same function; or, of attention that may leak, of a difference within its bound."""
    found = certify(pair.conv, pair.layer, grid=grid, input_bound=bound)
    most = float(found.bound.max(initial=0.0))
    if leaking and found.verdict.name == "UNDECIDED" and found.leakage.any() and np.isfinite(most):
        return certify(pair.conv, pair.layer, grid=grid, input_bound=bound, within=most)
    return found


def _covers(known: Certificate, pair: Pair, grid: tuple[int, ...], bound: float) -> bool:
    """Whether it speaks of this geometry, of inputs of this size and as large as this."""
    return (
        len(known.grid) == len(grid)
        and all(n <= most for n, most in zip(grid, known.grid, strict=True))
        and bound <= known.input_bound
        and known.conv_geometry == stated_geometry(pair.conv)
        and known.mhsa_geometry == stated_geometry(pair.layer)
    )


def _same_layers(known: Certificate, pair: Pair) -> bool:
    """Whether it speaks of these numbers."""
    same = known.conv_sha256 == digest(pair.conv, ("weight", "bias"))
    return same and known.mhsa_sha256 == digest(pair.layer, TENSORS)


def paired(
    call: Call, path: str, conv: Any, layer: Any, certifier: Certifier, fields: Convolution | None = None
) -> Ball:
    """The rule, for one call of a convolution.

    Args:
        call: of the convolution.
        path: where it sits.
        conv: the convolution.
        layer: the attention layer in its place.
        certifier: for its certificate.
        fields: of the convolution at this call, where they were read already.

    Raises:
        NoBound: there is no certificate.
    """
    ball = call.get(0, "input")
    if not isinstance(ball, Ball):
        raise NoBound("its input is no activation")
    dims = conv.weight.dim() - 2
    grid, output = tuple(ball.shape[-dims:]), tuple(call.output.shape[-dims:])
    fields = Convolution.read(conv) if fields is None else fields
    if call.get(1, "output_size") is not None:
        fields = fields.reaching(grid, output)
    pair = Pair(*_bare(conv, layer, fields.output_padding), fields)
    largest = ball.farthest
    certificate = certifier.certificate(path, pair, grid, largest)
    moved, size = spread(fields, (ball.error, ball.size), ball.even)
    if fields.bias is not None:
        size += _by_channel(np.abs(fields.bias), dims)
    taps = prod(fields.kernel_size)
    terms = fields.weight[:, 0].size // fields.groups if fields.transposed else fields.weight[0].size
    here = call.line(terms + 1, stores=taps + 2)
    if (
        certificate.within is not None
    ):  # through the convolution of b: its rounding, and the bound between the two there
        return call.evaluated(moved, size, here, (here[0], here[1] + _by_channel(certificate.bound, dims)))
    if path not in certifier.carried:
        certifier.carried[path] = Carried.of(pair.attention, fields)
    carried = certifier.carried[path]
    # A softmax may return η where 0 is meant: (T − 1)·η·max|b|·Σ|W_val||W_out|.
    tokens = token_count(Geometry.read(pair.layer), grid)
    underflow = carried.underflow + (carried.underflow_of_one + tokens * carried.outward) * largest
    slope, rest = call.line(carried.operations, up(_by_channel(underflow, dims)), stores=1)
    if carried.kernel is None:
        return call.evaluated(moved, size, here, (slope, rest))
    (sizes,) = spread(replace(fields, weight=carried.kernel), (ball.reach,), ball.even)
    return call.evaluated(moved, size, here, (0.0, slope * (sizes + _by_channel(carried.bias, dims)) + rest))


def _by_channel(values: np.ndarray, dims: int) -> torch.Tensor:
    return torch.from_numpy(values).reshape(-1, *(1,) * dims)


@dataclass(frozen=True)
class Carried:
    """What the rounding of an attention layer rests on: γ_n (Σ_h |W_val^h||W_out^h| |b| + |b_out|), in either order of summation.

    Operations and underflow are as in the budget; underflow is ``underflow + underflow_of_one·max|b|``.

    Attributes:
        operations: n.
        underflow, underflow_of_one: how many η, per output channel.
        outward: Σ|W_val||W_out| per output channel.
        kernel: Σ_h |W_val^h||W_out^h| in the kernel's layout; None where it is |W|, and the bias' size the convolution's, so that
            the sum is the same: one factor of every head is a partial permutation.
        bias: |b_out|.
    """

    operations: int
    underflow: np.ndarray
    underflow_of_one: float
    outward: np.ndarray
    kernel: np.ndarray | None
    bias: np.ndarray

    @classmethod
    def of(cls, attention: Attention, fields: Convolution) -> "Carried":
        """From the fields of a layer, and of the convolution of which it is the same function.

        Raises:
            NoBound: a head that carries something looks at no tap.
        """
        bias = np.abs(attention.b_out)
        theirs = np.zeros_like(bias) if fields.bias is None else np.abs(fields.bias)
        same = np.array_equal(bias, theirs) and carries_as_stored(attention, fields)
        heads, _, d_in, head_dim = attention.w_val.shape
        return cls(
            operations=operations(attention),
            underflow=underflows(attention, 0.0),
            underflow_of_one=float(heads * d_in * head_dim),
            outward=fields.sizes if same else attention_size(attention, 1.0).sum(axis=0),
            kernel=None if same else _absolute_kernel(attention, fields),
            bias=bias,
        )


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
