"""Steps 0 to 5 of a certificate: the argument for all inputs, each step exact or rounded outwards.

0 tokens      both layers have the same geometry; every tap and its head read the same input position, derived independently
1 content     the scores depend on δ only, but for heads that carry nothing
2 target      each head's score has one maximum, at an integer shift, with a gap that beats the scores' own rounding
3 leakage     at that gap the softmax gives exactly 0 elsewhere (or, within a tolerance, leaks at most a stated amount)
4 taps        the heads at each shift sum to exactly the kernel's tap there, and b_out is the bias
5 rounding    a bound on how far apart two evaluations of one exact function may be, and nothing overflows
"""

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from verify.layers.fields import Attention, read_convolution
from verify.layers.reading import (
    mismatched_tap,
    output_size,
    require_enumerable,
    shift_box,
    shift_of_tap,
    tap_matrix,
    taps_by_shift,
    token_count,
)
from verify.layers.taps import TapDifference, compare_taps
from verify.layers.targets import (
    Target,
    attends_by_content,
    largest_encoding,
    largest_score,
    named,
    numbers_are_distinct,
    score_rounding,
    target,
)
from verify.oracle import Convolution, Geometry, Sides, Vector, greatest
from verify.rounding.channels import (
    content_overflows,
    largest_intermediate,
    leakage_part,
    rounding_part,
    taps_part,
)
from verify.rounding.leakage import cached_leakage
from verify.rounding.model import Format
from verify.verdict import from_above


@dataclass(frozen=True)
class Step:
    """One step of the argument, with its number above: whether it holds, and how or why not."""

    number: int
    name: str
    holds: bool
    sentence: str


@dataclass(frozen=True)
class Problem:
    """The convolution and the attention layer to compare, as read, for all |x| ≤ bound on inputs up
    to a grid.

    Attributes:
        conv_module, layer: the two modules.
        conv, geometry: the fields and the geometry of the convolution.
        attention: the attention layer's fields, with its own geometry.
        grid: the input's spatial size.
        outputs: the spatial size of the convolution's output.
        bound: B.
        fmt: the format of the attention layer's values.
        tokens: T, from the convolution's geometry.
    """

    conv_module: Any
    layer: Any
    conv: Convolution
    geometry: Geometry
    attention: Attention
    grid: Vector
    outputs: Vector
    bound: float
    fmt: Format
    tokens: int

    @classmethod
    def read(cls, conv_module: Any, layer: Any, grid: Vector, bound: float) -> "Problem":
        """Read both layers.

        Raises:
            Unreadable: the two cannot be read as a convolution and an attention layer, or hold
                non-finite numbers.
            GridRefused: torch's convolution has no output for this grid.
            ValueError: an axis is too long to be enumerated.
        """
        conv = read_convolution(conv_module)
        geometry = conv.geometry
        attention = Attention.read(layer)
        outputs = output_size(geometry, grid)
        require_enumerable(geometry, grid)
        return cls(
            conv_module=conv_module,
            layer=layer,
            conv=conv,
            geometry=geometry,
            attention=attention,
            grid=grid,
            outputs=outputs,
            bound=bound,
            fmt=Format.of(layer.w_val.dtype),
            tokens=token_count(geometry, grid),
        )


@dataclass(frozen=True)
class Targets:
    """Step 2: where each head looks (None for one that carries nothing), and the range of δ on each
    axis.
    """

    heads: tuple[Target | None, ...]
    box: Sides

    @property
    def shifts(self) -> list[Vector | None]:
        """The shift of each head."""
        return [at and at.shift for at in self.heads]


@dataclass(frozen=True)
class Leaks:
    """Step 3: the attention that each head leaks to other keys, (heads,), rounded up.

    Attributes:
        working: after the softmax is rounded to the working type; exactly 0 where every other
            weight rounds to zero.
        sharp_from: the α from which no head leaks.
    """

    working: ndarray
    sharp_from: float

    @property
    def one_hot(self) -> bool:
        """Whether no head leaks."""
        return not self.working.any()


