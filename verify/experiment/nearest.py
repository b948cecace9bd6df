"""The convolution nearest to a linear map, over all kernels up to a given size, dilations, strides and padding modes.

A map A (outputs × inputs, each entry a D × C matrix) is compared with Σ_j S_j ⊗ W_j, where S_j takes the input at s·o + δ_j,
δ_j = start + dilation·j.  Over the interior, where every tap reads a real position, the least-squares W_j is the average of
A[o, s·o + δ_j], whatever the padding; each padding mode then says what the border would be, and is held against it.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from verify.experiment.windows import BETWEEN, MODES, Vector, Window, half_of, windows

MOST_WINDOWS = 32
"""As many windows are compared at most, the likeliest first."""


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


def _best(
    matrix: np.ndarray, grid: Vector, output: Vector, finite: np.ndarray, rounding: float, most: Vector | None
) -> Fit:
    chosen, least = None, np.inf
    for window in islice(windows(matrix, grid, output, finite, rounding, most), MOST_WINDOWS):
        first = fitted(matrix, window, finite, ("zeros",))
        if first.worst["zeros"][0] <= rounding:  # then the border may be exact too, with one of the modes
            fit = fitted(matrix, window, finite)
            if max(fit.worst[fit.best]) > rounding and len(grid) > 1:
                fit = fitted(matrix, window, finite, (*MODES, _mode_by_axis(fit)))
            if max(fit.worst[fit.best]) <= rounding:
                return fit
        left = float(first.left["zeros"].sum())
        if left < least:
            chosen, least = window, left
    assert chosen is not None
    return fitted(matrix, chosen, finite)


def _mode_by_axis(fit: Fit) -> str:
    """The mode that leaves least at the outputs that reach over the border along one axis alone, an axis each."""
    window, modes = fit.window, []
    for axis in range(len(window.grid)):
        over = np.ones((), dtype=bool)
        for other in range(len(window.grid)):
            over = over[..., None] & (window.within(other) != (other == axis))
        left = [float(fit.left[mode][over.reshape(-1)].sum()) for mode in MODES]
        modes.append(MODES[int(np.argmin(left))])
    return BETWEEN.join(modes)


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
