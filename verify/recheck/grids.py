"""The receptive fields of both layers per axis, for the checker: which input each output reads.

It shares no code with the certifier's :mod:`verify.layers.reading`.

    convolution            Y[o] = b + Σ_j W_j X̃[s·o + dil·j − p],  X̃ the input, continued by its padding mode
    transposed             Y[s·i + dil·j − p] += X[i] W_j
    attention              tokens: the padded input; transposed: the inputs s apart, padded by dil·(K − 1) − p (below 0: cropped)
                           the query of output o sits at s·o + a (transposed: o + a), with
                           a = dil·⌊(K − 1)/2⌋ the head that carries tap j looks at τ_j = dil·j − a
                           (transposed: dil·(K − 1 − j) − a)
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from verify.recheck.strict_input import Record, Rejected, Vector

# limits on an axis' tokens and on tokens times taps: about ten seconds of work
LONGEST, MOST = (2**26, 2**32)
GEOMETRY = {
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "padding_mode",
    "dilation",
    "groups",
    "transposed",
    "output_padding",
}
MODES = ("zeros", "reflect", "replicate", "circular")


class StatedGeometry(NamedTuple):
    """The geometry that a file states, one entry per axis; ``pads`` are before and after the input."""

    kernel: Vector
    stride: Vector
    dilation: Vector
    extra: Vector
    pads: tuple[tuple[int, int], ...]
    mode: str
    transposed: bool
    groups: int
    d_in: int
    d_out: int

    @property
    def kind(self) -> str:
        """The name of torch's class."""
        return f"Conv{'Transpose' * self.transposed}{len(self.kernel)}d"

    @property
    def channels(self) -> tuple[int, int, int]:
        """Groups, D_in and D_out."""
        return self.groups, self.d_in, self.d_out

    def reaches(self, shift: Vector) -> bool:
        """Whether every query of every grid has a token at this shift."""
        return all(0 <= self.anchor(axis) + n <= self.span(axis) for axis, n in enumerate(shift))

    def span(self, axis: int) -> int:
        """The distance between the first and the last tap."""
        return self.dilation[axis] * (self.kernel[axis] - 1)

    def anchor(self, axis: int) -> int:
        """The token of the query of output 0."""
        return self.dilation[axis] * ((self.kernel[axis] - 1) // 2)

    def steps(self, axis: int) -> list[int]:
        """τ on one axis, for every tap along it."""
        forward = [self.dilation[axis] * j - self.anchor(axis) for j in range(self.kernel[axis])]
        return forward[::-1] if self.transposed else forward

    def shifts(self) -> list[Vector]:
        """τ of every tap, in row-major order."""
        return [*product(*map(self.steps, range(len(self.kernel))))]


class Axis(NamedTuple):
    """One axis of a grid; in ``reads`` and ``tokens`` a number is an input position, −1 a zero."""

    reads: Callable[[int], ndarray]  # tap → (outputs,): the input that it reads for each output
    tokens: ndarray  # (N,): the input that each token holds
    queries: ndarray  # (outputs,): the query token of each output


class NoOutput(ValueError):
    """On this grid torch would raise."""


def geometry_of(stated: Record) -> StatedGeometry:
    """Read the geometry that a layer states; `Rejected` if it is not a convolution's."""
    with suppress(TypeError, ValueError, KeyError, AttributeError):
        vectors = [
            tuple(stated[name]) for name in ("kernel_size", "stride", "dilation", "output_padding")
        ]
        geometry = StatedGeometry(
            *vectors,
            pads=_pads(stated["padding"], stated["kernel_size"], stated["dilation"]),
            mode=stated["padding_mode"],
            transposed=stated["transposed"],
            groups=stated["groups"],
            d_in=stated["in_channels"],
            d_out=stated["out_channels"],
        )
        if (
            set(stated) - {"radix"} == GEOMETRY
            and _has_sizes(geometry)
            and [*map(type, stated.get("radix", geometry.kernel))] == [int] * len(geometry.kernel)
            and _is_known(geometry, stated["padding"])
        ):
            return geometry
    raise Rejected(f"must be the geometry of a convolution: {json.dumps(stated)[:300]}")


def _pads(padding: Any, kernel: list[int], dilation: list[int]) -> tuple[tuple[int, int], ...]:
    """What is padded before and after each axis, from torch's ``padding``."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        spans = [dil * (k - 1) for k, dil in zip(kernel, dilation, strict=True)]
        return tuple((span // 2, span - span // 2) for span in spans)
    return tuple((p, p) for p in padding)


def _has_sizes(g: StatedGeometry) -> bool:
    """Whether all entries are integers of their ranges, one per axis, and the groups divide the
    channels.
    """
    positive = (*g.kernel, *g.stride, *g.dilation, *g.channels)
    natural = (*g.extra, *chain.from_iterable(g.pads))
    if not all(type(x) is int and 0 <= x < 2**31 for x in (*positive, *natural)) or 0 in positive:
        return False
    if {len(g.stride), len(g.dilation), len(g.extra), len(g.pads)} != {len(g.kernel)}:
        return False
    return len(g.kernel) >= 1 and g.d_in % g.groups == 0 and g.d_out % g.groups == 0


def _is_known(g: StatedGeometry, padding: Any) -> bool:
    """Whether torch has a layer of this kind with this padding."""
    if type(g.transposed) is not bool or g.mode not in MODES:
        return False
    if g.transposed:
        within = all(
            extra < max(s, dil) for extra, s, dil in zip(g.extra, g.stride, g.dilation, strict=True)
        )
        return g.mode == "zeros" and not isinstance(padding, str) and within
    return not any(g.extra) and (padding != "same" or {*g.stride} == {1})


def axis_of(g: StatedGeometry, axis: int, n: int) -> Axis:
    """Compute one axis for an input of size ``n``.

    Raises:
        NoOutput: torch would raise.
    """
    k, dil, s, span = g.kernel[axis], g.dilation[axis], g.stride[axis], g.span(axis)
    before, after = g.pads[axis]
    length = n * (s if g.transposed else 1) + span + before + after
    if length > LONGEST or k * length > MOST:
        raise Rejected(f"an axis of {n} positions and {k} taps is too long for this checker")
    inputs = np.arange(n)
    if g.transposed:
        size = s * (n - 1) - before - after + span + g.extra[axis] + 1

        def reads(j: int) -> ndarray:
            read, out = np.full(size, -1), s * inputs + dil * j - before
            reached = (out >= 0) & (out < size)
            read[out[reached]] = inputs[reached]
            return read

        stuffed = np.arange(max(size, 0) + span) - (span - before)
        held = (stuffed % s == 0) & (stuffed >= 0) & (stuffed <= s * (n - 1))
        tokens, step = np.where(held, stuffed // s, -1), 1
    else:
        if max(before, after) > {"reflect": n - 1, "circular": n}.get(g.mode, math.inf):
            raise NoOutput(f"{g.mode} padding by {before} and {after} of only {n} positions")
        size, step = (n + before + after - span - 1) // s + 1, s

        def reads(j: int) -> ndarray:
            return _continued(s * np.arange(size) + dil * j - before, n, g.mode)

        tokens = _continued(np.arange(n + before + after) - before, n, g.mode)
    if n < 1 or size < 1:
        raise NoOutput(f"an input of size {n} has no output")
    return Axis(reads, tokens, step * np.arange(size) + g.anchor(axis))


def axes_of(g: StatedGeometry, grid: Vector) -> list[Axis]:
    """Every axis of a grid; raises as `axis_of` does."""
    if len(grid) != len(g.kernel):
        raise Rejected(f"the grid {grid} does not fit a kernel {g.kernel}")
    return [axis_of(g, axis, n) for axis, n in enumerate(grid)]


def sizes_of(g: StatedGeometry, grid: Vector) -> Vector | None:
    """The spatial size of the output, or None if torch would raise."""
    try:
        return tuple(len(axis.queries) for axis in axes_of(g, grid))
    except NoOutput:
        return None


def read_by_taps(g: StatedGeometry, axes: list[Axis], output: list[int]) -> list[Vector]:
    """The input positions that the taps read for one output, taps in row-major order."""
    along = zip(axes, g.kernel, output, strict=True)
    return [*product(*([int(axis.reads(j)[at]) for j in range(k)] for axis, k, at in along))]


def _continued(place: ndarray, n: int, mode: str) -> ndarray:
    """The input position of X̃ at a place that may lie outside of 0 … n − 1; −1 for a zero."""
    if mode == "zeros":
        return np.where((place >= 0) & (place < n), place, -1)
    if mode == "replicate":
        return np.clip(place, 0, n - 1)
    if mode == "circular":
        return place % n
    return (n - 1) - np.abs(place % max(2 * (n - 1), 1) - (n - 1))
