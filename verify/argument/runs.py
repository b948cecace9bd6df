"""Step 6 of a certificate: runs every execution of the layer against the convolution, on inputs
that align rounding errors.

A certificate is about Eq. 3; that a given execution computes Eq. 3 is an assumption, which these
runs test.
"""

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from construct.attention import EXECUTIONS, MHSA, smaller_blocks
from verify.argument.steps import Argument, Step
from verify.layers.fields import Attention
from verify.layers.reading import GridRefused, output_size, tap_matrix, taps_at, token_count
from verify.layers.torch_faults import may_crash
from verify.oracle import Convolution, Geometry, Vector, by_channel, full_precision, greatest
from verify.rounding.elements import convolution_share, impulse_bound
from verify.samples.comparison import ratios
from verify.samples.reference import Deviation, deviation

MOST_MULTIPLICATIONS = 2**33
"""An execution that takes more is not run, and a note says so (about ten seconds of one core)."""
SOFTMAX_COST = 64
"""Cost of the softmax in multiplications, for each pair of a query and a key."""
CHEAP = 2**24
"""The most multiplications that a run on the whole grid may cost."""
HEAVY = 2**16
"""A layer with this many weights is run on fewer inputs, of one size, because each already sums so
many terms.
"""
MAY_CRASH = "torch's own convolution may crash the process there (docs/numerics.md)"
UNEVEN = 1 - 2.0**-9 - 2.0**-12
"""Rounding it to bfloat16, float16 or TF32 changes it by 2^−12 or more; aligned signs add such
errors up beyond the bound.
"""


@dataclass(frozen=True)
class Probe:
    """The result of running one execution.

    Attributes:
        execution: its name.
        inputs: how many inputs were run.
        grid: their spatial size.
        observed: the largest |execution − convolution| per output channel, float64 (D_out,).
        worst: the largest |difference|/bound over all outputs.
        note: why it was not run; empty if it was.
        broken: whether it raised an error other than lack of memory.
        over: if a run exceeds the bound, an output that shows which layer differs from the exact
            value.
    """

    execution: str
    inputs: int
    grid: Vector
    observed: ndarray
    worst: float
    note: str = ""
    broken: bool = False
    over: Deviation | None = None

    @property
    def sentence(self) -> str:
        """How it exceeds the bound."""
        how = self.note or f"a run differs from the convolution by {self.worst:.3g} times the bound"
        return f"{how}: {self.over.sentence}" if self.over else how

    @property
    def refutes(self) -> bool:
        """Whether the bound is exceeded and the attention is at fault, rather than torch's own
        convolution.
        """
        return not self.worst <= 1 and (self.over is None or self.over.refutes)


def run_step(argument: Argument) -> tuple[Step, list[Probe]]:
    """Step 6: run every execution and compare each run with the bound."""
    problem = argument.problem
    if not isinstance(problem.layer, MHSA):
        return Step(6, "runs", False, "the attention layer has no executions to run"), []
    small, other = probe_grids(problem.geometry, problem.grid, problem.attention)
    for size in (small, other):
        if may_crash(problem.conv_module, size):
            sentence = f"on inputs of size {size} nothing was run: {MAY_CRASH}"
            return Step(6, "runs", False, sentence), []
    probes = _probes(argument, small, other) + _narrow_probes(argument, small, other)
    ran = [
        f"{p.execution} {p.worst:.2g} on {p.inputs} of size {p.grid}" for p in probes if not p.note
    ]
    sentence = (
        f"observed over bound on adversarial inputs: {', '.join(ran) or 'nothing could be run'}"
    )
    sentence += next((f"; {p.execution} raises {p.note}" for p in probes if p.broken), "")
    sentence += next((f"; {p.execution}: {p.over.sentence}" for p in probes if p.over), "")
    within = all(p.worst <= 1 and not p.broken for p in probes) and bool(ran)
    return Step(6, "runs", within, sentence), probes


