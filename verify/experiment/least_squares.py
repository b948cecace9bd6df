"""Least squares fit of a convolution to a linear map, over kernel sizes, dilations, strides and
padding modes.

The map A (outputs × inputs, each entry a D × C matrix) is fitted by Σ_j S_j ⊗ W_j, where S_j reads
the input at s·o + δ_j and δ_j = start + dilation·j.  In the interior, where no tap reads padding,
the least squares W_j is the mean of A[o, s·o + δ_j]. Each padding mode then predicts the border,
with its own residual.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy import ndarray

from verify.experiment.black_box import LinearMap, sizes_by_channel
from verify.experiment.receptive_fields import (
    BETWEEN,
    MODES,
    ReceptiveField,
    Vector,
    candidates,
    half_of,
)
from verify.oracle import greatest


@dataclass(frozen=True)
class Fit:
    """A fitted convolution and its residuals.

    Attributes:
        field: its receptive field.
        kernel: (D, C, *K).
        inside, border: bool (O,), the interior and the other outputs that count.
        size: Σ|A|² for each output, (O,).
        residual: for each padding mode, Σ|A − convolution|² for each output, (O,).
        worst: for each padding mode, the largest |A − convolution| over the channel's largest |A|,
            in interior and border.
    """

    field: ReceptiveField
    kernel: ndarray
    inside: ndarray
    border: ndarray
    size: ndarray
    residual: dict[str, ndarray]
    worst: dict[str, tuple[float, float]]

    def distance(self, mode: str, outputs: ndarray) -> float:
        """√(Σ|A − convolution|² / Σ|A|²) over the given outputs: the relative error for white
        noise.
        """
        size = float(self.size[outputs].sum())
        residual = float(self.residual[mode][outputs].sum())
        if not size:
            return float(residual > 0)
        return (residual / size) ** 0.5

    @property
    def best(self) -> str:
        """The padding mode with the smallest residual."""
        return min(self.residual, key=lambda mode: float(self.residual[mode].sum()))


def nearest_convolution(linear: LinearMap, most: Vector | None) -> Fit:
    """Fit the nearest convolution.

    Args:
        linear: the map; entries up to its ``rounding`` of the largest count as zero in determining
            the kernel's extent.
        most: the largest kernel; None for any size, or half the grid if no kernel fits.

    Returns:
        The best fit; among fits that are exact within rounding, the one with the fewest taps.
    """
    fit = _best(linear, most)
    if most is None and max(fit.worst[fit.best]) > linear.rounding:
        half = half_of(linear.grid)
        if any(k > h for k, h in zip(fit.field.kernel, half, strict=True)):
            fit = _best(linear, half)
    return fit


def _best(linear: LinearMap, most: Vector | None) -> Fit:
    best = None
    least_cost = np.inf
    for field in candidates(linear, most):
        fit = fit_taps(linear, field, ("zeros",))
        # Fitting every padding takes long, so only where the border fits much worse than the
        # interior, or may be exact.
        inside, everywhere = (
            fit.distance("zeros", outputs) for outputs in (fit.inside, linear.finite)
        )
        if 2 * inside**2 < everywhere**2 or fit.worst["zeros"][0] <= linear.rounding:
            fit = fit_taps(linear, field)
            if max(fit.worst[fit.best]) > linear.rounding and len(linear.grid) > 1:
                fit = fit_taps(linear, field, (*MODES, _mode_by_axis(fit)))
            if max(fit.worst[fit.best]) <= linear.rounding:
                return fit
        # Without an interior nothing repeats as it stands, so such a field must fit much better.
        cost = float(fit.residual[fit.best].sum())
        if not fit.inside.any():
            cost *= 100
        if best is None or cost < least_cost:
            best = fit
            least_cost = cost
    assert best is not None
    if len(best.residual) > 1:
        return best
    return fit_taps(linear, best.field)


def _mode_by_axis(fit: Fit) -> str:
    """For each axis, the mode with the least residual at outputs that read padding only along that
    axis; one name if all agree.
    """
    field = fit.field
    axes = range(len(field.grid))
    modes = []
    for axis in axes:
        outside = reduce(
            np.logical_and.outer, [field.within(other) != (other == axis) for other in axes]
        )
        residual = [float(fit.residual[mode][outside.reshape(-1)].sum()) for mode in MODES]
        modes.append(MODES[int(np.argmin(residual))])
    if len(set(modes)) == 1:
        return modes[0]
    return BETWEEN.join(modes)


def fit_taps(linear: LinearMap, field: ReceptiveField, modes: tuple[str, ...] = MODES) -> Fit:
    """Fit the taps of one receptive field: means over the interior, with the residual of each
    padding mode.

    Without interior outputs, a tap is averaged over the outputs at which it reads the grid.
    """
    matrix = linear.matrix
    finite = linear.finite
    inside = field.interior() & finite
    weights = np.zeros((field.taps, *matrix.shape[2:]))
    for tap, source in enumerate(field.sources("zeros")):
        counted = inside
        if not inside.any():
            counted = (source >= 0) & finite
        rows = np.flatnonzero(counted)
        if len(rows):
            blocks = matrix[rows, source[rows]]
            first = blocks[len(rows) // 2]
            weights[tap] = first + (blocks - first).mean(axis=0)  # exact for equal numbers
    size = np.square(matrix).sum(axis=(1, 2, 3)) * finite
    largest = sizes_by_channel(np.moveaxis(matrix[finite], 2, -1), linear.products)
    residual = {}
    worst = {}
    for mode in modes:
        error = matrix.copy()
        for tap, source in enumerate(field.sources(mode)):
            rows = np.flatnonzero(source >= 0)
            error[rows, source[rows]] -= weights[tap]
        error[~finite] = 0
        residual[mode] = np.square(error).sum(axis=(1, 2, 3))
        by_output = (np.abs(error).max(axis=(1, 3), initial=0.0) / largest).max(axis=1, initial=0.0)
        worst[mode] = (greatest(by_output[inside]), greatest(by_output[~inside]))
    kernel = np.moveaxis(weights, 0, -1).reshape(*matrix.shape[2:], *field.kernel)
    return Fit(field, kernel, inside, ~inside & finite, size, residual, worst)


def regression(field: ReceptiveField, x: ndarray, y: ndarray) -> tuple[ndarray, ndarray]:
    """Kernel (D, C, *K) and bias (D,) by linear regression of outputs (B, O, D) on inputs
    (B, C, *grid).

    It uses the interior outputs, or all outputs if there are none.
    """
    interior = field.interior_or_all()
    rows = im2col(field, x, "zeros")[:, interior].reshape(len(x) * int(interior.sum()), -1)
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    # (taps·C + 1, D)
    solution = np.linalg.lstsq(rows, y[:, interior].reshape(len(rows), -1), rcond=None)[0]
    kernel = solution[:-1].reshape(field.taps, x.shape[1], y.shape[2]).transpose(2, 1, 0)
    return kernel.reshape(y.shape[2], x.shape[1], *field.kernel), solution[-1]


def im2col(field: ReceptiveField, x: ndarray, mode: str) -> ndarray:
    """The inputs that each output reads, by tap: (B, O, taps, C)."""
    flat = x.reshape(*x.shape[:2], -1)
    flat = np.concatenate([flat, np.zeros((*flat.shape[:2], 1))], axis=2)  # −1 reads this zero
    return flat[:, :, field.sources(mode)].transpose(0, 3, 2, 1)


def convolved(field: ReceptiveField, kernel: ndarray, x: ndarray, mode: str) -> ndarray:
    """The convolution without bias: (B, C, *grid) → (B, O, D)."""
    taps = kernel.reshape(*kernel.shape[:2], -1)
    return np.einsum("botc,dct->bod", im2col(field, x, mode), taps, optimize=True)
