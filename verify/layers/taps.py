"""Decides, without rounding, whether the heads at each shift sum to exactly the kernel's matrix
there.

Floats are dyadic rationals, so Σ_h W_val^h W_out^h = W_j is a question about integers.  Two routes:

- One head at the shift, with one factor a partial permutation scaled by powers of two (as the
  construction makes it, or a rescaling of that): then each entry of the product is a single stored
  number times a power of two, exact in float64 while it stays in the normal range, so the numbers
  can be compared directly.
- Otherwise all factors become Python integers over one power of two and are multiplied exactly,
  which is slower.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy import ndarray

from verify.oracle import Vector, matmul

SMALLEST = 2.0**-1000
LARGEST = 2.0**1000
"""Well inside the normal range of float64."""


@dataclass(frozen=True)
class TapDifference:
    """How the heads at one shift differ from the kernel.

    Attributes:
        shift: the shift.
        size: |Σ_h W_val^h W_out^h − W_j| as float64, never below the true value: (groups,
            D_in/groups, D_out/groups).
        entry: (group, i, o) of the largest difference.
        exact: the exact difference there, heads minus kernel.
    """

    shift: Vector
    size: ndarray
    entry: tuple[int, int, int]
    exact: Fraction


def scaled_permutation_product(a: ndarray, b: ndarray) -> ndarray | None:
    """A·B without rounding, if each row of A, or each column of B, has at most one nonzero entry, a
    power of two.

    Args:
        a: (groups, i, e).
        b: (groups, e, o).

    Returns:
        (groups, i, o), read-only because it may be a factor itself; None if neither factor has that
        form or a product would leave the safe range.
    """
    if _identity(a):
        return b
    if _identity(b):
        return a
    product = _select(a, b)
    if product is None:
        product = _select(np.swapaxes(b, 1, 2), np.swapaxes(a, 1, 2))
        return None if product is None else np.swapaxes(product, 1, 2)
    return product


def head_product(w_val: ndarray, w_out: ndarray) -> ndarray:
    """W_val W_out of one head, (groups, D_in/groups, D_out/groups), by a matrix product only if it
    needs sums.
    """
    product = scaled_permutation_product(w_val, w_out)
    return matmul(w_val, w_out) if product is None else product


def _identity(a: ndarray) -> bool:
    """Whether each matrix is the identity: ones on the diagonal and zeros elsewhere."""
    groups, rows, columns = a.shape
    return (
        rows == columns
        and bool((np.einsum("gii->gi", a) == 1).all())
        and np.count_nonzero(a) == groups * rows
    )


def _select(a: ndarray, b: ndarray) -> ndarray | None:
    """A·B if each row of A has at most one nonzero entry, a power of two: select the matching row
    of B and scale it.
    """
    if (np.count_nonzero(a, axis=2) > 1).any() or (np.frexp(np.abs(a[a != 0]))[0] != 0.5).any():
        return None
    if a.shape[2] == 0:
        return np.zeros((*a.shape[:2], b.shape[2]))
    place = np.argmax(a != 0, axis=2, keepdims=True)
    scale = np.take_along_axis(a, place, axis=2)
    row = np.take_along_axis(b, place, axis=1)
    product = scale * row
    if not np.all(np.abs(scale) == 1):
        size = np.abs(product)
        lost = (product == 0) & (scale != 0) & (row != 0)
        if lost.any() or ((size > 0) & ((size < SMALLEST) | (size > LARGEST))).any():
            return None
    return product


def as_integers(array: ndarray) -> tuple[ndarray, int]:
    """Floats, integers or fractions as Python integers over their common denominator:
    (object array, denominator).
    """
    ratios = [x.as_integer_ratio() for x in array.ravel().tolist()]
    denominator = math.lcm(*(d for _, d in ratios))
    integers = np.array([n * (denominator // d) for n, d in ratios], dtype=object)
    return integers.reshape(array.shape), denominator


def integer_sum(pairs: Iterable[tuple[ndarray, ndarray]], minus: ndarray) -> tuple[ndarray, int]:
    """Σ A·B − C in exact integers: (object array, denominator)."""
    parts = []
    for a, b in pairs:
        (x, p), (y, q) = as_integers(a), as_integers(b)
        parts.append(
            (np.matmul(x, y) if a.shape[2] else np.zeros(minus.shape, dtype=object), p * q)
        )
    c, r = as_integers(minus)
    parts.append((-c, r))
    denominator = max(d for _, d in parts)
    return sum((part * (denominator // d) for part, d in parts), start=0 * c), denominator


def compare_taps(
    kernel: dict[Vector, ndarray], heads: dict[Vector, list[int]], w_val: ndarray, w_out: ndarray
) -> tuple[list[TapDifference], Vector | None]:
    """Compare the sum of the heads with the kernel's tap at every shift; no difference means exact
    equality.

    Args:
        kernel: for each shift of a tap, its matrix (groups, D_in/groups, D_out/groups).
        heads: for each shift, the heads that look there and carry something.
        w_val: (heads, groups, D_in/groups, D_h).
        w_out: (heads, groups, D_h, D_out/groups).

    Returns:
        The differences, and the first shift that needed exact integers, or None.
    """
    differences: list[TapDifference] = []
    in_integers: Vector | None = None
    zero = np.zeros((*w_val.shape[1:3], w_out.shape[3]))
    for shift in sorted({*kernel, *heads}):
        members = heads.get(shift, [])
        tap = kernel.get(shift, zero)
        if len(members) <= 1:
            product = (
                scaled_permutation_product(w_val[members[0]], w_out[members[0]])
                if members
                else zero
            )
            if product is not None:
                if not np.array_equal(product, tap):
                    differences.append(_stored_difference(shift, product, tap))
                continue
        in_integers = in_integers or shift
        total, denominator = integer_sum(((w_val[h], w_out[h]) for h in members), tap)
        if not total.any():
            continue
        entry = max(np.ndindex(total.shape), key=lambda index: abs(total[index]))
        scale = Fraction(1, denominator)
        size = np.array([rounded_up(abs(x) * scale) for x in total.flat]).reshape(total.shape)
        differences.append(TapDifference(shift, size, entry, total[entry] * scale))
    return differences, in_integers


def _stored_difference(shift: Vector, product: ndarray, tap: ndarray) -> TapDifference:
    """The difference of two arrays of stored numbers; rounded subtraction gives 0 only for equal
    numbers.
    """
    with np.errstate(over="ignore"):
        size = np.abs(product - tap)
    entry = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), size.shape))
    exact = Fraction(float(product[entry])) - Fraction(float(tap[entry]))
    return TapDifference(shift, np.where(size > 0, np.nextafter(size, np.inf), 0.0), entry, exact)  # type: ignore[arg-type]


def rounded_up(value: Fraction) -> float:
    """The least double that is not below ``value``; infinite beyond the largest."""
    try:
        nearest = float(value)
    except OverflowError:
        return float("inf")
    return nearest if Fraction(nearest) >= value else float(np.nextafter(nearest, np.inf))
