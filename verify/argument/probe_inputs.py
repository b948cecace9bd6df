"""Adversarial inputs for the runs of a certificate: rounding errors align or stand out; and the grids of these runs."""

from itertools import product
from typing import Any

import numpy as np

from verify.layers.fields import Attention, Geometry
from verify.layers.reading import GridRefused, output_size, token_count
from verify.oracle import Convolution

CHEAP = 2**24
"""Multiplications that a run on the whole grid may cost."""
HEAVY = 2**16
"""Weights from which on a layer is run on fewer inputs, of one size: each of them adds up that many terms already."""
UNEVEN = 1 - 2.0**-9 - 2.0**-12
"""Rounded to bfloat16, float16 or TF32 it moves, by 2^−12 and more: where signs align, so do these errors, beyond the bound."""


def probe_grids(g: Geometry, grid: tuple[int, ...], attention: Attention) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two legal grids no larger than ``grid``: the small one of :func:`probe_grid`, and one on which other outputs exist.

    That is ``grid`` itself if it is small enough, else a little more than the small one: with a stride, inputs at the far end
    may then be left over, or fewer of them.

    Args:
        g: the convolution's geometry.
        grid: the grid of the claim.
        attention: the attention layer's fields, whose sizes say what a run costs.
    """
    small = probe_grid(g, grid)
    longer = tuple(min(n + 1, most) for n, most in zip(small, grid, strict=True))
    tokens, (heads, groups, _, head_dim) = token_count(g, grid), attention.w_val.shape
    cost = tokens**2 * heads * groups * head_dim + tokens * (attention.w_val.size + attention.w_out.size)
    return small, grid if cost <= CHEAP else longer


def probe_grid(g: Geometry, grid: tuple[int, ...]) -> tuple[int, ...]:
    """A small legal grid, no larger than ``grid``, on which every tap that can see an input does."""
    small = []
    for n, k, dil, s, (before, after) in zip(grid, g.kernel_size, g.dilation, g.stride, g.pads, strict=True):
        least = 3 + -(-2 * before // s) if g.transposed else max(dil * (k - 1) + 1 + s, before + 1, after + 1)
        small.append(min(n, least))
    try:
        output_size(g, tuple(small))
    except GridRefused:
        return grid
    return tuple(small)


def adversarial_inputs(conv: Convolution, grid: tuple[int, ...], bound: float, seed: int = 0) -> np.ndarray:
    """Inputs with |x| ≤ bound on which rounding errors align or stand out: float64 (N, D_in, *grid).

    Signs that follow the kernel of the heaviest channels at different places (of a heavy layer, of one), random signs (but of
    light layers alone), random magnitudes, magnitudes spread over many powers of two, and nearly cancelling neighbours.
    """
    rng = np.random.default_rng(seed)
    shape = (conv.in_channels, *grid)
    inputs: list[Any] = [
        bound * UNEVEN * sign_pattern(conv, channel, grid)
        for channel in heaviest_channels(conv, 3 if conv.weight.size < HEAVY else 1)
    ]
    inputs += random_inputs(shape, bound, rng)[0 if conv.weight.size < HEAVY else 1 :]
    inputs.append(bound * rng.choice([-1.0, 1.0], shape) * 2.0 ** -rng.integers(0, 60, shape))
    inputs.append(
        bound * (1 - rng.integers(0, 2, shape) * 2.0**-20) * np.where(np.indices(shape).sum(axis=0) % 2, 1, -1)
    )
    return np.stack(inputs)


def random_inputs(shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Random signs, and random magnitudes."""
    return [bound * rng.choice([-1.0, 1.0], shape), bound * rng.uniform(-1, 1, shape)]


def impulses(conv: Convolution, grid: tuple[int, ...], bound: float, seed: int = 0) -> np.ndarray:
    """Inputs with one position that is not zero, ±bound in all channels: float64 (N, D_in, *grid); of light layers, zero too.

    Most outputs then meet one tap or none, so that little rounding is allowed for, and a head or a bias that some execution
    leaves out shows also in half precision.
    """
    rng = np.random.default_rng(seed)
    d_in = conv.in_channels
    places = [tuple(n // 2 for n in grid), tuple(n - 1 for n in grid)]
    if conv.weight.size < HEAVY:
        # With a stride, each place meets some of the taps only; and the first is where a border may be wrong.
        steps = product(*((0, 1) if s > 1 else (0,) for s in conv.stride))
        places += [tuple(min(n // 2 + step, n - 1) for n, step in zip(grid, ahead, strict=True)) for ahead in steps]
        places.append(tuple(0 for _ in grid))
    places = list(dict.fromkeys(places))
    inputs = np.zeros((len(places), d_in, *grid))
    for x, place in zip(inputs, places, strict=True):
        x[(slice(None), *place)] = bound * rng.choice([-1.0, 1.0], d_in)
    return np.concatenate([np.zeros((1, d_in, *grid)), inputs]) if conv.weight.size < HEAVY else inputs


def heaviest_channels(conv: Convolution, count: int) -> list[int]:
    """The output channels with the greatest Σ|W|."""
    return [int(c) for c in np.argsort(conv.sizes)[::-1][:count]]


def sign_pattern(conv: Convolution, channel: int, grid: tuple[int, ...]) -> np.ndarray:
    """±1 such that the output of ``channel`` in the middle of its grid adds up |W|: (D_in, *grid)."""
    kernel, inputs = _channel_kernel(conv, channel)
    x = np.ones((conv.in_channels, *grid))
    reads = [_middle_reads(conv, axis, n) for axis, n in enumerate(grid)]
    for tap in product(*map(range, conv.kernel_size)):
        place = [read[j] for j, read in zip(tap, reads, strict=True)]
        if None not in place:
            x[(inputs, *place)] = np.where(kernel[(..., *tap)] < 0, -1.0, 1.0)
    return x


def _middle_reads(conv: Convolution, axis: int, n: int) -> list[int | None]:
    """The input that each tap of an axis reads for the output in its middle; None for none, or for padding."""
    k, dil, s = conv.kernel_size[axis], conv.dilation[axis], conv.stride[axis]
    if conv.transposed:
        assert not isinstance(conv.padding, str)
        p, extra = conv.padding[axis], conv.output_padding[axis]
        middle = ((n - 1) * s - 2 * p + dil * (k - 1) + extra + 1) // 2
        whole = [divmod(middle + p - dil * j, s) for j in range(k)]
        places = [i if rest == 0 else -1 for i, rest in whole]
    else:
        before, after = conv.pads()[axis]
        middle = ((n + before + after - dil * (k - 1) - 1) // s + 1) // 2
        places = [s * middle - before + dil * j for j in range(k)]
    return [i if 0 <= i < n else None for i in places]


def _channel_kernel(conv: Convolution, channel: int) -> tuple[np.ndarray, slice]:
    """The kernel of one output channel, (D_in/groups, *K), and the input channels that it reads."""
    d_in, d_out = conv.contraction, len(conv.sizes) // conv.groups
    group, o = divmod(channel, d_out)
    inputs = slice(group * d_in, (group + 1) * d_in)
    return conv.weight[inputs, o] if conv.transposed else conv.weight[channel], inputs