@dataclass(frozen=True)
class Taps:
    """Step 4: where the heads differ from the kernel.

    Attributes:
        differences: the taps that differ.
        bias: |b_out − bias|, (D_out,).
    """

    differences: list[TapDifference]
    bias: ndarray

    @property
    def same(self) -> bool:
        """Whether kernel and bias are equal."""
        return not self.differences and not self.bias.any()


@dataclass(frozen=True)
class Argument:
    """The steps of the argument and their results.

    Attributes:
        problem: the two layers.
        steps: 0 to 5, or up to the failed step that ends the argument.
        rounding, leakage, taps: the parts of the bound, (D_out,); infinite if an earlier step
            failed.
        targets, leaks, kernel: the results of steps 2, 3 and 4; None if an earlier step failed.
    """

    problem: Problem
    steps: tuple[Step, ...]
    rounding: ndarray
    leakage: ndarray
    taps: ndarray
    targets: Targets | None = None
    leaks: Leaks | None = None
    kernel: Taps | None = None

    @cached_property
    def total(self) -> ndarray:
        """The bound, (D_out,): the sum of its parts, rounded up; infinite where a part is not
        finite.
        """
        total = self.rounding + self.leakage + self.taps
        return np.where(np.isfinite(total), np.nextafter(total, np.inf), np.inf)


def argue(problem: Problem, *, may_leak: bool, may_differ: bool) -> Argument:
    """Run steps 0 to 5; a failure of step 0, 1 or 2 ends the argument.

    ``may_leak`` and ``may_differ`` say whether the claim allows heads to leak and taps to differ.

    Raises:
        ValueError: an intermediate may overflow the layers' type.
    """
    _refuse_overflow(problem)
    unknown = np.full(problem.geometry.out_channels, np.inf)
    steps: list[Step] = []
    for step_of in (tokens_step, content_step):
        steps.append(step_of(problem))
        if not steps[-1].holds:
            return Argument(problem, tuple(steps), unknown, unknown, unknown)
    step, targets = targets_step(problem)
    if targets is None:
        return Argument(problem, (*steps, step), unknown, unknown, unknown)
    leakage_shown, leaks = leakage_step(problem, targets, may_leak)
    taps_shown, kernel = taps_step(problem, targets, may_differ)
    conv = problem.conv
    attention = problem.attention
    bound = problem.bound
    rounding = rounding_part(
        conv, attention, bound, problem.fmt, problem.tokens, soft=not leaks.one_hot
    )
    most = from_above(greatest(rounding))
    rounding_shown = Step(5, "rounding", True, f"at most {most}, and nothing overflows")
    if attention.content.any() and not leaks.one_hot:
        # Beside attention by content, the scores of these heads too may be rounded to that type.
        sentence = f"no bound for heads that leak beside attention by content in {named(attention.content)}"
        sentence += f" (take α from {from_above(leaks.sharp_from)} on)"
        rounding = unknown
        rounding_shown = Step(5, "rounding", False, sentence)
    return Argument(
        problem,
        (*steps, step, leakage_shown, taps_shown, rounding_shown),
        rounding,
        leakage_part(attention, bound, leaks.working),
        taps_part((difference.size for difference in kernel.differences), kernel.bias, bound),
        targets,
        leaks,
        kernel,
    )


def _refuse_overflow(problem: Problem) -> None:
    largest = largest_intermediate(problem.conv, problem.attention, problem.bound)
    fmt = problem.fmt
    if not largest < fmt.largest:
        message = f"an intermediate may reach {largest:.3g}, beyond the largest {fmt.name}, {fmt.largest:.3g}"
        raise ValueError(f"{message}; lower the input bound")


