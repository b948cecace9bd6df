"""Is this attention layer a convolution?  Judged by experiment, on inputs that are made up here.

The layer is a black box: no attribute of it is read but how many channels it takes, and its attention where it shows it.
1. f is run on random inputs: does superposition hold?  2. Impulses read its map out.  3. The nearest convolution over all
windows, averaged over the interior.  4. Each padding mode foretells the border.  5. Shifted inputs: shifted outputs?
6. The attention of each head, for inputs of several sizes.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch

from verify.experiment.audit_record import Audit
from verify.experiment.head_maps import look_at
from verify.experiment.nearest import Fit, convolved, nearest, regressed
from verify.experiment.readout import BUDGET, Readout, Subject, read_out
from verify.experiment.windows import MODES, Vector, Window, half_of

INPUT_SIZES = (1.0, 2.0**10, 2.0**20)
"""How large the random inputs are on which the attention of heads is watched: content may show in large ones alone."""


def audit(
    attention: Any,
    grid: tuple[int, ...],
    *,
    in_channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    most_channels: int | None = None,
    probabilities: Callable[[torch.Tensor], torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    budget: int = BUDGET,
) -> Audit:
    """Find out by experiment how far an attention layer is from a convolution, and from which.

    Args:
        attention: any layer or function (B, C, *grid) → (B, D, *output); of a module, a copy is cast to ``dtype`` and put
            into eval mode.  A bare ``nn.MultiheadAttention`` is given the pixels as tokens.
        grid: the spatial size of the inputs.
        in_channels: C; by default what the layer says of itself (``in_channels``, ``embed_dim``).
        kernel_size: the largest kernel that is looked for, in taps, one number or one an axis; by default as large as it
            takes, and where no kernel fits, half the grid.
        most_channels: of how many input channels, and of how many output channels, the map is read at most: a wide layer on a
            large grid has more numbers than memory.  They are drawn at random, and the other inputs are zero; by default all.
        probabilities: the attention for an input, (B or 1, heads, outputs, keys); by default the layer's method
            ``attention_probabilities``, if it has one.
        dtype: float64, or float32.
        seed: of the random inputs.
        budget: bytes that the layer's map may take.

    Returns:
        What was seen.  For an affine layer, every distance is of the map itself and therefore of all inputs of this size;
        for another, over random inputs.

    Raises:
        ValueError: an argument is no such thing, the layer cannot be run, no output is finite, or the map is over the budget.
    """
    subject = Subject(attention, grid, in_channels, dtype)
    most = _sizes(kernel_size, subject.grid)
    random = np.random.default_rng(seed)
    if most_channels is not None:
        if type(most_channels) is not int or most_channels < 1:
            raise ValueError(f"most_channels is a whole number of channels, at least 1, and not {most_channels!r}")
        subject.narrow(most_channels, random)
    subject.weigh()
    found = read_out(subject, random, budget)
    if not found.finite.any():
        raise ValueError("no output of the layer is finite, not even for a zero input")
    if most is None and not found.affine:  # impulses then only say where to look
        most = half_of(subject.grid)
    fit = nearest(found.matrix, subject.grid, subject.output, found.finite, found.rounding, most)
    window, inside, border = fit.window, fit.inside, ~fit.inside & found.finite
    if found.affine:
        kernel, bias = fit.kernel, _mean(found.constant[inside if inside.any() else found.finite])
        left = {mode: tuple(fit.distance(mode, some) for some in (inside, border, found.finite)) for mode in fit.left}
    else:
        kernel, bias, left = _by_regression(subject, found, fit, random, budget)
    spread = float(np.abs(found.constant - bias)[found.finite].max(initial=0.0))
    reads_padding = any(before > 0 or after > 0 for before, after in window.padding)
    modes = _fitting(left, fit, found, bool(inside.any())) if reads_padding else ("none",)
    best = modes[0] if modes and reads_padding else min(left, key=lambda mode: left[mode][2])
    largest = max(float(np.abs(found.constant).max(initial=0.0)), float(np.abs(found.matrix).max(initial=0.0)))
    ranks, effective = _ranks(kernel, found.rounding)
    heads, seen = _heads(subject, window, kernel, probabilities, random)
    return Audit(
        grid=subject.grid,
        output=subject.output,
        channels=(subject.channels, subject.out_channels),
        inputs=tuple(int(c) for c in subject.inputs),
        outputs=tuple(int(d) for d in subject.outputs),
        dtype=str(dtype).removeprefix("torch."),
        rounding=found.rounding,
        superposition=found.superposition,
        equivariance=_equivariance(subject, window, found.finite, random),
        kernel=np.ldexp(kernel, subject.exponent),
        stride=window.stride,
        dilation=window.dilation,
        padding=window.padding,
        padding_modes=modes,
        bias=np.ldexp(bias, subject.exponent),
        bias_variation=float(np.ldexp(spread, subject.exponent)),
        groups=_groups(kernel, found.rounding)
        if kernel.shape[:2] == (subject.out_channels, subject.channels)
        else None,
        interior=left[best][0] if inside.any() else None,
        border=left[best][1] if border.any() else None,
        border_by_mode={mode: left[mode][1] for mode in left} if reads_padding else {},
        distance=left[best][2],
        exact=found.affine and max(fit.worst[best]) <= found.rounding and spread <= found.rounding * largest,
        interior_outputs=int(inside.sum()),
        not_finite=int((~found.finite).sum()),
        tap_ranks=ranks,
        tap_effective_ranks=effective,
        attention_seen=seen,
        heads=heads,
    )


def _sizes(kernel_size: Any, grid: Vector) -> Vector | None:
    if kernel_size is None:
        return None
    sizes = (kernel_size,) * len(grid) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != len(grid) or not all(type(k) is int and k >= 1 for k in sizes):
        raise ValueError(f"kernel_size is a whole number, or one for each of {len(grid)} axes, and not {kernel_size!r}")
    return sizes


def _mean(values: np.ndarray) -> np.ndarray:
    """The average over the first axis; of equal numbers, that very number."""
    return values[0] + (values - values[0]).mean(axis=0)


def _by_regression(
    subject: Subject, found: Readout, fit: Fit, random: np.random.Generator, budget: int
) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[float, ...]]]:
    """Kernel, bias and distances (interior, border, all) of a layer that is not affine, from random inputs.

    They are fitted on some inputs and judged on others.
    """
    window, inside = fit.window, fit.inside
    unknown = window.taps * len(subject.inputs) + 1
    usable = int(inside.sum()) or len(inside)
    samples = max(16, ceil(8 * unknown / usable))
    if 16 * samples * usable * unknown > budget:
        raise ValueError(
            f"fitting {window.taps} taps to {samples} random inputs is over the budget; look for a smaller kernel_size"
        )

    def drawn() -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((samples, len(subject.inputs), *subject.grid))
        y = subject(x)
        return x, np.where(found.finite[:, None], y, 0.0)

    kernel, bias = regressed(window, *drawn())
    x, y = drawn()
    y = y - bias
    left: dict[str, tuple[float, ...]] = {}
    for mode in MODES:
        rest = np.square(y - convolved(window, kernel, x, mode))
        parts = []
        for some in (inside, ~inside & found.finite, found.finite):
            size = float(np.square(y[:, some] - y[:, some].mean(axis=0)).sum())
            parts.append((float(rest[:, some].sum()) / size) ** 0.5 if size else 0.0)
        left[mode] = tuple(parts)
    return kernel, bias, left


def _fitting(left: dict[str, tuple[float, ...]], fit: Fit, found: Readout, has_interior: bool) -> tuple[str, ...]:
    """The padding modes that foretell the border as well as the kernel foretells the interior."""
    if found.affine and max(interior for interior, _ in fit.worst.values()) <= found.rounding:
        return tuple(mode for mode in fit.worst if fit.worst[mode][1] <= found.rounding)
    if not has_interior:
        return ()
    nearest_border = min(border for _, border, _ in left.values())
    return tuple(
        mode
        for mode, (interior, border, _) in left.items()
        if interior < 0.1 and border <= 1.5 * interior and border <= 1.1 * nearest_border
    )


def _equivariance(subject: Subject, window: Window, finite: np.ndarray, random: np.random.Generator) -> float | None:
    """‖f(shifted x)[o] − f(x)[o + 1]‖ / ‖f(x)‖ over neighbouring interior outputs, the worst axis."""
    inside = (window.interior() & finite).reshape(window.output)
    worst = None
    for axis, (n, m, s) in enumerate(zip(window.grid, window.output, window.stride, strict=True)):
        here = inside.take(range(m - 1), axis=axis) & inside.take(range(1, m), axis=axis)
        if not here.any():
            continue
        longer = [k + s * (a == axis) for a, k in enumerate(window.grid)]
        base = random.standard_normal((4, len(subject.inputs), *longer))
        x, moved = (base.take(range(e, e + n), axis=axis + 2) for e in (0, s))
        y, y_moved = (subject(v).reshape(4, *window.output, -1) for v in (x, moved))
        a = y.take(range(1, m), axis=axis + 1)[:, here]
        b = y_moved.take(range(m - 1), axis=axis + 1)[:, here]
        size = float(np.square(a).sum()) ** 0.5
        off = float(np.square(a - b).sum()) ** 0.5
        worst = max(worst or 0.0, off / size if size else float(off > 0))
    return worst


def _heads(
    subject: Subject,
    window: Window,
    kernel: np.ndarray,
    probabilities: Callable[[torch.Tensor], torch.Tensor] | None,
    random: np.random.Generator,
) -> tuple[Any, bool]:
    maps = []
    for size in INPUT_SIZES:
        x = size * random.standard_normal((4, len(subject.inputs), *subject.grid))
        p = subject.probabilities(x, probabilities)
        if p is None:
            return None, False
        if not np.isfinite(p).all():
            if size == 1.0:
                raise ValueError("the attention that the layer shows is not finite")
            continue  # such large inputs overflow; what smaller ones show still counts
        maps.append(p)
    return look_at(maps, window, kernel), True


def _ranks(kernel: np.ndarray, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    """Of every tap: how many singular values are above rounding, and exp of the entropy of their shares."""
    taps = np.moveaxis(kernel.reshape(*kernel.shape[:2], -1), 2, 0)
    values = np.linalg.svd(taps, compute_uv=False)  # (taps, min(D, C))
    floor = rounding * float(values.max(initial=0.0))
    kept = np.where(values > floor, values, 0.0)
    total = kept.sum(axis=1, keepdims=True)
    share = np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1)
    effective = np.where(total[:, 0] > 0, np.exp(entropy), 0.0)
    size = kernel.shape[2:]
    return (kept > 0).sum(axis=1).reshape(size), effective.reshape(size)


def _groups(kernel: np.ndarray, rounding: float) -> int:
    """The most equal blocks of channels outside of which the kernel is zero."""
    d, c = kernel.shape[:2]
    strength = np.abs(kernel).reshape(d, c, prod(kernel.shape[2:])).max(axis=2)
    used = strength > rounding * float(strength.max(initial=0.0))
    for g in range(min(d, c), 1, -1):
        if d % g == 0 and c % g == 0:
            block = np.kron(np.eye(g, dtype=bool), np.ones((d // g, c // g), dtype=bool))
            if not (used & ~block).any():
                return g
    return 1
