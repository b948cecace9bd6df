"""The bijection of Lemma 1 between heads and kernel positions.

The paper writes f : heads → Δ_K.  Head h attends the key at q + τ_h, and τ runs once through
{dil·j − a : j a kernel position}, which for an odd undilated kernel is exactly Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from construct.geometry import ConvGeometry

Shift = tuple[int, ...]


def tap_shifts(geometry: ConvGeometry) -> tuple[Shift, ...]:
    """The shift τ_j = dil·j − a of every tap j, taps in row-major order (the last axis fastest)."""
    return tuple(
        tuple(dil * j - a for j, dil, a in zip(tap, geometry.dilation, geometry.anchor, strict=True))
        for tap in product(*map(range, geometry.kernel_size))
    )


@dataclass(frozen=True)
class HeadBijection:
    """Which head looks where: head h carries tap ``order[h]`` and attends at the shift ``shifts[h]``.

    Attributes:
        order: a permutation of the taps (row-major numbers).
        shifts: τ_h of each head; all different.
    """

    order: tuple[int, ...]
    shifts: tuple[Shift, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.shifts))):
            raise ValueError(f"the order of heads is not a permutation of 0 … {len(self.shifts) - 1}")
        if len(set(self.shifts)) != len(self.shifts):
            raise ValueError("two heads look at the same shift: no bijection")

    @classmethod
    def onto(cls, geometry: ConvGeometry, order: Sequence[int] | None = None) -> "HeadBijection":
        """The bijection from heads onto the taps of ``geometry``.

        Args:
            geometry: of the convolution.
            order: ``order[h]`` is the row-major number of the tap that head h carries; by default h itself.

        Raises:
            ValueError: ``order`` is not a permutation of all taps.
        """
        shifts = tap_shifts(geometry)
        order = tuple(range(len(shifts))) if order is None else tuple(order)
        if sorted(order) != list(range(len(shifts))):
            raise ValueError(f"the order of heads is not a permutation of 0 … {len(shifts) - 1}")
        return cls(order, tuple(shifts[tap] for tap in order))


# ---- the parabola: shifts of a bounded box as single numbers --------------------------------------------------------------


def balanced_radix(geometry: ConvGeometry, alpha: float) -> tuple[int, ...]:
    """The mixed radix that numbers the largest box of shifts whose scores are exact in float64.

    Axis i takes −N … N for one N, so radix_i = (2N + 1)^{d−1−i}.  A score is at most 3αn² in size on the way, with n at most
    ((2N + 1)^d − 1)/2; so N is the largest with 3αn² ≤ 2^53.  In one dimension the number is the shift itself.

    Raises:
        ValueError: the kernel's own shifts do not fit into that box.
    """
    widest = math.isqrt(int(2**53 / (3 * alpha)))  # the largest number n
    side = int((2 * widest + 1) ** (1 / geometry.dims)) + 2
    while side % 2 == 0 or side**geometry.dims > 2 * widest + 1:
        side -= 1
    if any(abs(t) > side // 2 for shift in tap_shifts(geometry) for t in shift):
        raise ValueError(
            f"at α = {alpha} the parabola numbers shifts up to {side // 2}, and this kernel reaches farther"
        )
    return tuple(side ** (geometry.dims - 1 - axis) for axis in range(geometry.dims))


def shift_of_number(number: int, radix: Shift) -> Shift:
    """The shift with this number whose components, but for the first, lie in the balanced range of their axis."""
    shift: list[int] = []
    for outer, weight in zip(reversed(radix[:-1]), reversed(radix[1:]), strict=True):
        base = outer // weight
        digit = (number // weight + base // 2) % base - base // 2
        shift.append(digit)
        number -= digit * weight
    return (number // radix[0], *reversed(shift))


def shifts_are_distinct(radix: Shift, box: Sequence[tuple[int, int]]) -> bool:
    """Whether every shift of the box has a number of its own that reads back as that shift."""
    return all(
        max(-least, most) <= outer // weight // 2
        for outer, weight, (least, most) in zip(radix[:-1], radix[1:], box[1:], strict=True)
    )


def require_distinct(radix: Shift | None, box: Sequence[tuple[int, int]]) -> None:
    """Make sure that a radix, if there is one, can number the shifts of a box.

    Raises:
        ValueError: two shifts would have one number.
    """
    if radix is not None and not shifts_are_distinct(radix, box):
        raise ValueError(f"MHSA: the parabola of radix {radix} cannot number the shifts {box} of this input")
