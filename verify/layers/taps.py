"""Whether the heads at each shift sum to exactly the kernel's matrix there, decided without rounding.

Floats are dyadic rationals, so Σ_h W_val^h W_out^h = W_j is a question about integers.  Two routes:

- One head at the shift, and one of its factors a partial permutation scaled by powers of two (what the construction makes,
  and every rescaling of it): then each entry of the product is a single stored number times a power of two, exact in
  float64 as long as it stays in the normal range, and comparing is comparing numbers.
- Otherwise all factors are put over one power of two and multiplied as Python integers, which is slower.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from verify.oracle import matmul

Shift = tuple[int, ...]
SMALLEST, LARGEST = 2.0**-1000, 2.0**1000
"""Well inside the normal range of float64."""


@dataclass(frozen=True)
class TapDifference:
    """Where the heads differ from the kernel, at one shift.

    Attributes:
        shift: the shift.
        size: |Σ_h W_val^h W_out^h − W_j| as float64, never below the true value: (groups, D_in/groups, D_out/groups).
        entry: (group, i, o) of the largest difference.
        exact: the difference there, heads minus kernel, exactly.
    """

    shift: Shift
    size: np.ndarray
    entry: tuple[int, int, int]
    exact: Fraction


def scaled_permutation_product(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """A·B without rounding where A has at most one non-zero a row, a power of two; or B at most one a column.

    Args:
        a: (groups, i, e).
        b: (groups, e, o).

    Returns:
        (groups, i, o), not to be written to (it may be a factor itself); None if neither factor has that form or a product would
        leave the safe range.
    """
    if _identity(a):
        return b
    if _identity(b):
        return a
    if _one_power_of_two_a_row(a):
        return _select(a, b)
    if _one_power_of_two_a_row(np.swapaxes(b, 1, 2)):
        product = _select(np.swapaxes(b, 1, 2), np.swapaxes(a, 1, 2))
        return None if product is None else np.swapaxes(product, 1, 2)
    return None


def head_product(w_val: np.ndarray, w_out: np.ndarray) -> np.ndarray:
    """W_val W_out of one head, (groups, D_in/groups, D_out/groups), multiplied out only where that takes a sum."""
    product = scaled_permutation_product(w_val, w_out)
    return matmul(w_val, w_out) if product is None else product


def _identity(a: np.ndarray) -> bool:
    """Whether each matrix is the identity: ones on the diagonal, and no other number that is not 0."""
    groups, rows, columns = a.shape
    return rows == columns and bool((np.einsum("gii->gi", a) == 1).all()) and np.count_nonzero(a) == groups * rows


def _one_power_of_two_a_row(a: np.ndarray) -> bool:
    if (np.count_nonzero(a, axis=2) > 1).any():
        return False
    mantissa, _ = np.frexp(np.abs(a[a != 0]))
    return bool((mantissa == 0.5).all())


def _select(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """A·B for A with at most one non-zero a row: pick that row of B and scale it."""
    if a.shape[2] == 0:
        return np.zeros((*a.shape[:2], b.shape[2]))
    place = np.argmax(a != 0, axis=2, keepdims=True)
    scale, row = np.take_along_axis(a, place, axis=2), np.take_along_axis(b, place, axis=1)
    product = scale * row
    if not np.all(np.abs(scale) == 1):
        size = np.abs(product)
        lost = (product == 0) & (scale != 0) & (row != 0)
        if lost.any() or ((size > 0) & ((size < SMALLEST) | (size > LARGEST))).any():
            return None
    return product


def as_integers(array: np.ndarray) -> tuple[np.ndarray, int]:
    """An array of floats as Python integers times one power of two: array = integers · 2^exponent, exactly."""
    mantissa, exponent = np.frexp(array)
    whole = (mantissa * 2.0**53).astype(np.int64)
    least = int(exponent[array != 0].min(initial=0))
    shift = np.where(array != 0, exponent - least, 0)
    integers = np.array([int(m) << int(s) for m, s in zip(whole.flat, shift.flat, strict=True)], dtype=object)
    return integers.reshape(array.shape), least - 53


def integer_sum(pairs: Iterable[tuple[np.ndarray, np.ndarray]], minus: np.ndarray) -> tuple[np.ndarray, int]:
    """Σ A·B − C in exact integers: (object array, exponent)."""
    parts = []
    for a, b in pairs:
        (x, p), (y, q) = as_integers(a), as_integers(b)
        parts.append((np.matmul(x, y) if a.shape[2] else np.zeros(minus.shape, dtype=object), p + q))
    c, r = as_integers(minus)
    parts.append((-c, r))
    least = min(e for _, e in parts)
    return sum((part * (1 << (e - least)) for part, e in parts), start=0 * c), least


def compare_taps(
    heads: dict[Shift, list[int]],
    w_val: np.ndarray,
    w_out: np.ndarray,
    tap_at: Callable[[Shift], np.ndarray],
    shifts: Sequence[Shift],
) -> tuple[list[TapDifference], Shift | None]:
    """Every shift at which the heads do not sum to the kernel's tap; none means exact equality.

    Args:
        heads: shift → heads that look there, of those that carry something.
        w_val: (heads, groups, D_in/groups, D_h).
        w_out: (heads, groups, D_h, D_out/groups).
        tap_at: the matrix that the kernel has at a shift, (groups, D_in/groups, D_out/groups); zeros elsewhere.
        shifts: every shift at which either side has something.

    Returns:
        The differences, and the first shift at which it took exact integers, if any did.
    """
    differences: list[TapDifference] = []
    in_integers: Shift | None = None
    for shift in shifts:
        members, tap = heads.get(shift, []), tap_at(shift)
        if len(members) <= 1:
            product = (
                scaled_permutation_product(w_val[members[0]], w_out[members[0]]) if members else np.zeros(tap.shape)
            )
            if product is not None:
                if not np.array_equal(product, tap):
                    differences.append(_stored_difference(shift, product, tap))
                continue
        in_integers = in_integers or shift
        total, exponent = integer_sum(((w_val[h], w_out[h]) for h in members), tap)
        if not total.any():
            continue
        entry = max(np.ndindex(total.shape), key=lambda index: abs(total[index]))
        scale = Fraction(2) ** exponent
        size = np.array([rounded_up(abs(x) * scale) for x in total.flat]).reshape(total.shape)
        differences.append(TapDifference(shift, size, entry, total[entry] * scale))
    return differences, in_integers


def _stored_difference(shift: Shift, product: np.ndarray, tap: np.ndarray) -> TapDifference:
    """The difference of two arrays of stored numbers; a rounded subtraction is zero only for equal numbers."""
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
