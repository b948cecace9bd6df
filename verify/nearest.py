"""The convolution nearest to a linear map, over all kernels up to a given size, dilations, strides and padding modes.

A map A (outputs × inputs, each entry a D × C matrix) is compared with Σ_j S_j ⊗ W_j, where S_j takes the input at s·o + δ_j,
δ_j = start + dilation·j.  Over the interior, where every tap reads a real position, the least-squares W_j is the average of
A[o, s·o + δ_j], whatever the padding; each padding mode then says what the border would be, and is held against it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice, product
from math import gcd, prod

import numpy as np

MODES = ("zeros", "replicate", "circular", "reflect")
MOST_WINDOWS = 32
"""As many windows are compared at most, those of fewest taps first."""

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

    def interior(self) -> np.ndarray:
        """Which outputs read real positions only: bool (O,)."""
        mask = np.ones((), dtype=bool)
        for axis, n in enumerate(self.grid):
            inside = ((self.reads(axis) >= 0) & (self.reads(axis) < n)).all(axis=1)
            mask = mask[..., None] & inside
        return mask.reshape(-1)

    def sources(self, mode: str) -> np.ndarray:
        """Which input every tap of every output reads, −1 for a zero: int (taps, O)."""
        flat, real = np.zeros((), dtype=int), np.ones((), dtype=bool)
        for axis, n in enumerate(self.grid):
            place = self.reads(axis)
            folded = _folded(place, n, mode)
            flat = flat[..., None, None] * n + folded
            real = real[..., None, None] & ((place >= 0) & (place < n) if mode == "zeros" else True)
        dims = len(self.grid)
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


@dataclass(frozen=True)
class Fit:
    """A kernel, and how far the map is from it.

    Attributes:
        window: where its taps are.
        kernel: (D, C, *K).
        inside: bool (O,), the interior among the outputs that count.
        size: Σ|A|² by output, (O,).
        left: Σ|A − convolution|² by output, (O,), by padding mode.
        worst: the greatest |A − convolution| over the largest |A|, interior and border, by padding mode.
    """

    window: Window
    kernel: np.ndarray
    inside: np.ndarray
    size: np.ndarray
    left: dict[str, np.ndarray]
    worst: dict[str, tuple[float, float]]

    def distance(self, mode: str, outputs: np.ndarray) -> float:
        """√(Σ|A − convolution|² / Σ|A|²) over some outputs: for white noise, the error's size over the output's."""
        size, left = float(self.size[outputs].sum()), float(self.left[mode][outputs].sum())
        return (left / size) ** 0.5 if size else float(left > 0)

    @property
    def best(self) -> str:
        """The mode that leaves least."""
        return min(self.left, key=lambda mode: float(self.left[mode].sum()))


def nearest(
    matrix: np.ndarray, grid: Vector, output: Vector, finite: np.ndarray, rounding: float, most: Vector | None
) -> Fit:
    """The nearest convolution.

    Args:
        matrix: A, (O, T, D, C).
        grid: the input's spatial size.
        output: the output's.
        finite: bool (O,), which outputs count.
        rounding: what is no more than this share of the largest entry counts as zero where a kernel's extent is decided.
        most: the largest kernel; None for as large as it takes, but where no kernel fits, half the grid.

    Returns:
        The best fit; among those that are exact within rounding the one of fewest taps.
    """
    fit = _best(matrix, grid, output, finite, rounding, most)
    if most is None and max(fit.worst[fit.best]) > rounding:
        half = half_of(grid)
        if any(k > h for k, h in zip(fit.window.kernel, half, strict=True)):
            fit = _best(matrix, grid, output, finite, rounding, half)
    return fit


def half_of(grid: Vector) -> Vector:
    """The largest kernel that is looked for where none fits: about half the grid, odd where there is room."""
    return tuple(min(n, (n // 2) | 1) for n in grid)


def _best(
    matrix: np.ndarray, grid: Vector, output: Vector, finite: np.ndarray, rounding: float, most: Vector | None
) -> Fit:
    chosen, least = None, np.inf
    for window in islice(_windows(matrix, grid, output, finite, rounding, most), MOST_WINDOWS):
        first = fitted(matrix, window, finite, ("zeros",))
        if first.worst["zeros"][0] <= rounding:  # then the border may be exact too, with one of the modes
            fit = fitted(matrix, window, finite)
            if max(fit.worst[fit.best]) <= rounding:
                return fit
        left = float(first.left["zeros"].sum())
        if left < least:
            chosen, least = window, left
    assert chosen is not None
    return fitted(matrix, chosen, finite)


def _windows(
    matrix: np.ndarray, grid: Vector, output: Vector, finite: np.ndarray, rounding: float, most: Vector | None
) -> Iterator[Window]:
    """Windows worth trying: fewest taps first, and of these the most interior, for around a circle others are the same."""
    energy = (np.square(matrix) * finite[:, None, None, None]).sum(axis=(2, 3)).reshape(*output, *grid)
    floor = (rounding * float(np.abs(matrix).max(initial=0.0))) ** 2
    axes = []
    for axis, (n, m) in enumerate(zip(grid, output, strict=True)):
        others = tuple(a for a in range(2 * len(grid)) if a not in (axis, axis + len(grid)))
        flat = energy.sum(axis=others)  # (m, n)
        strides = _strides(matrix, grid, output, axis)
        axes.append(
            sorted(
                {spot for s in strides for spot in _spots(flat, n, m, s, floor, None if most is None else most[axis])}
            )
        )
    made = [
        Window(*(tuple(x) for x in zip(*[spot[1:] for spot in spots], strict=True)), grid, output)  # type: ignore[arg-type]
        for spots in product(*axes)
    ]
    yield from sorted(made, key=lambda window: (window.taps, -int(window.interior().sum()), window.dilation))


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


def _spots(
    energy: np.ndarray, n: int, m: int, stride: int, floor: float, most: int | None
) -> Iterator[tuple[int, int, int, int, int]]:
    """(taps, start, kernel, dilation, stride) along an axis: what the middle outputs read, and what all of them do."""
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
            yield taps, low, taps, step, stride
        else:
            yield most, *_strongest(seen, most), stride


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


def fitted(matrix: np.ndarray, window: Window, finite: np.ndarray, modes: tuple[str, ...] = MODES) -> Fit:
    """The kernel of a window, averaged over the interior, and what each padding mode leaves.

    Where no output is interior, a tap is averaged over the outputs at which it reads a real position.
    """
    inside = window.interior() & finite
    plain = window.sources("zeros")
    weights = np.zeros((window.taps, *matrix.shape[2:]))
    for tap, source in enumerate(plain):
        rows = np.flatnonzero(inside if inside.any() else (source >= 0) & finite)
        if len(rows):
            seen = matrix[rows, source[rows]]
            first = seen[len(rows) // 2]
            weights[tap] = first + (seen - first).mean(axis=0)  # equal numbers have that very average
    size = np.square(matrix).sum(axis=(1, 2, 3)) * finite
    largest = float(np.abs(matrix[finite]).max(initial=0.0)) or 1.0
    left, worst = {}, {}
    for mode in modes:
        rest = matrix.copy()
        for tap, source in enumerate(plain if mode == "zeros" else window.sources(mode)):
            rows = np.flatnonzero(source >= 0)
            rest[rows, source[rows]] -= weights[tap]
        rest[~finite] = 0
        left[mode] = np.square(rest).sum(axis=(1, 2, 3))
        by_output = np.abs(rest).max(axis=(1, 2, 3), initial=0.0) / largest
        worst[mode] = (float(by_output[inside].max(initial=0.0)), float(by_output[~inside].max(initial=0.0)))
    kernel = np.moveaxis(weights, 0, -1).reshape(*matrix.shape[2:], *window.kernel)
    return Fit(window, kernel, inside, size, left, worst)


def regressed(window: Window, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The kernel and bias that tell outputs from inputs best, over the interior (over all outputs where there is none).

    Args:
        window: where the taps are.
        x: inputs (B, C, *grid).
        y: outputs (B, O, D).

    Returns:
        The kernel (D, C, *K) and the bias (D,).
    """
    seen = window.interior() if window.interior().any() else np.ones(y.shape[1], dtype=bool)
    rows = gathered(window, x, "zeros")[:, seen].reshape(len(x) * int(seen.sum()), -1)
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    solution = np.linalg.lstsq(rows, y[:, seen].reshape(len(rows), -1), rcond=None)[0]  # (taps·C + 1, D)
    kernel = solution[:-1].reshape(window.taps, x.shape[1], y.shape[2]).transpose(2, 1, 0)
    return kernel.reshape(y.shape[2], x.shape[1], *window.kernel), solution[-1]


def gathered(window: Window, x: np.ndarray, mode: str) -> np.ndarray:
    """What every output reads, tap by tap: (B, O, taps, C)."""
    flat = x.reshape(*x.shape[:2], -1)
    flat = np.concatenate([flat, np.zeros((*flat.shape[:2], 1))], axis=2)  # −1 reads this zero
    return flat[:, :, window.sources(mode)].transpose(0, 3, 2, 1)


def convolved(window: Window, kernel: np.ndarray, x: np.ndarray, mode: str) -> np.ndarray:
    """The convolution itself, without a bias: (B, C, *grid) → (B, O, D)."""
    taps = kernel.reshape(*kernel.shape[:2], -1)
    return np.einsum("botc,dct->bod", gathered(window, x, mode), taps, optimize=True)
