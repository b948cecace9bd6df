"""Count the attention centres that reached the shifts of a kernel, within a fixed tolerance.

A head is *placed* if every component of its centre τ is within 0.25 of the nearest integer shift
and that shift is in Δ_K. What the placed heads must satisfy depends on the number of heads:

    N_h = K²    bijection: all are placed, on different shifts; then all of Δ_K is covered
    N_h > K²    cover: every shift of Δ_K has a head placed on it; the spare heads may be anywhere
    N_h < K²    injective: all are placed, on different shifts
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

NEAR = 0.25
"""The largest distance of a centre's component from an integer shift."""
NEAREST = 0.5
"""The same, to count by the nearest shifts alone: where a head would look if it became sharp at its
place.
"""


@dataclass(frozen=True)
class Count:
    """The counts of one student.

    Attributes:
        asked: the requirement: "bijection", "cover" or "injective".
        found: whether it is met.
        covered: how many shifts of Δ_K have a head placed on them.
        shared: how many shifts of Δ_K have two heads or more placed on them.
        between: how many heads are not within the tolerance of any integer shift.
        outside: how many are near an integer shift that is not in Δ_K.
    """

    asked: str
    found: bool
    covered: int
    shared: int
    between: int
    outside: int


def count(centres: Sequence[Sequence[float]], kernel: int, near: float = NEAR) -> Count:
    """Count the centres of a student of a K × K teacher.

    Args:
        centres: τ_h, (heads, 2).
        kernel: K, odd.
        near: the largest distance of a centre's component from a shift.
    """
    reach = kernel // 2
    placed, between, outside = Counter[tuple[int, ...]](), 0, 0
    for tau in centres:
        # Not |t − round(t)| > near, which NaN would pass.
        if not all(abs(t) < 2**31 and abs(t - round(t)) <= near for t in tau):
            between += 1
        elif any(abs(round(t)) > reach for t in tau):
            outside += 1
        else:
            placed[tuple(round(t) for t in tau)] += 1
    covered, shared = len(placed), sum(n > 1 for n in placed.values())
    if len(centres) > kernel**2:
        asked, reached = "cover", covered == kernel**2
    else:
        asked = "bijection" if len(centres) == kernel**2 else "injective"
        reached = covered == len(centres)
    return Count(asked, reached, covered, shared, between, outside)