def tokens_step(problem: Problem) -> Step:
    """Step 0: compare geometries field by field, for every size, and tokens one by one on this
    grid, derived independently.
    """
    g = problem.geometry
    ours = problem.attention.geometry
    for field in fields(Geometry):
        theirs = getattr(g, field.name)
        its = getattr(ours, field.name)
        if theirs != its:
            return Step(
                0,
                "tokens",
                False,
                f"the convolution's {field.name} is {theirs}, the attention's {its}",
            )
    for axis, (n, outputs) in enumerate(zip(problem.grid, problem.outputs, strict=True)):
        tap = mismatched_tap(g, axis, n, outputs)
        if tap is not None:
            shift = shift_of_tap(g, axis, tap)
            sentence = (
                f"tap {tap} of axis {axis} and the token at shift {shift} are not the same input"
            )
            return Step(0, "tokens", False, sentence)
    return Step(
        0, "tokens", True, f"one geometry; every tap meets the same input, {problem.tokens} tokens"
    )


def content_step(problem: Problem) -> Step:
    """Step 1: X_q W_qry W_keyᵀ X_kᵀ + X_q W_qry Ŵ_key r_δ + uᵀ W_keyᵀ X_kᵀ is zero for every X,
    in every head that carries something.

    In the others, finite scores and values suffice: finite weights times 0 are 0.
    """
    a = problem.attention
    if not a.content.any():
        sentence = "the content terms are exactly zero: scores depend on δ only"
        return Step(1, "content", True, sentence)
    where = "attention by content in"
    if attends_by_content(a):
        heads = named(a.content & a.carrying)
        return Step(1, "content", False, f"{where} {heads}: w_qry, w_key or u is not zero")
    box = shift_box(problem.geometry, problem.grid)
    largest = np.array(largest_encoding(a.radix, box), dtype=float)
    overflows = content_overflows(a, problem.bound, problem.fmt, problem.tokens, largest)
    if overflows.any():
        sentence = (
            f"beside {where} {named(a.content)}, {named(overflows)} may overflow, and 0·∞ is not 0"
        )
        return Step(1, "content", False, f"{sentence} (make their numbers smaller)")
    sentence = f"{where} {named(a.content)} adds 0·P X = 0; all other scores depend on δ only"
    return Step(1, "content", True, sentence)


def targets_step(problem: Problem) -> tuple[Step, Targets | None]:
    """Step 2: every head that carries something has one best shift.

    The others may look anywhere: finite scores give weights in [0, 1], and those times 0 are 0.
    """
    box = shift_box(problem.geometry, problem.grid)
    try:
        targets = Targets(_targets(problem, box), box)
        sentence = _gap_sentence(problem.attention, targets)
    except _NoTarget as reason:
        return Step(2, "target", False, str(reason)), None
    return Step(2, "target", True, sentence), targets


class _NoTarget(ValueError):
    """Step 2 fails."""


def _targets(problem: Problem, box: Sides) -> tuple[Target | None, ...]:
    """Where each head looks that carries something."""
    a = problem.attention
    g = problem.geometry
    if a.radix is not None and not numbers_are_distinct(a.radix, box):
        raise _NoTarget(f"the radix {a.radix} does not number the shifts {box} one by one")
    if max(largest_encoding(a.radix, box)) > 2**53:
        raise _NoTarget(f"shifts up to {box} are not exact in float64")
    heads: list[Target | None] = [None] * len(a.carrying)
    for h in map(int, np.flatnonzero(a.carrying)):
        at = target(a, h)
        if at is None:
            raise _NoTarget(f"head {h} has no unique best shift")
        along = zip(at.shift, g.anchor, g.spans, strict=True)
        if not all(0 <= tau + anchor <= span for tau, anchor, span in along):
            # Beyond the first or the last tap: for some size its target is off the grid, and the
            # softmax then selects the nearest key on it.
            raise _NoTarget(
                f"head {h} looks at {at.shift}, off the padded grid for some query of some size"
            )
        heads[h] = at
    return tuple(heads)


