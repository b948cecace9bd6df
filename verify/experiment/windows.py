"""Which inputs the outputs of a convolution read, and which such windows a linear map may have.

Padding acts on each axis by itself.  So along an axis, the energy of every row, summed over everything else, lies where its taps
read, and rows that read real positions only are all alike: candidates of which this is true come first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import gcd, prod
from typing import NamedTuple

import numpy as np

MODES = ("zeros", "replicate", "circular", "reflect")
BETWEEN = " × "
"""Between the modes of several axes, where each has its own."""

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Which inputs an output o may read: s·o + start + dilation·j, j = 0 … kernel − 1, an axis each."""

    start: Vector
    kernel: Vector
    dilation: Vector
    stride: Vector
    grid: Vector
    output: Vector

    def reads(self, axis: int) -> np.ndarray:
        """Positions that are read along an axis, on the grid or off it: (outputs, taps)."""
        o, j = np.arange(self.output[axis])[:, None], np.arange(self.kernel[axis])
        return self.stride[axis] * o + self.start[axis] + self.dilation[axis] * j

    @property
    def taps(self) -> int:
        """How many."""
        return prod(self.kernel)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """How far it reads before and after the grid, an axis each; negative where it stays within."""
        edges = [(self.reads(axis).min(), self.reads(axis).max()) for axis in range(len(self.grid))]
        return tuple((-int(lo), int(hi) - n + 1) for (lo, hi), n in zip(edges, self.grid, strict=True))

    def within(self, axis: int) -> np.ndarray:
        """Which outputs along an axis read real positions only: bool (outputs,)."""
        reads = self.reads(axis)
        return np.asarray(((reads >= 0) & (reads < self.grid[axis])).all(axis=1))

    def interior(self) -> np.ndarray:
        """Which outputs read real positions only, along every axis: bool (O,)."""
        mask = np.ones((), dtype=bool)
        for axis in range(len(self.grid)):
            mask = mask[..., None] & self.within(axis)
        return mask.reshape(-1)

    def sources(self, mode: str) -> np.ndarray:
        """Which input every tap of every output reads, −1 for a zero: int (taps, O).

        Args:
            mode: of the padding, one of ``MODES``, or one for each axis with ``BETWEEN`` between them.
        """
        flat, real, dims = np.zeros((), dtype=int), np.ones((), dtype=bool), len(self.grid)
        modes = mode.split(BETWEEN) if BETWEEN in mode else [mode] * dims
        for axis, (n, own) in enumerate(zip(self.grid, modes, strict=True)):
            place = self.reads(axis)
            folded = _folded(place, n, own)
            flat = flat[..., None, None] * n + folded
            real = real[..., None, None] & ((place >= 0) & (place < n) if own == "zeros" else True)
        order = (*range(1, 2 * dims, 2), *range(0, 2 * dims, 2))  # taps first, then outputs
        where = np.where(real, flat, -1).transpose(order)
        return where.reshape(self.taps, prod(self.output))


def _folded(place: np.ndarray, n: int, mode: str) -> np.ndarray:
    if mode == "circular":
        return place % n
    if mode == "reflect" and n > 1:
        folded = place % (2 * n - 2)
        return np.where(folded < n, folded, 2 * n - 2 - folded)
    return place.clip(0, n - 1)


class _Spot(NamedTuple):
    """A window along one axis."""

    start: int
    kernel: int
    dilation: int
    stride: int


