"""The shift τ at which each head looks, and its sharpness, from the stored numbers in exact
rational arithmetic.

The score of a shift is c·r_δ with c = Ŵ_keyᵀ v.  For the quadratic encoding, with a = −c_0 > 0 and
τ = c_{1…d}/(2a), it is −a‖δ − τ‖² up to a constant.  Let n be the integer vector nearest to τ and
f = τ − n, all |f_i| < ½.  For an integer m ≠ 0

    score(n) − score(n + m) = a Σ_i (m_i² − 2 m_i f_i) ≥ a Σ_i
    |m_i|(|m_i| − 2|f_i|) ≥ a(1 − 2 max|f_i|),

so n is the only maximum, with that gap.  The parabola is the case of one axis: the shift's number
in mixed radix.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy import ndarray

from verify.layers.fields import Attention
from verify.oracle import Sides, Vector


@dataclass(frozen=True)
class Target:
    """Where one head looks.

    Attributes:
        shift: the integer vector n nearest to τ.
        sharpness: a, exactly.
        offset: f = τ − n, exactly; one number for the parabola.
        gap: an exact lower bound, over the reals, on how far every other shift's score lies below.
        size: Σ_k |v_k Ŵ_kp| for each p: the size of the score's terms, for its rounding bound.
    """

    shift: Vector
    sharpness: Fraction
    offset: tuple[Fraction, ...]
    gap: Fraction
    size: tuple[Fraction, ...]


Row = tuple[float, ...]


def stored_rows(attention: Attention, head: int) -> tuple[Row, tuple[Row, ...]]:
    """v and the columns of Ŵ_key of one head, as stored."""
    return tuple(attention.v[head].tolist()), tuple(
        map(tuple, attention.w_key_pos[head].T.tolist())
    )


# Layers with the same encoding and sharpness share the same few numbers, which serve as cache keys.
@lru_cache(maxsize=4096)
def position_vector(v: Row, columns: tuple[Row, ...]) -> tuple[Fraction, ...]:
    """c = Ŵ_keyᵀ v of one head, exactly."""
    exact = [Fraction(x) for x in v]
    return tuple(
        sum((Fraction(w) * x for w, x in zip(column, exact, strict=True)), Fraction(0))
        for column in columns
    )


def target(attention: Attention, head: int) -> Target | None:
    """Where a head looks, or None if its score has no unique maximum over the integers."""
    return _target(*stored_rows(attention, head), attention.radix)


def attends_by_content(attention: Attention) -> bool:
    """Whether some head that carries something may attend by the tokens' content."""
    return bool((attention.content & attention.carrying).any())


def content_size(attention: Attention, bound: float, largest: ndarray) -> ndarray:
    """The size of each head's scores but for vᵀ Ŵ_key r_δ, for |x| ≤ bound: float64 (heads,).

    ``largest`` is that of :func:`largest_encoding`.
    """
    query = bound * np.abs(attention.w_qry).sum(axis=1)  # (heads, D_k)
    key = bound * np.abs(attention.w_key).sum(axis=1)
    places = np.abs(attention.w_key_pos) @ largest
    asking = query + np.abs(attention.u)
    return (asking * key + query * places).sum(axis=1)


def named(heads: ndarray) -> str:
    """The heads of a mask, which selects some, in words."""
    first, *rest = np.flatnonzero(heads).tolist()
    if not rest:
        return f"head {first}"
    if rest[-1] - first == len(rest):
        return f"heads {first} to {rest[-1]}"
    return f"heads {', '.join(map(str, (first, *rest)))}"


@lru_cache(maxsize=4096)
def _target(v: Row, columns: tuple[Row, ...], radix: Vector | None) -> Target | None:
    c = position_vector(v, columns)
    a = -c[0]
    if a <= 0:
        return None
    tau = [x / (2 * a) for x in c[1:]]
    nearest = [round(x) for x in tau]
    offset = tuple(x - n for x, n in zip(tau, nearest, strict=True))
    worst = max(abs(f) for f in offset)
    if 2 * worst >= 1:
        return None
    shift = tuple(nearest) if radix is None else shift_of_number(nearest[0], radix)
    if shift is None:
        return None
    return Target(shift, a, offset, a * (1 - 2 * worst), score_size(v, columns))


def score_size(v: Row, columns: tuple[Row, ...]) -> tuple[Fraction, ...]:
    """Σ_k |v_k Ŵ_kp| for each p: the size of the terms of a head's scores."""
    return position_vector(tuple(map(abs, v)), tuple(tuple(map(abs, column)) for column in columns))


def shift_of_number(number: int, radix: Vector) -> Vector | None:
    """The shift δ with Σ radix_i δ_i = number and every δ_i but the first in its balanced range;
    None if there is none.
    """
    shift = []
    for axis in range(len(radix) - 1, 0, -1):
        base, rest = divmod(radix[axis - 1], radix[axis])
        if rest or base % 2 == 0:
            return None
        unit = number // radix[axis]
        digit = (unit + base // 2) % base - base // 2
        shift.append(digit)
        number -= digit * radix[axis]
    first, rest = divmod(number, radix[0])
    return None if rest else (first, *reversed(shift))


def numbers_are_distinct(radix: Vector, box: Sides) -> bool:
    """Whether the mixed radix gives each shift in the box a distinct number from which it can be
    read back.
    """
    if radix[-1] != 1:
        return False
    for axis in range(1, len(radix)):
        base, rest = divmod(radix[axis - 1], radix[axis])
        least, most = box[axis]
        if rest or base % 2 == 0 or max(-least, most) > base // 2:
            return False
    return True


def largest_encoding(radix: Vector | None, box: Sides) -> Vector:
    """The largest |r_δ| over the box, per component."""
    widest = [max(-least, most, 0) for least, most in box]
    if radix is None:
        return (sum(w * w for w in widest), *widest)
    number = sum(abs(r) * w for r, w in zip(radix, widest, strict=True))
    return (number * number, number)


def score_rounding(attention: Attention, at: Target, box: Sides) -> Fraction:
    """A bound on the rounding error of this head's scores in float64, anywhere in the box.

    Each entry of c takes D_k products and sums, c·r takes D_p more, and then the maximum is
    subtracted.  A product that underflows errs by the smallest number, which c·r may multiply.
    """
    operations = attention.w_key_pos.shape[1] + attention.w_key_pos.shape[2] + 2
    u = Fraction(1, 2**53)
    gamma = operations * u / (1 - operations * u)
    largest = largest_encoding(attention.radix, box)
    underflow = operations * Fraction(1, 2**1074) * (1 + sum(largest))
    return (
        gamma * sum((s * r for s, r in zip(at.size, largest, strict=True)), Fraction(0)) + underflow
    )


def largest_score(attention: Attention, head: int, box: Sides) -> Fraction:
    """A bound on every intermediate of this head's scores, anywhere in the box."""
    largest = largest_encoding(attention.radix, box)
    size = score_size(*stored_rows(attention, head))
    return 2 * sum((s * max(1, r) for s, r in zip(size, largest, strict=True)), Fraction(0))
