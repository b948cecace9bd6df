"""The checker's exact arithmetic: attention centres, upper bounds on leakage, and matrix products
compared with taps.

Stored numbers are dyadic rationals, so centres and taps are exact in fractions and integers.
Exponentials in the leakage are integers over a power of two, each rounded up.  It shares no code
with the certifier.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy import ndarray

LN2, PI = Fraction(6931471805599453095, 10**19), Fraction(355, 113)  # upper bounds of both
LIMB = 20  # bits; a sum of fewer than 2^13 products of two limbs is exact in float64


class Centre(NamedTuple):
    """The attention centre of a head, and its margin over every other shift."""

    shift: tuple[int, ...]  # n, the integer vector nearest to τ
    sharpness: Fraction  # a
    offset: tuple[Fraction, ...]  # τ − n; one number for the parabola
    gap: Fraction  # every other shift scores lower by at least this
    slack: Fraction  # twice the rounding of a score in float64


class NoCentre(ValueError):
    """The score of a head has no maximum that exceeds its own rounding error."""


def centre_of(
    v: ndarray, w_key_pos: ndarray, radix: Sequence[int] | None, widest: Sequence[int]
) -> Centre:
    """Solve c = Ŵ_keyᵀ v = −a(1, −2τ) for a and τ; the gap of Lemma 2 is a(1 − 2 max|τ − n|).

    Args:
        v: (D_k,), of this head.
        w_key_pos: (D_k, D_p).
        radix: of the parabola, r_δ = (n², n) with n = Σ radix_i δ_i; None for r_δ = (‖δ‖², δ).
        widest: the largest |δ_i| between a query and a key, one per axis.

    Raises:
        NoCentre: there is no unique maximum, or rounding or overflow may hide it.
    """
    terms, encoded = terms_of(v, w_key_pos), encoded_at_most(radix, widest)
    a, *rest = (-sum(column, Fraction(0)) for column in terms)
    if a <= 0:
        raise NoCentre("has no sharpness")
    tau = [x / (-2 * a) for x in rest]
    nearest = [math.floor(t + Fraction(1, 2)) for t in tau]
    offset = tuple(t - n for t, n in zip(tau, nearest, strict=True))
    if radix is not None:
        nearest = digits_of(nearest[0], radix, widest)
    gap = a * (1 - 2 * max(map(abs, offset)))
    size = largest_score(terms, encoded)
    # Each entry of c takes D_k products and sums, c·r takes D_p more, then the maximum is
    # subtracted: γ_n and n underflows.
    n = sum(w_key_pos.shape) + 2
    slack = 2 * (size * Fraction(n, 2**53 - n) + n * Fraction(1 + sum(encoded), 2**1074))
    _require_finite(terms, encoded)
    if not gap > slack:
        raise NoCentre(f"has a gap of {float(gap):.3g}, scores round by {float(slack / 2):.3g}")
    return Centre(tuple(nearest), a, offset, gap, slack)


def finite_scores(
    v: ndarray, w_key_pos: ndarray, radix: Sequence[int] | None, widest: Sequence[int]
) -> None:
    """Raise `NoCentre` unless every shift in the box has a finite score, which suffices for a head
    with zero values.
    """
    encoded = encoded_at_most(radix, widest)
    if radix is not None:
        digits_of(0, radix, widest)
    _require_finite(terms_of(v, w_key_pos), encoded)


def _require_finite(terms: list[list[Fraction]], encoded: list[int]) -> None:
    """Raise `NoCentre` if a score, or c itself, which 0 may multiply, may overflow."""
    if max(encoded) > 2**53 or largest_score(terms, [r or 1 for r in encoded]) >= 2**1022:
        raise NoCentre("has scores that may overflow")


def terms_of(v: ndarray, w_key_pos: ndarray) -> list[list[Fraction]]:
    """The products whose sums are c = Ŵ_keyᵀ v, one row per entry."""
    return [
        [Fraction(float(w)) * Fraction(float(x)) for w, x in zip(column, v, strict=True)]
        for column in w_key_pos.T
    ]


def encoded_at_most(radix: Sequence[int] | None, widest: Sequence[int]) -> list[int]:
    """The largest |r_δ|, per entry."""
    if radix is None:
        return [sum(w * w for w in widest), *widest]
    reach = sum(r * w for r, w in zip(radix, widest, strict=True))
    return [reach * reach, reach]


def largest_score(terms: list[list[Fraction]], encoded: list[int]) -> Fraction:
    """An upper bound on Σ|v||Ŵ_key||r_δ|."""
    sizes = (abs(x) * r for column, r in zip(terms, encoded, strict=True) for x in column)
    return sum(sizes, Fraction(0))


def digits_of(number: int, radix: Sequence[int], widest: Sequence[int]) -> list[int]:
    """The shift with this number, in balanced digits; `NoCentre` unless the radix gives each shift
    in the box its own number.
    """
    bases = [big // small for big, small in pairwise(radix) if small > 0]
    if [*radix] != [math.prod(bases[axis:]) for axis in range(len(widest))]:
        raise NoCentre(f"has a radix {radix} that is none")
    if any(base % 2 == 0 or w > base // 2 for base, w in zip(bases, widest[1:], strict=True)):
        raise NoCentre(f"has a radix {radix} that gives two shifts one number")
    digits: list[int] = []
    for base in reversed(bases):
        digits.insert(0, (number + base // 2) % base - base // 2)
        number = (number - digits[0]) // base
    return [number, *digits]


# ---- leakage -------------------------------------------------------------------------------------


def leak(centre: Centre, log_eta: int) -> float:
    """An upper bound on the attention outside the nearest key, 1 − Π 1/(1 + s_i).

    Exactly 0 if every other weight is below half of η = 2^−log_eta, the smallest number of the
    working type.  Score errors of half the slack change the odds by a factor of at most e^slack ≤ 1
    + 2·slack, for a slack below ½.
    """
    if centre.gap - centre.slack > LN2 * (log_eta + 1) + Fraction(1, 2**45):
        return 0.0
    if centre.slack >= Fraction(1, 2):
        return 1.0
    excess = Fraction(0)
    for offset in centre.offset:
        s = tail(centre.sharpness, abs(offset), 160 + math.ceil(centre.gap * 3 / 2))
        excess += s + s * excess
    return rounded_up(min(excess / (1 + excess) * (1 + 2 * centre.slack), Fraction(1)))


@cache
def tail(a: Fraction, f: Fraction, bits: int) -> Fraction:
    """An upper bound on s = Σ_{n≥1} (e^{−a(n²−2nf)} + e^{−a(n²+2nf)}): all other keys of one axis
    relative to the nearest.

    From term to term each exponent grows by a(2n + 1 ∓ 2f), and this by 2a, so four exponentials
    suffice.  The terms past N are at most e^{−an(n−1)} each, which a geometric series bounds.
    Below a = 10⁻⁶, where there are many terms, the sum over all n of the unimodal e^{−a(n−f)²} is
    at most its integral √(π/a) plus its maximum 1.
    """
    if a < Fraction(1, 10**6):
        root = Fraction(math.isqrt(math.ceil(PI / a * 4**64)) + 1, 2**64)
        return (1 + 2 * a * f * f) * (1 + root) - 1
    last = math.isqrt(math.ceil(60 / a)) + 2
    square, total = exponential(2 * a, bits), 0
    for g in (-f, f):
        term, ratio = exponential(a * (1 + 2 * g), bits), exponential(a * (3 + 2 * g), bits)
        for _ in range(last):
            total += term
            term, ratio = (term * ratio >> bits) + 1, (ratio * square >> bits) + 1
    beyond = Fraction(
        2 * exponential(a * last * (last + 1), bits),
        2**bits - exponential(2 * a * (last + 1), bits),
    )
    return Fraction(total, 2**bits) + beyond


def exponential(x: Fraction, bits: int) -> int:
    """A tight integer upper bound on 2^bits·e^−x for x ≥ 0: Taylor's series for x/2^k ≤ ⅛, squared
    k times.
    """
    if x > bits:
        return 1
    k, work = max(0, math.ceil(x * 8).bit_length()), bits + 64
    y = math.floor(x * 2**work / 2**k)
    total, most, least = 0, 1 << work, 1 << work
    # alternating series: addends round up, subtrahends down, and the last is an addend
    for n in range(1, 2 * work):
        total += most if n % 2 else -least
        if n % 2 and most <= 1:
            break
        most, least = -(-most * y // (n << work)), least * y // (n << work)
    for _ in range(k):
        total = -(-total * total >> work)
    return -(-total >> 64)


def rounded_up(value: Fraction) -> float:
    """The least double that is not below the value."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def gamma(n: int, u: float) -> float:
    """γ_n = n·u/(1 − n·u)."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


# ---- taps ----------------------------------------------------------------------------------------


def selected(a: ndarray, b: ndarray) -> ndarray | None:
    """A·B without rounding, if each row of A, or each column of B, has at most one nonzero, a power
    of two; else None.

    Args:
        a: (groups, i, e).
        b: (groups, e, o).
    """
    if 0 in a.shape:
        return np.zeros((*a.shape[:2], b.shape[2]))
    for left, right, turned in ((a, b, False), (b.swapaxes(1, 2), a.swapaxes(1, 2), True)):
        if (np.count_nonzero(left, axis=2) > 1).any():
            continue
        place = np.argmax(left != 0, axis=2)[:, :, None]
        scale, picked = (
            np.take_along_axis(left, place, axis=2),
            np.take_along_axis(right, place, axis=1),
        )
        product = scale * picked
        powers = np.isin(np.abs(np.frexp(scale)[0]), (0.0, 0.5)).all()
        with np.errstate(divide="ignore", invalid="ignore"):
            if powers and np.where(scale == 0, product == 0, product / scale == picked).all():
                return product.swapaxes(1, 2) if turned else product
    return None


def product_gap(pairs: Sequence[tuple[ndarray, ndarray]], tap: ndarray) -> ndarray:
    """An upper bound on |Σ A·B − W|, 0 only where that is exactly 0, from limbs that float64
    multiplies exactly.
    """
    terms = [(-part, exponent) for part, exponent in limbs(tap)]
    for a, b in pairs:
        if a.shape[2] >= 2**13:
            raise OverflowError("too many terms for exact products")
        terms += [(np.matmul(p, q), i + j) for p, i in limbs(a) for q, j in limbs(b)]
    least = min((exponent for _, exponent in terms), default=0)
    total = np.zeros(tap.shape, dtype=object)
    for part, exponent in terms:
        total = total + part.astype(np.int64).astype(object) * (1 << (exponent - least))
    scale = Fraction(2) ** least
    return np.array([rounded_up(abs(x) * scale) if x else 0.0 for x in total.flat]).reshape(
        tap.shape
    )


def limbs(x: ndarray) -> list[tuple[ndarray, int]]:
    """x = Σ part·2^exponent exactly, with every part an integer below 2^LIMB."""
    top, rest, parts = int(np.frexp(np.abs(x).max(initial=0.0))[1]), x, []
    while rest.any():
        top -= LIMB
        # what is too small to be exact here is below 1: left for a later limb
        part = np.trunc(np.ldexp(rest, -top))
        rest = rest - np.ldexp(part, top)
        parts += [(part, top)] if part.any() else []
    return parts