def _probes(argument: Argument, small: Vector, other: Vector) -> list[Probe]:
    """Runs on adversarial inputs of the first size, and on random inputs and impulses of the other."""
    problem = argument.problem
    conv = problem.conv
    bound = problem.bound
    probes: list[Probe] = []
    if conv.weight.size < HEAVY:
        inputs = adversarial_inputs(conv, small, bound)
        probes = run_executions(problem.conv_module, problem.layer, inputs, argument.total)
        # On the other grid, random signs and magnitudes show which input each token copies.
        inputs = bound * random_inputs(conv, other, np.random.default_rng(0))
    else:  # one size only; with a stride, the size that may leave inputs over
        if max(problem.geometry.stride) == 1:
            other = small
        inputs = adversarial_inputs(conv, other, bound)
    alone = impulses(conv, other, bound)  # these show what each head carries
    allowed = argument.total
    local = _impulse_bound(argument, alone)
    if local is not None:
        whole = by_channel(argument.total, len(other))
        allowed = np.concatenate([np.broadcast_to(whole, (len(inputs), *local.shape[1:])), local])
    # In several blocks of unequal lengths, as on large inputs.
    queries = max(1, 2 * math.prod(output_size(problem.geometry, other)) // 5)
    inputs = np.concatenate([inputs, alone])
    return probes + run_executions(
        problem.conv_module, problem.layer, inputs, allowed, queries=queries
    )


def _impulse_bound(argument: Argument, alone: ndarray) -> ndarray | None:
    """The bound for impulses, if the argument has shown that one-hot heads carry exactly the
    kernel.
    """
    if argument.leaks is None or argument.kernel is None:
        return None
    if not (argument.leaks.one_hot and argument.kernel.same):
        return None
    problem = argument.problem
    return impulse_bound(problem.conv, problem.attention, alone, problem.fmt, problem.tokens)


def _narrow_probes(argument: Argument, small: Vector, other: Vector) -> list[Probe]:
    """Runs where outputs are one wide, if that is another size."""
    problem = argument.problem
    narrow = narrow_grid(problem.geometry, small)
    if narrow in (None, small, other):
        return []
    if may_crash(problem.conv_module, narrow):
        return [Probe("convolution", 0, narrow, np.zeros(len(argument.total)), 0.0, MAY_CRASH)]
    inputs = problem.bound * random_inputs(problem.conv, narrow, np.random.default_rng(0))
    return run_executions(problem.conv_module, problem.layer, inputs, argument.total)


def run_executions(
    conv_module: Any,
    layer: Any,
    inputs: ndarray,
    bound: ndarray,
    queries: int | None = None,
) -> list[Probe]:
    """Run every execution of ``layer`` against the convolution, in full precision.

    Args:
        conv_module: the torch convolution.
        layer: the attention layer; its ``execution`` is restored.
        inputs: (N, D_in, *grid) float64, rounded here to the layer's type.
        bound: per output channel (D_out,), or for every output of every input (N, D_out, *output).
        queries: the largest number of queries in a block, for executions that work in blocks; None
            for their usual blocks, which only large inputs fill.
    """
    weight = layer.w_val
    x = torch.from_numpy(inputs).to(weight.dtype).to(weight.device)
    blocks: AbstractContextManager[None] = nullcontext()
    if queries is not None:
        blocks = smaller_blocks(queries)
    with (
        torch.no_grad(),
        torch.autocast(weight.device.type, enabled=False),
        full_precision(),
        blocks,
    ):
        expected = conv_module(x).double().cpu().numpy()
        if bound.ndim == 1:
            bound = by_channel(bound, x.dim() - 2)
        return [_probe(name, conv_module, layer, x, expected, bound) for name in EXECUTIONS]


def _probe(
    name: str,
    conv_module: Any,
    layer: Any,
    x: torch.Tensor,
    expected: ndarray,
    bound: ndarray,
) -> Probe:
    """Run one execution, and compare it with the convolution's outputs."""
    grid = tuple(x.shape[2:])
    nothing = np.zeros(len(layer.b_out))
    try:
        attended = _attended(name, layer, x, expected[0, 0].size)
    except (MemoryError, NotImplementedError) as error:
        return Probe(name, 0, grid, nothing, 0.0, str(error))
    except Exception as error:  # an output exists, but attributes may have any type
        note = f"{type(error).__name__}: {error}"
        return Probe(name, 0, grid, nothing, 0.0, note, broken=True)
    if attended.shape != expected.shape:
        return Probe(name, len(x), grid, nothing + np.inf, np.inf, "outputs differ in shape")
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(attended - expected)
    per_channel = difference.max(axis=(0, *range(2, difference.ndim)))
    relative = over_bound(difference, bound)
    worst = greatest(relative)
    over = None
    if not worst <= 1:
        limits = np.broadcast_to(bound, attended.shape)
        share = convolution_share(conv_module, x)
        over = deviation(conv_module, x, expected, attended, limits, share, ~(relative <= 1))
    return Probe(name, len(x), grid, per_channel, worst, over=over)


def _attended(name: str, layer: Any, x: torch.Tensor, queries: int) -> ndarray:
    """The outputs of one execution of a layer, float64.

    Raises:
        MemoryError: they take too many multiplications, or too much memory.
    """
    multiplications = layer.multiplications(x.shape, name)
    if multiplications == layer.multiplications(x.shape, "dense"):  # a score for each query and key
        pairs = queries * token_count(Geometry.read(layer), tuple(x.shape[2:]))
        multiplications += SOFTMAX_COST * len(layer.v) * pairs
    if multiplications > MOST_MULTIPLICATIONS:
        raise MemoryError(f"{multiplications:.2g} multiplications are too many to run")
    before = layer.execution
    layer.execution = name
    try:
        return layer(x).double().cpu().numpy()
    finally:
        layer.execution = before


def over_bound(difference: ndarray, bound: ndarray) -> ndarray:
    """|difference|/bound: 0 where the bound is infinite and so claims nothing; else NaN is over the
    bound.
    """
    return np.where(np.isinf(bound), 0.0, ratios(difference, bound))


# ---- inputs for the runs, and their sizes --------------------------------------------------------


def probe_grids(g: Geometry, grid: Vector, attention: Attention) -> tuple[Vector, Vector]:
    """Two legal grids no larger than ``grid``, one small and one with other outputs.

    On the small one, every tap that can see an input does.  The second is ``grid`` itself if
    running the attention layer on it is cheap, else slightly larger than the small one: with a
    stride, inputs at the far end may then be left over, or fewer of them.
    """
    least = []
    for span, s, (before, after) in zip(g.spans, g.stride, g.pads, strict=True):
        if g.transposed:
            least.append(3 + -(-2 * before // s))
        else:
            least.append(max(span + 1 + s, before + 1, after + 1))
    small = tuple(map(min, grid, least))
    try:
        output_size(g, small)
    except GridRefused:
        small = grid
    longer = tuple(min(n + 1, most) for n, most in zip(small, grid, strict=True))
    tokens = token_count(g, grid)
    heads, groups, _, head_dim = attention.w_val.shape
    cost = tokens**2 * heads * groups * head_dim + tokens * (
        attention.w_val.size + attention.w_out.size
    )
    return small, (grid if cost <= CHEAP else longer)


def narrow_grid(g: Geometry, small: Vector) -> Vector | None:
    """The grid ``small``, made so narrow that outputs are one wide, where torch has kernels of its
    own; None if that is illegal.
    """
    span = g.spans[-1]
    pads = sum(g.pads[-1])
    widest = span + g.stride[-1] - pads
    if g.transposed:
        widest = 1 + (pads - span - g.output_padding[-1]) // g.stride[-1]
    grid = (*small[:-1], min(small[-1], widest))
    with suppress(GridRefused):
        if output_size(g, grid)[-1] == 1:
            return grid
    return None


def adversarial_inputs(conv: Convolution, grid: Vector, bound: float) -> ndarray:
    """Inputs with |x| ≤ bound on which rounding errors align or stand out: float64
    (N, D_in, *grid).

    Signs that match the kernel of the heaviest channels (of one, for a heavy layer), random signs
    (for light layers only), random magnitudes, magnitudes spread over many powers of two, and
    nearly cancelling neighbours.
    """
    rng = np.random.default_rng(0)
    heaviest = np.argsort(conv.sizes)[::-1][:3]  # channels, by Σ|W|
    signs, magnitudes = random_inputs(conv, grid, rng)
    inputs = [signs, magnitudes]
    if conv.weight.size >= HEAVY:
        heaviest = heaviest[:1]
        inputs = [magnitudes]
    inputs += [UNEVEN * sign_pattern(conv, int(channel), grid) for channel in heaviest]
    shape = signs.shape
    inputs.append(rng.choice([-1.0, 1.0], shape) * 2.0 ** -rng.integers(0, 60, shape))
    nearly = 1 - rng.integers(0, 2, shape) * 2.0**-20
    inputs.append(nearly * np.where(np.indices(shape).sum(axis=0) % 2, 1, -1))
    return bound * np.stack(inputs)


def random_inputs(conv: Convolution, grid: Vector, rng: np.random.Generator) -> ndarray:
    """One input with random signs, and one with random magnitudes up to 1."""
    shape = (conv.geometry.in_channels, *grid)
    return np.stack([rng.choice([-1.0, 1.0], shape), rng.uniform(-1, 1, shape)])


def impulses(conv: Convolution, grid: Vector, bound: float) -> ndarray:
    """Inputs with one nonzero position, ±bound in all channels, (N, D_in, *grid) float64; for light
    layers, the zero input too.

    Most outputs then read it by one tap or none, so that little rounding is allowed, and a head or
    a bias that some execution leaves out shows even in half precision.
    """
    rng = np.random.default_rng(0)
    d_in = conv.geometry.in_channels
    light = conv.weight.size < HEAVY
    places = [tuple(n // 2 for n in grid), tuple(n - 1 for n in grid)]
    if light:
        # With a stride, each place meets only some taps; an error at the border may show at the
        # first place.
        steps = product(*(range(min(s, 2)) for s in conv.geometry.stride))
        places += [
            tuple(min(n // 2 + step, n - 1) for n, step in zip(grid, ahead, strict=True))
            for ahead in steps
        ]
        places.append((0,) * len(grid))
    places = list(dict.fromkeys(places))
    inputs = np.zeros((len(places), d_in, *grid))
    for x, place in zip(inputs, places, strict=True):
        x[(slice(None), *place)] = bound * rng.choice([-1.0, 1.0], d_in)
    return np.concatenate([np.zeros((int(light), d_in, *grid)), inputs])


def sign_pattern(conv: Convolution, channel: int, grid: Vector) -> ndarray:
    """±1 such that the middle output of ``channel`` is Σ|W| over the inputs it reads:
    (D_in, *grid).
    """
    g = conv.geometry
    group, o = divmod(channel, g.out_channels // g.groups)
    x = np.ones((g.in_channels, *grid))
    own = np.split(x, g.groups)[group]  # the inputs that the channel reads, in x itself
    for tap, place in taps_at(g, grid, [n // 2 for n in output_size(g, grid)]):
        own[(slice(None), *place)] = np.where(tap_matrix(conv, tap)[group, :, o] < 0, -1.0, 1.0)
    return x
