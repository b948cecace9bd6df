"""The bijection of Lemma 1 between heads and kernel positions.

The paper writes f : heads → Δ_K.  Head h attends the key at q + τ_h, and τ runs once through
{dil·j − a : j a kernel position}, which for an odd undilated kernel is exactly Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d.
"""

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
