"""Step 7 of a certificate: an input on which the two exact outputs differ, evaluated in rational
arithmetic.

This needs attention that is one-hot and depends on position alone: then an output is b + Σ_h Σ_i
X[read_h, i] (W_val W_out)_i, a rational number, as is the convolution's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np
from numpy import ndarray

from verify.argument.steps import Argument, Problem, Taps
from verify.layers.reading import (
    ZERO,
    output_size,
    query_places,
    tap_matrix,
    taps_at,
    tokens_along,
)
from verify.layers.taps import head_product
from verify.layers.targets import attends_by_content, target
from verify.oracle import Vector, greatest


@dataclass(frozen=True)
class Counterexample:
    """An input and one output on which the two layers differ, exactly.

    Attributes:
        entries: ``(channel, *position)`` → value; every other entry of the input is 0.
        output: ``(channel, *position)`` of the output that differs.
        convolution: the convolution's exact output there.
        attention: the attention's exact output there.
        sentence: the counterexample in words.
        shapes: the spatial sizes of both outputs if they differ (None for the attention if it has
            no output); then only the sentence is set besides.
    """

    entries: dict[Vector, Fraction]
    output: Vector
    convolution: Fraction | None
    attention: Fraction | None
    sentence: str
    shapes: tuple[Vector, Vector | None] | None = None

    def record(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "input": [[list(index), str(value)] for index, value in self.entries.items()],
            "output": list(self.output),
            "convolution": str(self.convolution),
            "attention": str(self.attention),
            "shapes": self.shapes and [shape and list(shape) for shape in self.shapes],
        }

    def input(self, channels: int, grid: Vector) -> ndarray:
        """The input as an array ``(channels, *grid)``, float64."""
        x = np.zeros((channels, *grid))
        for index, value in self.entries.items():
            x[index] = float(value)
        return x


def counterexample_of(argument: Argument) -> Counterexample | None:
    """An input that refutes the claim "the same function", where taps differ or a step failed that
    an input can refute.
    """
    problem = argument.problem
    if argument.targets is not None and argument.leaks is not None and argument.kernel is not None:
        if not argument.leaks.one_hot:
            return None
        return _tap_counterexample(problem, argument.targets.shifts, argument.kernel)
    failed = next(step for step in argument.steps if not step.holds)
    ours = problem.attention.geometry
    if failed.number == 1 or ours.groups != problem.geometry.groups:
        return None
    try:
        size = output_size(ours, problem.grid)
    except ValueError as error:
        has = f"on this grid the convolution has an output of size {problem.outputs}, and the attention none: {error}"
        return Counterexample({}, (), None, None, has, (problem.outputs, None))
    if size != problem.outputs:
        differ = f"on this grid the convolution's output has size {problem.outputs}, the attention's {size}"
        return Counterexample({}, (), None, None, differ, (problem.outputs, size))
    return _reading_counterexample(problem)


def _tap_counterexample(
    problem: Problem, shifts: Sequence[Vector | None], kernel: Taps
) -> Counterexample | None:
    """For taps that differ, an impulse at an input that they read, the largest differences first;
    for biases, the zero input.
    """
    reading = _Reading(problem, shifts)
    counterexample = _of_biases(problem)
    for difference in sorted(kernel.differences, key=lambda one: -greatest(one.size))[:16]:
        if counterexample is not None:
            break
        # By step 0, the tap at this shift, if there is one, reads the same input as the head.
        live = (
            place
            for place in _places(problem.outputs)
            if reading.by_head(difference.shift, place) is not None
        )
        counterexample = _of_impulses(reading, islice(live, 8), [difference.entry])
    return counterexample


def _reading_counterexample(problem: Problem) -> Counterexample | None:
    """Where tokens or targets differ but the outputs have equal shapes: an impulse at an input that
    either layer reads.
    """
    attention = problem.attention
    if attention.radix is not None or attends_by_content(attention):
        return None
    shifts: list[Vector | None] = [None] * len(attention.carrying)
    for head in map(int, np.flatnonzero(attention.carrying)):
        at = target(attention, head)
        if at is None or not at.gap > problem.fmt.one_hot_gap:
            return None
        shifts[head] = at.shift
    reading = _Reading(problem, shifts)
    return _of_biases(problem) or _of_impulses(reading, islice(_places(problem.outputs), 64))


def _places(outputs: Vector) -> Iterable[Vector]:
    """Output positions to try: corners, edges and middles first, then more."""
    few = [sorted({0, 1 % o, o // 2, max(o - 2, 0), o - 1}) for o in outputs]
    more = (range(min(o, 2000)) for o in outputs)
    return dict.fromkeys([*islice(product(*few), 200), *islice(product(*more), 2000)])


@dataclass(frozen=True)
class _Reading:
    """The input positions that each layer reads for an output.

    Attributes:
        problem: the two layers.
        shifts: of the one-hot heads; None for a head that carries nothing.
    """

    problem: Problem
    shifts: Sequence[Vector | None]

    @cached_property
    def tokens(self) -> list[ndarray]:
        return [
            tokens_along(self.problem.attention.geometry, axis, n)
            for axis, n in enumerate(self.problem.grid)
        ]

    @cached_property
    def queries(self) -> list[ndarray]:
        return [
            query_places(self.problem.attention.geometry, axis, o)
            for axis, o in enumerate(self.problem.outputs)
        ]

    def by_head(self, shift: Vector | None, place: Vector) -> Vector | None:
        """The input position that a one-hot head reads: the key at its shift, or the nearest key on
        the grid.
        """
        if shift is None:
            return None
        axes = zip(self.tokens, self.queries, place, shift, strict=True)
        read = tuple(
            int(row[min(max(int(query[o]) + tau, 0), len(row) - 1)]) for row, query, o, tau in axes
        )
        return None if ZERO in read else read

    def readers(self, place: Vector) -> dict[Vector, tuple[list[Vector], list[int]]]:
        """For each input position, the taps and the heads that read it for the output at ``place``."""
        readers: dict[Vector, tuple[list[Vector], list[int]]] = {}
        for tap, position in taps_at(self.problem.geometry, self.problem.grid, place):
            readers.setdefault(position, ([], []))[0].append(tap)
        for head, shift in enumerate(self.shifts):
            position = self.by_head(shift, place)
            if position is not None:
                readers.setdefault(position, ([], []))[1].append(head)
        return readers


def _of_biases(problem: Problem) -> Counterexample | None:
    """The zero input, if the biases differ."""
    for channel in np.flatnonzero(problem.attention.b_out != problem.conv.biases):
        return _confirmed(problem, (int(channel), *(0 for _ in problem.grid)))
    return None


def _of_impulses(
    reading: _Reading, places: Iterable[Vector], first: Sequence[tuple[int, int, int]] = ()
) -> Counterexample | None:
    """Try impulses at the inputs that the outputs at ``places`` read, and in each tap matrix
    ``first`` (group, i, o) first.
    """
    for place in places:
        for position, (taps, heads) in sorted(reading.readers(place).items()):
            difference = _coefficients(reading.problem, taps, heads)
            for g, i, o in [*first, np.unravel_index(int(np.argmax(difference)), difference.shape)]:
                d_in, d_out = difference.shape[1:]
                entry = (int(g * d_in + i), *position)
                output = (int(g * d_out + o), *place)
                counterexample = _confirmed(reading.problem, output, entry, taps, heads)
                if counterexample is not None:
                    return counterexample
    return None


def _coefficients(problem: Problem, taps: list[Vector], heads: list[int]) -> ndarray:
    """|Attention − convolution| of an input position's coefficients, rounded, (g, i, o), from the
    taps and heads that read it.
    """
    total = np.zeros_like(tap_matrix(problem.conv, (0,) * len(problem.grid)))
    for tap in taps:
        total -= tap_matrix(problem.conv, tap)
    for head in heads:
        total += head_product(problem.attention.w_val[head], problem.attention.w_out[head])
    return np.abs(total)


def _confirmed(
    problem: Problem,
    output: Vector,
    entry: Vector = (),
    taps: Sequence[Vector] = (),
    heads: Sequence[int] = (),
) -> Counterexample | None:
    """Evaluate both layers exactly, and return a counterexample only if they differ.

    The input is an impulse at ``entry``, which ``taps`` and ``heads`` read and which is of the
    output's group; or else zero.
    """
    conv = problem.conv
    attention = problem.attention
    channel = output[0]
    theirs = Fraction(float(conv.biases[channel]))
    ours = Fraction(float(attention.b_out[channel]))
    what = "the zero input"
    entries: dict[Vector, Fraction] = {}
    if entry:
        # the largest number of the layers' format that is at most B
        amplitude = problem.fmt.below(problem.bound)
        what = f"the input that is {amplitude!r} at {entry}, else 0"
        entries[entry] = value = Fraction(amplitude)
        i = entry[0] % attention.w_val.shape[2]
        g, o = divmod(channel, attention.w_out.shape[3])
        for tap in taps:
            theirs += value * Fraction(float(tap_matrix(conv, tap)[g, i, o]))
        for head in heads:
            for a, b in zip(
                attention.w_val[head, g, i], attention.w_out[head, g, :, o], strict=True
            ):
                ours += value * Fraction(float(a)) * Fraction(float(b))
    if ours == theirs:
        return None
    sentence = f"on {what}, output {output} of the convolution is exactly {theirs}, and of the attention exactly {ours}"
    return Counterexample(entries, output, theirs, ours, sentence)
