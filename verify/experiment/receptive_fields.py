"""Receptive fields of a convolution, and candidates for a given linear map, likeliest first.

Padding acts on each axis separately.  Along one axis, a row's energy lies where its taps read, and
all rows inside the grid are equal.  Candidates for which both hold come first.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from itertools import product
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from verify.experiment.black_box import LinearMap
from verify.layers.reading import ZERO, continued
from verify.oracle import Sides, Vector, greatest

MODES = ("zeros", "replicate", "circular", "reflect")
BETWEEN = " × "
"""Joins the padding modes of several axes in one name, as in ``zeros × circular``."""

MOST_CANDIDATES = 32
"""The most receptive fields to fit, likeliest first; and as many again that leave the least energy
unread.
"""


class ReceptiveField(NamedTuple):
    """The inputs that output o reads: s·o + start + dilation·j on each axis, for j = 0 … kernel −
    1.
    """

    start: Vector
    kernel: Vector
    dilation: Vector
    stride: Vector
    grid: Vector
    output: Vector

    def reads(self, axis: int) -> ndarray:
        """The positions read along an axis, on or off the grid: (outputs, taps)."""
        o = np.arange(self.output[axis])[:, None]
        j = np.arange(self.kernel[axis])
        return self.stride[axis] * o + self.start[axis] + self.dilation[axis] * j

    @property
    def taps(self) -> int:
        """The number of taps."""
        return prod(self.kernel)

    @property
    def padding(self) -> Sides:
        """How far it reads before and after the grid, per axis; negative where it stops inside."""
        edges = [(self.reads(axis).min(), self.reads(axis).max()) for axis in range(len(self.grid))]
        return tuple(
            (-int(lo), int(hi) - n + 1) for (lo, hi), n in zip(edges, self.grid, strict=True)
        )

    @property
    def reads_padding(self) -> bool:
        """Whether it reads before or after the grid."""
        return any(before > 0 or after > 0 for before, after in self.padding)

    def interior_or_all(self) -> ndarray:
        """:meth:`interior`, or all outputs if there are none."""
        interior = self.interior()
        return interior | (not interior.any())

    def within(self, axis: int) -> ndarray:
        """Which outputs read no padding along an axis: bool (outputs,)."""
        reads = self.reads(axis)
        return np.asarray(((reads >= 0) & (reads < self.grid[axis])).all(axis=1))

    def interior(self) -> ndarray:
        """Which outputs read no padding at all: bool (O,)."""
        return reduce(np.logical_and.outer, map(self.within, range(len(self.grid)))).reshape(-1)

    def sources(self, mode: str) -> ndarray:
        """The flat input index that each tap reads for each output, −1 for a zero: int (taps, O).

        ``mode`` is one of ``MODES``, or one per axis joined by ``BETWEEN``.
        """
        flat = np.zeros((), dtype=int)
        real = np.ones((), dtype=bool)
        dims = len(self.grid)
        modes = mode.split(BETWEEN)
        if len(modes) == 1:
            modes *= dims
        for axis, (n, own) in enumerate(zip(self.grid, modes, strict=True)):
            read = continued(self.reads(axis), n, own)
            flat = flat[..., None, None] * n + read
            real = real[..., None, None] & (read != ZERO)
        order = (*range(1, 2 * dims, 2), *range(0, 2 * dims, 2))  # taps first, then outputs
        where = np.where(real, flat, -1).transpose(order)
        return where.reshape(self.taps, prod(self.output))


def half_of(grid: Vector) -> Vector:
    """The largest kernel to try if none fits: about half the grid, odd if there is room."""
    return tuple(min(n, (n // 2) | 1) for n in grid)


def candidates(linear: LinearMap, most: Vector | None) -> Iterator[ReceptiveField]:
    """Receptive fields worth fitting, likeliest first; arguments as in
    `verify.experiment.least_squares.nearest_convolution`.

    Fields that may fit exactly come first.  Among these, fewer taps win; then more interior
    outputs, the stride suggested by the sizes, and symmetric padding, because with circular padding
    other amounts give the same function.  Where there are too many, a wide kernel would never get
    its turn, so those that read most of the energy follow: under any padding, then under zeros.
    """
    dims = len(linear.grid)
    energy = np.square(linear.matrix).sum(axis=(2, 3)) * linear.finite[:, None]
    energy = energy.reshape(*linear.output, *linear.grid)
    floor = (linear.rounding * greatest(np.abs(linear.matrix))) ** 2
    axes = []
    for axis, limit in enumerate(most or (None,) * dims):
        others = tuple({*range(2 * dims)} - {axis, axis + dims})
        parts = _parts(energy.sum(axis=others), _strides(linear, axis), floor, limit)
        axes.append(parts)
    ranked = sorted(product(*axes), key=_rank)
    chosen = ranked[:MOST_CANDIDATES]
    for padding in (0, 1):
        chosen += sorted(ranked, key=partial(_left, padding=padding))[: MOST_CANDIDATES // 2]
    yield from dict.fromkeys(map(_joined, chosen))


class _Part(NamedTuple):
    """A receptive field along one axis.

    Attributes:
        field: of that axis alone.
        misfit: whether it cannot fit exactly.
        unread: the share of the energy that it leaves unread under any padding, and under zeros.
    """

    field: ReceptiveField
    misfit: bool
    unread: tuple[float, ...]


def _parts(energy: ndarray, strides: list[int], floor: float, limit: int | None) -> list[_Part]:
    """Receptive fields along an axis with this energy (outputs, inputs); one of about half the grid,
    if nothing repeats under any of them.
    """
    m, n = energy.shape
    usual = _usual_stride(n, m)
    fields = {f for s in (*strides, usual) for f in _axis_candidates(energy, s, floor, limit)}
    fields = [field for field in fields if _repeats(energy, field, floor)]
    if not fields:
        k = min(n, limit or half_of((n,))[0])
        fields = [_along_axis(-(k // 2), k, 1, usual, n, m)]
    return [
        _Part(
            field,
            not _may_fit(energy, field, floor),
            tuple(_unread(energy, field, modes) for modes in (MODES, ("zeros",))),
        )
        for field in fields
    ]


def _joined(parts: tuple[_Part, ...]) -> ReceptiveField:
    """The receptive field with one of these along each axis."""
    fields = (part.field for part in parts)
    return ReceptiveField(*(sum(numbers, ()) for numbers in zip(*fields, strict=True)))


def _rank(parts: tuple[_Part, ...]) -> tuple[float | Vector, ...]:
    """The order of candidates, likeliest first."""
    field = _joined(parts)
    axes = zip(field.stride, field.grid, field.output, strict=True)
    unusual = sum(abs(s - _usual_stride(n, m)) for s, n, m in axes)
    lopsided = sum(abs(before - after) for before, after in field.padding)
    return (
        sum(part.misfit for part in parts),
        field.taps,
        -int(field.interior().sum()),
        unusual,
        field.dilation,
        lopsided,
        field.start,  # this and the next two break ties deterministically
        field.kernel,
        field.stride,
    )


def _left(parts: tuple[_Part, ...], padding: int) -> float:
    """The energy left unread, as in ``_Part.unread``; a little noise makes no difference."""
    return round(sum(part.unread[padding] for part in parts), 2)


def _along_axis(
    start: int, kernel: int, dilation: int, stride: int, n: int, m: int
) -> ReceptiveField:
    """A receptive field along one axis, with n inputs and m outputs."""
    return ReceptiveField((start,), (kernel,), (dilation,), (stride,), (n,), (m,))


def _usual_stride(n: int, m: int) -> int:
    """The stride that maps n inputs to m outputs when the outer outputs read the outer inputs."""
    if m == 1:
        return 1
    return max(1, round((n - 1) / (m - 1)))


def _repeats(energy: ndarray, part: ReceptiveField, floor: float) -> bool:
    """Whether some tap reads the grid at two outputs or more.

    Otherwise nothing repeats: a mirror image would pass for padding, and any map for a sufficiently
    wide kernel.
    """
    m, n = energy.shape
    if m == 1 or not (energy > floor).any():
        return True
    reads = part.reads(0)
    real = (reads >= 0) & (reads < n)
    used = real & (np.take_along_axis(energy, reads.clip(0, n - 1), axis=1) > floor)
    return bool((used.sum(axis=0) >= 2).any())


def _may_fit(energy: ndarray, part: ReceptiveField, floor: float) -> bool:
    """Whether all interior rows have the same energy on the taps and some padding mode explains the
    other rows.
    """
    reads = part.reads(0)
    inside = part.within(0)
    if not inside.any():
        return False
    on_taps = np.take_along_axis(energy[inside], reads[inside], axis=1)
    if (np.abs(on_taps - on_taps[0]) > 1e-6 * on_taps.max() + floor).any():
        return False
    used = energy > floor
    return any(not (used & ~_read(part, mode)).any() for mode in MODES)


def _unread(energy: ndarray, part: ReceptiveField, modes: tuple[str, ...]) -> float:
    """The share of the energy off the taps, with the padding mode that leaves the least."""
    total = float(energy.sum())
    if not total:
        return 0.0
    return min(float(energy[~_read(part, mode)].sum()) for mode in modes) / total


def _read(part: ReceptiveField, mode: str) -> ndarray:
    """Which inputs each output reads along one axis: bool (outputs, inputs)."""
    (n,), (m,) = part.grid, part.output
    read = np.zeros((m, n + 1), dtype=bool)  # the last column stands for zeros
    read[np.arange(m)[:, None], part.sources(mode).T] = True
    return read[:, :n]


def _strides(linear: LinearMap, axis: int) -> list[int]:
    """Strides along an axis, likeliest first: the right s has A[o + 1, i + s] = A[o, i] away from
    the border.
    """
    m = linear.output[axis]
    n = linear.grid[axis]
    if m == 1:
        return [1]  # with a single output every stride gives the same function
    full = linear.matrix.reshape(*linear.output, *linear.grid, *linear.matrix.shape[2:])
    middle = (m - 1) // 2
    row, next_row = (
        np.moveaxis(full.take(middle + e, axis=axis), len(linear.grid) - 1 + axis, 0)
        for e in (0, 1)
    )
    total = float(np.square(row).sum() + np.square(next_row).sum())
    mismatch = []
    for s in range(1, n + 1):
        a = row[: n - s]
        b = next_row[s:]
        matched = float(np.square(a).sum() + np.square(b).sum())
        mismatch.append(float(np.square(a - b).sum()) + total - matched)
    order = sorted(range(n), key=lambda k: (mismatch[k], k))
    if mismatch[order[0]] <= 1e-9 * total:
        order = order[:1]
    return [k + 1 for k in order[:2]]


def _axis_candidates(
    energy: ndarray, stride: int, floor: float, most: int | None
) -> Iterator[ReceptiveField]:
    """Receptive fields along an axis, estimated from each middle output, then from all outputs
    together.
    """
    m, n = energy.shape
    middle = {(m - 1) // 2 + e for e in (-1, 0, 1, 2)} & set(range(m))
    for rows in [*([o] for o in sorted(middle)), list(range(m))]:
        energies: dict[int, float] = defaultdict(float)
        for row, i in np.argwhere(energy[rows] > floor).tolist():
            energies[i - stride * rows[row]] += float(energy[rows[row], i])
        low = min(energies, default=0)
        high = max(energies, default=0)
        step = reduce(gcd, (delta - low for delta in energies), 0) or 1
        taps = (high - low) // step + 1
        if most is None or taps <= most:
            yield _along_axis(low, taps, step, stride, n, m)
        else:
            yield _along_axis(*_strongest(energies, most), stride, n, m)


def _strongest(energies: Mapping[int, float], most: int) -> tuple[int, int, int]:
    """(start, kernel, dilation) of the ``most`` taps with the most energy; on a tie, the least
    dilated.
    """
    low = min(energies)
    high = max(energies)
    choices = [
        (-sum(energies.get(start + step * j, 0.0) for j in range(most)), step, start)
        for step in range(1, max(1, (high - low) // max(most - 1, 1)) + 1)
        for start in range(low, high - step * (most - 1) + 1)
    ]
    _, step, start = min(choices)
    return start, most, step
