"""Which input position each output reads, derived per axis from the definitions of both layers; and
one exact output.

The convolution's side follows its definition (gather, or scatter if transposed).  The attention's
side follows the layer's definition: a padded grid of real tokens, a query for each output, a key at
query plus shift.  Neither uses the builder's code.

    convolution   tap j of output o meets the place s·o + dil·j − p      (transposed: (o + p − dil·j)/s, where that is an integer)
    attention     the head at shift τ meets the token s·o + a + τ        (transposed: o + a + τ)

The input that is read depends on tap and output only through the place, and on head and query only
through the token's number.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray

from verify.oracle import Convolution, Geometry, Sides, Vector, pad

ZERO = -1
"""Stands for a padded zero instead of an input position."""
LONGEST = 2**26
"""The most tokens of one axis that are enumerated: half a gigabyte."""


class GridRefused(ValueError):
    """torch's convolution has no output for this grid."""


def output_size(g: Geometry, grid: Vector) -> Vector:
    """The spatial size of the output.

    Raises:
        GridRefused: exactly where torch raises or returns nothing: an empty axis, no output, or a
            padding mode that cannot pad that far.  (For transposed convolutions without outputs,
            torch sometimes raises and sometimes returns an empty tensor.)
    """
    if len(grid) != g.dims or min(grid) < 1:
        raise GridRefused(f"the grid {grid} is not {g.dims} positive sizes")
    for n, dil, s, pads, extra in zip(
        grid, g.dilation, g.stride, g.pads, g.output_padding, strict=True
    ):
        if g.transposed and extra >= max(s, dil):
            raise GridRefused(
                f"output padding {extra} is not below the stride {s} or the dilation {dil}"
            )
        if g.padding_mode == "reflect" and max(pads) >= n:
            raise GridRefused(f"reflect padding {max(pads)} needs more than {n} positions")
        if g.padding_mode == "circular" and max(pads) > n:
            raise GridRefused(
                f"circular padding {max(pads)} wraps more than once around {n} positions"
            )
    output = g.outputs(grid)
    if min(output) < 1:
        raise GridRefused(f"the grid {grid} is too small: the output would be {output}")
    return output


def tap_place(g: Geometry, axis: int, tap: Any, output: Any) -> Any:
    """The convolution's side: the place where a tap meets an output, on one axis; transposed: the
    stride times that place.
    """
    before = g.pads[axis][0]
    dil = g.dilation[axis]
    return (
        output + before - dil * tap
        if g.transposed
        else g.stride[axis] * output + dil * tap - before
    )


def input_at(g: Geometry, axis: int, n: int, place: ndarray) -> ndarray:
    """The convolution's side: the input position, or ``ZERO``, at each :func:`tap_place`, including
    places outside 0 … n − 1.
    """
    if g.transposed:  # Y[s·i + dil·j − p] += X[i] W_j, solved for i
        i, rest = np.divmod(place, g.stride[axis])
        return np.where((rest == 0) & (i >= 0) & (i < n), i, ZERO)
    return continued(place, n, g.padding_mode)


def continued(place: ndarray, n: int, mode: str) -> ndarray:
    """The input position, or ``ZERO``, at each place of an axis with ``n`` inputs, padded by torch's
    mode.
    """
    if mode == "zeros":
        return np.where((place >= 0) & (place < n), place, ZERO)
    if mode == "replicate":
        return np.clip(place, 0, n - 1)
    if mode == "circular":
        return np.mod(place, n)
    period = max(2 * (n - 1), 1)  # reflect: a triangle wave
    wave = np.mod(place, period)
    return np.minimum(wave, period - wave)


def interior(g: Geometry, size: Vector, output: Vector) -> ndarray:
    """Which outputs read no padding, only real positions (or holes between them): bool (*output)."""
    mask = np.ones((), dtype=bool)
    for axis, (n, outputs, step) in enumerate(zip(size, output, g.input_steps, strict=True)):
        ends = np.array([[0], [g.kernel_size[axis] - 1]])
        place = tap_place(g, axis, ends, np.arange(outputs))
        mask = mask[..., None] & ((place >= 0) & (place <= step * (n - 1))).all(axis=0)
    return mask


def tokens_along(g: Geometry, axis: int, n: int) -> ndarray:
    """The attention's side: int (T_axis,), the input position that each token of the padded axis
    copies, or ``ZERO``.
    """
    step, (left, right) = g.input_steps[axis], g.margins[axis]
    row = np.full(step * (n - 1) + 1, ZERO)
    row[::step] = np.arange(n)
    row = pad(row, (max(left, 0), max(right, 0)), g.padding_mode, ZERO)
    return row[max(-left, 0) : len(row) - max(-right, 0)]  # what a transposed layer crops


def query_places(g: Geometry, axis: int, outputs: int) -> ndarray:
    """The attention's side: int (outputs,), the position of each output's query on the padded axis:
    s·o + a.
    """
    return g.query_steps[axis] * np.arange(outputs) + g.anchor[axis]


