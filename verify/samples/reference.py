"""Decides whether the attention or torch's convolution is at fault where the two differ by more
than the bound.

A certificate is about the convolution that torch documents; torch's convolution is one execution of
it, as the attention's are of Eq. 3.  torch's may be the wrong one: oneDNN's bfloat16 kernels flush
subnormal numbers to zero on processors with an instruction for bfloat16 products (VDPBF16PS does so
whatever the control register says), and lose all of an output whose weights or inputs are that
small.  Such a difference refutes nothing.  Nor is the verdict PROVED, because the claim rests on
the printed assumption that torch's convolution computes its definition, which has just failed: it
is UNDECIDED, and the sentence says which layer is at fault.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from verify.layers.reading import exact_output
from verify.layers.taps import rounded_up
from verify.oracle import Convolution, Vector, float64
from verify.samples.comparison import ratios

TINY = 2.0**-126
"""Numbers below this are subnormal in bfloat16 and float32."""


@dataclass(frozen=True)
class Deviation:
    """One output at which the two layers differ by more than is allowed, with its exact value.

    Attributes:
        index: (input, channel, *position).
        input: (D_in, *grid), float64.
        exact: the convolution's output there, by its definition in rational arithmetic.
        convolution: the output of torch's convolution.
        attention: the attention's output.
        refutes: whether the attention is at fault; if not, torch's convolution alone is, at every
            output examined.
        convolution_off: whether the error of torch's convolution exceeds what rounding explains,
            here or at another output.
        sentence: the errors of both.
    """

    index: Vector
    input: ndarray
    exact: Fraction
    convolution: float
    attention: float
    refutes: bool
    convolution_off: bool
    sentence: str


def deviation(
    conv: Any,
    x: torch.Tensor,
    expected: ndarray,
    attended: ndarray,
    allowed: ndarray,
    rounding: ndarray,
    over: ndarray,
) -> Deviation:
    """Judge outputs that differ by more than is allowed.

    An output refutes the attention if its error against the exact value exceeds the allowed
    difference; or if rounding explains the error of torch's convolution there, since the attention
    then used more than its share.  Three outputs are examined, selected by a float64 reference:
    where the attention's error is largest, and where the convolution's is smallest and largest.

    Args:
        conv: the torch convolution.
        x: its input, finite, (N, D_in, *grid).
        expected: its outputs, float64 (N, D_out, *output).
        attended: the attention's outputs, as are the next two in shape.
        allowed: the bound on the difference of the two.
        rounding: the bound on the rounding error of torch's convolution.
        over: bool (N, D_out, *output), the outputs to judge, at least one.
    """
    fields = Convolution.read(conv).reaching(x.shape[2:], over.shape[2:])
    inputs = float64(x)

    def judged(index: Vector) -> Deviation:
        """Judge one output exactly."""
        image, *output = index
        exact = exact_output(fields, inputs[image], tuple(output))
        convolution = float(expected[index])
        attention = float(attended[index])
        explained = float(rounding[index])
        convolution_off = not _within(convolution, exact, explained)
        refutes = not _within(attention, exact, float(allowed[index])) or not convolution_off
        sentence = (
            f"of the exact value {'-' * (exact < 0)}{rounded_up(abs(exact)):.6g} the convolution is off by "
            f"{_distance(convolution, exact)}, where rounding explains {explained:.3g}, and the attention by "
            f"{_distance(attention, exact)}"
        )
        if not refutes:
            sentence += ": here torch's own convolution does not compute its definition, and the attention does ("
            known = "docs/numerics.md has known cases"
            if _subnormal(fields.weight) or _subnormal(inputs[image]) or 0 < abs(exact) < TINY:
                known = "subnormal numbers are flushed to zero there"
            sentence += f"{known})"
        return Deviation(
            index, inputs[image], exact, convolution, attention, refutes, convolution_off, sentence
        )

    reference = fields(inputs)[over]
    places = np.flatnonzero(over)
    attention = _ratio(attended[over], reference, allowed[over])
    convolution = _ratio(expected[over], reference, rounding[over])
    candidates = dict.fromkeys((attention.argmax(), convolution.argmin(), convolution.argmax()))
    outputs = [
        judged(tuple(map(int, np.unravel_index(places[at], over.shape)))) for at in candidates
    ]
    first = next((one for one in outputs if one.refutes), outputs[0])
    return replace(first, convolution_off=any(one.convolution_off for one in outputs))


def _ratio(values: ndarray, reference: ndarray, allowed: ndarray) -> ndarray:
    """|values − reference|/allowed; infinite for NaN."""
    with np.errstate(all="ignore"):
        off = np.abs(values - reference)
    return np.nan_to_num(ratios(off, allowed), nan=inf, posinf=inf)


def _subnormal(numbers: ndarray) -> bool:
    return bool(((numbers != 0) & (np.abs(numbers) < TINY)).any())


def _within(value: float, exact: Fraction, distance: float) -> bool:
    return isfinite(value) and (
        distance == inf or abs(Fraction(value) - exact) <= Fraction(distance)
    )


def _distance(value: float, exact: Fraction) -> str:
    if not isfinite(value):
        return str(value)
    return f"{rounded_up(abs(Fraction(value) - exact)):.3g}"
