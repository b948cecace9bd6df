"""Where a run of the attention and torch's convolution differ by more than the bound: which of the two is off the exact value.

A certificate is about the convolution that torch documents, and torch's own is an execution of it, as those of the attention
are of Eq. 3.  It may be the one that is off: oneDNN's kernels for bfloat16 flush subnormal numbers to zero on processors with
an instruction for products of bfloat16 (VDPBF16PS does so whatever the control register says), and lose all of an output whose
weights or inputs are that small.  Such a difference refutes nothing.  Nor is PROVED the word, as the claim rests on the printed
assumption that torch's convolution computes its definition, and this has just been seen to fail: the word is UNDECIDED, and the
sentence names the side.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite

import numpy as np

from verify.fields import Geometry
from verify.oracle import Convolution
from verify.refutation import exact_output
from verify.taps import rounded_up


@dataclass(frozen=True)
class Deviation:
    """One output at which the two differ by more than is allowed, beside its exact value.

    Attributes:
        index: (input, channel, *position).
        exact: the convolution's output there, by its definition in rational arithmetic.
        convolution: what torch's convolution gave.
        attention: what the attention gave.
        refutes: whether the attention is off; else it is torch's convolution alone, here and wherever they differ too much.
        sentence: by how much either is off.
    """

    index: tuple[int, ...]
    exact: Fraction
    convolution: float
    attention: float
    refutes: bool
    sentence: str


def deviation(
    conv: Convolution,
    g: Geometry,
    x: np.ndarray,
    theirs: np.ndarray,
    ours: np.ndarray,
    over: np.ndarray,
    allowed: np.ndarray,
    rounding: np.ndarray,
) -> Deviation:
    """Judge outputs that differ by more than is allowed.

    The attention is refuted by an output that is further off the exact value than is allowed; or by one that is less far off,
    if torch's convolution is off by no more than rounding explains there, since then the attention took more than its share.

    Args:
        conv: the convolution's fields.
        g: its geometry.
        x: finite, (N, D_in, *grid) float64.
        theirs: outputs of torch's convolution, (N, D_out, *output) float64.
        ours: of the attention.
        over: bool, the outputs that differ by more than is allowed, at least one.
        allowed: how far apart the two may be.
        rounding: how far torch's convolution may be off by rounding alone.
    """
    about = conv(x)  # good enough to say where to look
    with np.errstate(all="ignore"):
        ours_off, theirs_off = (np.nan_to_num(np.abs(y - about), nan=np.inf) for y in (ours, theirs))
        most = np.where(over, ours_off / allowed, -1.0)
        least = np.where(over, theirs_off / rounding, np.inf)
    looked_at = [int(np.nan_to_num(most, nan=0.0).argmax()), int(np.nan_to_num(least, nan=0.0).argmin())]
    judged = [
        _deviation(conv, g, x, theirs, ours, allowed, rounding, tuple(int(i) for i in np.unravel_index(at, over.shape)))
        for at in dict.fromkeys(looked_at)
        if over.flat[at]
    ]
    return next((one for one in judged if one.refutes), judged[0])


def _deviation(
    conv: Convolution,
    g: Geometry,
    x: np.ndarray,
    theirs: np.ndarray,
    ours: np.ndarray,
    allowed: np.ndarray,
    rounding: np.ndarray,
    index: tuple[int, ...],
) -> Deviation:
    image, *output = index
    exact = exact_output(conv, g, x[image], tuple(output))
    a, b, explained = float(theirs[index]), float(ours[index]), float(rounding[index])
    refutes = not _within(b, exact, float(allowed[index])) or _within(a, exact, explained)
    told = f"of the exact value {_about(exact)} the convolution is off by {_off(a, exact)}, where rounding explains "
    told += f"{explained:.3g}, and the attention by {_off(b, exact)}"
    if not refutes:
        told += ": here torch's own convolution does not compute its definition, and the attention does"
        if _subnormal(conv.weight) or _subnormal(x[image]) or 0 < abs(exact) < TINY:
            told += " (subnormal numbers are flushed to zero there)"
    return Deviation(index, exact, a, b, refutes, told)


TINY = 2.0**-126
"""Smaller numbers are subnormal in bfloat16 and float32."""


def _subnormal(numbers: np.ndarray) -> bool:
    return bool(((numbers != 0) & (np.abs(numbers) < TINY)).any())


def _within(value: float, exact: Fraction, distance: float) -> bool:
    return isfinite(value) and (distance == inf or abs(Fraction(value) - exact) <= Fraction(distance))


def _off(value: float, exact: Fraction) -> str:
    return f"{rounded_up(abs(Fraction(value) - exact)):.3g}" if isfinite(value) else str(value)


def _about(exact: Fraction) -> str:
    return f"{'-' * (exact < 0)}{rounded_up(abs(exact)):.6g}"