def _gap_sentence(a: Attention, targets: Targets) -> str:
    """The least gap, which beats the rounding of the scores."""
    if any(largest_score(a, h, targets.box) >= 2**1023 for h in range(len(targets.heads))):
        raise _NoTarget("the scores may overflow float64")
    carrying = [at for at in targets.heads if at is not None]
    if not carrying:
        return "no head carries anything, and all scores are finite"
    rounding = max(score_rounding(a, at, targets.box) for at in carrying)
    gap = min(at.gap for at in carrying)
    if not gap > 2 * rounding:
        raise _NoTarget(
            f"the gap {float(gap):.3g} does not beat the rounding of the scores, {float(rounding):.3g}"
        )
    idle = len(targets.heads) - len(carrying)
    those = f"every head, but {idle} that carry nothing," if idle else "every head"
    shift = f"has one best shift, with a gap of at least {float(gap):.6g}"
    return f"{those} {shift}; scores round by {float(rounding):.2g}"


def leakage_step(problem: Problem, targets: Targets, may_leak: bool) -> tuple[Step, Leaks]:
    """Step 3: the leakage of every head, rounded up; exactly 0 where every other weight rounds to
    zero in the working type.
    """
    working = np.zeros(len(targets.heads))
    sharp_from = 0.0
    needed = problem.fmt.one_hot_gap
    for h, at in enumerate(targets.heads):
        if at is None:
            continue
        slack = 2 * score_rounding(problem.attention, at, targets.box)
        gap = at.gap - slack
        if gap > needed:
            continue
        ideal = cached_leakage(at.sharpness, at.offset)
        # Score errors of ±slack/2 change the odds by a factor of at most exp(slack), which is ≤ 1 +
        # 2·slack for slack ≤ ½.
        leak = 1.0
        if slack < Fraction(1, 2):
            leak = min(1.0, ideal * (1 + 2 * float(slack)))
        working[h] = math.nextafter(leak, math.inf)
        # The gap and the scores' rounding are both proportional to α.
        enough = float(needed * at.sharpness / gap) if gap > 0 else math.inf
        sharp_from = max(sharp_from, enough)
    leaks = Leaks(working, sharp_from)
    fmt = problem.fmt
    if leaks.one_hot:
        sentence = f"every other weight is below half of {fmt.eta:.3g}, the smallest number: exactly one-hot"
        return Step(3, "leakage", True, sentence), leaks
    sentence = (
        f"heads leak up to {working.max():.6g} of their attention (unit roundoff {fmt.u:.2g})"
    )
    return Step(3, "leakage", may_leak, sentence), leaks


def taps_step(problem: Problem, targets: Targets, may_differ: bool) -> tuple[Step, Taps]:
    """Step 4: Σ W_val^h W_out^h over the heads at each shift is the kernel's matrix there, and
    b_out is the bias.
    """
    a = problem.attention
    conv = problem.conv
    heads: dict[Vector, list[int]] = {}
    for h, shift in enumerate(targets.shifts):
        if shift is not None:
            heads.setdefault(shift, []).append(h)
    kernel = {
        shift: tap_matrix(conv, tap) for shift, tap in taps_by_shift(problem.geometry).items()
    }
    differences, in_integers = compare_taps(kernel, heads, a.w_val, a.w_out)
    bias = np.abs(a.b_out - conv.biases)
    taps = Taps(differences, bias)
    slower = ""
    if in_integers is not None:
        slower = f"; exact integer products at shift {in_integers} and wherever else no factor is a scaled permutation"
    if taps.same:
        sentence = f"the heads sum to each of {len(kernel)} taps exactly, b_out is the bias{slower}"
        return Step(4, "taps", True, sentence), taps
    sentence = f"{len(differences)} taps and {np.count_nonzero(bias)} biases differ"
    for first in differences[:1]:
        sentence += f"; first at shift {first.shift}, by {float(first.exact):.6g}"
    sentence += slower
    return Step(4, "taps", may_differ, sentence), taps
