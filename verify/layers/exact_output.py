"""One output of a convolution in rational arithmetic, and which input each of its taps meets there."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from verify.layers.fields import Geometry
from verify.layers.reading import ZERO, input_at, tap_place
from verify.oracle import Convolution

Index = tuple[int, ...]


def exact_output(conv: Convolution, g: Geometry, x: np.ndarray, output: Index) -> Fraction:
    """One output of the convolution, exactly.

    Args:
        conv: the convolution's fields.
        g: its geometry.
        x: (D_in, *grid).
        output: (channel, *position).
    """
    channel, *place = output
    d_in, d_out = g.in_channels // g.groups, g.out_channels // g.groups
    group, o = divmod(channel, d_out)
    total = Fraction(0) if conv.bias is None else Fraction(float(conv.bias[channel]))
    for tap, read in taps_at(g, x.shape[1:], place):
        row, seen = tap_matrix(conv, tap)[group, :, o], x[(slice(group * d_in, (group + 1) * d_in), *read)]
        total += sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, seen, strict=True)), Fraction(0))
    return total


def taps_at(g: Geometry, grid: Index, place: Sequence[int]) -> Iterator[tuple[Index, Index]]:
    """Every tap that meets an input at the output at ``place``, and which; those that meet a zero are left out."""
    axes = []
    for axis, (n, k, output) in enumerate(zip(grid, g.kernel_size, place, strict=True)):
        reads = input_at(g, axis, n, tap_place(g, axis, np.arange(k), output)).tolist()
        axes.append([(j, read) for j, read in enumerate(reads) if read != ZERO])
    for pairs in product(*axes):
        tap, read = zip(*pairs, strict=True)
        yield tap, read


def tap_matrix(conv: Convolution, tap: Index) -> np.ndarray:
    """The kernel's matrix at a tap, (groups, D_in/groups, D_out/groups), from torch's layout."""
    return conv.matrices[tap] if conv.transposed else np.swapaxes(conv.matrices[tap], 1, 2)
