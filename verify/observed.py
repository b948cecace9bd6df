"""What two runs gave at one call, and whether a ball holds it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verify.balls import Ball


@dataclass(frozen=True)
class Seen:
    """One output of a call, as the two runs gave it.

    Attributes:
        here: of the original, float64.
        apart: |b − a|.
        size: |a|.
        most: the greatest |b − a|; finite only if all numbers are.
    """

    here: Tensor
    apart: Tensor
    size: Tensor
    most: float

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> "Seen":
        """From what the original and the converted network gave."""
        here = a.detach().cpu().to(torch.float64, copy=True)
        apart = b.detach().cpu().to(torch.float64, copy=True).sub_(here).abs_()
        return cls(here, apart, here.abs(), greatest(apart))

    @cached_property
    def largest(self) -> float:
        """The greatest |a|."""
        return greatest(self.size)

    def within(self, ball: Ball) -> bool:
        """Whether a ball holds them; written so that a NaN fails."""
        apart, size, low, high = self.apart, self.size, self.here, self.here
        if ball.centred and ball.even and ball.error.numel():  # far within, as a rule
            if self.most <= ball.error.min() and self.largest <= ball.size.min():
                return True
        if ball.even:  # of all that one number stands for, the greatest and the least
            axes = [axis for axis, n in enumerate(ball.error.shape) if n == 1]
            apart, low, high = apart.amax(axes, True), low.amin(axes, True), high.amax(axes, True)
            size = torch.maximum(-low, high)
        if not bool((apart <= ball.error).all()):
            return False
        if ball.centred:  # [−size, size]
            return bool((size <= ball.size).all())
        return bool((ball.low <= low).all()) and bool((high <= ball.high).all())


def greatest(values: Tensor) -> float:
    """Of numbers that may be none; a NaN is the greatest."""
    return float(values.max()) if values.numel() else 0.0