def half_of(grid: Vector) -> Vector:
    """The largest kernel that is looked for where none fits: about half the grid, odd where there is room."""
    return tuple(min(n, (n // 2) | 1) for n in grid)


def windows(
    matrix: np.ndarray, grid: Vector, output: Vector, finite: np.ndarray, rounding: float, most: Vector | None
) -> Iterator[Window]:
    """Windows worth trying, likeliest first; the arguments are those of :func:`verify.experiment.nearest.nearest`.

    Those come first that the map may have exactly; of these, fewest taps; then the most interior, the stride that the sizes
    suggest, and as much padding before as after, for around a circle others are the same.
    """
    energy = (np.square(matrix) * finite[:, None, None, None]).sum(axis=(2, 3)).reshape(*output, *grid)
    floor = (rounding * float(np.abs(matrix).max(initial=0.0))) ** 2
    halves, dims = half_of(grid), len(grid)
    axes, odd = [], []
    for axis, (n, m) in enumerate(zip(grid, output, strict=True)):
        others = tuple(a for a in range(2 * dims) if a not in (axis, axis + dims))
        flat = energy.sum(axis=others)  # (m, n)
        largest = None if most is None else most[axis]
        usual = _usual_stride(n, m)
        strides = dict.fromkeys([*_strides(matrix, grid, output, axis), usual])
        spots = {spot for s in strides for spot in _spots(flat, n, m, s, floor, largest)}
        seen = [spot for spot in spots if _seen_twice(flat, spot, floor)]
        k = halves[axis] if largest is None else min(largest, n)
        axes.append(seen or [_Spot(-(k // 2), k, 1, usual)])
        odd.append({spot: not _may_fit(flat, spot, floor) for spot in axes[-1]})

    def rank(spots: tuple[_Spot, ...]) -> tuple[int | Vector, ...]:
        window = _window(spots, grid, output)
        unusual = sum(abs(spot.stride - _usual_stride(n, m)) for spot, n, m in zip(spots, grid, output, strict=True))
        lopsided = sum(abs(before - after) for before, after in window.padding)
        misfits = sum(own[spot] for own, spot in zip(odd, spots, strict=True))
        return misfits, window.taps, -int(window.interior().sum()), unusual, window.dilation, lopsided, window.start

    for spots in sorted(product(*axes), key=rank):
        yield _window(spots, grid, output)


def _window(spots: tuple[_Spot, ...], grid: Vector, output: Vector) -> Window:
    start, kernel, dilation, stride = zip(*spots, strict=True)
    return Window(start, kernel, dilation, stride, grid, output)


def _along(spot: _Spot, n: int, m: int) -> Window:
    """The window of an axis alone."""
    return _window((spot,), (n,), (m,))


def _usual_stride(n: int, m: int) -> int:
    """The stride that makes m outputs of n inputs if the first and the last are read at the edges."""
    return max(1, round((n - 1) / (m - 1))) if m > 1 else 1


def _seen_twice(energy: np.ndarray, spot: _Spot, floor: float) -> bool:
    """Whether some tap reads real positions at two outputs or more.  If none does, nothing is seen to repeat itself: a
    mirror image would pass for a padding, and any map for a kernel that is wide enough.
    """
    m, n = energy.shape
    if m == 1 or not (energy > floor).any():
        return True
    reads = _along(spot, n, m).reads(0)
    real = (reads >= 0) & (reads < n)
    used = real & (np.take_along_axis(energy, reads.clip(0, n - 1), axis=1) > floor)
    return bool((used.sum(axis=0) >= 2).any())


def _may_fit(energy: np.ndarray, spot: _Spot, floor: float) -> bool:
    """Whether rows that read real positions only have the energy of the taps, all alike, and some padding explains the others."""
    m, n = energy.shape
    window = _along(spot, n, m)
    reads, inside = window.reads(0), window.within(0)
    if not inside.any():
        return False
    on_taps = np.take_along_axis(energy[inside], reads[inside], axis=1)
    if (np.abs(on_taps - on_taps[0]) > 1e-6 * on_taps.max() + floor).any():
        return False
    used, rows = energy > floor, np.arange(m)[:, None]
    for mode in MODES:
        read = np.zeros((m, n + 1), dtype=bool)  # the last column for zeros
        read[rows, window.sources(mode).T] = True
        if not (used & ~read[:, :n]).any():
            return True
    return False


def _strides(matrix: np.ndarray, grid: Vector, output: Vector, axis: int) -> list[int]:
    """Strides along an axis, likeliest first: with the right one, A[o + 1, i + s] = A[o, i] away from the border."""
    m, n = output[axis], grid[axis]
    if m == 1:
        return [1]  # of a single output, every stride is the same function
    full = matrix.reshape(*output, *grid, *matrix.shape[2:])
    middle = (m - 1) // 2
    here, there = (np.moveaxis(full.take(middle + e, axis=axis), len(grid) - 1 + axis, 0) for e in (0, 1))
    total = float(np.square(here).sum() + np.square(there).sum())
    wrong = []
    for s in range(1, n + 1):
        a, b = here[: n - s], there[s:]
        matched = float(np.square(a).sum() + np.square(b).sum())
        wrong.append(float(np.square(a - b).sum()) + total - matched)
    order = sorted(range(n), key=lambda k: (wrong[k], k))
    return [order[0] + 1] if wrong[order[0]] <= 1e-9 * total else [k + 1 for k in order[:2]]


def _spots(energy: np.ndarray, n: int, m: int, stride: int, floor: float, most: int | None) -> Iterator[_Spot]:
    """Windows along an axis: what the middle outputs read, and what all of them do."""
    middle = {(m - 1) // 2 + e for e in (-1, 0, 1, 2)} & set(range(m))
    for rows in [*([o] for o in sorted(middle)), list(range(m))]:
        seen: dict[int, float] = {}
        for o in rows:
            for i in range(n):
                if energy[o, i] > floor:
                    seen[i - stride * o] = seen.get(i - stride * o, 0.0) + float(energy[o, i])
        if not seen:
            seen = {0: 0.0}
        low, high = min(seen), max(seen)
        step = reduce(gcd, (delta - low for delta in seen), 0) or 1
        taps = (high - low) // step + 1
        if most is None or taps <= most:
            yield _Spot(low, taps, step, stride)
        else:
            start, kernel, dilation = _strongest(seen, most)
            yield _Spot(start, kernel, dilation, stride)


def _strongest(seen: dict[int, float], most: int) -> tuple[int, int, int]:
    """(start, kernel, dilation) of ``most`` taps that hold the most energy; the least dilated of equals."""
    low, high = min(seen), max(seen)
    choices = [
        (-sum(seen.get(start + step * j, 0.0) for j in range(most)), step, start)
        for step in range(1, max(1, (high - low) // max(most - 1, 1)) + 1)
        for start in range(low, high - step * (most - 1) + 1)
    ]
    _, step, start = min(choices)
    return start, most, step
