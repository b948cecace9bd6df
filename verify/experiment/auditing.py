"""``verify.audit``: fit a convolution to an attention layer as a black box, and report the
residual.

Only the number of channels and, if available, the attention are read from the layer.
1. Superposition on random inputs, from size 1 up to the largest the format holds.  2. The linear
   map, by impulse response.
3. The nearest convolution over all receptive fields, a least squares fit in the interior.  4. The
padding mode, from the residual at the border.  5. Translation equivariance.  6. The attention of
each head, on inputs of several sizes.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from verify.experiment.audit_record import Audit
from verify.experiment.black_box import (
    BUDGET,
    INPUT_SIZES,
    BlackBox,
    LinearMap,
    impulse_response,
    sizes_by_channel,
)
from verify.experiment.head_maps import summarise_heads
from verify.experiment.least_squares import Fit, convolved, nearest_convolution, regression
from verify.experiment.receptive_fields import MODES, ReceptiveField, Vector, half_of
from verify.oracle import greatest, whole_numbers


def audit(
    attention: Any,
    grid: Vector,
    *,
    in_channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    most_channels: int | None = None,
    probabilities: Callable[[Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    budget: int = BUDGET,
) -> Audit:
    """Fit the nearest convolution to an attention layer as a black box, and measure the distance.

    Args:
        attention: any layer or function ``(B, C, *grid)`` → ``(B, D, *output)``; a module is copied,
            cast to ``dtype`` and put into eval mode.  A bare ``nn.MultiheadAttention`` receives the
            pixels as tokens.
        grid: the spatial size of the inputs.
        in_channels: C; by default the layer's own (``in_channels``, ``embed_dim``).
        kernel_size: the largest kernel to try, in taps, one number or one per axis; by default any
            size, or half the grid if no kernel fits.
        most_channels: the most input channels to feed, drawn at random, and the most output
            channels to read, first those that the inputs reach; the other inputs are zero.  The map
            of a wide layer on a large grid does not fit in memory.  By default all.
        probabilities: the attention for an input, (B or 1, heads, outputs, keys); by default the
            layer's method ``attention_probabilities``, if it has one.
        dtype: float64 or float32, for running the layer.
        seed: for the random inputs.
        budget: bytes for the layer's linear map.

    Returns:
        The fit and its residuals.  For an affine layer the distances are those of the map itself,
        so they hold for all inputs of this size; for any other layer they are over random inputs.

    Raises:
        ValueError: an argument is invalid, the layer cannot be run, no output is finite, or the map
            exceeds the budget.

    >>> import construct, torch, verify
    >>> conv = torch.nn.Conv2d(2, 3, kernel_size=3, padding=1)
    >>> audit = verify.audit(construct.conv_to_mhsa(conv), grid=(6, 6))
    >>> audit.is_convolution, audit.kernel_size, audit.padding_mode
    (True, (3, 3), 'zeros')
    """
    black_box = BlackBox(attention, grid, in_channels, dtype, budget, seed)
    most = _sizes(kernel_size, black_box.grid)
    if most_channels is not None:
        channels = whole_numbers([most_channels], 1)
        if channels is None:
            raise ValueError(
                f"most_channels is a whole number of channels, at least 1, and not {most_channels!r}"
            )
        black_box.narrow(channels[0])
    black_box.rescale()
    linear = impulse_response(black_box, budget)
    if not linear.finite.any():
        raise ValueError("no output of the layer is finite, not even for a zero input")
    if most is None and not linear.affine:  # then impulses only suggest the receptive field
        most = half_of(black_box.grid)
    fit = nearest_convolution(linear, most)
    field = fit.field
    if linear.affine:
        kernel, bias, residual = _by_map(linear, fit)
    else:
        kernel, bias, residual = _by_regression(black_box, linear, fit, budget)
    modes, best = _padding_modes(residual, fit, linear)
    interior, border, distance = residual[best]
    deviations = np.abs(linear.constant - bias)[linear.finite]
    ranks, effective = _ranks(kernel, linear.rounding)
    heads, available = _heads(black_box, field, kernel, probabilities)
    return Audit(
        grid=black_box.grid,
        output=black_box.output,
        channels=(black_box.channels, black_box.out_channels),
        inputs=tuple(int(c) for c in black_box.inputs),
        outputs=tuple(int(d) for d in black_box.outputs),
        dtype=str(dtype).removeprefix("torch."),
        rounding=linear.rounding,
        superposition=linear.superposition,
        equivariance=_equivariance(black_box, field, linear.finite),
        kernel=np.ldexp(kernel, black_box.exponent),
        stride=field.stride,
        dilation=field.dilation,
        padding=field.padding,
        padding_modes=modes,
        bias=np.ldexp(bias, black_box.exponent),
        bias_variation=float(np.ldexp(deviations.max(initial=0.0), black_box.exponent)),
        groups=_groups(kernel, linear.rounding, black_box),
        interior=interior if fit.inside.any() else None,
        border=border if fit.border.any() else None,
        border_by_mode={
            mode: distances[1] for mode, distances in residual.items() if field.reads_padding
        },
        distance=distance,
        exact=_is_exact(linear, fit, best, deviations),
        interior_outputs=int(fit.inside.sum()),
        not_finite=int((~linear.finite).sum()),
        tap_ranks=ranks,
        tap_effective_ranks=effective,
        attention_available=available,
        heads=heads,
    )


def _sizes(kernel_size: Any, grid: Vector) -> Vector | None:
    if kernel_size is None:
        return None
    if not isinstance(kernel_size, Sequence):
        kernel_size = [kernel_size] * len(grid)
    sizes = whole_numbers(kernel_size, 1)
    if sizes is None or len(sizes) != len(grid):
        raise ValueError(
            f"kernel_size is a whole number, or one for each of {len(grid)} axes, and not {kernel_size!r}"
        )
    return sizes


Distances = tuple[float, ...]
"""Of interior, border and all outputs; 0 where there are no such outputs."""


def _by_map(linear: LinearMap, fit: Fit) -> tuple[ndarray, ndarray, dict[str, Distances]]:
    """Kernel, bias, and the distances with each padding mode, of an affine layer."""
    outputs = (fit.inside, fit.border, linear.finite)
    residual = {
        mode: tuple(fit.distance(mode, chosen) for chosen in outputs) for mode in fit.residual
    }
    counted = linear.constant[fit.inside if fit.inside.any() else linear.finite]
    bias = counted[0] + (counted - counted[0]).mean(axis=0)  # exact for equal numbers
    return fit.kernel, bias, residual


def _padding_modes(
    residual: dict[str, Distances], fit: Fit, linear: LinearMap
) -> tuple[tuple[str, ...], str]:
    """The padding modes that fit, and the one that fits best."""
    best = min(residual, key=lambda mode: residual[mode][2])
    if not fit.field.reads_padding:
        return ("none",), best
    if linear.affine and max(interior for interior, _ in fit.worst.values()) <= linear.rounding:
        modes = [mode for mode in fit.worst if fit.worst[mode][1] <= linear.rounding]
    else:  # those that predict the border as well as the kernel predicts the interior
        nearest = 1.1 * min(border for _, border, _ in residual.values())
        modes = [
            mode
            for mode, (interior, border, _) in residual.items()
            if fit.inside.any() and interior < 0.1 and border <= min(1.5 * interior, nearest)
        ]
    return tuple(modes), (*modes, best)[0]


def _is_exact(linear: LinearMap, fit: Fit, mode: str, deviations: ndarray) -> bool:
    """Whether kernel, padding and bias all agree within rounding."""
    sizes = np.maximum(
        sizes_by_channel(linear.constant, linear.products),
        sizes_by_channel(np.moveaxis(linear.matrix, 2, -1), linear.products),
    )
    within = bool((deviations <= linear.rounding * sizes).all())
    return within and linear.affine and max(fit.worst[mode]) <= linear.rounding


def _by_regression(
    black_box: BlackBox, linear: LinearMap, fit: Fit, budget: int
) -> tuple[ndarray, ndarray, dict[str, Distances]]:
    """Kernel, bias and distances (interior, border, all) of a non-affine layer, from random inputs.

    The fit and the distances use different inputs.
    """
    field = fit.field
    inside = fit.inside
    unknown = field.taps * len(black_box.inputs) + 1
    usable = int(inside.sum()) or len(inside)
    samples = max(16, ceil(8 * unknown / usable))
    if 16 * samples * usable * unknown > budget:
        raise ValueError(
            f"fitting {field.taps} taps to {samples} random inputs is over the budget; look for a smaller kernel_size"
        )

    def draw() -> tuple[ndarray, ndarray]:
        x = black_box.noise(samples)
        y = black_box(x)
        return x, np.where(linear.finite[:, None], y, 0.0)

    kernel, bias = regression(field, *draw())
    x, y = draw()
    y = y - bias
    residual: dict[str, Distances] = {}
    for mode in MODES:
        squares = np.square(y - convolved(field, kernel, x, mode))
        parts = []
        for outputs in (inside, fit.border, linear.finite):
            size = float(np.square(y[:, outputs] - y[:, outputs].mean(axis=0)).sum())
            left = float(squares[:, outputs].sum())
            parts.append((left / size) ** 0.5 if size else 0.0)
        residual[mode] = tuple(parts)
    return kernel, bias, residual


def _equivariance(black_box: BlackBox, field: ReceptiveField, finite: ndarray) -> float | None:
    """The largest ‖f(shifted x)[o] − f(x)[o + 1]‖ / ‖f(x)‖ of any axis, over neighbouring interior
    outputs.
    """
    inside = (field.interior() & finite).reshape(field.output)
    worst = None
    for axis, (n, m, s) in enumerate(zip(field.grid, field.output, field.stride, strict=True)):
        here = inside.take(range(m - 1), axis=axis) & inside.take(range(1, m), axis=axis)
        if not here.any():
            continue
        longer = [k + s * (a == axis) for a, k in enumerate(field.grid)]
        base = black_box.random.standard_normal((4, len(black_box.inputs), *longer))
        x, moved = (base.take(range(e, e + n), axis=axis + 2) for e in (0, s))
        y, y_moved = (black_box(v).reshape(4, *field.output, -1) for v in (x, moved))
        a = y.take(range(1, m), axis=axis + 1)[:, here]
        b = y_moved.take(range(m - 1), axis=axis + 1)[:, here]
        size = float(np.square(a).sum()) ** 0.5
        off = float(np.square(a - b).sum()) ** 0.5
        worst = max(worst or 0.0, off / size if size else float(off > 0))
    return worst


def _heads(
    black_box: BlackBox,
    field: ReceptiveField,
    kernel: ndarray,
    probabilities: Callable[[Tensor], Tensor] | None,
) -> tuple[Any, bool]:
    maps = []
    for size in INPUT_SIZES:
        x = size * black_box.noise(4)
        p = black_box.probabilities(x, probabilities)
        if p is None:
            return None, False
        if not np.isfinite(p).all():
            if size == 1.0:
                raise ValueError("the attention that the layer shows is not finite")
            continue  # such large inputs overflow; smaller ones still count
        maps.append(p)
    return summarise_heads(maps, field, kernel), True


def _ranks(kernel: ndarray, rounding: float) -> tuple[ndarray, ndarray]:
    """For each tap, the number of singular values above rounding, and exp of the entropy of the
    normalised ones.
    """
    taps = np.moveaxis(kernel.reshape(*kernel.shape[:2], -1), 2, 0)
    values = np.linalg.svd(taps, compute_uv=False)  # (taps, min(D, C))
    floor = rounding * greatest(values)
    kept = np.where(values > floor, values, 0.0)
    total = kept.sum(axis=1, keepdims=True)
    share = np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1)
    effective = np.where(total[:, 0] > 0, np.exp(entropy), 0.0)
    size = kernel.shape[2:]
    return (kept > 0).sum(axis=1).reshape(size), effective.reshape(size)


def _groups(kernel: ndarray, rounding: float, black_box: BlackBox) -> int | None:
    """The largest number of equal channel blocks outside which the kernel is zero; None if not all
    channels were read.
    """
    d, c = kernel.shape[:2]
    if (d, c) != (black_box.out_channels, black_box.channels):
        return None
    strength = np.abs(kernel).reshape(d, c, prod(kernel.shape[2:])).max(axis=2)
    used = strength > rounding * greatest(strength)
    for g in range(min(d, c), 1, -1):
        if d % g == 0 and c % g == 0:
            block = np.kron(np.eye(g, dtype=bool), np.ones((d // g, c // g), dtype=bool))
            if not (used & ~block).any():
                return g
    return 1
