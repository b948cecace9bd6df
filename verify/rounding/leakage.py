"""Leakage: the attention that a head gives to all but its nearest key, over the reals, at any
sharpness and on any grid.

Two bounds for the quadratic encoding with sharpness α, both independent of the grid's size (missing
keys only reduce the leakage).  Numerator and denominator of the softmax are products over the axes,
so with every integer shift present

    on the lattice:   leaked = 1 − ϑ(α)^{−d},                      ϑ(α) = 1 + 2 Σ_{n≥1} e^{−αn²}
    off the lattice:  leaked ≤ 1 − Π_i 1/(1 + s(α, f_i)),          s(α, f) = Σ_{n≥1} (e^{−α(n²−2nf)} + e^{−α(n²+2nf)})

with f = τ − round(τ).  The second equals the first at f = 0.  At f_i = ±½ two keys tie, and with
both on the grid half leaks for every α.

All is interval arithmetic: the returned number is never below the true value.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

iv: Any = mpmath.iv  # its operators are created at run time, unseen by type checkers

Number = int | float | Fraction
SOFT = Fraction(1, 100)
"""Below this α, sums over all integers use Poisson summation; e^{−π²/α} is then below 10^−428."""


def tail(alpha: Number, offset: Number) -> Any:
    """An enclosure of s(α, f): the weight of all other keys of one axis relative to the nearest.

    Beyond N, both terms are at most e^{−αn(n−1)}, because |2f| ≤ 1, and n(n−1) grows by at least
    2(N+1) per step, so they sum to at most 2e^{−αN(N+1)}/(1 − e^{−2α(N+1)}).

    Below ``SOFT`` there are too many terms; but 1 + s = e^{αf²} Σ_n e^{−α(n−f)²}, and by Poisson
    summation the sum over all n is √(π/α)(1 + 2Σ_{m≥1} e^{−π²m²/α} cos
    2πmf) ≤ √(π/α)(1 + 3e^{−π²/α}).

    Raises:
        ValueError: α is not positive, or |f| exceeds ½.
    """
    if not alpha > 0:
        raise ValueError(f"α is {alpha}, not positive")
    if not abs(offset) <= Fraction(1, 2):
        raise ValueError(f"the offset {offset} exceeds one half")
    a = _interval(alpha)
    f = _interval(offset)
    if alpha < SOFT:
        everything = iv.sqrt(iv.pi / a) * (1 + 3 * iv.exp(-iv.pi * iv.pi / a))
        return iv.exp(a * f * f) * everything - 1
    # α N² ≥ 60 makes the remainder negligible in double precision; it is bounded in any case.
    last = max(2, math.isqrt(int(60 / alpha) + 1) + 1)
    total = iv.mpf(0)
    for n in range(1, last + 1):
        total += iv.exp(-a * (n * n - 2 * n * f)) + iv.exp(-a * (n * n + 2 * n * f))
    beyond = 2 * iv.exp(-a * last * (last + 1)) / (1 - iv.exp(-2 * a * (last + 1)))
    return total + iv.mpf([0, beyond.b])


def leakage(alpha: Number, offsets: Sequence[Number]) -> float:
    """An upper bound on the weight outside the nearest key: 1 − Π_i 1/(1 + s(α, f_i)), rounded up.

    Args:
        alpha: the sharpness, positive.
        offsets: f_i = τ_i − round(τ_i), one per axis; zeros on the lattice.

    Raises:
        ValueError: α is not positive, or some |f_i| exceeds ½.

    >>> leakage(4.0, [0, 0]) < 0.08
    True
    """
    # Π(1 + s_i) − 1 without cancellation, so that a tiny leakage stays accurate.
    excess = iv.mpf(0)
    for offset in offsets:
        s = tail(alpha, offset)
        excess = excess + s + s * excess
    return min(1.0, upper(excess / (1 + excess)))


def cached_leakage(alpha: Fraction, offsets: Sequence[Fraction]) -> float:
    """:func:`leakage` at offsets rounded up to multiples of 2^−30, so that heads that differ only
    by rounding share a result.
    """
    return _cached(alpha, tuple(Fraction(math.ceil(abs(f) * 2**30), 2**30) for f in offsets))


_cached = lru_cache(maxsize=4096)(leakage)


def upper(interval: Any) -> float:
    """The least double that is not below the interval."""
    nearest = float(interval.b)
    if interval.b <= nearest:
        return nearest
    return math.nextafter(nearest, math.inf)


def _interval(value: Number) -> Any:
    if isinstance(value, Fraction):
        return iv.mpf(value.numerator) / iv.mpf(value.denominator)
    return iv.mpf(value)