def shift_box(g: Geometry, grid: Vector) -> Sides:
    """The least and greatest δ between a query and a key, on each axis."""
    box = []
    for axis, (tokens, outputs) in enumerate(
        zip(g.padded(grid), output_size(g, grid), strict=True)
    ):
        first, last = query_places(g, axis, outputs)[[0, -1]].tolist()
        box.append((-last, tokens - 1 - first))
    return tuple(box)


def shift_of_tap(g: Geometry, axis: int, tap: int) -> int:
    """τ on this axis of the head that carries tap j: dil·j − a; for a transposed layer, whose
    kernel is flipped on the zero-stuffed grid, dil·(K − 1 − j) − a.
    """
    step = g.dilation[axis] * tap
    return (g.spans[axis] - step if g.transposed else step) - g.anchor[axis]


def mismatched_tap(g: Geometry, axis: int, n: int, outputs: int) -> int | None:
    """A tap of this axis that, for some output, reads another input than the head at its shift;
    None if there is none.

    Key minus place must be the same for all taps and outputs; both grow by the same stride per
    output, so checking the first and the last output suffices.  Then each token must hold the input
    at its place, and all keys must be tokens: work of the order of tokens plus taps, not of their
    product.
    """
    tokens = tokens_along(g, axis, n)
    queries = query_places(g, axis, outputs)
    lead = int(queries[0]) + shift_of_tap(g, axis, 0) - tap_place(g, axis, 0, 0)
    for tap in range(g.kernel_size[axis]):
        for output in (0, outputs - 1):
            key = int(queries[output]) + shift_of_tap(g, axis, tap)
            if key - tap_place(g, axis, tap, output) != lead or not 0 <= key < len(tokens):
                return tap
    held = input_at(g, axis, n, np.arange(len(tokens)) - lead) == tokens
    if held.all():
        return None
    for tap in range(g.kernel_size[axis]):
        if not held[queries + shift_of_tap(g, axis, tap)].all():
            return tap
    return None  # no tap reads the tokens that are wrong


def taps_by_shift(g: Geometry) -> dict[Vector, Vector]:
    """The tap that a head must carry, by its shift; taps in row-major order."""
    axes = (
        [shift_of_tap(g, axis, tap) for tap in range(k)] for axis, k in enumerate(g.kernel_size)
    )
    return dict(zip(product(*axes), np.ndindex(*g.kernel_size), strict=True))


def token_count(g: Geometry, grid: Vector) -> int:
    """T, the number of tokens of the padded grid."""
    return math.prod(g.padded(grid))


def input_spans(g: Geometry, size: Vector) -> Sides:
    """The first and last non-padding token of each axis, for inputs of a size."""
    axes = zip(size, g.input_steps, g.margins, strict=True)
    return tuple((left, left + step * (n - 1)) for n, step, (left, _) in axes)


def require_enumerable(g: Geometry, grid: Vector) -> None:
    """Raise a ValueError if an axis of the grid is too long to be enumerated."""
    for axis, length in enumerate(g.padded(grid)):
        if length > LONGEST:
            message = f"axis {axis} of the grid {grid} has {length} tokens"
            raise ValueError(
                f"{message}, too many to go through one by one (give a grid of up to {LONGEST})"
            )


# ---- one output of the convolution, in rational arithmetic ---------------------------------------


def exact_output(conv: Convolution, x: ndarray, output: Vector) -> Fraction:
    """One output (channel, *position) of the convolution of x (D_in, *grid), exactly."""
    channel, *place = output
    g = conv.geometry
    group, o = divmod(channel, g.out_channels // g.groups)
    own = np.split(x, g.groups)[group]
    total = Fraction(float(conv.biases[channel]))
    for tap, read in taps_at(g, x.shape[1:], place):
        row = tap_matrix(conv, tap)[group, :, o]
        values = own[(slice(None), *read)]
        total += sum(
            (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, values, strict=True)),
            Fraction(0),
        )
    return total


def taps_at(g: Geometry, grid: Vector, place: Sequence[int]) -> Iterator[tuple[Vector, Vector]]:
    """Each tap that reads an input for the output at ``place``, with that input's position; taps
    that read a zero are omitted.
    """
    axes = []
    for axis, (n, k, output) in enumerate(zip(grid, g.kernel_size, place, strict=True)):
        reads = input_at(g, axis, n, tap_place(g, axis, np.arange(k), output)).tolist()
        axes.append([(j, read) for j, read in enumerate(reads) if read != ZERO])
    for pairs in product(*axes):
        tap, read = zip(*pairs, strict=True)
        yield tap, read


def tap_matrix(conv: Convolution, tap: Vector) -> ndarray:
    """The kernel's matrix at a tap, (groups, D_in/groups, D_out/groups), converted from torch's
    layout.
    """
    matrix = conv.matrices[tap]
    return matrix if conv.geometry.transposed else np.swapaxes(matrix, 1, 2)
